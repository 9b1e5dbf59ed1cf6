//! Client address: who sent a request, when proxies may stand in front.
//!
//! A forwarding header is read from the right: every proxy appends what it saw, so only the right end was written by
//! someone we know, and whatever stands on the left the client may have typed itself. That holds for the grammar too:
//! no byte a client sends, an open quote included, changes how the entries behind it are read.
//! Nothing here allocates per request; what cannot be believed falls back to the peer.

use std::net::IpAddr;
use std::str::FromStr;

use crate::error::Error;

mod group;
mod lines;
mod node;
mod trusted;

pub(crate) use group::network;
pub use group::{Grouped, Ipv6Prefix, canonical, group};
use lines::Lines;
pub use lines::{MAX_ENTRIES, MAX_LINES};
use node::{forwarded_node, is_token, node};
pub use trusted::{MAX_NETWORKS, TrustedProxies};

/// The rule that turns a connection's peer and a request's headers into the client's address.
///
/// The default reads `X-Forwarded-For` and trusts nobody: it always answers the peer, and [`Found::Untrusted`] tells
/// when a proxy seems to be in front that nobody declared.
///
/// ```
/// use slidegate::client_addr::{ClientAddr, Found, Source, Trust, TrustedProxies};
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
    /// The rule that reads `source` when `trust` allows it. With [`Source::Peer`] the trust does not matter.
    #[must_use]
    pub const fn new(source: Source, trust: Trust) -> Self {
        Self { source, trust }
    }

    /// The client of one request.
    ///
    /// `peer` is the other end of the connection, `None` for a Unix socket. `headers` are all header lines of the
    /// request in their order, name and value; names match in any case. With the `http` crate:
    /// `map.iter().map(|(name, value)| (name.as_str(), value.as_bytes()))`.
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

    /// The address in the header, or why the peer has to do.
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

/// Where the client's address stands.
///
/// Parses from `peer`, `x-forwarded-for`, `forwarded`, or the name of any other header, which is then
/// [`Source::Single`].
///
/// ```
/// use slidegate::client_addr::Source;
///
/// assert_eq!("X-Forwarded-For".parse(), Ok(Source::XForwardedFor));
/// assert_eq!("CF-Connecting-IP".parse(), Ok(Source::Single("CF-Connecting-IP".into())));
/// assert!("X-Real-IP:".parse::<Source>().is_err());
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Source {
    /// The connection's other end; no header is looked at.
    Peer,
    /// `X-Forwarded-For`: addresses separated by commas, each proxy appends the peer it saw.
    #[default]
    XForwardedFor,
    /// `Forwarded`, RFC 7239: the same chain in its `for=` parameters. `unknown` and `_hidden` are not addresses.
    Forwarded,
    /// A header with one address, that the proxy overwrites: `CF-Connecting-IP`, `True-Client-IP`, `X-Real-IP`.
    Single(String),
}

impl Source {
    /// The name of the header that is read, `None` for the peer.
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
                "client address source `{}` is not a header name; write for example `x-forwarded-for` or `peer`",
                text.escape_debug()
            ))),
        }
    }
}

/// Whose word about the client counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trust {
    /// Proxies known by address. The header is read only if the peer is one of them; then entries are skipped from
    /// the right while they are proxies too, and the first other one is the client. If all are, it is the leftmost.
    Networks(TrustedProxies),
    /// This many proxies in front, of any address: the client is that many entries from the right, 0 is the peer.
    ///
    /// Every peer is believed, so this is safe only where nobody can reach the service around the proxies, and only
    /// with the right number: one too many and the client chooses its own address. A [`Source::Single`] header is
    /// believed at any number but 0.
    Hops(u8),
}

impl Default for Trust {
    /// Nobody.
    fn default() -> Self {
        Self::Networks(TrustedProxies::default())
    }
}

impl Trust {
    /// Whether a header that came from `peer` may be read.
    fn believes(&self, peer: Option<IpAddr>) -> bool {
        match self {
            Self::Networks(proxies) => proxies.contains_peer(peer),
            Self::Hops(hops) => *hops > 0,
        }
    }

    /// Walks the entries from the right to the client's; `parse` reads one entry.
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

/// A request's client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Resolved {
    /// The client's address in its [`canonical`] form. `None` only if the peer has none and no header was believed:
    /// such requests share one key of their own.
    pub addr: Option<IpAddr>,
    /// Where it was found: in the header, or why it is the peer's.
    pub found: Found,
}

/// How a client's address was found. Everything but [`Found::Header`] means: it is the peer's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Found {
    /// In the header.
    Header,
    /// The peer is the client: no header is to be read, or it is not trusted and sent none.
    Peer,
    /// The header was there, but the peer is not trusted: a client that makes it up, or a proxy nobody declared.
    Untrusted,
    /// The peer is trusted and sent no such header, or an empty one: a health check, or another header is meant.
    Absent,
    /// An entry that had to be read is not an address, RFC 7239's `unknown` and `_hidden` among them. What stands left
    /// of it cannot be believed: nobody knows who wrote it.
    Malformed,
    /// There are fewer entries than [`Trust::Hops`]: the request came around a proxy, or the number is wrong.
    TooFew,
    /// The client would stand past [`MAX_LINES`] or [`MAX_ENTRIES`], or a [`Source::Single`] header has several lines.
    TooMany,
}
