//! Request lines.

use crate::block::{Escape, RecordWriter, Text};
use crate::column::{is_token, split_at_space};

/// Sets method and target from a request line, unless it is not HTTP.
pub(crate) fn set_request(text: &[u8], escape: Escape, out: &mut RecordWriter<'_>) {
    let (method, rest) = split_at_space(text);
    let Some(rest) = rest else { return };
    let last_space = rest.iter().rposition(|&byte| byte == b' ');
    // Words without a protocol are a request only if they can be HTTP/0.9; garbage rarely can.
    let (target, is_http) = match last_space.map(|space| (&rest[..space], &rest[space + 1..])) {
        Some((target, protocol)) if protocol.starts_with(b"HTTP/") => (target, true),
        _ => (rest, rest.starts_with(b"/") && !rest.contains(&b' ')),
    };
    if !is_http || !is_token(method) || target.is_empty() {
        return;
    }
    out.text(Text::Method, method, Escape::None);
    out.text(Text::Target, target, escape);
}
