//! Web pages: whether a browser sends a request because a page of another site made it.
//!
//! Browsers say so themselves in `Sec-Fetch-Site` and `Origin`, which no page can change. A page
//! that makes its own name resolve to this machine (DNS rebinding) is of the same site to its
//! browser, and shows in `Host`.

use std::net::IpAddr;

use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};

use crate::problem::Problem;

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Whether the request was sent to a loopback address, to `localhost`, or to one of `names`.
pub(super) fn is_for_this_machine(headers: &HeaderMap, names: &[String]) -> bool {
    let Some((name, _)) = host(headers) else { return false };
    let is_own = |own: &String| own.eq_ignore_ascii_case(name);
    name.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
        || name.eq_ignore_ascii_case("localhost")
        || names.iter().any(is_own)
}

/// The port that `Host` names.
pub(super) fn port(headers: &HeaderMap) -> Option<u16> {
    host(headers)?.1.parse().ok()
}

/// The name or address of `Host` and its port, which may be empty.
fn host(headers: &HeaderMap) -> Option<(&str, &str)> {
    let host = headers.get(header::HOST)?.to_str().ok()?;
    let (name, port) = match host.strip_prefix('[') {
        Some(rest) => rest.split_once(']')?,
        None => host.split_at(host.find(':').unwrap_or(host.len())),
    };
    Some((name, port.strip_prefix(':').unwrap_or(port)))
}

/// Whether the browser says that a page of another site asks. Programs say nothing of the kind.
pub(super) fn is_of_another_site(headers: &HeaderMap) -> bool {
    let is_other = |site: &HeaderValue| !matches!(site.as_bytes(), b"same-origin" | b"none");
    let is_foreign = |origin: &HeaderValue| {
        let host = headers.get(header::HOST).map_or(&b""[..], HeaderValue::as_bytes);
        // Behind `http://` or `https://` an origin has the form of `Host`.
        let own = origin.to_str().ok().and_then(|origin| origin.split_once("://"));
        !own.is_some_and(|(_, origin)| origin.as_bytes().eq_ignore_ascii_case(host))
    };
    headers.get(SEC_FETCH_SITE).is_some_and(is_other) || headers.get(header::ORIGIN).is_some_and(is_foreign)
}

/// Refuses a change that a page of another site asks for. A browser sends JSON to another site only
/// after asking whether it may, which nobody answers here.
pub(super) fn is_no_form(headers: &HeaderMap) -> Result<(), Problem> {
    let media_type = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let media_type = media_type.and_then(|value| value.split(';').next()).unwrap_or_default();
    if !media_type.trim().eq_ignore_ascii_case("application/json") {
        let detail = "changes need `Content-Type: application/json`";
        return Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, detail));
    }
    if is_of_another_site(headers) {
        let detail = "the request comes from a page of another site; open the page of this service";
        return Err(Problem::new(StatusCode::FORBIDDEN, detail));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)))
            .collect()
    }

    /// A page that rebinds its name to 127.0.0.1 is on this machine's listener and must do nothing
    /// there.
    #[test]
    fn only_names_of_this_machine_are_its_own() {
        let names = ["slidegate".to_owned()];
        for host in
            ["localhost", "LOCALHOST:7979", "127.0.0.1:7979", "127.1.2.3", "[::1]:80", "[::1]", "Slidegate:1"]
        {
            assert!(is_for_this_machine(&headers(&[("host", host)]), &names), "{host}");
        }
        for host in [
            "",
            ":7979",
            "[::1",
            "slidegate.evil.example",
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1.evil.example:7979",
            "10.0.0.1",
            "[fe80::1]",
        ] {
            assert!(!is_for_this_machine(&headers(&[("host", host)]), &names), "{host}");
        }
        assert!(!is_for_this_machine(&HeaderMap::new(), &names));
        assert!(!is_for_this_machine(&headers(&[("host", "slidegate")]), &[]));
    }

    /// The port tells a page that rebinds its name from a proxy that passes its client's `Host` on.
    #[test]
    fn the_port_is_read_from_every_form_of_a_host() {
        for (host, expected) in [
            ("a:7979", Some(7979)),
            ("[::1]:80", Some(80)),
            ("a", None),
            ("[::1]", None),
            ("a:", None),
            ("a:x", None),
            ("a:99999", None),
        ] {
            assert_eq!(port(&headers(&[("host", host)])), expected, "{host}");
        }
    }

    /// A program that is asked where its request comes from would be broken for a browser's sake.
    #[test]
    fn programs_and_pages_of_the_service_itself_are_not_foreign() {
        const HOST: (&str, &str) = ("host", "127.0.0.1:7979");
        for (pairs, is_foreign) in [
            (&[HOST][..], false),
            (&[HOST, ("content-type", "application/x-www-form-urlencoded")], false),
            (&[HOST, ("origin", "http://127.0.0.1:7979"), ("sec-fetch-site", "same-origin")], false),
            (&[HOST, ("sec-fetch-site", "none")], false),
            (&[HOST, ("sec-fetch-site", "cross-site")], true),
            (&[HOST, ("sec-fetch-site", "same-site")], true),
            (&[HOST, ("sec-fetch-site", "")], true),
            (&[HOST, ("origin", "https://evil.example")], true),
            // Another port of this machine is another program.
            (&[HOST, ("origin", "http://127.0.0.1:3000")], true),
            (&[HOST, ("origin", "null")], true),
            (&[HOST, ("origin", "")], true),
        ] {
            assert_eq!(is_of_another_site(&headers(pairs)), is_foreign, "{pairs:?}");
        }
    }

    /// An operator who visits a page must not change limits by it.
    #[test]
    fn a_page_of_another_site_changes_nothing() {
        const JSON: (&str, &str) = ("content-type", "application/json; charset=utf-8");
        const HOST: (&str, &str) = ("host", "gate:7979");
        for (pairs, passes) in [
            (&[JSON, HOST][..], true),
            (&[JSON, HOST, ("sec-fetch-site", "same-origin"), ("origin", "http://gate:7979")], true),
            (&[JSON, HOST, ("sec-fetch-site", "none")], true),
            (&[JSON, HOST, ("sec-fetch-site", "cross-site")], false),
            (&[JSON, HOST, ("sec-fetch-site", "same-site")], false),
            (&[JSON, HOST, ("origin", "http://evil.example")], false),
            (&[JSON, HOST, ("origin", "null")], false),
            (&[HOST, ("content-type", "text/plain")], false),
            (&[HOST, ("content-type", "application/x-www-form-urlencoded")], false),
            (&[HOST], false),
        ] {
            assert_eq!(is_no_form(&headers(pairs)).is_ok(), passes, "{pairs:?}");
        }
    }
}
