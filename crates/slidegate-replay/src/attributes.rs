//! The attributes of an entry, as policies see them.

use std::borrow::Cow;
use std::net::IpAddr;

use slidegate::request_path::{normalized_host, normalized_path};

use crate::entry::Entry;

/// Attributes available in every format.
pub(crate) const NAMES: [&str; 8] =
    ["ip", "path", "method", "user", "user_agent", "host", "referer", "status"];

#[derive(Debug)]
pub(crate) enum AttributeValue<'e> {
    Address(IpAddr),
    Text(Cow<'e, [u8]>),
}

/// An attribute of an entry. Looked up one by one, because policies need few of them.
pub(crate) fn attribute<'e>(entry: &'e Entry<'_>, name: &str) -> Option<AttributeValue<'e>> {
    let column = |column: &'e Option<Cow<'_, [u8]>>| column.as_deref().map(Cow::Borrowed);
    let line = entry.request.as_ref();
    let text = match name {
        // A client logged by name is counted by name.
        "ip" if !entry.client.is_empty() => match address(entry.client) {
            Some(ip) => return Some(AttributeValue::Address(ip)),
            None => Some(Cow::Borrowed(entry.client)),
        },
        // Normalized as for live requests from proxies: all spellings of a path are one key.
        "path" => line.filter(|line| !line.target.is_empty()).map(|line| normalized_path(&line.target)),
        "method" => line.filter(|line| !line.method.is_empty()).map(|line| Cow::Borrowed(line.method)),
        "user" => column(&entry.user),
        "user_agent" => column(&entry.user_agent),
        "host" => entry.host.as_deref().map(normalized_host),
        "referer" => column(&entry.referer),
        "status" if entry.status > 0 => Some(Cow::Owned(entry.status.to_string().into_bytes())),
        _ => None,
    };
    text.or_else(|| entry.extra.get(name).map(Cow::Borrowed)).map(AttributeValue::Text)
}

/// The address of a client, with or without a port. Of a list, the last one: the one that the
/// nearest proxy saw.
pub(crate) fn address(client: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(client).ok()?;
    if let Ok(ip) = text.parse() {
        return Some(ip);
    }
    let last = text.rsplit(',').next()?.trim();
    let bare = last.strip_prefix('[').and_then(|last| last.strip_suffix(']')).unwrap_or(last);
    bare.parse().ok().or_else(|| last.parse().ok().map(|address: std::net::SocketAddr| address.ip()))
}
