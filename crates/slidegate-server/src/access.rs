//! Access: who may do what over HTTP and gRPC, and whether a web page of another site made a
//! browser ask.
//!
//! A token is never sent by a browser on its own, so whoever shows one is not asked where the
//! request comes from. Without one the network address is the only credential, which every web page
//! that is open on this machine has as well: then `Host`, `Origin` and `Sec-Fetch-Site` have to say
//! that no foreign page asks.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use arc_swap::ArcSwap;
use axum::body::Body;
use axum::extract::State;
use axum::http::{Extensions, HeaderMap, HeaderValue, Request, StatusCode, header};
use axum::middleware::Next;
use axum::response::Response;

use crate::access::attempts::{AuthAttempts, AuthFailure};
use crate::caller::Protocol;
use crate::config::{AccessRules, Right};
use crate::problem::Problem;

pub(crate) mod attempts;
mod cross_site;
pub(crate) mod tokens;

/// Who may do what. The rules change with the configuration; where the service listens does not.
#[derive(Debug)]
pub(crate) struct Access {
    /// Where the service listens for HTTP.
    listen: SocketAddr,
    rules: ArcSwap<AccessRules>,
    attempts: AuthAttempts,
    /// What of the rules each decision needs to know, so that it reads one number:
    /// [`TOKEN_TO_DECIDE`], [`HAS_TOKENS`].
    brief: AtomicU8,
}

/// Every decision needs a token.
const TOKEN_TO_DECIDE: u8 = 1;
/// There are tokens.
const HAS_TOKENS: u8 = 2;

/// What is done with the usage of keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    /// Check or peek: what every client of the service does.
    Decide,
    /// Reset, refund or penalize: usage changes without a decision, so a client could help itself
    /// or harm another.
    Adjust,
}

/// What a request shows of who asks.
struct Shown<'r> {
    authorization: Option<&'r HeaderValue>,
    /// `None` where the client has no address.
    peer: Option<IpAddr>,
    protocol: Protocol,
}

impl<'r> Shown<'r> {
    fn over_http(request: &'r HeaderMap, peer: Option<IpAddr>) -> Self {
        Self { authorization: request.get(header::AUTHORIZATION), peer, protocol: Protocol::Http }
    }
}

/// Who asks: the name of the token, `loopback` without one.
#[derive(Debug, Clone)]
pub(crate) struct By(pub(crate) String);

/// The address of an HTTP client, in the extensions of its requests.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Peer(pub(crate) IpAddr);

impl Peer {
    pub(crate) fn of(extensions: &Extensions) -> Option<IpAddr> {
        extensions.get::<Self>().map(|peer| peer.0)
    }
}

/// How a client of the gRPC port or of the RESP port is connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Connection {
    /// `None` on a socket file.
    pub(crate) peer: Option<IpAddr>,
    /// Whether the port can be reached from this machine only: loopback, or a socket file.
    pub(crate) is_local: bool,
    /// Whether the client has proved who it is: by a certificate, or by the password of the RESP
    /// port.
    pub(crate) is_verified: bool,
}

impl Access {
    pub(crate) fn new(listen: SocketAddr, rules: AccessRules) -> Self {
        let (attempts, brief) = (AuthAttempts::default(), AtomicU8::new(0));
        let access = Self { listen, rules: ArcSwap::default(), attempts, brief };
        access.set(rules);
        access
    }

    /// Other rules from now on.
    pub(crate) fn set(&self, rules: AccessRules) {
        let to_decide = if rules.decisions_need_token { TOKEN_TO_DECIDE } else { 0 };
        let has_tokens = if rules.tokens.is_empty() { 0 } else { HAS_TOKENS };
        // First the rules, so that nobody is asked for a token that is not known yet.
        self.rules.store(Arc::new(rules));
        self.brief.store(to_decide | has_tokens, Ordering::Release);
    }

    /// What limits wrong passwords and tokens, for all protocols together.
    pub(crate) fn attempts(&self) -> &AuthAttempts {
        &self.attempts
    }

    /// Whether anybody can use the admin routes: with a token, or from this machine.
    pub(crate) fn is_open(&self) -> bool {
        self.listen.ip().is_loopback() || self.brief.load(Ordering::Acquire) & HAS_TOKENS != 0
    }

