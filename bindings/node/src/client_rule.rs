//! Who sent a request, behind proxies.

use napi_derive::napi;
use slidegate_bindings as bindings;

use crate::error::{Result, thrown};

/// The rule by which a client's address is found.
#[napi]
pub struct ClientRule(bindings::ClientRule);

#[napi]
impl ClientRule {
    /// The rule of [`bindings::ClientRule::new`].
    #[napi(constructor, catch_unwind)]
    pub fn new(
        trusted_proxies: Vec<String>,
        header: Option<String>,
        ipv6_prefix: Option<u8>,
    ) -> Result<Self> {
        let rule = bindings::ClientRule::new(header.as_deref(), &trusted_proxies, ipv6_prefix);
        rule.map(Self).map_err(thrown)
    }

    /// The header to pass to [`client`](Self::client).
    #[napi(getter, catch_unwind)]
    pub fn header(&self) -> Option<String> {
        self.0.header().map(str::to_owned)
    }

    /// The key of the client.
    #[napi(catch_unwind)]
    pub fn client(&self, peer: Option<String>, lines: Vec<String>) -> String {
        self.0.client(peer.as_deref(), lines.iter().map(String::as_bytes))
    }
}
