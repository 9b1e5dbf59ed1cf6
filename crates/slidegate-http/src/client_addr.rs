//! Client address: finds the sender of a request behind any number of proxies.
//!
//! A forwarding header is read from the right. Every proxy appends the address it saw, so only the
//! right end was written by a trusted party; anything on the left may have been sent by the client.
//! This also holds for the grammar: no byte from a client, not even an unclosed quote, changes how
//! the entries after it are read.
//!
//! Resolving an address allocates nothing. If the header cannot be trusted, the client is the peer.

use std::net::IpAddr;
use std::str::FromStr;

use slidegate::Error;
use slidegate::network::canonical;

mod lines;
mod node;
mod resolved;
mod trusted;

use lines::Lines;
pub use lines::{MAX_ENTRIES, MAX_LINES};
use node::{forwarded_node, is_token, node};
pub use resolved::{Found, Resolved};
pub use trusted::{MAX_NETWORKS, TrustedProxies};

/// How the client's address is derived from a connection's peer and a request's headers.
///
/// The default reads `X-Forwarded-For` and trusts no proxy: the client is always the peer, and
/// [`Found::Untrusted`] indicates a proxy that is missing from the configuration.
///
/// ```
/// use slidegate_http::client_addr::{ClientAddr, Found, Source, Trust, TrustedProxies};
///
/// let proxies = TrustedProxies::new(["10.0.0.0/8"])?;
/// let rule = ClientAddr::new(Source::XForwardedFor, Trust::Networks(proxies));
///
/// // The client typed 6.6.6.6 itself; the first proxy appended what it saw, the second appended the first.
/// let headers = [("x-forwarded-for", &b"6.6.6.6, 203.0.113.7, 10.0.0.2"[..])];
/// let client = rule.resolve("10.0.0.1".parse().ok(), headers);
/// assert_eq!(client.addr, "203.0.113.7".parse().ok());
/// assert_eq!(client.found, Found::Header);
///
/// // A stranger who sends the header is only himself.
/// let client = rule.resolve("198.51.100.9".parse().ok(), headers);
/// assert_eq!(client.addr, "198.51.100.9".parse().ok());
/// assert_eq!(client.found, Found::Untrusted);
/// # Ok::<(), slidegate::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ClientAddr {
    source: Source,
    trust: Trust,
}

impl ClientAddr {
    /// Reads `source` if `trust` allows it. With [`Source::Peer`], `trust` is ignored.
    #[must_use]
    pub const fn new(source: Source, trust: Trust) -> Self {
        Self { source, trust }
    }

    /// The name of the header that is read, or `None` for the peer.
    #[must_use]
    pub fn header(&self) -> Option<&str> {
        self.source.header()
    }

    /// The client of one request. Never fails: [`Resolved::found`] tells why a header was not used.
    ///
    /// `peer` is the other end of the connection, or `None` for a Unix socket. `headers` are all
    /// header lines of the request in order, as name and value. Names are compared without regard
    /// to case. With the `http` crate: `map.iter().map(|(name, value)| (name.as_str(),
    /// value.as_bytes()))`.
    pub fn resolve<'h>(
        &self,
        peer: Option<IpAddr>,
        headers: impl IntoIterator<Item = (&'h str, &'h [u8])>,
    ) -> Resolved {
        match self.read(peer, headers) {
            Ok(addr) => Resolved { addr: Some(canonical(addr)), found: Found::Header },
            Err(found) => Resolved { addr: peer.map(canonical), found },
        }
    }

    /// The address in the header, or the reason to use the peer.
    fn read<'h>(
        &self,
        peer: Option<IpAddr>,
        headers: impl IntoIterator<Item = (&'h str, &'h [u8])>,
    ) -> Result<IpAddr, Found> {
        let header = self.source.header().ok_or(Found::Peer)?;
        if !self.trust.believes(peer) {
            let is_sent = headers.into_iter().any(|(name, _)| name.eq_ignore_ascii_case(header));
            return Err(if is_sent { Found::Untrusted } else { Found::Peer });
        }
        let lines = Lines::of(header, headers);
        match self.source {
            _ if lines.count == 0 => Err(Found::Absent),
            Source::Peer => Err(Found::Peer),
            Source::XForwardedFor => self.trust.walk(&lines, node),
            Source::Forwarded => self.trust.walk(&lines, forwarded_node),
            Source::Single(_) if lines.count > 1 => Err(Found::TooMany),
            Source::Single(_) => node(lines.kept[0].trim_ascii()).ok_or(Found::Malformed),
        }
    }
}

