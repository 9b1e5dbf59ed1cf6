//! Auth requests: a proxy asks whether to forward a request (nginx `auth_request`, Caddy and
//! Traefik `forward_auth`).
//!
//! Attributes come from headers set by the proxy and from its auth request's query, never from the client:
//! the files in `deploy/` remove these headers from client requests. nginx accepts only 2xx, 401 and 403, so
//! it gets 403 with the actual status, 429 or 503, in a header.
//!
//! Everything that a proxy's client chooses is decided: any method, and values of any bytes and length. A
//! proxy may take an error for an unavailable service and let the request pass.

use std::borrow::Cow;
use std::net::IpAddr;
use std::time::Duration;

use axum::body::Bytes;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, header};
use http_body_util::Full;
use slidegate::acquire::Patience;
use slidegate::clock::parse_window;
use slidegate::{
    request_path::{normalized_host, normalized_path},
    verb::Verb,
};
use slidegate_http::client_addr::{ClientAddr, Found};

use crate::caller::Protocol;
use crate::config::{Attribute, Auth, Denial, Mapping, Origin};
use crate::engine::App;
use crate::engine::decide::TurnTerms;
use crate::limits::MAX_WAIT;
use crate::listener::Connection;
use crate::log_limit::log_limited;
use crate::wire::fields;
use crate::wire::problem::{self, Problem};
use crate::wire::query::{self, can_decide};
use crate::wire::request::UNKNOWN;

/// The paths of auth requests.
pub(super) const PATHS: [&str; 2] = ["/v1/auth", "/v1/auth/{proxy}"];

/// The header with the client's status, for proxies that accept only 403.
const STATUS: HeaderName = HeaderName::from_static("slidegate-status");

/// The header with the longest wait that the proxy allows, below its own timeout.
const WAIT: HeaderName = HeaderName::from_static("slidegate-max-wait");

/// Handles auth requests.
pub(super) struct AuthHandler {
    auth: Auth,
}

/// The proxy's name in a path, empty if missing. `None` for other paths.
pub(super) fn proxy(path: &str) -> Option<&str> {
    let rest = path.strip_prefix(PATHS[0])?;
    if rest.is_empty() { Some(rest) } else { rest.strip_prefix('/') }
}

impl AuthHandler {
    pub(super) fn new(auth: Auth) -> Self {
        Self { auth }
    }

    /// Responds to an auth request, without reading its body.
    pub(super) async fn answer<B>(
        &self,
        app: &App,
        client: Connection,
        proxy: &str,
        request: &Request<B>,
    ) -> Response<Full<Bytes>> {
        let query = request.uri().query().unwrap_or_default();
        let waits = app.store().has_waits();
        let decided = self.decide(app, (client, waits), proxy, request.headers(), query);
        match app.complete(waits, decided).await {
            Ok(answer) => answer,
            Err(problem) => {
                app.observer().malformed.refused(Protocol::AuthRequest, problem.status());
                problem.response()
            }
        }
    }

    async fn decide(
        &self,
        app: &App,
        (client, waits): (Connection, bool),
        proxy: &str,
        headers: &HeaderMap,
        query: &str,
    ) -> Result<Response<Full<Bytes>>, Problem> {
        let caller = app.observer().caller(Protocol::AuthRequest, headers);
        let call = app.call(caller);
        let mapping = self.mapping(proxy)?;
        let mut attributes: Vec<(Cow<'_, str>, Cow<'_, [u8]>)> = Vec::new();
        for attribute in &mapping.attributes {
            let value = match &attribute.source {
                Origin::Header(name) => {
                    one(attribute, name, headers)?.map(|value| Cow::Borrowed(value.as_bytes()))
                }
                Origin::Path(name) => {
                    one(attribute, name, headers)?.map(|target| normalized_path(target.as_bytes()))
                }
                Origin::Host(name) => {
                    one(attribute, name, headers)?.map(|host| normalized_host(host.as_bytes()))
                }
                Origin::Client(rule) => Some(match client_of(rule, client.peer, headers) {
                    Some(ip) => Cow::Owned(ip.to_string().into_bytes()),
                    None => Cow::Borrowed(UNKNOWN.as_bytes()),
                }),
            };
            attributes.extend(value.map(|value| (Cow::Borrowed(attribute.name.as_str()), value)));
        }
        let asked = query::request(query)?;
        attributes.extend(asked.attributes);
        let pairs = attributes.iter().map(|(name, value)| (&**name, &**value));
        let mut request =
            app.attributes.request(pairs, asked.cost.unwrap_or(1)).map_err(|bad| Problem::of(bad, ""))?;
        if let Some(name) = &asked.policy {
            can_decide(&app.policies(), name, &request)?;
            request = request.under(name);
        }
        let requests = std::slice::from_ref(&request);
        let decisions = if waits {
            let turn = TurnTerms { patience: Patience::OfPolicies(max_wait(headers)), client };
            call.apply_in_turn(Some(Verb::Check), requests, None, turn).await
        } else {
            call.apply(Some(Verb::Check), requests, None).await
        };

        let mut response = Response::new(Full::default());
        response.headers_mut().reserve(fields::USUAL);
        fields::insert(response.headers_mut(), &app.headers, &decisions);
        if let Some(denied) = slidegate_http::headers::Problem::of(&decisions) {
            *response.body_mut() = Full::from(denied.to_json());
            response.headers_mut().insert(header::CONTENT_TYPE, problem::MEDIA_TYPE);
            *response.status_mut() = match mapping.denial {
                Denial::TooManyRequests => {
                    StatusCode::from_u16(denied.status).unwrap_or(StatusCode::TOO_MANY_REQUESTS)
                }
                Denial::Forbidden => {
                    response.headers_mut().insert(STATUS, HeaderValue::from(denied.status));
                    StatusCode::FORBIDDEN
                }
            };
        }
        Ok(response)
    }

