//! Trusted proxies: networks, and keywords for common sets of them.

use std::net::IpAddr;

use slidegate::Error;
use slidegate::network::Network;

/// Maximum number of networks in a [`TrustedProxies`]. Each request is compared with every one.
/// Large content delivery networks publish a few hundred ranges.
pub const MAX_NETWORKS: usize = 1024;

/// The proxies whose headers are trusted.
///
/// An IPv4-mapped IPv6 address (`::ffff:10.1.2.3`) is treated as the IPv4 address, both here and in
/// requests. A NAT64 address is not: a client behind a translator must never pass as the proxy
/// whose IPv4 address it embeds.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TrustedProxies {
    networks: Vec<Network>,
    /// Whether peers without an address (Unix sockets) are trusted.
    unix: bool,
}

impl TrustedProxies {
    /// Parses entries. Each is a network (`10.0.0.0/8`), an address (`10.1.2.3`) or a keyword:
    /// `loopback`; `private` (RFC 1918, `fc00::/7`, link-local and loopback); `unix` (peers without
    /// an address).
    ///
    /// # Errors
    /// If an entry is none of these, or if there are more than [`MAX_NETWORKS`] networks.
    ///
    /// ```
    /// use slidegate_http::client_addr::TrustedProxies;
    ///
    /// let proxies = TrustedProxies::new(["private", "203.0.113.0/24"])?;
    /// assert!(proxies.contains("192.168.1.1".parse().unwrap()));
    /// assert!(proxies.contains("::ffff:203.0.113.9".parse().unwrap()));
    ///
    /// let error = TrustedProxies::new(["10.0.0/8"]).unwrap_err();
    /// assert_eq!(
    ///     error.to_string(),
    ///     "invalid trusted proxy `10.0.0/8`: must be an address or a network, for example `10.0.0.0/8`"
    /// );
    /// # Ok::<(), slidegate::Error>(())
    /// ```
    pub fn new<E: AsRef<str>>(entries: impl IntoIterator<Item = E>) -> Result<Self, Error> {
        let mut proxies = Self::default();
        for entry in entries {
            let entry = entry.as_ref().trim();
            let texts = match entry {
                "unix" => {
                    proxies.unix = true;
                    continue;
                }
                "loopback" => LOOPBACK,
                "private" => PRIVATE,
                _ => &[entry],
            };
            for text in texts {
                proxies.networks.push(Network::parse(text).ok_or_else(|| {
                    let expected = "must be an address or a network, for example `10.0.0.0/8`";
                    Error::address(format!("invalid trusted proxy `{}`: {expected}", text.escape_debug()))
                })?);
            }
        }
        if proxies.networks.len() > MAX_NETWORKS {
            return Err(Error::address(format!(
                "too many trusted proxy networks: {}, must be at most {MAX_NETWORKS}; join them into wider ones",
                proxies.networks.len()
            )));
        }
        Ok(proxies)
    }

    /// Whether the peer, which may have no address, is a trusted proxy.
    pub(super) fn contains_peer(&self, peer: Option<IpAddr>) -> bool {
        peer.map_or(self.unix, |addr| self.contains(addr))
    }

    /// Whether `addr` is a trusted proxy. Takes time proportional to the number of networks.
    #[must_use]
    pub fn contains(&self, addr: IpAddr) -> bool {
        self.networks.iter().any(|network| network.contains(addr))
    }

    /// Whether a network such as `0.0.0.0/0` makes every client of its address family a proxy.
    /// Clients can then choose their own address, so this deserves a warning at startup.
    #[must_use]
    pub fn trusts_everyone(&self) -> bool {
        self.networks.iter().any(Network::has_every_address)
    }
}

/// Networks of the keyword `loopback`.
const LOOPBACK: &[&str] = &["127.0.0.0/8", "::1"];

/// Networks of the keyword `private`: RFC 1918, unique local, link-local, loopback.
const PRIVATE: &[&str] = &[
    "10.0.0.0/8",
    "172.16.0.0/12",
    "192.168.0.0/16",
    "fc00::/7",
    "169.254.0.0/16",
    "fe80::/10",
    "127.0.0.0/8",
    "::1",
];
