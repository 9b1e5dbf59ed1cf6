//! Normalizes a request's path as servers behind a proxy do.
//!
//! A client can write one path in many ways, and a proxy forwards it unchanged: `/%6Cogin`,
//! `//login` and `/x/../login` must match a limit on `/login`. Bytes that are not UTF-8 are kept.

use percent_encoding::percent_decode;

/// The normalized path of a request target, without query and fragment.
pub(super) fn of(target: &[u8]) -> Vec<u8> {
    let end = target.iter().position(|byte| matches!(byte, b'?' | b'#')).unwrap_or(target.len());
    let target = without_origin(&target[..end]);
    let decoded: Vec<u8> = percent_decode(target).collect();
    let mut path = Vec::with_capacity(decoded.len() + 1);
    let mut is_folder = false;
    for segment in decoded.split(|byte| *byte == b'/') {
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
    if is_folder {
        path.push(b'/');
    }
    path
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
    use super::of;

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
        ] {
            assert_eq!(of(target.as_bytes()), path.as_bytes(), "{target}");
        }
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