    fn mapping(&self, proxy: &str) -> Result<&Mapping, Problem> {
        let named = || self.auth.named.iter().find(|(name, _)| name == proxy).map(|(_, mapping)| mapping);
        let mapping = if proxy.is_empty() { self.auth.unnamed.as_ref() } else { named() };
        mapping.ok_or_else(|| {
            let known: Vec<_> = self.auth.named.iter().map(|(name, _)| format!("/v1/auth/{name}")).collect();
            let known = known.join(", ");
            Problem::new(
                StatusCode::NOT_FOUND,
                if proxy.is_empty() {
                    format!("missing proxy: must be one of {known}, or configure `auth: {{preset: nginx}}`")
                } else {
                    format!("unknown proxy `{}`: must be one of {known}", proxy.escape_debug())
                },
            )
        })
    }
}

/// The client's address, or the proxy's own if the proxy is untrusted or forwards none. `None` if the
/// forwarded address is unreadable or there is none: such clients count as one, separate from all others.
fn client_of(rule: &ClientAddr, peer: Option<IpAddr>, headers: &HeaderMap) -> Option<IpAddr> {
    let fields = headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes()));
    let client = rule.resolve(peer, fields);
    let shown = peer.map(tracing::field::display);
    let why = match client.found {
        Found::Header | Found::Peer => return client.addr,
        Found::Absent if peer.is_some() => return client.addr,
        Found::Untrusted => {
            log_limited!(
                WARN,
                peer,
                peer = shown,
                "an untrusted proxy forwards client addresses, so all its clients count as one; if it is yours, add it to \
                 auth.trusted_proxies"
            );
            return client.addr;
        }
        Found::Absent => "is absent",
        Found::TooFew => "has too few addresses",
        Found::TooMany => "has too many addresses or lines",
        _ => "has something that is not an address",
    };
    let header = rule.header().unwrap_or_default();
    log_limited!(
        WARN,
        peer,
        peer = shown,
        header,
        why,
        "the client address that a proxy forwards cannot be read; such clients count as one, `unknown`"
    );
    None
}

/// How long the proxy lets its request wait: it takes longer answers for none, and may then let the request pass.
/// Unreadable values are no wait.
fn max_wait(headers: &HeaderMap) -> Duration {
    let Some(value) = headers.get(WAIT) else { return MAX_WAIT };
    let wait = value.to_str().ok().and_then(|text| parse_window(text).ok());
    wait.map_or(Duration::ZERO, |wait| wait.min(MAX_WAIT))
}

/// The only value of a header; `None` if it is absent or empty.
fn one<'h>(
    attribute: &Attribute,
    name: &HeaderName,
    headers: &'h HeaderMap,
) -> Result<Option<&'h HeaderValue>, Problem> {
    let mut values = headers.get_all(name).iter().filter(|value| !value.is_empty());
    let (value, more) = (values.next(), values.next());
    let wrong = |what: &str| {
        let detail = format!("attribute `{}` is read from the header `{name}`, which {what}", attribute.name);
        Problem::field(name.as_str(), detail)
    };
    if more.is_some() {
        return Err(wrong("is sent twice; let the proxy replace what its client sent"));
    }
    if value.is_none() && attribute.required {
        return Err(wrong("is not there; let the proxy send it, or write `none` for the attribute"));
    }
    Ok(value)
}
