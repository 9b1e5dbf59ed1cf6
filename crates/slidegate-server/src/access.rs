//! Access control for all protocols: tokens and their rights, and protection against cross-site
//! requests.
//!
//! Browsers never send a token on their own, so the origin of a request with a token is not checked. Without
//! a token the network address is the only credential, and every web page open on this machine shares it:
//! then `Host`, `Origin` and `Sec-Fetch-Site` must show that no other site caused the request.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use arc_swap::ArcSwap;
use axum::body::Body;
use axum::extract::State;
use axum::http::{Extensions, HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode, Uri, header};
use axum::middleware::Next;
use axum::response::Response;
use tokio::sync::watch;

use crate::access::attempts::{AuthAttempts, AuthFailure};
use crate::caller::Protocol;
use crate::config::{AccessRules, Right, Token};
use crate::listener::Connection;
use crate::wire::problem::Problem;

pub(crate) mod attempts;
mod cross_site;
mod own_key;
pub(crate) mod tokens;

/// The access rules. They are hot-reloaded; the listen address is not.
#[derive(Debug)]
pub(crate) struct Access {
    /// Address of the HTTP listener.
    listen: SocketAddr,
    rules: ArcSwap<AccessRules>,
    attempts: AuthAttempts,
    /// The rules that every decision needs, as flags in one atomic: [`TOKEN_TO_DECIDE`], [`HAS_TOKENS`].
    flags: AtomicU8,
    /// Notified when the rules have changed.
    changes: watch::Sender<()>,
}

/// A request's permission, which a long response checks again when the rules change.
#[derive(Debug, Clone)]
pub(crate) struct Grant {
    access: Arc<Access>,
    /// The request's header fields and target.
    request: Arc<(HeaderMap, Uri)>,
    wanted: Right,
    connection: Connection,
    changes: watch::Receiver<()>,
    /// Whether the token may read only one key.
    pub(crate) is_of_one_key: bool,
}

/// Flag: every decision requires a token.
const TOKEN_TO_DECIDE: u8 = 1;
/// Flag: tokens are configured.
const HAS_TOKENS: u8 = 2;

/// A request's effect on the usage of keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    /// Check or peek.
    Decide,
    /// Reset, refund or penalize. These change usage without a decision: a client could evade its own limit
    /// or use up another's.
    Adjust,
}

/// The credentials of a request.
struct Credentials<'r> {
    authorization: Option<&'r HeaderValue>,
    /// `None` if the client has no IP address.
    peer: Option<IpAddr>,
    protocol: Protocol,
}

impl<'r> Credentials<'r> {
    fn over_http(request: &'r HeaderMap, peer: Option<IpAddr>) -> Self {
        Self { authorization: request.get(header::AUTHORIZATION), peer, protocol: Protocol::Http }
    }
}

/// The operator: the token's name, or `loopback` or `unix socket`; and the token's restriction.
#[derive(Debug, Clone)]
pub(crate) struct Operator(pub(crate) String, pub(crate) Limited);

/// The read restriction of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Limited {
    /// Everything that its scope permits.
    No,
    /// One key, for example a customer's.
    ToOneKey,
}

impl Connection {
    /// The client of an HTTP request.
    pub(crate) fn of(extensions: &Extensions) -> Self {
        // Without the extension the client is unknown and has no rights.
        let unknown = Self { peer: None, user: None, is_local: false, is_verified: false };
        extensions.get().copied().unwrap_or(unknown)
    }

    /// The client's address, or its user on a Unix socket, for idempotency keys.
    pub(crate) fn caller(self) -> String {
        match (self.peer, self.user) {
            (Some(peer), _) => format!("address {}", peer.to_canonical()),
            (None, Some(user)) => format!("user {user}"),
            (None, None) => "unknown".to_owned(),
        }
    }

    /// Whether DNS rebinding could let a web page cause the request, so that `Host` must name this machine.
    /// Pages cannot connect to a Unix socket.
    fn needs_own_host(self) -> bool {
        self.is_local && self.peer.is_some()
    }
}

impl Access {
    pub(crate) fn new(listen: SocketAddr, rules: AccessRules) -> Self {
        let (attempts, flags) = (AuthAttempts::default(), AtomicU8::new(0));
        let changes = watch::Sender::default();
        let access = Self { listen, rules: ArcSwap::default(), attempts, flags, changes };
        access.set(rules);
        access
    }

