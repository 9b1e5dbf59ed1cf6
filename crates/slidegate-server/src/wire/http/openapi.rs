//! Writes `openapi.json`: the table of routes here, and the schemas of what they read and respond with.

#![allow(dead_code)] // of the fields of schemas

use lined_config::without_null;
use schemars::generate::{Contract, SchemaSettings};
use schemars::transform::RecursiveTransform;
use schemars::{JsonSchema, Schema};
use serde_json::{Map, Value, json};

use super::acquire::AcquireBody;
use super::answer::{Answer, ChangeAnswer, Extended, OverLimit, ProblemMembers, TicketMembers};
use super::holds::{CancelBody, ExtendBody, SettleBody};
use super::request::{BatchBody, RequestBody, ReserveBody};
use super::{HealthBody, Ready, Reset};
use crate::config;
use crate::control::admin::apply::Changed;
use crate::control::admin::key_state::{KeyDone, ShownKey};
use crate::control::admin::keys::KeyAction;
use crate::control::admin::policies::{Changes, Policies};
use crate::control::admin::reset::{ResetStep, ResetStepDone};
use crate::control::admin::shadows::Shadow;
use crate::control::admin::status::Status;
use crate::control::pages::Events;
use crate::control::pages::key_list::KeyPage;
use crate::control::pages::top::{BlockedKeys, Tops};
use crate::record::HistoryReport;
use crate::wire::problem::Members;

