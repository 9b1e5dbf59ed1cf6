//! The client of a line, derived like in the service: the address that the server saw, or the one forwarded
//! by trusted proxies.

use slidegate_http::client_addr::{ClientAddr, Found};

use crate::attributes::address;
use crate::block::{Escape, RecordWriter, Text};

/// Prefix of attributes that are request headers.
const HEADER: &str = "header.";

/// Sets a record's client by the rule. It stays as logged if there are no forwarded addresses or they do not
/// come from a trusted proxy.
pub(crate) fn derive(rule: &ClientAddr, out: &mut RecordWriter<'_>) {
    let Some(client) = out.known(out.record.texts[Text::Client as usize]) else { return };
    let list = client.iter().rposition(|&byte| byte == b',').map(|comma| &client[..comma]);
    if list.is_none() && !out.has_extras() {
        return;
    }
    let Some(peer) = address(client) else { return };
    let header = |(name, value)| Some((std::str::from_utf8(name).ok()?.strip_prefix(HEADER)?, value));
    let listed = list.map(|list| ("x-forwarded-for", list));
    let headers = out.extras().filter_map(header).chain(listed);
    let derived = rule.resolve(Some(peer), headers);
    if let (Found::Header, Some(address)) = (derived.found, derived.addr) {
        out.text(Text::Client, address.to_string().as_bytes(), Escape::None);
    }
}