    /// Replaces the rules.
    pub(crate) fn set(&self, rules: AccessRules) {
        let to_decide = if rules.decisions_need_token { TOKEN_TO_DECIDE } else { 0 };
        let has_tokens = if rules.tokens.is_empty() { 0 } else { HAS_TOKENS };
        // Rules before flags: no client may be asked for a token that is not yet known.
        self.rules.store(Arc::new(rules));
        self.flags.store(to_decide | has_tokens, Ordering::Release);
        self.changes.send_replace(());
    }

    /// The limit on failed authentications, shared by all protocols.
    pub(crate) fn attempts(&self) -> &AuthAttempts {
        &self.attempts
    }

    /// Whether the admin routes are usable: tokens are configured or the listener is on loopback.
    pub(crate) fn is_open(&self) -> bool {
        self.listen.ip().is_loopback() || self.flags.load(Ordering::Acquire) & HAS_TOKENS != 0
    }

    /// The operator of an admin request.
    ///
    /// # Errors
    /// Tokens are configured and the request has none with this right; or none are configured and
    /// the request does not come from this machine.
    pub(crate) fn operator(
        &self,
        request: &HeaderMap,
        uri: &Uri,
        wanted: Right,
        connection: Connection,
    ) -> Result<Operator, Problem> {
        let credentials = Credentials::over_http(request, connection.peer);
        self.operator_with(&credentials, request, uri, (wanted, connection))
    }

    fn operator_with(
        &self,
        credentials: &Credentials<'_>,
        request: &HeaderMap,
        uri: &Uri,
        (wanted, connection): (Right, Connection),
    ) -> Result<Operator, Problem> {
        let rules = self.rules.load();
        if !rules.tokens.is_empty() {
            let token = self.token(&rules, credentials, wanted)?;
            if let Some(key) = token.key.as_ref().filter(|key| !own_key::may_read(key, uri)) {
                return Err(forbidden(format!(
                    "token `{}` is limited to the key `{}`: it reads `/v1/keys/POLICY/KEY` and \
                     `/v1/events?policy=POLICY&key=KEY` of this key only",
                    token.name, **key
                ))
                .with_own_key(key.to_string()));
            }
            let limited = if token.key.is_some() { Limited::ToOneKey } else { Limited::No };
            return Ok(Operator(token.name.clone(), limited));
        }
        if !connection.is_local {
            return Err(forbidden(format!(
                "admin routes are disabled: {} is not loopback and no token is configured; create one with \
                 `slidegate token new`, or listen on 127.0.0.1",
                self.listen
            )));
        }
        if connection.needs_own_host() && !cross_site::is_for_this_machine(request, &rules.hosts) {
            return Err(forbidden(
                "invalid `Host` header: without tokens, admin routes accept only `localhost` and loopback \
                 addresses; create a token with `slidegate token new`, or add the name to admin.hosts",
            ));
        }
        let name = if connection.peer.is_some() { "loopback" } else { "unix socket" };
        Ok(Operator(name.to_owned(), Limited::No))
    }

    /// Whether a request to a public route may see data that needs a token. A request without a token is not
    /// a failed attempt.
    pub(crate) fn may_read(&self, request: &HeaderMap, uri: &Uri, connection: Connection) -> bool {
        let has_tokens = self.flags.load(Ordering::Acquire) & HAS_TOKENS != 0;
        (!has_tokens || request.contains_key(header::AUTHORIZATION))
            && self.operator(request, uri, Right::Read, connection).is_ok()
    }

    /// Checks a request for a decision or a change of usage.
    ///
    /// # Errors
    /// A required token is missing or lacks the right; or no token is required and the request may
    /// be cross-site.
    #[inline]
    pub(crate) fn decision(
        &self,
        method: &Method,
        request: &HeaderMap,
        action: Action,
        connection: Connection,
    ) -> Result<(), Problem> {
        if !connection.is_verified && self.needs_token(action, connection.is_local) {
            return self.decider(&Credentials::over_http(request, connection.peer));
        }
        // A browser presents a client certificate for any page, so it does not replace these checks.
        let is_cross_site = cross_site::is_cross_site(request);
        if is_cross_site || connection.needs_own_host() && !cross_site::is_for_this_machine(request, &[]) {
            self.cross_site_decision(request, is_cross_site, connection.peer)?;
        }
        if matches!(*method, Method::GET | Method::HEAD) {
            self.reject_unmarked_page(request, connection.peer)?;
        }
        Ok(())
    }

