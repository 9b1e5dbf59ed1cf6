//! Paths: a request's path as the servers behind a proxy will read it.
//!
//! A client spells one path in many ways, and a proxy hands the spelling on: `/%6Cogin`, `//login` and `/x/../login` must
//! not be other paths than `/login` to a limit on it. What is no UTF-8 once decoded becomes U+FFFD.

use percent_encoding::percent_decode_str;

/// The path of a request's target, without query and fragment.
pub(super) fn of(target: &[u8]) -> String {
    let target = String::from_utf8_lossy(target);
    let target = target.split(['?', '#']).next().unwrap_or_default();
    // The absolute form, `http://host/path`.
    let target = match target.split_once("://") {
        Some((scheme, rest)) if !scheme.contains('/') => rest.find('/').map_or("", |at| &rest[at..]),
        _ => target,
    };
    let decoded = percent_decode_str(target).decode_utf8_lossy();
    let mut path = String::with_capacity(decoded.len() + 1);
    let mut is_folder = false;
    for segment in decoded.split('/') {
        is_folder = matches!(segment, "" | "." | "..");
        match segment {
            "" | "." => {}
            ".." => path.truncate(path.rfind('/').unwrap_or(0)),
            segment => {
                path.push('/');
                path.push_str(segment);
            }
        }
    }
    if is_folder {
        path.push('/');
    }
    path
}

#[cfg(test)]
mod tests {
    use super::of;

    /// Whoever finds a second spelling of `/login` has a second limit.
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
            ("/caf%C3%A9/%FF%", "/café/\u{FFFD}%"),
        ] {
            assert_eq!(of(target.as_bytes()), path, "{target}");
        }
        assert_eq!(of(b"/\xff"), "/\u{FFFD}");
    }
}