/// What requests have in their bodies.
type Requests<'a> = (
    (
        RequestBody<'a>,
        BatchBody<'a>,
        ReserveBody<'a>,
        AcquireBody<'a>,
        SettleBody<'a>,
        ExtendBody<'a>,
        CancelBody<'a>,
    ),
    (ResetStep, KeyAction),
);
/// What responses have in their bodies, problems first.
type Responses<'a> = (
    (Members<'a>, QuotaProblem<'a>, Denial<'a>, ReserveDenial<'a>, ExtensionDenial<'a>),
    (Answer<'a>, AnyDecision<'a>, BatchAnswer<'a>, Reserved<'a>, ChangeAnswer<'a>, Extended<'a>, Reset),
    (HealthBody, Ready, Status<'a>, Policies<'a>, Shadow<'a>, Changes<'a>, Changed<'a>, ResetStepDone),
    (ShownKey<'a>, KeyDone<'a>, Events<'a>, Tops<'a>, BlockedKeys, KeyPage<'a>, HistoryReport),
);

/// Responses of more than one route: status, name, description, content and headers.
#[rustfmt::skip]
const RESPONSES: &[(u16, &str, &str, &str, &str)] = &[
    (200, "Allowed", "Allowed and charged.", "Decision", LIMITS),
    (200, "AuthAllowed", "Allowed and charged.", "", LIMITS),
    (200, "Changed", "The change.", "Changed", ""),
    (202, "ChangeQueued", "The store is unreachable. The change is queued until the reservation expires.", "Settlement", ""),
    (400, "InvalidRequest", "The body or query is invalid; `field` names the member.", "Problem", ""),
    (400, "InvalidChange", "The body is invalid; `field` names the member.", "Problem", ""),
    (400, "AuthInvalid", "A header that the mapping reads is missing or repeated, or the query is invalid; `field` names it.", "Problem", ""),
    (401, "Unauthorized", "The token is missing or invalid.", "Problem", ""),
    (403, "Forbidden", "The token lacks the scope, a token is required and none is configured, or the request is cross-site.", "Problem", ""),
    (403, "AdminForbidden", "The token lacks the scope, the routes are disabled, or the request is cross-site.", "Problem", ""),
    (403, "AuthForbidden", "Denied, with the status that preset `nginx` needs; or the proxy is not authorized.", "QuotaProblem | Problem", AUTH_DENIAL),
    (404, "TicketUnknown", "The store does not know the ticket. Nothing was charged or released.", "Problem", ""),
    (404, "MappingUnknown", "No mapping has this name.", "Problem", ""),
    (404, "NotFound", "Unknown policy, key action or change.", "Problem", ""),
    (408, "RequestTimeout", "The body did not arrive in time.", "Problem", ""),
    (409, "Conflict", "Conflict, for example with a concurrent change.", "Problem", ""),
    (413, "PayloadTooLarge", "The body is too large.", "Problem", ""),
    (415, "UnsupportedMediaType", "Changes need `Content-Type: application/json`.", "Problem", ""),
    (429, "Denied", DENIED, "Denial | Problem", DENIAL),
    (429, "AuthDenied", DENIED, "QuotaProblem | Problem", DENIAL),
    (429, "TooManyWrongTokens", "Too many wrong tokens from this address; retry after `Retry-After`.", "Problem", ""),
    (503, "DeniedWithoutStore", WITHOUT_STORE, "Denial", "RetryAfter"),
    (503, "AuthDeniedWithoutStore", WITHOUT_STORE, "QuotaProblem", "RetryAfter"),
    (503, "ChangeUnknown", "The shared store did not reply: the change may or may not have been made. Repeating it is safe.", "Problem", ""),
    (503, "StoreUnavailable", "The shared store did not reply: the change may or may not have been made.", "Problem", ""),
];
const DENIED: &str = "Denied, and nothing was charged: the quota is exceeded (`quota-exceeded`) or the key is blocked (`abnormal-usage-detected`); or too many wrong tokens from this address.";
const WITHOUT_STORE: &str = "Denied, because the shared store is unavailable and the policy has `on_store_error: deny` (`temporary-reduced-capacity`). Usage is unknown, so only `RateLimit-Policy` and `Retry-After`, 1 to 3 seconds at random, are sent.";

/// Headers, by their names in the document.
#[rustfmt::skip]
const HEADERS: &[(&str, &str, &str, &str)] = &[
    ("RateLimitPolicy", "RateLimit-Policy", "string", "The quotas that apply, as in draft-ietf-httpapi-ratelimit-headers-10."),
    ("RateLimit", "RateLimit", "string", "The remaining cost under each quota, and the seconds until more is free."),
    ("XRateLimitLimit", "X-RateLimit-Limit", "integer", "Limit of the strictest policy."),
    ("XRateLimitRemaining", "X-RateLimit-Remaining", "integer", "Remaining cost under the strictest policy."),
    ("XRateLimitReset", "X-RateLimit-Reset", "integer", "When its key is unused again, in seconds since the Unix epoch."),
    ("RetryAfter", "Retry-After", "integer", "Seconds until the same cost fits, at least 1. Absent if it never fits."),
    ("SlidegateStatus", "Slidegate-Status", "integer", "The status for the client, 429 or 503."),
    ("Vary", "Vary", "string", "`Accept`."),
];
const LIMITS: &str = "RateLimitPolicy RateLimit XRateLimitLimit XRateLimitRemaining XRateLimitReset";
const DENIAL: &str =
    "RateLimitPolicy RateLimit XRateLimitLimit XRateLimitRemaining XRateLimitReset RetryAfter";
const AUTH_DENIAL: &str = "RateLimitPolicy RateLimit XRateLimitLimit XRateLimitRemaining XRateLimitReset RetryAfter SlidegateStatus";

// Groups of RESPONSES.
const DECIDED: &str = "Allowed Denied DeniedWithoutStore";
const BODY: &str = "InvalidRequest RequestTimeout PayloadTooLarge";
const TOKEN: &str = "Unauthorized Forbidden";
const TOKENS: &str = "Unauthorized Forbidden TooManyWrongTokens";
const TICKET: &str = "TicketUnknown ChangeUnknown";
const AUTH: &str =
    "AuthAllowed AuthForbidden AuthDenied AuthInvalid MappingUnknown Unauthorized AuthDeniedWithoutStore";
const ADMIN: &str = "Unauthorized AdminForbidden TooManyWrongTokens";
const ASKED: &str = "InvalidChange NotFound StoreUnavailable Unauthorized AdminForbidden TooManyWrongTokens";
const CHANGED: &str = "Changed Conflict UnsupportedMediaType";

/// Every route.
#[rustfmt::skip]
fn routes() -> Vec<Route> {
    let auth = "Authorization request of a proxy, by the configured preset; any method";
    let auth_of = "Authorization request of a proxy; any method";
    let envoy = "Only with config files of envoyproxy/ratelimit.";
    vec![
        route("GET /v1/check", "checkByQuery", "Decide a request and charge it if allowed, for curl")
            .takes("QueryAttributes QueryPolicy QueryCost IdempotencyKey PreferWait").named(&[DECIDED, "InvalidRequest", TOKEN]),
        route("POST /v1/check", "check", "Decide a request and charge it if allowed")
            .takes("IdempotencyKey PreferWait").reads("Request").named(&[DECIDED, BODY, TOKEN]),
        route("POST /v1/acquire", "acquire", "Decide a request in its turn: wait until it is allowed")
            .about("A request that cannot be allowed in time is denied at once. Nothing is charged while it waits; closing the connection ends the wait.")
            .takes("IdempotencyKey").reads("AcquireRequest").named(&[DECIDED, BODY, TOKEN]),
        route("POST /v1/check/batch", "checkBatch", "Decide up to 1000 requests in order")
            .about("If one of the requests is invalid, none is decided.")
            .reads("Batch").responds(200, "Every decision, denials included.", "BatchAnswer").named(&[BODY, TOKENS]),
        route("POST /v1/peek", "peek", "Decide a request without charging it")
            .reads("Request").responds(200, "The decision of a check: see `allowed`.", "AnyDecision")
            .responds(503, "The shared store is unavailable, and the policy has `on_store_error: deny`.", "Denial")
            .named(&[BODY, TOKENS]),
        route("POST /v1/reserve", "reserve", "Decide a request and hold its cost if allowed")
            .takes("ReservationKey PreferWait").reads("ReserveRequest")
            .responds(200, "Allowed; its cost is held.", "Reserved").with(LIMITS)
            .responds(429, "Denied, and nothing is held or charged; or too many wrong tokens from this address.", "ReserveDenial | Problem").with(DENIAL)
            .named(&[BODY, TOKEN, "DeniedWithoutStore"]),
        route("POST /v1/settle", "settle", "Settle a reservation: charge the true cost")
            .reads("Settle").responds(200, "Settled, now or earlier. Safe to repeat.", "Settlement")
            .named(&["ChangeQueued", TICKET, BODY, TOKENS]),
        route("POST /v1/extend", "extend", "Extend reservations from now on, or change what they hold")
            .reads("Extend")
            .responds(200, "Extended, or already expired. Lists are answered in their order.", "Settlement | Extended")
            .responds(429, "`hold` does not fit, or a key of the reservation is blocked, and the reservation is unchanged; or too many wrong tokens from this address.", "ExtensionDenial | Problem").with("RetryAfter")
            .named(&[TICKET, BODY, TOKEN]),
        route("POST /v1/cancel", "cancel", "Cancel a reservation: release everything it holds")
            .reads("Cancel").responds(200, "Cancelled, or already expired.", "Settlement")
            .named(&["ChangeQueued", TICKET, BODY, TOKENS]),
        route("POST /v1/refund", "refund", "Refund cost that was charged and still counts")
            .reads("Request").responds(200, "`cost` is what was refunded under each policy.", "Decision").named(&[BODY, TOKENS]),
        route("POST /v1/penalize", "penalize", "Charge a cost even if it exceeds the limit")
            .reads("Request").responds(200, "Charged. Later requests wait it out.", "Decision").named(&[BODY, TOKENS]),
        route("POST /v1/reset", "reset", "Reset the keys of a request under every policy that applies")
            .reads("Request").responds(200, "Reset.", "Reset")
            .responds(503, "The shared store did not reply in time; the keys may or may not be reset.", "Problem")
            .named(&[BODY, TOKENS]),
        route("GET /v1/auth", "auth", auth).takes("ProxyAttributes").named(&[AUTH]),
        route("POST /v1/auth", "authByPost", auth).takes("ProxyAttributes").named(&[AUTH]),
        route("GET /v1/auth/{proxy}", "authOfProxy", auth_of).takes("Proxy ProxyAttributes").named(&[AUTH]),
        route("POST /v1/auth/{proxy}", "authOfProxyByPost", auth_of).takes("Proxy ProxyAttributes").named(&[AUTH]),
        route("GET /healthz", "healthz", "Liveness").open().responds(200, "The process is alive.", "HealthBody"),
        route("GET /readyz", "readyz", "Readiness")
            .responds(200, "Ready.", "Ready").responds(503, "The service is shutting down.", "Ready"),
        route("GET /openapi.json", "openapi", "This document").open().responds(200, "This document.", "Document"),
        route("GET /v1/status", "status", "Version, configuration, and the state of the store")
            .takes("Instance").responds(200, "The status.", "Status").named(&[ADMIN]),
        route("GET /v1/shadow", "shadow", "What candidates and shadow policies would change")
            .responds(200, "The differences.", "Shadow").named(&[ADMIN]),
        route("GET /v1/policies", "policies", "List the active policies")
            .takes("Instance").responds(200, "The policies.", "Policies").named(&[ADMIN]),
        route("PUT /v1/policies/{name}", "setPolicy", "Change a policy on all instances, or add one. Omitted fields stay unchanged.")
            .takes("PolicyName").may_read("Put").named(&[CHANGED, ASKED]),
        route("DELETE /v1/policies/{name}", "unsetPolicy", "Restore a policy to its configuration")
            .takes("PolicyName").named(&[CHANGED, ASKED]),
        route("POST /v1/policies/{name}/promote", "promote", "Replace a policy's quota by its candidate")
            .takes("PolicyName").named(&[CHANGED, ASKED]),
        route("POST /v1/policies/{name}/reset", "resetPolicy", "Reset all keys of a policy, one step at a time")
            .about("Each call is one step. Start without a cursor, and send the cursor of each response until it is null. Decisions continue meanwhile; keys added meanwhile may stay.")
            .takes("PolicyName").may_read("ResetStep")
            .responds(200, "The step is done.", "PolicyReset").named(&["UnsupportedMediaType", ASKED]),
        route("GET /v1/keys", "keys", "The keys of a policy with their usage, in pages")
            .about("Start without a cursor, and send the cursor of each response until it is null. A page may be empty although there are more.")
            .takes("KeysPolicy Over KeysLimit KeysCursor").responds(200, "A page.", "KeyPage").named(&[ASKED]),
        route("GET /v1/keys/{policy}/{key}", "key", "The usage of a key, and when it is freed")
            .takes("Policy Key").responds(200, "The key.", "Key").named(&[ASKED]),
        route("POST /v1/keys/{policy}/{key}/{action}", "changeKey", "reset, refund, penalize, block, unblock, override or clear-override")
            .takes("Policy Key Action").may_read("KeyAction")
            .responds(200, "The key after the change.", "KeyDone").named(&["Conflict UnsupportedMediaType", ASKED]),
        route("GET /v1/changes", "changes", "Run-time changes, newest first")
            .responds(200, "The changes.", "Changes").named(&[ADMIN]),
        route("POST /v1/changes/{id}/undo", "undo", "Undo a change; `last` is the latest one not undone")
            .takes("Change").named(&[CHANGED, ASKED]),
        route("GET /v1/events", "events", "Recent denials and expired reservations, as JSON or a stream")
            .takes("EventPolicy EventKey EventLimit")
            .responds(200, "The events.", "Events | text/event-stream").named(&[ASKED]),
        route("GET /v1/top", "top", "The keys with the most usage or denials, closest to their limit, or blocked")
            .takes("EventPolicy TopOrder TopLimit Instance").responds(200, "The keys.", "Tops | BlockedKeys").named(&[ASKED]),
        route("GET /v1/live", "live", "Rates and denials as a stream")
            .responds(200, "The stream.", "text/event-stream").named(&[ASKED]),
        route("GET /v1/history", "history", "The last hour in steps of ten seconds").takes("Minutes OwnInstance")
            .responds(200, "Lists have one entry per step, oldest first; the last step is unfinished.", "HistoryReport")
            .named(&["InvalidChange NotFound", ADMIN]),
        route("GET /metrics", "metrics", "Prometheus metrics")
            .responds(200, "All metrics, in the format that `Accept` asks for: OpenMetrics if preferred, otherwise text format 0.0.4.", "text/plain | application/openmetrics-text").with("Vary")
            .named(&[ASKED]),
        route("GET /", "page", "The dashboard")
            .open().responds(200, "The file.", "text/html").responds(304, "Not modified.", ""),
        route("GET /dashboard/{file}", "page_file", "A file of the dashboard").open().takes("File")
            .responds(200, "The file.", "text/css | text/javascript | image/svg+xml | text/plain")
            .responds(304, "Not modified.", "").responds(404, "The dashboard has no such file.", "Problem"),
        route("POST /json", "rate_limit", "Envoy's ShouldRateLimit as JSON, as in envoyproxy/ratelimit, by any method.")
            .about(envoy).reads("RateLimitRequest")
            .responds(200, "The request is allowed.", "RateLimitResponse")
            .responds(429, "The request is denied.", "RateLimitResponse | Problem")
            .responds(400, "The body is not a valid call, or it cannot be decided.", "text/plain")
            .responds(500, "No decision could be made.", "text/plain")
            .responds(503, "Denied: the shared store is unavailable, and the policy has `on_store_error: deny`.", "RateLimitResponse | Problem")
            .named(&[TOKEN]),
        route("GET /healthcheck", "healthcheck", "Health, as in envoyproxy/ratelimit.")
            .about(envoy).open().responds(200, "`OK`", "text/plain").responds(500, "Unhealthy.", "text/plain"),
        route("GET /rlconfig", "rlconfig", "The active limits, as envoyproxy/ratelimit lists them.")
            .about(envoy).responds(200, "A line for each limit.", "text/plain").named(&[TOKENS]),
    ]
}

/// Parameters, by their names in the document.
#[rustfmt::skip]
fn parameters() -> Value {
    let text = || json!({"type": "string"});
    let texts = || json!({"type": "object", "additionalProperties": {"type": "string"}});
    let policy = json!({"type": "string", "minLength": 1, "maxLength": 64});
    let id = || json!({"type": "string", "minLength": 1, "maxLength": 128, "pattern": "^[!-~]+$"});
    let number = |max: u32, default: u32| json!({"type": "integer", "minimum": 1, "maximum": max, "default": default});
    let cost = json!({"type": "integer", "minimum": 0, "maximum": crate::limits::MAX_COST, "default": 1});
    let orders = json!({"type": "string", "enum": ["used", "denied", "closest", "blocked"], "default": "used"});
    let listed = [
        ("QueryAttributes", "attributes", "query", texts(), "Every pair except `cost` and `policy` is an attribute of the request, such as `user=alice`."),
        ("ProxyAttributes", "attributes", "query", texts(), "Further attributes from the proxy's configuration, such as `route=api`; `cost`; and `policy`, the only policy to decide by."),
        ("QueryPolicy", "policy", "query", policy, "The only policy to decide by, regardless of its conditions."),
        ("QueryCost", "cost", "query", cost, "The cost of the request."),
        ("IdempotencyKey", "Idempotency-Key", "header", id(), "An id of this check, for example a UUID. A repetition with the same id, attributes and cost, within the longest window of its policies, returns the first response again and is charged once. Denials are decided again. Other requests with the header are rejected."),
        ("ReservationKey", "Idempotency-Key", "header", id(), "An id of this reservation, for example a UUID. A repetition with the same id, attributes and cost, within the longest window of its policies and its lifetime, returns the first response and ticket again and holds nothing more. It is an id of the caller: for another token or, without one, another address, it is another reservation. Denials are decided again."),
        ("PreferWait", "Prefer", "header", text(), "`wait=5`: wait for a turn, for at most so many seconds and a minute (RFC 7240), instead of being denied at once. The response has `Preference-Applied`."),
        ("Proxy", "proxy", "path", text(), "`nginx`, `caddy`, `traefik`, or a name of `auth.proxies`."),
        ("PolicyName", "name", "path", text(), "The name of the policy."),
        ("Policy", "policy", "path", text(), "The name of the policy."),
        ("Key", "key", "path", text(), "The key, as responses print it."),
        ("Action", "action", "path", text(), "What to do about the key."),
        ("Change", "id", "path", text(), "The number of the change, or `last`."),
        ("File", "file", "path", text(), "The name of the file."),
        ("Instance", "instance", "query", text(), "Name or id of one instance of the fleet. Default: all together."),
        ("OwnInstance", "instance", "query", text(), "Name or id of the instance that responds: its decisions only. Default: those of all together."),
        ("EventPolicy", "policy", "query", text(), "All policies if absent."),
        ("EventKey", "key", "query", text(), "All keys if absent."),
        ("EventLimit", "limit", "query", number(1024, 100), "Maximum events."),
        ("KeysPolicy", "policy", "query", text(), "The name of the policy."),
        ("Over", "over", "query", text(), "Only keys from this share of their limit on, such as `80%`."),
        ("KeysLimit", "limit", "query", number(1000, 1000), "Approximate number of keys, of all policies, to examine for this page."),
        ("KeysCursor", "cursor", "query", text(), "The cursor of the previous page; absent for the first."),
        ("TopOrder", "by", "query", orders, "The order: charged cost or denials of the last minutes; the part of the limit that is taken now; blocks, those that end first in front."),
        ("TopLimit", "limit", "query", number(1000, 20), "Maximum keys."),
        ("Minutes", "minutes", "query", number(60, 60), "The length, up to now."),
    ];
    let parameter = |(key, name, place, schema, description)| {
        let required = place == "path" || ["QueryAttributes", "KeysPolicy"].contains(&key);
        (key, json!({"name": name, "in": place, "required": required, "schema": schema, "description": description}))
    };
    listed.into_iter().map(parameter).collect()
}

/// A problem of RFC 9457 with the members of the decision.
#[derive(JsonSchema)]
struct Denial<'a> {
    #[schemars(flatten)]
    decision: Answer<'a>,
    #[schemars(flatten)]
    problem: ProblemMembers<'a>,
}

#[derive(JsonSchema)]
#[schemars(untagged)]
enum AnyDecision<'a> {
    Decision(Answer<'a>),
    Denial(Denial<'a>),
}

#[derive(JsonSchema)]
struct BatchAnswer<'a> {
    /// In the order of the requests.
    decisions: Vec<AnyDecision<'a>>,
}

#[derive(JsonSchema)]
struct Reserved<'a> {
    #[schemars(flatten)]
    decision: Answer<'a>,
    #[schemars(flatten)]
    ticket: TicketMembers,
}