    /// Who asks an admin route, if they may: with a token that has this right, or without tokens
    /// from this machine.
    pub(crate) fn operator(
        &self,
        request: &HeaderMap,
        wanted: Right,
        peer: Option<IpAddr>,
    ) -> Result<By, Problem> {
        let rules = self.rules.load();
        if !rules.tokens.is_empty() {
            return self.token(&rules, &Shown::over_http(request, peer), wanted);
        }
        if !self.listen.ip().is_loopback() {
            return Err(forbidden(format!(
                "the admin routes are off: {} is reachable from elsewhere and no token is configured; make one with \
                 `slidegate token new`, or listen on 127.0.0.1",
                self.listen
            )));
        }
        if !cross_site::is_for_this_machine(request, &rules.hosts) {
            return Err(forbidden(
                "without tokens the admin routes answer to `localhost` and loopback addresses only, and the `Host` \
                 header names another; make a token with `slidegate token new`, or add the name to admin.hosts",
            ));
        }
        Ok(By("loopback".to_owned()))
    }

    /// Whether a route of decisions may be asked.
    ///
    /// # Errors
    /// No token, or one without the right, where one is needed; else a request that a page of
    /// another site may have sent.
    #[inline]
    pub(crate) fn decision(
        &self,
        request: &HeaderMap,
        action: Action,
        peer: Option<IpAddr>,
    ) -> Result<(), Problem> {
        if self.needs_token(action, self.listen.ip().is_loopback()) {
            return self.decider(&Shown::over_http(request, peer));
        }
        let is_foreign = cross_site::is_of_another_site(request);
        if !is_foreign && (!self.listen.ip().is_loopback() || cross_site::is_for_this_machine(request, &[])) {
            return Ok(());
        }
        self.foreign(request, is_foreign, peer)
    }

    /// A request that a page of another site may have sent: with a token it has not.
    #[cold]
    fn foreign(&self, request: &HeaderMap, is_foreign: bool, peer: Option<IpAddr>) -> Result<(), Problem> {
        let rules = self.rules.load();
        if !is_foreign && cross_site::is_for_this_machine(request, &rules.hosts) {
            return Ok(());
        }
        let shown = Shown::over_http(request, peer);
        if shown.authorization.is_some() && !rules.tokens.is_empty() {
            return self.decider(&shown);
        }
        Err(forbidden(if is_foreign {
            "the request comes from a web page of another site (`Origin` or `Sec-Fetch-Site`); call from a program, or \
             send a token with the scope `decide`"
                .to_owned()
        } else {
            format!(
                "{} answers to `localhost` and loopback addresses only, and the `Host` header names another, as a web page \
                 does that makes its own name resolve to this machine; add the name to admin.hosts, or send a token with \
                 the scope `decide`",
                self.listen
            )
        }))
    }

    /// Whether a proxy's question is answered. Its `Host`, `Origin` and `Sec-Fetch-Site` are those
    /// of the proxy's own client and say nothing about who asks. A browser that asks by a name of a
    /// page's own (DNS rebinding) shows in the port: it writes the port of this service after the
    /// name, and a proxy's client writes the proxy's.
    ///
    /// A page that asks without such a name cannot set the header fields that a proxy's question
    /// needs.
    pub(crate) fn proxy(&self, request: &HeaderMap, peer: IpAddr) -> Result<(), Problem> {
        if self.needs_token(Action::Decide, true) {
            let authorization = request.get(header::AUTHORIZATION);
            return self.decider(&Shown { authorization, peer: Some(peer), protocol: Protocol::AuthRequest });
        }
        let is_foreign = self.listen.ip().is_loopback()
            && cross_site::port(request) == Some(self.listen.port())
            && !cross_site::is_for_this_machine(request, &self.rules.load().hosts);
        if is_foreign {
            return Err(forbidden(format!(
                "the `Host` header names another machine with the port of this service, {}, as a web page does that makes \
                 its own name resolve to this machine; if a proxy uses that name, add it to admin.hosts",
                self.listen.port()
            )));
        }
        Ok(())
    }