    /// Checks a request that may be cross-site. A valid token proves that it is not.
    #[cold]
    fn cross_site_decision(
        &self,
        request: &HeaderMap,
        is_cross_site: bool,
        peer: Option<IpAddr>,
    ) -> Result<(), Problem> {
        let rules = self.rules.load();
        if !is_cross_site && cross_site::is_for_this_machine(request, &rules.hosts) {
            return Ok(());
        }
        let credentials = Credentials::over_http(request, peer);
        if credentials.authorization.is_some() && !rules.tokens.is_empty() {
            return self.decider(&credentials);
        }
        Err(forbidden(if is_cross_site {
            "cross-site request rejected (`Origin` or `Sec-Fetch-Site`); call from a program, or send a token \
             with the scope `decide`"
                .to_owned()
        } else {
            format!(
                "invalid `Host` header: {} accepts only `localhost` and loopback addresses, against DNS \
                 rebinding; add the name to admin.hosts, or send a token with the scope `decide`",
                self.listen
            )
        }))
    }

    /// Rejects a decision by `GET` that a page may have made a browser send to a plain HTTP address: browsers
    /// mark such a request with neither `Sec-Fetch-Site` nor `Origin`. A valid token proves that a program
    /// sent it.
    fn reject_unmarked_page(&self, request: &HeaderMap, peer: Option<IpAddr>) -> Result<(), Problem> {
        if !cross_site::is_unmarked_browser(request) {
            return Ok(());
        }
        let credentials = Credentials::over_http(request, peer);
        if credentials.authorization.is_some() && !self.rules.load().tokens.is_empty() {
            return self.decider(&credentials);
        }
        Err(forbidden(
            "request of a browser without `Sec-Fetch-Site` rejected: another site may have caused it; call from a \
             program whose `User-Agent` does not begin with `Mozilla/`, use `POST`, or send a token with the scope \
             `decide`",
        ))
    }

    /// Checks a proxy's auth request. Its `Host`, `Origin` and `Sec-Fetch-Site` come from the proxy's client.
    /// The port reveals DNS rebinding: a browser sends this service's port in `Host`, a proxy's client sends
    /// the proxy's.
    ///
    /// A cross-site page without rebinding cannot set the header fields of an auth request.
    pub(crate) fn proxy(&self, request: &HeaderMap, connection: Connection) -> Result<(), Problem> {
        if !connection.is_verified && self.needs_token(Action::Decide, true) {
            let authorization = request.get(header::AUTHORIZATION);
            return self.decider(&Credentials {
                authorization,
                peer: connection.peer,
                protocol: Protocol::AuthRequest,
            });
        }
        let is_cross_site = connection.needs_own_host()
            && cross_site::port(request) == Some(self.listen.port())
            && !cross_site::is_for_this_machine(request, &self.rules.load().hosts);
        if is_cross_site {
            return Err(forbidden(format!(
                "invalid `Host` header: another host name with the port of this service, {}, may be DNS \
                 rebinding; if a proxy uses that name, add it to admin.hosts",
                self.listen.port()
            )));
        }
        Ok(())
    }

    /// Checks a gRPC call; `authorization` is the metadata of that name.
    #[inline]
    pub(crate) fn call(
        &self,
        authorization: Option<&HeaderValue>,
        action: Action,
        connection: Connection,
    ) -> Result<(), Problem> {
        if connection.is_verified || !self.needs_token(action, connection.is_local) {
            return Ok(());
        }
        self.decider(&Credentials { authorization, peer: connection.peer, protocol: Protocol::Grpc })
    }

    /// Whether a RESP command is allowed. Its credential is the password, not a token.
    #[inline]
    pub(crate) fn command(&self, action: Action, connection: Connection) -> bool {
        connection.is_verified || !self.needs_token(action, connection.is_local)
    }

    fn needs_token(&self, action: Action, is_local: bool) -> bool {
        let flags = self.flags.load(Ordering::Acquire);
        flags & TOKEN_TO_DECIDE != 0 || action == Action::Adjust && (flags & HAS_TOKENS != 0 || !is_local)
    }

    /// Checks for a token with the scope `decide`.
    #[cold]
    fn decider(&self, credentials: &Credentials<'_>) -> Result<(), Problem> {
        self.token(&self.rules.load(), credentials, Right::Decide).map(drop)
    }

    /// The owner of a request's idempotency keys: its token, else its address or user. Nobody else gets a
    /// reservation's ticket by repeating its key.
    pub(crate) fn caller(&self, request: &HeaderMap, connection: Connection) -> String {
        let rules = self.rules.load();
        match presented(request.get(header::AUTHORIZATION)).and_then(|text| tokens::find(&rules.tokens, text))
        {
            Some(token) => format!("token {}", token.name),
            None => connection.caller(),
        }
    }

