//! One entry of a forwarding header: an address, optionally with brackets and a port, or an RFC
//! 7239 element.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::lines::from_right;

/// The address in `1.2.3.4`, `1.2.3.4:80`, `2001:db8::1`, `[2001:db8::1]` or `[2001:db8::1]:80`.
pub(super) fn node(text: &[u8]) -> Option<IpAddr> {
    let text = str::from_utf8(text).ok()?;
    if let Some(bracketed) = text.strip_prefix('[') {
        let (v6, rest) = bracketed.split_once(']')?;
        let ends = rest.is_empty() || is_port(rest.strip_prefix(':')?);
        return v6.parse::<Ipv6Addr>().ok().filter(|_| ends).map(IpAddr::V6);
    }
    text.parse().ok().or_else(|| {
        let (v4, port) = text.split_once(':')?;
        v4.parse::<Ipv4Addr>().ok().filter(|_| is_port(port)).map(IpAddr::V4)
    })
}

/// A port (RFC 7239): one to five digits, or an obfuscated port, which begins with `_`.
fn is_port(text: &str) -> bool {
    match text.strip_prefix('_') {
        Some(name) => !name.is_empty() && name.bytes().all(is_token),
        None => matches!(text.len(), 1..=5) && text.bytes().all(|byte| byte.is_ascii_digit()),
    }
}

/// Longest value of `for=` in bytes. The longest address with brackets and port has 53.
const MAX_NODE: usize = 64;

/// The address in the one `for=` of an RFC 7239 element such as
/// `for="[2001:db8::1]:4711";proto=https`.
///
/// The grammar requires quotes around a colon. Some proxies omit them, so they are optional here.
pub(super) fn forwarded_node(element: &[u8]) -> Option<IpAddr> {
    let mut value = None;
    for pair in from_right(element, b';') {
        if pair.is_empty() {
            continue;
        }
        let equals = pair.iter().position(|byte| *byte == b'=')?;
        let is_for = pair[..equals].eq_ignore_ascii_case(b"for");
        if is_for && value.replace(&pair[equals + 1..]).is_some() {
            return None;
        }
    }
    let value = value?;
    let Some(quoted) = value.strip_prefix(b"\"") else { return node(value) };

    let mut text = [0; MAX_NODE];
    let mut len = 0;
    let mut bytes = quoted.strip_suffix(b"\"")?.iter();
    while let Some(&byte) = bytes.next() {
        *text.get_mut(len)? = if byte == b'\\' { *bytes.next()? } else { byte };
        len += 1;
    }
    node(&text[..len])
}

/// A byte of a token (RFC 9110, 5.6.2), which header names consist of.
pub(super) fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}