    /// Whether a call of the gRPC port may be made; `authorization` is its metadata of that name.
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
        self.decider(&Shown { authorization, peer: connection.peer, protocol: Protocol::Grpc })
    }

    /// Whether a command of the RESP port may be carried out. Its credential is the password, not a
    /// token.
    #[inline]
    pub(crate) fn command(&self, action: Action, connection: Connection) -> bool {
        connection.is_verified || !self.needs_token(action, connection.is_local)
    }

    fn needs_token(&self, action: Action, is_local: bool) -> bool {
        let brief = self.brief.load(Ordering::Acquire);
        brief & TOKEN_TO_DECIDE != 0 || action == Action::Adjust && (brief & HAS_TOKENS != 0 || !is_local)
    }

    /// Whether a token is shown with which decisions may be asked for and usage may be changed.
    #[cold]
    fn decider(&self, shown: &Shown<'_>) -> Result<(), Problem> {
        self.token(&self.rules.load(), shown, Right::Decide).map(drop)
    }

    /// Whose token is shown, if it has this right.
    fn token(&self, rules: &AccessRules, shown: &Shown<'_>, wanted: Right) -> Result<By, Problem> {
        let wanted_name = wanted.name();
        if rules.tokens.is_empty() {
            return Err(forbidden(format!(
                "this needs a token where the port is reachable from elsewhere, and no token is configured; make one with \
                 `slidegate token new --scope {wanted_name}`, or listen on 127.0.0.1"
            )));
        }
        let presented = shown.authorization.and_then(|value| {
            let (scheme, token) = value.to_str().ok()?.split_once(' ')?;
            scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
        });
        let Some(presented) = presented else {
            return Err(unauthorized("this needs a token; send `Authorization: Bearer TOKEN`"));
        };
        let Some(token) = tokens::find(&rules.tokens, presented) else {
            let failure = shown.peer.map(|peer| self.attempts.wrong(shown.protocol, peer));
            return Err(match failure {
                Some(too_many @ AuthFailure::TooMany { retry_after }) => {
                    Problem::new(StatusCode::TOO_MANY_REQUESTS, too_many.to_string()).after(retry_after)
                }
                _ => unauthorized("no such token is configured; make one with `slidegate token new`"),
            });
        };
        if !token.rights.include(wanted) {
            return Err(forbidden(format!(
                "token `{}` has the scope `{}` and this needs `{wanted_name}`; make another with `slidegate token new --scope \
                 {wanted_name}`",
                token.name, token.rights,
            )));
        }
        Ok(By(token.name.clone()))
    }
}

/// Lets a request to a route of checks and peeks pass, if it may.
pub(crate) async fn may_decide(
    State(access): State<Arc<Access>>,
    request: Request<Body>,
    next: Next,
) -> Result<Response, Problem> {
    access.decision(request.headers(), Action::Decide, Peer::of(request.extensions()))?;
    Ok(next.run(request).await)
}

/// Lets a request to a route of resets, refunds and penalties pass, if it may.
pub(crate) async fn may_adjust(
    State(access): State<Arc<Access>>,
    request: Request<Body>,
    next: Next,
) -> Result<Response, Problem> {
    access.decision(request.headers(), Action::Adjust, Peer::of(request.extensions()))?;
    Ok(next.run(request).await)
}

/// Lets a request to an admin route that changes nothing pass, if it may.
pub(crate) async fn may_read(
    State(access): State<Arc<Access>>,
    mut request: Request<Body>,
    next: Next,
) -> Result<Response, Problem> {
    let by = access.operator(request.headers(), Right::Read, Peer::of(request.extensions()))?;
    request.extensions_mut().insert(by);
    Ok(next.run(request).await)
}

/// Lets a request to an admin route that changes something pass, if it may and no page of another
/// site sent it.
pub(crate) async fn may_write(
    State(access): State<Arc<Access>>,
    mut request: Request<Body>,
    next: Next,
) -> Result<Response, Problem> {
    let by = access.operator(request.headers(), Right::Write, Peer::of(request.extensions()))?;
    cross_site::is_no_form(request.headers())?;
    request.extensions_mut().insert(by);
    Ok(next.run(request).await)
}

fn forbidden(detail: impl Into<String>) -> Problem {
    Problem::new(StatusCode::FORBIDDEN, detail)
}

fn unauthorized(detail: &str) -> Problem {
    Problem::new(StatusCode::UNAUTHORIZED, detail)
}
