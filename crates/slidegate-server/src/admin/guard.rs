//! The guard before the admin routes: who asks, what he may, and whether a web page of somebody else made him.
//!
//! Without tokens the listener has to be loopback, and the `Host` a name of this machine: a page that makes its own name
//! resolve to 127.0.0.1 would otherwise read everything through its visitor's browser.

use std::net::IpAddr;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, Request, StatusCode, header};
use axum::middleware::Next;
use axum::response::Response;

use super::{Admin, tokens};
use crate::config::Right;
use crate::protocol::http::Problem;

/// Who asks: the name of the token, `loopback` without one.
#[derive(Debug, Clone)]
pub(super) struct By(pub(super) String);

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

pub(super) async fn may_read(
    State(admin): State<Arc<Admin>>,
    mut request: Request<Body>,
    next: Next,
) -> Result<Response, Problem> {
    let by = admin.who(request.headers(), Right::Read)?;
    request.extensions_mut().insert(by);
    Ok(next.run(request).await)
}

pub(super) async fn may_write(
    State(admin): State<Arc<Admin>>,
    mut request: Request<Body>,
    next: Next,
) -> Result<Response, Problem> {
    let by = admin.who(request.headers(), Right::Write)?;
    no_page_of_others(request.headers())?;
    request.extensions_mut().insert(by);
    Ok(next.run(request).await)
}

impl Admin {
    /// Who asks, if he may.
    fn who(&self, headers: &HeaderMap, wanted: Right) -> Result<By, Problem> {
        let tokens = self.tokens();
        if tokens.is_empty() {
            if !self.listen.ip().is_loopback() {
                return Err(forbidden(format!(
                    "the admin routes are off: {} is reachable from elsewhere and no token is configured; make one with \
                     `slidegate token new`, or listen on 127.0.0.1",
                    self.listen
                )));
            }
            if !is_of_this_machine(headers) {
                return Err(forbidden(
                    "without tokens the admin routes answer to `localhost` and loopback addresses only, and the `Host` \
                     header names another; make a token with `slidegate token new`",
                ));
            }
            return Ok(By("loopback".to_owned()));
        }
        let presented = headers.get(header::AUTHORIZATION).and_then(|value| {
            let (scheme, token) = value.to_str().ok()?.split_once(' ')?;
            scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
        });
        let Some(presented) = presented else {
            return Err(unauthorized("this needs a token; send `Authorization: Bearer TOKEN`"));
        };
        let Some(token) = tokens::find(&tokens, presented) else {
            return Err(unauthorized("no such token is configured; make one with `slidegate token new`"));
        };
        if token.right < wanted {
            return Err(forbidden(format!(
                "token `{}` may {} and this needs one that may {}",
                token.name,
                token.right.name(),
                wanted.name()
            )));
        }
        Ok(By(token.name.clone()))
    }
}

fn forbidden(detail: impl Into<String>) -> Problem {
    Problem::new(StatusCode::FORBIDDEN, detail)
}

fn unauthorized(detail: &str) -> Problem {
    Problem::new(StatusCode::UNAUTHORIZED, detail)
}

/// Whether the request was sent to a loopback address or to `localhost`.
fn is_of_this_machine(headers: &HeaderMap) -> bool {
    let Some(host) = headers.get(header::HOST).and_then(|host| host.to_str().ok()) else { return false };
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// A browser sends JSON to another site only after asking, which nobody answers here; and it says whose page asked.
fn no_page_of_others(headers: &HeaderMap) -> Result<(), Problem> {
    let text = |name: &HeaderName| headers.get(name).map(|value| value.to_str().unwrap_or("?"));
    let media_type =
        text(&header::CONTENT_TYPE).and_then(|value| value.split(';').next()).unwrap_or_default();
    if !media_type.trim().eq_ignore_ascii_case("application/json") {
        let detail = "changes need `Content-Type: application/json`";
        return Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, detail));
    }
    let is_own = text(&SEC_FETCH_SITE).is_none_or(|site| matches!(site, "same-origin" | "none"));
    let host = text(&header::HOST).unwrap_or_default();
    let origin = text(&header::ORIGIN).is_none_or(|origin| {
        origin.split_once("://").is_some_and(|(_, origin)| origin.eq_ignore_ascii_case(host))
    });
    if is_own && origin {
        Ok(())
    } else {
        Err(forbidden("the request comes from a page of another site; open the page of this service"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), axum::http::HeaderValue::from_static(value)))
            .collect()
    }

    /// A page that rebinds its name to 127.0.0.1 is on this machine's listener and must read nothing.
    #[test]
    fn only_names_of_this_machine_pass_without_a_token() {
        for host in ["localhost", "LOCALHOST:7979", "127.0.0.1:7979", "127.1.2.3", "[::1]:80", "[::1]"] {
            assert!(is_of_this_machine(&headers(&[("host", host)])), "{host}");
        }
        for host in [
            "",
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1.evil.example:7979",
            "10.0.0.1",
            "[fe80::1]",
        ] {
            assert!(!is_of_this_machine(&headers(&[("host", host)])), "{host}");
        }
        assert!(!is_of_this_machine(&HeaderMap::new()));
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
            assert_eq!(no_page_of_others(&headers(pairs)).is_ok(), passes, "{pairs:?}");
        }
    }
}