/// A problem of RFC 9457 with the members of the decision.
#[derive(JsonSchema)]
struct ReserveDenial<'a> {
    #[schemars(flatten)]
    denial: Denial<'a>,
    #[schemars(flatten)]
    over_limit: Option<OverLimit>,
}

/// A problem of RFC 9457 with the members of the settlement.
#[derive(JsonSchema)]
struct ExtensionDenial<'a> {
    #[schemars(flatten)]
    settlement: ChangeAnswer<'a>,
    #[schemars(flatten)]
    problem: ProblemMembers<'a>,
}

/// A problem of RFC 9457, as the library writes it.
#[derive(JsonSchema)]
struct QuotaProblem<'a> {
    #[schemars(flatten)]
    problem: ProblemMembers<'a>,
    /// Time until the same request fits; null if it never fits or the block is permanent. If the store is unavailable,
    /// 1 to 3 seconds at random.
    #[schemars(range(min = 1))]
    retry_after_ms: Option<u64>,
}

/// Bodies that protocol buffers define.
#[rustfmt::skip]
fn envoy_schemas(schemas: &mut Map<String, Value>) {
    let about = |name| format!("envoy.service.ratelimit.v3.{name} in the JSON form of protocol buffers.");
    let text = json!({"type": "string"});
    let entry = json!({"type": "object", "properties": {"key": text, "value": text}});
    let descriptor = json!({"type": "object", "properties": {"entries": {"type": "array", "items": entry}}});
    let request = json!({"type": "object", "description": about("RateLimitRequest"), "properties": {
        "domain": text, "descriptors": {"type": "array", "items": descriptor}, "hitsAddend": {"type": "integer", "minimum": 0},
    }});
    let response = json!({"type": "object", "description": about("RateLimitResponse"), "required": ["overallCode"], "properties": {
        "overallCode": {"enum": ["OK", "OVER_LIMIT"]}, "statuses": {"type": "array", "items": {"type": "object"}},
    }});
    schemas.extend([("RateLimitRequest".to_owned(), request), ("RateLimitResponse".to_owned(), response)]);
}

