//! The call handler: turns a call into requests, decides them in one step, and encodes the decisions.
//!
//! All descriptors of a call are decided together: all are charged or none, so a denied descriptor charges
//! nothing on another. Refunds are made in a second step, if the others are allowed. In shadow mode each
//! descriptor is decided by itself.

mod denial;
mod metadata;
mod record;
mod request;
mod response;
mod values;

use std::iter::once;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use axum::http::HeaderMap;
use futures_util::future::try_join_all;
use slidegate::acquire::Patience;
use slidegate::{
    Decisions,
    verb::{Role, Verb},
};
use slidegate_http::headers::{HeaderOptions, Problem};
use tonic::Status;

use super::message::{Code, HeaderValue, RateLimitRequest, RateLimitResponse};
use crate::caller::Caller;
use crate::config::GrpcSettings;
use crate::engine::App;
use crate::engine::decide::TurnTerms;
use crate::envoy::{EnvoyConfig, LiveConfig, Settings};
use crate::limits::MAX_WAIT;
use crate::listener::Connection;
use denial::{CallDenial, header};
use request::{CallRequests, DescriptorTarget, Requests};
use response::CallOutcome;

pub(super) use request::{has_refund, without_refunds};

/// Handles gRPC calls and `/json`.
#[derive(Debug)]
pub(crate) struct RateLimitHandler {
    pub(super) app: Arc<App>,
    /// Whether every response has the configured headers.
    response_headers: bool,
    /// Whether health follows the shared store.
    health_follows_store: bool,
    /// envoyproxy/ratelimit files. Without them, the service's policies decide.
    pub(super) files: Option<ConfigFiles>,
}

/// The envoyproxy/ratelimit files, and the settings for replacing it.
#[derive(Debug)]
pub(crate) struct ConfigFiles {
    /// The running config.
    pub(crate) live: LiveConfig,
    pub(crate) settings: Settings,
}

impl RateLimitHandler {
    /// A handler over `app`. With `files`, their limits decide calls instead of its policies.
    pub(crate) fn new(app: Arc<App>, settings: &GrpcSettings, files: Option<ConfigFiles>) -> Self {
        if let Some(files) = &files {
            // Set once, at the start.
            let _ = app.observer().files.set(files.live.clone());
        }
        let &GrpcSettings { response_headers, health_follows_store, .. } = settings;
        Self { app, response_headers, health_follows_store, files }
    }

    /// Whether proxies should use this instance. An unavailable shared store counts only if configured,
    /// because policies have fallbacks: if all instances reported unhealthy, nothing would be limited.
    pub(crate) fn is_healthy(&self) -> bool {
        let has_domains = |config: Arc<EnvoyConfig>| config.has_domains();
        let is_configured = self.files.as_ref().is_none_or(|files| {
            !files.settings.needs_a_domain || files.live.current().is_some_and(has_domains)
        });
        is_configured && !(self.health_follows_store && self.app.is_degraded())
    }

    /// How a call waits, if a policy lets it: until a tenth of its deadline is left, in which the answer arrives.
    pub(super) fn turn(&self, headers: &HeaderMap, client: Connection) -> Option<TurnTerms> {
        self.app.store().has_waits().then(|| {
            let deadline = headers.get("grpc-timeout").and_then(|value| timeout(value.to_str().ok()?));
            let most = deadline.map_or(MAX_WAIT, |deadline| MAX_WAIT.min(deadline / 10 * 9));
            TurnTerms { patience: Patience::OfPolicies(most), client }
        })
    }

    /// Decides all descriptors of a call together, and counts the call.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` for a call without a domain or descriptors, `UNAVAILABLE` without a config or during a reload.
    pub(super) async fn answer(
        &self,
        call: RateLimitRequest,
        caller: &Caller,
        turn: Option<TurnTerms>,
    ) -> Result<RateLimitResponse, Status> {
        let Some(files) = &self.files else { return self.decide(call, caller, turn).await };
        let calls = files.live.statistics().calls();
        calls.total.fetch_add(1, Relaxed);
        let response = self.decide(call, caller, turn).await;
        if response.is_err() {
            calls.service_errors.fetch_add(1, Relaxed);
        }
        response
    }

