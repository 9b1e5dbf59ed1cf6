//! Request paths and hosts, normalized as servers behind a proxy do.
//!
//! A client can write one path in many ways, and a proxy forwards it unchanged: `/%6Cogin`,
//! `//login` and `/x/../login` must match a limit on `/login`. So it is with hosts: `API.example.com:443`
//! is `api.example.com`. Bytes that are not UTF-8 are kept.

use std::borrow::Cow;

/// The normalized path of a request target: without query and fragment, percent-decoded, with `//`,
/// `.` and `..` resolved. A target that is normalized already is not copied.
///
/// ```
/// use slidegate::request_path::normalized_path;
///
/// assert_eq!(*normalized_path(b"/login?next=/"), *b"/login");
/// assert_eq!(*normalized_path(b"/x/..//%6Cogin"), *b"/login");
/// ```
#[must_use]
pub fn normalized_path(target: &[u8]) -> Cow<'_, [u8]> {
    match normalized_len(target) {
        Some(length) => Cow::Borrowed(&target[..length]),
        None => {
            let end = target.iter().position(|byte| matches!(byte, b'?' | b'#')).unwrap_or(target.len());
            Cow::Owned(normalize(&target[..end]))
        }
    }
}

/// The normalized host of a `Host` header: in lower case, without port and trailing dots. One that is
/// normalized already is not copied.
///
/// ```
/// use slidegate::request_path::normalized_host;
///
/// assert_eq!(*normalized_host(b"API.example.com.:443"), *b"api.example.com");
/// assert_eq!(*normalized_host(b"[2001:DB8::1]:80"), *b"[2001:db8::1]");
/// ```
#[must_use]
pub fn normalized_host(host: &[u8]) -> Cow<'_, [u8]> {
    let host = without_port(host);
    if host.iter().any(u8::is_ascii_uppercase) {
        return Cow::Owned(host.to_ascii_lowercase());
    }
    Cow::Borrowed(host)
}

/// Without ports and dots at the end, in whatever order: a client may write several.
fn without_port(mut host: &[u8]) -> &[u8] {
    loop {
        let digits = host.iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
        host = match host.split_at(host.len() - digits).0 {
            [name @ .., b':'] if !is_in_brackets(host) => name,
            _ => match host {
                [name @ .., b'.'] => name,
                _ => return host,
            },
        };
    }
}

/// Whether the end is inside of the brackets of an IPv6 address, where a colon begins no port.
fn is_in_brackets(host: &[u8]) -> bool {
    host.first() == Some(&b'[') && !host.contains(&b']')
}

/// The length of the path, if nothing in it has to be decoded or resolved; `None` if that is not
/// certain.
#[inline]
fn normalized_len(target: &[u8]) -> Option<usize> {
    if target.first() != Some(&b'/') {
        return None;
    }
    let mut after_slash = false;
    for (at, &byte) in target.iter().enumerate() {
        // Most bytes take this one comparison.
        if byte > b'?' {
            after_slash = false;
            continue;
        }
        match byte {
            b'?' | b'#' => return Some(at),
            b'%' => return None,
            b'/' | b'.' if after_slash => return None,
            _ => after_slash = byte == b'/',
        }
    }
    Some(target.len())
}

fn normalize(target: &[u8]) -> Vec<u8> {
    let decoded = percent_decoded(without_origin(target));
    let (mut path, is_folder) = resolved(decoded.split(|byte| *byte == b'/'));
    if is_folder {
        path.push(b'/');
    }
    path
}

/// The path of these segments, without empty ones, `.` and `..`, and whether the last is one of them.
pub(crate) fn resolved<'s>(segments: impl Iterator<Item = &'s [u8]>) -> (Vec<u8>, bool) {
    let mut path = Vec::new();
    let mut is_folder = false;
    for segment in segments {
        is_folder = matches!(segment, b"" | b"." | b"..");
        match segment {
            b"" | b"." => {}
            b".." => path.truncate(path.iter().rposition(|byte| *byte == b'/').unwrap_or(0)),
            segment => {
                path.push(b'/');
                path.extend_from_slice(segment);
            }
        }
    }
    (path, is_folder)
}