    /// Whether the request's token may read only one key.
    fn is_of_one_key(&self, request: &HeaderMap) -> bool {
        let rules = self.rules.load();
        let token =
            presented(request.get(header::AUTHORIZATION)).and_then(|text| tokens::find(&rules.tokens, text));
        token.is_some_and(|token| token.key.is_some())
    }

    /// The presented token, if it has this right.
    fn token<'t>(
        &self,
        rules: &'t AccessRules,
        credentials: &Credentials<'_>,
        wanted: Right,
    ) -> Result<&'t Token, Problem> {
        let wanted_name = wanted.name();
        if rules.tokens.is_empty() {
            return Err(forbidden(format!(
                "token required: the port is not on loopback, and no token is configured; create one with \
                 `slidegate token new --scope {wanted_name}`, or listen on 127.0.0.1"
            )));
        }
        let Some(presented) = presented(credentials.authorization) else {
            return Err(unauthorized("token required; send `Authorization: Bearer TOKEN`"));
        };
        let Some(token) = tokens::find(&rules.tokens, presented) else {
            let failure = credentials.peer.map(|peer| self.attempts.wrong(credentials.protocol, peer));
            return Err(match failure {
                Some(too_many @ AuthFailure::TooMany { retry_after }) => {
                    Problem::new(StatusCode::TOO_MANY_REQUESTS, too_many.to_string()).after(retry_after)
                }
                _ => unauthorized(
                    "unknown token; create one with `slidegate token new` and add it to the configuration",
                ),
            });
        };
        if !token.rights.include(wanted) {
            return Err(forbidden(format!(
                "token `{}` has the scope `{}`, but `{wanted_name}` is required; create one with `slidegate token \
                 new --scope {wanted_name}`",
                token.name, token.rights,
            )));
        }
        Ok(token)
    }
}

impl Grant {
    /// Waits until the rules no longer permit the request, for example after a reload that removes its token.
    pub(crate) async fn revoked(&mut self) {
        while self.changes.changed().await.is_ok() {
            if !self.is_permitted() {
                return;
            }
        }
    }

    /// Whether the rules have changed and no longer permit the request.
    pub(crate) fn is_revoked(&mut self) -> bool {
        if !self.changes.has_changed().unwrap_or(false) {
            return false;
        }
        self.changes.mark_unchanged();
        !self.is_permitted()
    }

    fn is_permitted(&self) -> bool {
        let (headers, uri) = &*self.request;
        // Without the address: a removed token is not a guess.
        let credentials = Credentials::over_http(headers, None);
        self.access.operator_with(&credentials, headers, uri, (self.wanted, self.connection)).is_ok()
    }
}

/// Rejects a request that repeats a field allowed once: programs disagree on which one counts.
#[inline]
pub(crate) fn reject_repeated(headers: &HeaderMap) -> Result<(), Problem> {
    // Few requests repeat any field.
    if headers.len() == headers.keys_len() {
        return Ok(());
    }
    let is_repeated = |name: &&HeaderName| headers.get_all(*name).iter().nth(1).is_some();
    match [header::HOST, header::AUTHORIZATION].iter().find(is_repeated) {
        None => Ok(()),
        Some(name) => {
            let detail = format!("more than one `{name}` header: send exactly one");
            Err(Problem::new(StatusCode::BAD_REQUEST, detail))
        }
    }
}

/// Middleware of admin routes. Routes that make changes reject cross-site requests even with a token.
pub(crate) async fn may_operate(
    State((access, right)): State<(Arc<Access>, Right)>,
    mut request: Request<Body>,
    next: Next,
) -> Result<Response, Problem> {
    let connection = Connection::of(request.extensions());
    // Subscribed before reading the rules, so that no change is missed.
    let changes = access.changes.subscribe();
    let by = access.operator(request.headers(), request.uri(), right, connection)?;
    let is_of_one_key = access.is_of_one_key(request.headers());
    let target = Arc::new((request.headers().clone(), request.uri().clone()));
    let grant = Grant {
        access: Arc::clone(&access),
        request: target,
        wanted: right,
        connection,
        changes,
        is_of_one_key,
    };
    request.extensions_mut().insert(grant);
    if right == Right::Write {
        cross_site::reject_cross_site_change(request.headers())?;
    }
    request.extensions_mut().insert(by);
    Ok(next.run(request).await)
}

/// The token presented in a field.
fn presented(authorization: Option<&HeaderValue>) -> Option<&str> {
    let (scheme, token) = authorization?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

fn forbidden(detail: impl Into<String>) -> Problem {
    Problem::new(StatusCode::FORBIDDEN, detail)
}

fn unauthorized(detail: &str) -> Problem {
    Problem::new(StatusCode::UNAUTHORIZED, detail)
}