    /// The config that decides, if there are files. Hold it until the call is decided: a reload removes
    /// policies only afterwards.
    ///
    /// # Errors
    /// `UNAVAILABLE` if none is loaded yet.
    fn config(&self, domain: &str) -> Result<Option<Arc<EnvoyConfig>>, Status> {
        let Some(files) = &self.files else { return Ok(None) };
        let no_config = || Status::unavailable("no rate limit configuration loaded");
        let config = files.live.current().ok_or_else(no_config)?;
        if !config.has_domain(domain) {
            files.live.statistics().record_unknown_domain(domain);
        }
        Ok(Some(config))
    }

    async fn decide(
        &self,
        mut call: RateLimitRequest,
        caller: &Caller,
        turn: Option<TurnTerms>,
    ) -> Result<RateLimitResponse, Status> {
        request::validate(&call)?;
        let files = self.files.as_ref();
        request::make_decidable(&mut call, &self.app, files.is_some());
        let call = &call;
        let config = self.config(&call.domain)?;
        let settings = files.map(|files| &files.settings);
        let targets = request::targets(config.as_deref(), call);
        let mut requests = Requests::new();
        let batch = CallRequests::new(&self.app, call, &targets, settings, &mut requests);
        let is_shadow = settings.is_some_and(|settings| settings.shadow_mode);
        let decide = async |requests| {
            let decisions = self.app.call(caller.clone()).apply(None, requests, None).await;
            removed_meanwhile(&decisions).map(|()| decisions)
        };
        // What denies nothing need not wait.
        let first = match turn.filter(|_| !is_shadow) {
            Some(turn) => {
                let call = self.app.call(caller.clone());
                let decisions = call.apply_in_turn(None, &requests[batch.step(0)], None, turn).await;
                removed_meanwhile(&decisions)?;
                decisions
            }
            None => decide(&requests[batch.step(0)]).await?,
        };
        let peeks: Requests<'_>;
        let mut more = Vec::new();
        if batch.steps() > 1 && (is_shadow || !first.is_denied()) {
            more = try_join_all((1..batch.steps()).map(|step| decide(&requests[batch.step(step)]))).await?;
        } else if batch.steps() > 1 {
            // Peeks at the keys of refunds, for their status.
            let refunds = requests[batch.step(1)].iter().cloned();
            peeks = refunds.map(|refund| refund.with_verb(Verb::Peek).with_cost(0)).collect();
            more.push(decide(&peeks).await?);
        }
        let decided = || {
            once(&first).chain(&more).enumerate().flat_map(|(step, decisions)| batch.decided(step, decisions))
        };
        let outcome = CallOutcome::new(&targets, decided());
        if let Some(files) = files {
            record::statistics(files.live.statistics(), &targets, decided());
        }
        if let Some(files) = files.filter(|_| is_shadow && outcome.denial.is_some()) {
            files.live.statistics().calls().global_shadow_mode.fetch_add(1, Relaxed);
        }
        let (mut response, denial_headers) = self.response(call, &targets, outcome);
        let headers = &mut response.response_headers_to_add;
        if self.response_headers && settings.is_none_or(|settings| settings.headers.is_none()) && !is_shadow {
            headers.extend(limit_headers(first, self.app.headers));
        }
        headers.extend(denial_headers);
        Ok(response)
    }