/// A route and what the document says about it.
struct Route {
    method: String,
    path: &'static str,
    about: Value,
}

fn route(at: &'static str, id: &str, summary: &str) -> Route {
    let (method, path) = at.split_once(' ').unwrap();
    let security = json!([{"token": []}, {}]);
    let about = json!({"operationId": id, "summary": summary, "security": security, "responses": {}});
    Route { method: method.to_lowercase(), path, about }
}

impl Route {
    fn set(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.about[key] = value.into();
        self
    }

    /// Without access control.
    fn open(mut self) -> Self {
        self.about.as_object_mut().unwrap().remove("security");
        self
    }

    fn about(self, description: &str) -> Self {
        self.set("description", description)
    }

    fn takes(self, parameters: &str) -> Self {
        let parameters = parameters.split(' ').map(|name| reference("parameters", name));
        self.set("parameters", parameters.collect::<Value>())
    }

    fn reads(self, body: &str) -> Self {
        self.set("requestBody", json!({"required": true, "content": content(body)}))
    }

    fn may_read(self, body: &str) -> Self {
        self.set("requestBody", json!({"required": false, "content": content(body)}))
    }

    fn responds(mut self, status: u16, description: &str, body: &str) -> Self {
        self.about["responses"][status.to_string()] = response(description, body, "");
        self
    }