/// Where the client's address is read from.
///
/// Parses from `peer`, `x-forwarded-for`, `forwarded`, or the name of any other header, which
/// becomes [`Source::Single`].
///
/// ```
/// use slidegate_http::client_addr::Source;
///
/// assert_eq!("X-Forwarded-For".parse(), Ok(Source::XForwardedFor));
/// assert_eq!("CF-Connecting-IP".parse(), Ok(Source::Single("CF-Connecting-IP".into())));
/// assert!("X-Real-IP:".parse::<Source>().is_err());
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Source {
    /// The other end of the connection. No header is read.
    Peer,
    /// `X-Forwarded-For`: addresses separated by commas. Each proxy appends the peer it saw.
    #[default]
    XForwardedFor,
    /// `Forwarded` (RFC 7239): the same list in its `for=` parameters. `unknown` and `_hidden` are
    /// not addresses.
    Forwarded,
    /// A header with one address that the proxy overwrites: `CF-Connecting-IP`, `True-Client-IP`,
    /// `X-Real-IP`.
    Single(String),
}

impl Source {
    /// The name of the header that is read, or `None` for the peer.
    #[must_use]
    pub fn header(&self) -> Option<&str> {
        match self {
            Self::Peer => None,
            Self::XForwardedFor => Some("x-forwarded-for"),
            Self::Forwarded => Some("forwarded"),
            Self::Single(name) => Some(name),
        }
    }
}

impl FromStr for Source {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        match text.to_ascii_lowercase().as_str() {
            "peer" => Ok(Self::Peer),
            "x-forwarded-for" => Ok(Self::XForwardedFor),
            "forwarded" => Ok(Self::Forwarded),
            name if !name.is_empty() && name.bytes().all(is_token) => Ok(Self::Single(text.to_owned())),
            _ => Err(Error::address(format!(
                "invalid client address source `{}`: must be `peer` or a header name, for example `x-forwarded-for`",
                text.escape_debug()
            ))),
        }
    }
}

/// The trusted proxies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trust {
    /// Proxies known by address. The header is read only if the peer is one of them. Entries are
    /// then skipped from the right while they are proxies too; the first other entry is the client.
    /// If all entries are proxies, the client is the leftmost.
    Networks(TrustedProxies),
    /// This many proxies in front, at any address. The client is the entry that many from the
    /// right; 0 is the peer.
    ///
    /// Every peer is trusted, so use this only if nobody can bypass the proxies, and only with the
    /// right number: if it is one too high, clients choose their own address. With any number above
    /// 0, a [`Source::Single`] header is trusted.
    Hops(u8),
}

impl Default for Trust {
    /// No proxies.
    fn default() -> Self {
        Self::Networks(TrustedProxies::default())
    }
}

impl Trust {
    /// Whether a header from `peer` may be read.
    fn believes(&self, peer: Option<IpAddr>) -> bool {
        match self {
            Self::Networks(proxies) => proxies.contains_peer(peer),
            Self::Hops(hops) => *hops > 0,
        }
    }

    /// Walks the entries from the right to the client's. `parse` reads one entry.
    fn walk(&self, lines: &Lines, parse: fn(&[u8]) -> Option<IpAddr>) -> Result<IpAddr, Found> {
        let address = |entry| parse(entry).ok_or(Found::Malformed);
        match self {
            Self::Networks(proxies) => {
                let mut leftmost = Err(Found::Absent);
                for entry in lines.entries() {
                    let addr = address(entry?)?;
                    if !proxies.contains(addr) {
                        return Ok(addr);
                    }
                    leftmost = Ok(addr);
                }
                leftmost
            }
            Self::Hops(hops) => {
                let mut entries = lines.entries();
                for _proxy in 1..*hops {
                    entries.next().unwrap_or(Err(Found::TooFew))?;
                }
                address(entries.next().unwrap_or(Err(Found::TooFew))?)
            }
        }
    }
}
