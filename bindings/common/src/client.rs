//! Who sent a request, behind proxies.

use std::net::IpAddr;

use slidegate::network::{Ipv6Prefix, group};
use slidegate_http::client_addr::{ClientAddr, Source, Trust, TrustedProxies};

use crate::BindingError;

/// How the client's address is found, see [`ClientAddr`].
#[derive(Debug, Clone)]
pub struct ClientRule {
    rule: ClientAddr,
    header: Option<String>,
    prefix: Ipv6Prefix,
}

impl ClientRule {
    /// Reads `header`, by default `X-Forwarded-For`, from these proxies: networks, addresses, and the
    /// names that [`TrustedProxies`] knows. Without any, the client is the peer. Addresses of one IPv6
    /// network of this many bits, 56 by default, are one client.
    pub fn new(
        header: Option<&str>,
        trusted_proxies: &[String],
        ipv6_prefix: Option<u8>,
    ) -> Result<Self, BindingError> {
        let source: Source = header.map_or(Ok(Source::default()), str::parse)?;
        let header = source.header().map(str::to_owned);
        let trust = if trusted_proxies.is_empty() {
            Trust::default()
        } else {
            Trust::Networks(TrustedProxies::new(trusted_proxies)?)
        };
        let prefix = ipv6_prefix.map_or(Ok(Ipv6Prefix::default()), Ipv6Prefix::new)?;
        Ok(Self { rule: ClientAddr::new(source, trust), header, prefix })
    }

    /// The header to pass to [`client`](Self::client), or `None` if it needs none.
    pub fn header(&self) -> Option<&str> {
        self.header.as_deref()
    }

    /// The key of the client: its address, or the network of an IPv6 address. `unknown` if the peer has
    /// no address, as on a Unix socket, and no header was trusted. `lines` are those of the header, in
    /// order.
    pub fn client<'h>(&self, peer: Option<&str>, lines: impl IntoIterator<Item = &'h [u8]>) -> String {
        let peer: Option<IpAddr> = peer.and_then(|peer| peer.split('%').next()?.parse().ok());
        let name = self.header().unwrap_or_default();
        let headers = lines.into_iter().map(|line| (name, line));
        match self.rule.resolve(peer, headers).addr {
            Some(address) => group(address, self.prefix).to_string(),
            None => "unknown".to_owned(),
        }
    }
}
