//! Request lines.

use crate::block::{Escape, RecordWriter, Text};
use crate::column::{is_token, split_at_space};

/// Sets method, target and protocol from a request line, unless it is not HTTP.
pub(crate) fn set_request(text: &[u8], escape: Escape, out: &mut RecordWriter<'_>) {
    let (method, rest) = split_at_space(text);
    let Some(rest) = rest else { return };
    let last_space = memchr::memrchr(b' ', rest);
    let (target, protocol) = match last_space.map(|space| (&rest[..space], &rest[space + 1..])) {
        Some((target, protocol)) if protocol.starts_with(b"HTTP/") => (target, Some(protocol)),
        _ => (rest, None),
    };
    // Words without a protocol are a request only if they can be HTTP/0.9; garbage seldom can.
    let is_http = protocol.is_some() || (target.starts_with(b"/") && !target.contains(&b' '));
    if !is_http || !is_token(method) || target.is_empty() {
        return;
    }
    out.text(Text::Method, method, Escape::None);
    out.text(Text::Target, target, escape);
    if let Some(protocol) = protocol {
        out.text(Text::Protocol, protocol, Escape::None);
    }
}