    /// The response to a call, and the headers of its denial, which come last.
    fn response(
        &self,
        call: &RateLimitRequest,
        targets: &[DescriptorTarget<'_>],
        outcome: CallOutcome<'_>,
    ) -> (RateLimitResponse, Vec<HeaderValue>) {
        let settings = self.files.as_ref().map(|files| &files.settings);
        let is_shadow = settings.is_some_and(|settings| settings.shadow_mode);
        let denial = outcome.denial.as_ref().filter(|_| !is_shadow);
        let mut response = RateLimitResponse {
            overall_code: if denial.is_some() { Code::OverLimit } else { Code::Ok }.into(),
            ..RateLimitResponse::default()
        };
        let mut metadata = denial.map(metadata::denial).unwrap_or_default();
        if settings.is_some_and(|settings| settings.dynamic_metadata) {
            metadata.extend(metadata::of_call(call, targets, &outcome.statuses));
        }
        response.dynamic_metadata = (!metadata.is_empty()).then(|| metadata::of_json(metadata));
        if let Some(names) = settings.and_then(|settings| settings.headers.as_ref()) {
            response.response_headers_to_add = outcome.three_headers(names, denial.is_some());
        }
        let mut headers = denial.map(|denial| denial.retry_after(&self.app.headers)).unwrap_or_default();
        if let Some(problem) = denial.and_then(CallDenial::store_unavailable_body) {
            headers.push(header("content-type", Problem::MEDIA_TYPE.to_owned()));
            response.raw_body = problem.into_bytes();
        }
        response.statuses = outcome.statuses;
        (response, headers)
    }
}

/// The configured headers: of the peeks if one of them denies, otherwise of the checks.
fn limit_headers(mut decisions: Decisions<'_>, options: HeaderOptions) -> impl Iterator<Item = HeaderValue> {
    let is_denied_by_peek = decisions.iter().any(|one| {
        one.verb() == Verb::Peek
            && one.role() == Role::Deciding
            && one.decision().is_denied()
            && one.policy().options().enforced
    });
    let shown = if is_denied_by_peek { Verb::Peek } else { Verb::Check };
    decisions.retain(|one| one.verb() == shown && one.role() == Role::Deciding);
    // Waits are those of the whole response.
    let options = HeaderOptions { retry_after: false, retry_after_ms: false, ..options };
    options.headers(&decisions).into_iter().map(|(name, value)| header(name, value))
}

/// Fails if a policy was removed between lookup and decision.
///
/// # Errors
/// `UNAVAILABLE`.
fn removed_meanwhile(decisions: &Decisions<'_>) -> Result<(), Status> {
    let Some(error) = decisions.error() else { return Ok(()) };
    Err(Status::unavailable(format!("{error}; the limits are being reloaded, retry the call")))
}

/// A `grpc-timeout`: up to eight digits, and a unit (gRPC over HTTP/2).
fn timeout(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let number: u64 = digits.parse().ok().filter(|_| digits.len() <= 8)?;
    Some(match unit {
        "H" => Duration::from_secs(number * 3600),
        "M" => Duration::from_secs(number * 60),
        "S" => Duration::from_secs(number),
        "m" => Duration::from_millis(number),
        "u" => Duration::from_micros(number),
        "n" => Duration::from_nanos(number),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    //! Calls through the handler, on a memory store with a manual clock.

    use std::time::Duration;

    use axum::http::HeaderMap;
    use slidegate::{
        MemoryStore, PolicySet,
        clock::{ManualClock, Timestamp},
    };
    use slidegate_testkit::TempDir;

    use super::*;
    use crate::caller::Protocol;
    use crate::config::{self, Config};
    use crate::envoy::{ConfigWatcher, HeaderNames, ReadOptions, Unit};
    use crate::wire::grpc::message::{Entry, RateLimitDescriptor};

    const RULES: &str = "
    domain: domain
    descriptors:
      - {key: second, rate_limit: {unit: second, requests_per_unit: 10}}
      - {key: minute, rate_limit: {unit: minute, requests_per_unit: 10}}
      - {key: hour, rate_limit: {unit: hour, requests_per_unit: 10}}
      - {key: day, rate_limit: {unit: day, requests_per_unit: 10}}
      - {key: fifteen, rate_limit: {unit: hour, requests_per_unit: 15}}
      - {key: fourteen, rate_limit: {unit: hour, requests_per_unit: 14}}
      - {key: week, rate_limit: {unit: week, requests_per_unit: 10}}
      - {key: month, rate_limit: {unit: month, requests_per_unit: 10}}
      - {key: year, rate_limit: {unit: year, requests_per_unit: 10}}
      - {key: bucket, metadata: {slidegate: {algorithm: token-bucket}}, rate_limit: {unit: month, requests_per_unit: 10}}
      - {key: fixed, metadata: {slidegate: {algorithm: fixed-window}}, rate_limit: {unit: month, requests_per_unit: 10}}
    ";

    /// A handler with these rules in fixed windows and a clock at `secs`.
    fn at(test: &str, secs: u64) -> (RateLimitHandler, ManualClock) {
        let options = ReadOptions { algorithm: "fixed-window".parse().unwrap(), ..ReadOptions::default() };
        with_options(test, secs, options)
    }

    /// A handler with these rules and a clock at `secs`.
    fn with_options(test: &str, secs: u64, options: ReadOptions) -> (RateLimitHandler, ManualClock) {
        let folder = TempDir::new(test);
        folder.file("rules.yaml", RULES);
        let mut settings = Settings::of_folder(folder.path().to_owned());
        settings.options = options;
        settings.headers = Some(HeaderNames {
            limit: "RateLimit-Limit".into(),
            remaining: "RateLimit-Remaining".into(),
            reset: "RateLimit-Reset".into(),
        });
        let (watcher, live) = ConfigWatcher::start(&settings, &PolicySet::default()).unwrap();
        let clock = ManualClock::at(Timestamp::from_secs(secs));
        let store = MemoryStore::builder().clock(clock.clone()).build();
        let config = Config { policies: watcher.policies().unwrap(), ..config::tests::default() };
        let app = Arc::new(App::over(config, store, None).unwrap());
        let files = Some(ConfigFiles { live, settings });
        (RateLimitHandler::new(app, &GrpcSettings::default(), files), clock)
    }

    /// Decides descriptors of one entry each, with this many hits.
    async fn send(handler: &RateLimitHandler, keys: &[&str], hits: u64) -> RateLimitResponse {
        let descriptor = |key: &&str| RateLimitDescriptor {
            entries: vec![Entry { key: (*key).to_owned().into(), value: "value".into() }],
            hits_addend: Some(hits),
            ..RateLimitDescriptor::default()
        };
        let descriptors = keys.iter().map(descriptor).collect();
        let call = RateLimitRequest { domain: "domain".into(), descriptors, hits_addend: 0 };
        let caller = handler.app.observer().caller(Protocol::Grpc, &HeaderMap::new());
        handler.answer(call, &caller, None).await.unwrap()
    }

    fn statuses(response: &RateLimitResponse) -> Vec<(Code, u32, i64)> {
        let each = response.statuses.iter();
        let reset = |one: &Option<prost_types::Duration>| one.map_or(-1, |span| span.seconds);
        each.map(|one| (one.code(), one.limit_remaining, reset(&one.duration_until_reset))).collect()
    }

    /// Users who migrate compare numbers: in both, fixed windows begin at whole units of the epoch.
    #[tokio::test]
    async fn fixed_windows_count_and_reset_as_in_envoyproxy_ratelimit() {
        let (handler, clock) = at("windows", 1234);
        assert_eq!(statuses(&send(&handler, &["second"], 5).await), [(Code::Ok, 5, 1)]);
        // The first has no limit; statuses keep the order of the descriptors.
        assert_eq!(
            statuses(&send(&handler, &["none", "minute"], 10).await),
            [(Code::Ok, 0, -1), (Code::Ok, 0, 26)]
        );
        let over = send(&handler, &["none", "minute"], 1).await;
        assert_eq!((over.overall_code(), statuses(&over)[1]), (Code::OverLimit, (Code::OverLimit, 0, 26)));
        clock.advance(Duration::from_secs(25));
        assert_eq!(statuses(&send(&handler, &["minute"], 1).await), [(Code::OverLimit, 0, 1)]);
        clock.advance(Duration::from_secs(1));
        assert_eq!(statuses(&send(&handler, &["minute"], 1).await), [(Code::Ok, 9, 60)]);

        let (handler, _) = at("long-windows", 1_000_000);
        send(&handler, &["hour", "day"], 10).await;
        let over = send(&handler, &["hour", "day"], 1).await;
        assert_eq!(statuses(&over), [(Code::OverLimit, 0, 800), (Code::OverLimit, 0, 36_800)]);
        assert_eq!(
            statuses(&send(&handler, &["hour"], 0).await),
            [(Code::Ok, 0, 800)],
            "a peek at a full key is OK"
        );
    }

    /// 22:30:10 on February 28, 2026 in Berlin, where the clock skips an hour in March.
    const END_OF_FEBRUARY: u64 = 1_772_314_210;

    /// A customer's month resets when the invoice says so, whatever counts the short limits.
    #[tokio::test]
    async fn a_calendar_has_the_units_of_an_hour_and_longer() {
        let options =
            ReadOptions { calendar: Some("Europe/Berlin".parse().unwrap()), ..ReadOptions::default() };
        let (handler, clock) = with_options("calendar", END_OF_FEBRUARY, options);
        let keys = ["minute", "hour", "day", "week", "month", "year", "fixed"];
        let used_up = send(&handler, &keys, 10).await;
        let resets: Vec<_> = statuses(&used_up).iter().map(|(_, _, reset)| *reset).collect();
        // The minute slides; the others end by the wall clock.
        assert_eq!(resets, [60, 1790, 5390, 91_790, 5390, 26_443_790, 5390]);
        let units = used_up.statuses.iter().map(|status| status.current_limit.as_ref().unwrap().unit);
        let units: Vec<_> = units.map(|number| Unit::from_number(number).map(Unit::name)).collect();
        assert_eq!(
            units,
            ["MINUTE", "HOUR", "DAY", "WEEK", "MONTH", "YEAR", "MONTH"].map(Some),
            "Envoy shows the units of the files"
        );
        // A limit that names another algorithm uses it, with 30 days.
        assert_eq!(statuses(&send(&handler, &["bucket"], 10).await), [(Code::Ok, 0, 2_592_000)]);

        clock.advance(Duration::from_secs(5389));
        let over = send(&handler, &["month"], 1).await;
        assert_eq!((over.overall_code(), statuses(&over)), (Code::OverLimit, vec![(Code::OverLimit, 0, 1)]));
        let header = over.response_headers_to_add.iter().find(|header| header.key == "RateLimit-Reset");
        assert_eq!(header.unwrap().value, "1");
        clock.advance(Duration::from_secs(1));
        // March has 31 days less one hour.
        assert_eq!(statuses(&send(&handler, &["month"], 1).await), [(Code::Ok, 9, 2_674_800)]);
        assert_eq!(statuses(&send(&handler, &["year"], 1).await)[0].0, Code::OverLimit);
    }

    /// Without the option nothing may change for those who compare with envoyproxy/ratelimit.
    #[tokio::test]
    async fn without_a_calendar_a_month_is_30_days_and_a_year_365() {
        let (handler, _) = at("lengths", END_OF_FEBRUARY);
        let response = send(&handler, &["month", "year"], 1).await;
        let until = |days: u64| days * 86_400 - END_OF_FEBRUARY % (days * 86_400);
        let resets: Vec<_> = statuses(&response).iter().map(|(_, _, reset)| *reset).collect();
        assert_eq!(resets, [until(30), until(365)].map(|secs| i64::try_from(secs).unwrap()));
        let (handler, _) = with_options("sliding", END_OF_FEBRUARY, ReadOptions::default());
        let response = send(&handler, &["month", "year"], 1).await;
        assert_eq!(statuses(&response), [(Code::Ok, 9, 30 * 86_400), (Code::Ok, 9, 365 * 86_400)]);
    }

    /// The three headers describe the descriptor that limits the client first.
    #[tokio::test]
    async fn headers_describe_the_least_remaining_or_the_last_denial() {
        let fields = |response: &RateLimitResponse| {
            let headers = response.response_headers_to_add.iter();
            headers.map(|header| format!("{}: {}", header.key, header.value)).collect::<Vec<_>>()
        };
        let (handler, _) = at("headers", 2222);
        let full = send(&handler, &["minute"], 10).await;
        assert_eq!(fields(&full), ["RateLimit-Limit: 10", "RateLimit-Remaining: 0", "RateLimit-Reset: 58"]);
        send(&handler, &["hour"], 3).await;
        let least = send(&handler, &["day", "hour", "none"], 1).await;
        assert_eq!(fields(&least)[1..], ["RateLimit-Remaining: 6", "RateLimit-Reset: 1378"]);
        let denied = send(&handler, &["hour", "minute", "day"], 1).await;
        assert_eq!(
            fields(&denied),
            ["RateLimit-Limit: 10", "RateLimit-Remaining: 0", "RateLimit-Reset: 58", "retry-after: 58"]
        );
    }
}