    /// Headers of the response with the highest status so far.
    fn with(mut self, names: &str) -> Self {
        let responses = self.about["responses"].as_object_mut().unwrap();
        responses.values_mut().next_back().unwrap()["headers"] = headers(names);
        self
    }

    fn named(mut self, groups: &[&str]) -> Self {
        for name in groups.iter().flat_map(|names| names.split(' ')) {
            let (status, ..) = RESPONSES.iter().find(|one| one.1 == name).unwrap();
            self.about["responses"][status.to_string()] = reference("responses", name);
        }
        self
    }
}

fn reference(kind: &str, name: &str) -> Value {
    json!({"$ref": format!("#/components/{kind}/{name}")})
}

fn headers(names: &str) -> Value {
    let known = |name: &str| HEADERS.iter().find(|one| one.0 == name).unwrap().1;
    names.split(' ').map(|name| (known(name), reference("headers", name))).collect()
}

fn response(description: &str, body: &str, names: &str) -> Value {
    let mut response = json!({"description": description});
    if !body.is_empty() {
        response["content"] = content(body);
    }
    if !names.is_empty() {
        response["headers"] = headers(names);
    }
    response
}

/// The content of a body: the names of schemas, or media types of texts.
fn content(body: &str) -> Value {
    let mut content = Map::new();
    for one in body.split(" | ") {
        let (media_type, schema) = match one {
            text if text.contains('/') => (text, json!({"type": "string"})),
            name if name.ends_with("Problem") || name.ends_with("Denial") => {
                ("application/problem+json", reference("schemas", name))
            }
            name => ("application/json", reference("schemas", name)),
        };
        let media = content.entry(media_type).or_insert_with(|| json!({"schema": {"anyOf": []}}));
        media["schema"]["anyOf"].as_array_mut().unwrap().push(schema);
    }
    for media in content.values_mut() {
        if let [only] = media["schema"]["anyOf"].as_array().unwrap().as_slice() {
            media["schema"] = only.clone();
        }
    }
    content.into()
}

