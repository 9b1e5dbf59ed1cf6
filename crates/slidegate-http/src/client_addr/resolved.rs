//! The client of a request, and how its address was found.

use std::net::IpAddr;

/// The client of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Resolved {
    /// The client's address in its [`canonical`](super::canonical) form. `None` only if the peer
    /// has no address and no header was trusted; all such requests share one key.
    pub addr: Option<IpAddr>,
    /// Whether the address is from the header, or why it is the peer's.
    pub found: Found,
}

/// How the client's address was found. Every variant except [`Found::Header`] means that it is the
/// peer's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Found {
    /// In the header.
    Header,
    /// The peer is the client: no header is configured, or the peer is not trusted and sent none.
    Peer,
    /// The peer sent the header but is not trusted. Either a client forged it, or a proxy is
    /// missing from the configuration.
    Untrusted,
    /// The peer is trusted but sent no such header, or an empty one. Either it is a health check,
    /// or the wrong header is configured.
    Absent,
    /// An entry that had to be read is not an address; this includes `unknown` and `_hidden` (RFC
    /// 7239). Entries to the left of it cannot be trusted.
    Malformed,
    /// The header has fewer entries than [`Trust::Hops`](super::Trust::Hops): the request bypassed
    /// a proxy, or the number is wrong.
    TooFew,
    /// The client's entry is beyond [`MAX_LINES`](super::MAX_LINES) or
    /// [`MAX_ENTRIES`](super::MAX_ENTRIES), or a [`Source::Single`](super::Source::Single) header
    /// has several lines.
    TooMany,
}
