//! Cross-site requests: detects requests that a page of another site made a browser send (CSRF, DNS
//! rebinding).
//!
//! Browsers set `Sec-Fetch-Site` and `Origin`, and pages cannot change them. With DNS rebinding, a
//! page's own name resolves to this machine and the browser sees the same site; then `Host` reveals
//! it.

use std::net::IpAddr;

use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};

use crate::wire::problem::Problem;

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Whether `Host` is a loopback address, `localhost`, or one of `names`.
pub(super) fn is_for_this_machine(headers: &HeaderMap, names: &[String]) -> bool {
    let Some((name, _)) = host(headers) else { return false };
    let is_own = |own: &String| own.eq_ignore_ascii_case(name);
    // The usual value first: parsing takes longer than everything else here.
    name == "127.0.0.1"
        || name.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
        || name.eq_ignore_ascii_case("localhost")
        || names.iter().any(is_own)
}

/// The port in `Host`.
pub(super) fn port(headers: &HeaderMap) -> Option<u16> {
    host(headers)?.1.parse().ok()
}

/// The name or address in `Host`, and the port, which may be empty.
fn host(headers: &HeaderMap) -> Option<(&str, &str)> {
    let host = headers.get(header::HOST)?.to_str().ok()?;
    let (name, port) = match host.strip_prefix('[') {
        Some(rest) => rest.split_once(']')?,
        None => host.split_at(host.find(':').unwrap_or(host.len())),
    };
    Some((name, port.strip_prefix(':').unwrap_or(port)))
}

/// Whether a browser marked the request as cross-site. Programs do not send these headers.
pub(super) fn is_cross_site(headers: &HeaderMap) -> bool {
    let is_other = |site: &HeaderValue| !matches!(site.as_bytes(), b"same-origin" | b"none");
    let differs_from_host = |origin: &HeaderValue| {
        let host = headers.get(header::HOST).map_or(&b""[..], HeaderValue::as_bytes);
        // After `http://` or `https://`, an origin has the form of `Host`.
        let own = origin.to_str().ok().and_then(|origin| origin.split_once("://"));
        !own.is_some_and(|(_, origin)| origin.as_bytes().eq_ignore_ascii_case(host))
    };
    headers.get(SEC_FETCH_SITE).is_some_and(is_other)
        || headers.get(header::ORIGIN).is_some_and(differs_from_host)
}

/// Whether a browser sent the request without saying for which site: it adds `Sec-Fetch-Site` only
/// for HTTPS and loopback addresses, and no `Origin` to a `GET`.
///
/// Every browser's name begins with `Mozilla/`, and a page cannot change it for another site.
pub(super) fn is_unmarked_browser(headers: &HeaderMap) -> bool {
    let is_browser = |agent: &HeaderValue| agent.as_bytes().starts_with(b"Mozilla/");
    headers.get(header::USER_AGENT).is_some_and(is_browser)
        && !headers.contains_key(SEC_FETCH_SITE)
        && !headers.contains_key(header::ORIGIN)
}

/// Rejects cross-site changes. A browser sends JSON to another site only after a CORS preflight,
/// which this service never grants.
pub(super) fn reject_cross_site_change(headers: &HeaderMap) -> Result<(), Problem> {
    let media_type = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let media_type = media_type.and_then(|value| value.split(';').next()).unwrap_or_default();
    if !media_type.trim().eq_ignore_ascii_case("application/json") {
        let detail = "changes require `Content-Type: application/json`";
        return Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, detail));
    }
    if is_cross_site(headers) {
        let detail = "cross-site request rejected; use the dashboard of this service";
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

    /// A page that rebinds its name to 127.0.0.1 reaches the listener and must not be served.
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

    /// The port distinguishes DNS rebinding from a proxy that forwards its client's `Host`.
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

    /// Programs and the dashboard must keep working.
    #[test]
    fn programs_and_the_dashboard_are_not_cross_site() {
        const HOST: (&str, &str) = ("host", "127.0.0.1:7979");
        for (pairs, expected) in [
            (&[HOST][..], false),
            (&[HOST, ("content-type", "application/x-www-form-urlencoded")], false),
            (&[HOST, ("origin", "http://127.0.0.1:7979"), ("sec-fetch-site", "same-origin")], false),
            (&[HOST, ("sec-fetch-site", "none")], false),
            (&[HOST, ("sec-fetch-site", "cross-site")], true),
            (&[HOST, ("sec-fetch-site", "same-site")], true),
            (&[HOST, ("sec-fetch-site", "")], true),
            (&[HOST, ("origin", "https://evil.example")], true),
            // Another port on this machine is another program.
            (&[HOST, ("origin", "http://127.0.0.1:3000")], true),
            (&[HOST, ("origin", "null")], true),
            (&[HOST, ("origin", "")], true),
        ] {
            assert_eq!(is_cross_site(&headers(pairs)), expected, "{pairs:?}");
        }
    }

    /// An image whose URL is a check must not charge anyone; curl and programs must be able to.
    #[test]
    fn a_browser_that_says_no_site_is_told_from_programs() {
        const FIREFOX: (&str, &str) =
            ("user-agent", "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101");
        for (pairs, expected) in [
            (&[FIREFOX][..], true),
            (&[FIREFOX, ("accept", "image/*"), ("referer", "http://evil.example/")], true),
            (&[FIREFOX, ("sec-fetch-site", "none")], false),
            (&[FIREFOX, ("origin", "http://gate:7979")], false),
            (&[("user-agent", "curl/8.5.0")], false),
            (&[("user-agent", "node"), ("accept-language", "*"), ("sec-fetch-mode", "cors")], false),
            (&[("user-agent", "like Mozilla/5.0")], false),
            (&[], false),
        ] {
            assert_eq!(is_unmarked_browser(&headers(pairs)), expected, "{pairs:?}");
        }
    }

    /// An operator who visits a malicious page must not change limits.
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
            assert_eq!(reject_cross_site_change(&headers(pairs)).is_ok(), passes, "{pairs:?}");
        }
    }
}