/// Decodes `%41`. Other text is kept.
fn percent_decoded(text: &[u8]) -> Vec<u8> {
    let digit = |at: usize| text.get(at).and_then(|byte| char::from(*byte).to_digit(16));
    let mut plain = Vec::with_capacity(text.len());
    let mut at = 0;
    while let Some(&byte) = text.get(at) {
        let value =
            digit(at + 1).zip(digit(at + 2)).and_then(|(high, low)| u8::try_from(high << 4 | low).ok());
        let (byte, length) = value.filter(|_| byte == b'%').map_or((byte, 1), |decoded| (decoded, 3));
        plain.push(byte);
        at += length;
    }
    plain
}

/// The part after the host of an absolute target, `http://host/path`; other targets unchanged.
fn without_origin(target: &[u8]) -> &[u8] {
    let Some(at) = target.windows(3).position(|bytes| bytes == b"://") else { return target };
    if target[..at].contains(&b'/') {
        return target;
    }
    let rest = &target[at + 3..];
    rest.iter().position(|byte| *byte == b'/').map_or(b"", |at| &rest[at..])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(target: &[u8]) -> Vec<u8> {
        let path = normalized_path(target);
        // The shortcut must not be taken where it differs.
        let end = target.iter().position(|byte| matches!(byte, b'?' | b'#')).unwrap_or(target.len());
        assert_eq!(*path, *normalize(&target[..end]));
        path.into_owned()
    }

    /// Anyone who finds a second spelling of `/login` has a second limit.
    #[test]
    fn a_path_is_one_path_in_every_spelling() {
        for (target, path) in [
            ("/login", "/login"),
            ("/login?next=/a/../b", "/login"),
            ("/%6Cog%69n", "/login"),
            ("//login", "/login"),
            ("/./login", "/login"),
            ("/x/../login", "/login"),
            ("/%2e%2E/login", "/login"),
            ("/../../login#top", "/login"),
            ("http://example.org:80/login?x", "/login"),
            ("http://example.org", "/"),
            ("", "/"),
            ("/", "/"),
            ("/a//b/", "/a/b/"),
            ("/a/b/..", "/a/"),
            ("/a/b/.", "/a/b/"),
            ("/a%2Fb%3Fc", "/a/b?c"),
            ("/go?to=http://x/y", "/go"),
            ("/go/http://x", "/go/http:/x"),
            ("/caf%C3%A9/%", "/café/%"),
            ("/caf%c3%a9/%4", "/café/%4"),
            ("/.well-known/x", "/.well-known/x"),
            ("/a/...", "/a/..."),
            ("login", "/login"),
            ("*", "/*"),
        ] {
            assert_eq!(of(target.as_bytes()), path.as_bytes(), "{target}");
        }
    }

    /// Anyone who finds a second spelling of a host has a second limit.
    #[test]
    fn a_host_is_one_host_in_every_spelling() {
        for (host, normalized) in [
            ("api.example.com", "api.example.com"),
            ("API.example.com", "api.example.com"),
            ("api.example.com:443", "api.example.com"),
            ("api.example.com.", "api.example.com"),
            ("Api.Example.Com.:8080", "api.example.com"),
            ("api.example.com:80.", "api.example.com"),
            ("api.example.com..:80:80", "api.example.com"),
            ("api.example.com:", "api.example.com"),
            ("localhost", "localhost"),
            ("192.0.2.7:80", "192.0.2.7"),
            ("[2001:DB8::1]", "[2001:db8::1]"),
            ("[2001:db8::1]:80", "[2001:db8::1]"),
            ("[2001:db8::1", "[2001:db8::1"),
            ("a:b", "a:b"),
            ("shop1", "shop1"),
            ("shop.80", "shop.80"),
            ("", ""),
            (":80", ""),
        ] {
            let found = normalized_host(host.as_bytes());
            assert_eq!(*found, *normalized.as_bytes(), "{host}");
            assert_eq!(*normalized_host(&found), *found, "{host} is normalized at once");
        }
        assert_eq!(*normalized_host(b"\xffA:1"), *b"\xffa");
    }

    /// Two files whose names differ in one byte must not share a limit because the byte is not
    /// text.
    #[test]
    fn bytes_that_are_not_text_stay_as_they_are() {
        assert_eq!(of(b"/%F1"), b"/\xf1");
        assert_eq!(of(b"/\xf2/../\xf3"), b"/\xf3");
        assert_ne!(of(b"/%F1"), of(b"/%F2"));
    }
}