/// The schemas of `T`, a tuple of named ones.
fn schemas_of<T: JsonSchema>(contract: Contract, transform: fn(&mut Schema)) -> Map<String, Value> {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.definitions_path = "/components/schemas".into();
        settings.contract = contract;
    });
    let mut generator = settings.with_transform(RecursiveTransform(transform)).into_generator();
    generator.subschema_for::<T>();
    generator.take_definitions(true)
}

/// Writes descriptions in one line, leaves out formats of Rust, and closes objects.
fn tidy(schema: &mut Schema) {
    if let Some(Value::String(description)) = schema.get_mut("description") {
        *description = description.replace('\n', " ");
    }
    if schema.get("format").and_then(Value::as_str).is_some_and(|format| !format.contains('-')) {
        schema.remove("format");
    }
    if schema.get("properties").is_some() && schema.get("additionalProperties").is_none() {
        schema.insert("additionalProperties".to_owned(), false.into());
    }
}

/// The body of a change of a policy: a policy of the configuration, or parts of one.
fn put() -> Value {
    let mut put = config::published_schema()["properties"]["policies"]["items"].take();
    put.as_object_mut().unwrap().remove("required");
    put["description"] = "Of a configured policy, the keys of its quota, `mode` and `candidate`, of which `null` removes \
                          one. With any other key, the body is a complete policy as in the configuration: it is added, or \
                          it replaces one that was added. `name` must equal the name in the path, if present."
        .into();
    put["properties"]["dry_run"] =
        json!({"type": "boolean", "description": "Checks the request and changes nothing."});
    put["properties"]["candidate"]["anyOf"].as_array_mut().unwrap().push(json!({"type": "null"}));
    put
}

