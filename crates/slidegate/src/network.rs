//! Canonical addresses, and the IPv6 prefix by which clients are grouped.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use ipnet::{IpNet, Ipv4Net};

use crate::error::Error;

/// One form per host. An IPv4-mapped address (RFC 4291, `::ffff:0:0/96`) and a NAT64 address with
/// the well-known prefix (RFC 6052, `64:ff9b::/96`) become their IPv4 address. Any other address is
/// unchanged.
///
/// Bits are compared, not notation. Without the NAT64 rule, all clients behind NAT64 would share
/// one IPv6 group.
///
/// ```
/// use slidegate::network::canonical;
///
/// let ip = |text: &str| text.parse::<std::net::IpAddr>().unwrap();
/// assert_eq!(canonical(ip("::ffff:102:304")), ip("1.2.3.4"));
/// assert_eq!(canonical(ip("64:ff9b::1.2.3.4")), ip("1.2.3.4"));
/// assert_eq!(canonical(ip("2001:db8::1.2.3.4")), ip("2001:db8::102:304"));
/// ```
#[must_use]
#[inline]
pub fn canonical(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V6(ip) => canonical_of_v6(ip),
        v4 @ IpAddr::V4(_) => v4,
    }
}

fn canonical_of_v6(ip: Ipv6Addr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V6(v6) if v6.octets()[..12] == [0, 0x64, 0xff, 0x9b, 0, 0, 0, 0, 0, 0, 0, 0] => {
            let [.., a, b, c, d] = v6.octets();
            IpAddr::V4(Ipv4Addr::new(a, b, c, d))
        }
        plain => plain,
    }
}

/// The address that represents everyone who shares a key with `ip`: an IPv6 address truncated to
/// `prefix`, or a whole IPv4 address. The address is made [`canonical`] first.
///
/// ```
/// use slidegate::network::{Ipv6Prefix, group};
///
/// let ip = |text: &str| text.parse::<std::net::IpAddr>().unwrap();
/// assert_eq!(group(ip("2001:db8:1234:5678::1"), Ipv6Prefix::default()), ip("2001:db8:1234:5600::"));
/// assert_eq!(group(ip("::ffff:1.2.3.4"), Ipv6Prefix::default()), ip("1.2.3.4"));
/// ```
#[must_use]
#[inline]
pub fn group(ip: IpAddr, prefix: Ipv6Prefix) -> IpAddr {
    match canonical(ip) {
        IpAddr::V6(v6) => IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() & (u128::MAX << (128 - prefix.0)))),
        v4 @ IpAddr::V4(_) => v4,
    }
}

/// The [`group`] of an address as text, for keys and logs: `1.2.3.4` or `2001:db8:1234:5600::/56`.
/// The suffix is omitted with [`Ipv6Prefix::OFF`].
///
/// ```
/// use slidegate::network::{Grouped, Ipv6Prefix};
///
/// let ip = "2001:db8:1234:5678::1.2.3.4".parse().unwrap();
/// assert_eq!(Grouped(ip, Ipv6Prefix::default()).to_string(), "2001:db8:1234:5600::/56");
/// assert_eq!(Grouped(ip, Ipv6Prefix::OFF).to_string(), "2001:db8:1234:5678::102:304");
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Grouped(pub IpAddr, pub Ipv6Prefix);

impl fmt::Display for Grouped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match group(self.0, self.1) {
            IpAddr::V6(v6) if self.1 != Ipv6Prefix::OFF => write!(f, "{v6}/{}", self.1.bits()),
            whole => whole.fmt(f),
        }
    }
}

/// How many leading bits of an IPv6 address identify a client: 32 to 128, by default 56.
///
/// A household or server gets a /56 to /64 and may use a new address for every request, so a limit
/// on more than 64 bits limits nobody.
///
/// ```
/// use slidegate::network::Ipv6Prefix;
///
/// assert_eq!(Ipv6Prefix::new(64)?.bits(), 64);
/// assert_eq!(
///     Ipv6Prefix::new(8).unwrap_err().to_string(),
///     "invalid IPv6 prefix length 8: must be 32 to 128, for example 56"
/// );
/// # Ok::<(), slidegate::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ipv6Prefix(u8);

impl Ipv6Prefix {
    /// Every address is its own group: 128 bits.
    pub const OFF: Self = Self(128);

    /// Groups by the first `bits` bits.
    ///
    /// # Errors
    /// If `bits` is not 32 to 128. Fewer bits would group all clients of a provider.
    pub fn new(bits: u8) -> Result<Self, Error> {
        if (32..=128).contains(&bits) {
            return Ok(Self(bits));
        }
        Err(Error::address(format!("invalid IPv6 prefix length {bits}: must be 32 to 128, for example 56")))
    }

    /// The number of bits, 32 to 128.
    #[must_use]
    pub const fn bits(self) -> u8 {
        self.0
    }
}

impl Default for Ipv6Prefix {
    fn default() -> Self {
        Self(56)
    }
}

/// A network: `10.0.0.0/8`, `2001:db8::/32`, or a single address. An IPv4-mapped one is IPv4.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Network(pub(crate) IpNet);

impl Network {
    /// Parses a network or an address. `None` if the text is neither.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        network(text).map(Self)
    }

    /// Whether an address is in the network. IPv4-mapped addresses are IPv4 addresses.
    #[must_use]
    pub fn contains(&self, ip: IpAddr) -> bool {
        self.0.contains(&ip.to_canonical())
    }

    /// Whether the network has every address of its family: `0.0.0.0/0` or `::/0`.
    #[must_use]
    pub fn has_every_address(&self) -> bool {
        self.0.prefix_len() == 0
    }
}

impl FromStr for Network {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        Self::parse(text).ok_or_else(|| {
            Error::policy(format!(
                "invalid network `{text}`: must be a network or an address, for example `10.0.0.0/8` or `2001:db8::/32`"
            ))
        })
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Parses a network or a single address. An IPv4-mapped one becomes IPv4. `None` for any other
/// text.
fn network(text: &str) -> Option<IpNet> {
    let network = text.parse().or_else(|_| text.parse::<IpAddr>().map(IpNet::from)).ok()?;
    let IpNet::V6(v6) = network else { return Some(network.trunc()) };
    let unmapped = v6.addr().to_ipv4_mapped().zip(v6.prefix_len().checked_sub(96));
    let v4 = unmapped.and_then(|(v4, bits)| Ipv4Net::new(v4, bits).ok());
    Some(v4.map_or(network, IpNet::V4).trunc())
}