fn document() -> Value {
    let mut paths = json!({});
    for Route { method, path, about } in routes() {
        paths[path][method] = about;
    }
    let mut schemas = schemas_of::<Responses<'_>>(Contract::Serialize, tidy);
    schemas.extend(schemas_of::<Requests<'_>>(Contract::Deserialize, |schema| {
        without_null(schema);
        tidy(schema);
    }));
    schemas.insert("Put".into(), put());
    envoy_schemas(&mut schemas);
    schemas.insert("Document".into(), json!({"type": "object"}));
    let responses =
        RESPONSES.iter().map(|(_, name, about, body, headers)| (*name, response(about, body, headers)));
    let headers = HEADERS.iter().map(|(key, _, kind, description)| {
        (*key, json!({"description": description, "schema": {"type": kind}}))
    });
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "slidegate",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Rate limiting decisions over HTTP.",
            "license": {"name": "MIT OR Apache-2.0", "identifier": "MIT OR Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": schemas,
            "responses": responses.collect::<Value>(),
            "headers": headers.collect::<Value>(),
            "parameters": parameters(),
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "A token of `slidegate token new`. If no tokens are configured, the routes answer only \
                                    on loopback listeners.",
                },
            },
        },
    })
}

/// Clients are generated from the file that is served: it must be what this release reads and responds with.
#[test]
fn the_golden_openapi_document_is_current() {
    let document = document();
    let current = format!("{document:#}\n");
    for reference in current.split("\"$ref\": \"#").skip(1) {
        let at = reference.split('"').next().unwrap();
        assert!(document.pointer(at).is_some(), "{at} is missing");
    }
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(concat!(env!("CARGO_MANIFEST_DIR"), "/src/wire/http/openapi.json"), &current).unwrap();
        return;
    }
    assert!(
        include_str!("openapi.json") == current,
        "run this with UPDATE_GOLDEN=1, and read the difference"
    );
}
