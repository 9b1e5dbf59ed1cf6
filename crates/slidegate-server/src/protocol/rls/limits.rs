//! The rate-limit service itself: what is decided first, what is charged, and what the whole answer is.
//!
//! Nothing is charged before everything that may deny without being charged has been looked at; what is charged is charged
//! in one step.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use envoy_types::pb::envoy::config::core::v3::HeaderValue;
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use slidegate::headers::HeaderOptions;
use slidegate::{Decisions, PolicyDecision, Verb};
use tonic::Status;

use super::answer::{Answer, Kind, header, is_over};
use super::ask::{self, Asked, Group, Terms};
use super::tally::Decided;
use super::{metadata, refused};
use crate::app::App;
use crate::app::decide::Call;
use crate::caller::Caller;
use crate::config::Grpc;
use slidegate_envoy::{EnvoyConfig, LiveConfig, Settings};

/// The service, whatever door is asked.
#[derive(Debug)]
pub(crate) struct Limits {
    app: Arc<App>,
    /// Whether every answer has the fields of `headers:`.
    response_headers: bool,
    /// Whether it is not well while a shared store is away.
    health_follows_store: bool,
    /// Which limit a descriptor is under, where that is said by files of envoyproxy/ratelimit.
    files: Option<Files>,
}

/// Files of envoyproxy/ratelimit, and what is to be done in its place.
#[derive(Debug)]
pub(crate) struct Files {
    pub(crate) live: LiveConfig,
    pub(crate) settings: Settings,
}

impl Limits {
    pub(crate) fn new(app: Arc<App>, config: &Grpc, files: Option<Files>) -> Self {
        let &Grpc { response_headers, health_follows_store, .. } = config;
        Self { app, response_headers, health_follows_store, files }
    }

    pub(super) fn app(&self) -> &App {
        &self.app
    }

    pub(super) fn files(&self) -> Option<&Files> {
        self.files.as_ref()
    }

    /// Whether there is what to decide by: at least one domain, where the settings ask for that.
    pub(super) fn is_configured(&self) -> bool {
        self.files.as_ref().is_none_or(|files| {
            let has_domains = |envoy: Arc<EnvoyConfig>| envoy.has_domains();
            !files.settings.needs_a_domain || files.live.current().is_some_and(has_domains)
        })
    }

    /// Whether proxies should ask here. A shared store that is away is no reason not to unless told otherwise, since each
    /// policy has its fallback: instances that were left alone one and all would limit nothing.
    pub(super) fn is_well(&self) -> bool {
        self.is_configured() && !(self.health_follows_store && self.app.is_degraded())
    }

    /// Decides all descriptors of a call: all of them charged, or none.
    ///
    /// # Errors
    /// A call that is none, or no configuration.
    pub(super) async fn decide(
        &self,
        call: &RateLimitRequest,
        caller: &Caller,
    ) -> Result<RateLimitResponse, Status> {
        let calls = self.files.as_ref().map(|files| files.live.statistics().calls());
        if let Some(calls) = calls {
            calls.total.fetch_add(1, Relaxed);
        }
        let mut decided = self.app.call(caller.clone());
        let answer = self.answer(call, &mut decided).await.inspect_err(|_| {
            if let Some(calls) = calls {
                calls.service_errors.fetch_add(1, Relaxed);
            }
        })?;
        Ok(answer)
    }

    async fn answer(
        &self,
        call: &RateLimitRequest,
        caller: &mut Call<'_>,
    ) -> Result<RateLimitResponse, Status> {
        ask::check(call)?;
        let settings = self.files.as_ref().map(|files| &files.settings);
        // Held until all is decided: a reload takes no policy out of force before.
        let envoy = match &self.files {
            None => None,
            Some(files) => Some(
                files
                    .live
                    .current()
                    .ok_or_else(|| Status::unavailable("no rate limit configuration loaded"))?,
            ),
        };
        if let Some((files, envoy)) = self.files.as_ref().zip(envoy.as_deref())
            && !envoy.has_domain(&call.domain)
        {
            files.live.statistics().record_unknown_domain(&call.domain);
        }
        let terms = ask::terms(envoy.as_deref(), call)?;
        let all_quotas = settings.is_some_and(|settings| settings.quota_mode);
        let asked = ask::read(&self.app, call, &terms, all_quotas)?;
        if settings.is_some_and(|settings| settings.shadow_mode) {
            return self.report(call, caller, &terms, &asked).await;
        }

        let mut answer = Answer::new(&terms);
        // Looks charge nothing, and come first: one that finds no room lets the others charge nothing either.
        let looked = self.look(caller, &terms, &asked.looks).await?;
        answer.add(&asked.looks.places, &looked, Kind::Alone);
        let quotas = &asked.quotas;
        let seen = self.look(caller, &terms, quotas).await?;
        let seen_over = answer.add(&quotas.places, &seen, Kind::Together);
        if seen_over == quotas.places.len() {
            answer.deny_together();
        }
        let is_denied_by_looks = answer.is_denied();
        let verb = if is_denied_by_looks { Verb::Peek } else { Verb::Check };
        let charged = self.apply(caller, verb, &asked.charges).await?;
        answer.add(&asked.charges.places, &charged, Kind::Alone);
        let is_denied_before = answer.is_denied();
        let fitting = if is_denied_before { Group::default() } else { quotas.without(&not_to_charge(&seen)) };
        let taken = self.apart(caller, Verb::Check, &fitting).await?;
        let places = fitting.places.chunks(1);
        let denials = seen_over
            + places.zip(&taken).map(|(place, one)| answer.add(place, one, Kind::Together)).sum::<usize>();
        let denies_together = denials > 0 && denials == quotas.places.len();
        if denies_together && !is_denied_before {
            // Others took what the look had seen.
            answer.deny_together();
            let refundable = asked.charges.without(&refused::counted(&terms, &asked.charges));
            self.apply(caller, Verb::Refund, &refundable).await?;
        }
        // Whoever is refused comes again, with what is to be given back.
        let verb = if answer.is_denied() { Verb::Peek } else { Verb::Refund };
        let refunded = self.apply(caller, verb, &asked.refunds).await?;
        answer.add(&asked.refunds.places, &refunded, Kind::Refund);
        if self.files.is_some() {
            let mut refused = Vec::new();
            if denies_together && !is_denied_before {
                // They were charged, and given back.
                refused.extend(asked.charges.all_refused(true));
            } else {
                refused.extend(refused::uncharged(&asked.charges, &charged, !is_denied_by_looks));
            }
            if is_denied_before {
                refused.extend(quotas.all_refused(false));
            } else {
                refused.extend(seen.iter().filter(is_over).map(|one| quotas.refused(one.request(), false)));
                let untaken = taken.iter().enumerate().filter(|(_, one)| one.is_denied());
                refused.extend(untaken.map(|(at, _)| fitting.refused(at, true)));
            }
            let is_over_look = |one: PolicyDecision<'_>| one.policy().is_enforced() && is_over(&one);
            let is_denied_by_look = looked.iter().any(is_over_look)
                || denies_together && quotas.requests.iter().any(|request| request.asked_cost() == 0);
            self.keep_refused(&terms, &refused, is_denied_by_look).await;
        }

        self.tally(
            caller,
            &terms,
            &asked,
            &Decided {
                looked: &looked,
                charged: &charged,
                seen: &seen,
                fitting: &fitting,
                taken: &taken,
                is_denied_by_looks,
                is_denied_before,
                denies_together,
            },
        );

        let shown = if looked.iter().any(|one| one.policy().is_enforced() && is_over(&one)) {
            &looked
        } else {
            &charged
        };
        let headers = self.headers(&answer, shown);
        Ok(self.finish(call, &terms, answer, headers))
    }

    /// Decides each descriptor by itself, as none may deny anything.
    async fn report(
        &self,
        call: &RateLimitRequest,
        caller: &mut Call<'_>,
        terms: &[Terms<'_>],
        asked: &Asked<'_>,
    ) -> Result<RateLimitResponse, Status> {
        let mut answer = Answer::new(terms);
        let mut told = Vec::new();
        for group in [&asked.looks, &asked.quotas, &asked.charges] {
            let mut decided = self.apart(caller, Verb::Check, group).await?;
            for (request, usage) in self.refused(terms, group).await {
                // Each was decided by itself.
                decided[request].add_usage(0, &usage);
            }
            told.push((group, decided, Kind::Alone));
        }
        let denied = told.iter().flat_map(|(group, decided, _)| {
            let each = decided.iter().enumerate();
            each.filter(|(_, one)| one.iter().any(|one| one.is_denied()))
                .map(|(at, _)| group.refused(at, true))
        });
        self.keep_refused(terms, &denied.collect::<Vec<_>>(), false).await;
        told.push((&asked.refunds, self.apart(caller, Verb::Refund, &asked.refunds).await?, Kind::Refund));
        for (group, decisions, kind) in &told {
            for (place, one) in group.places.chunks(1).zip(decisions) {
                answer.add(place, one, *kind);
            }
        }
        let charges = told.iter().filter(|(_, _, kind)| *kind != Kind::Refund);
        self.tally_apart(terms, charges.map(|(group, decisions, _)| (*group, &decisions[..])));
        if let Some(files) = self.files.as_ref().filter(|_| answer.is_denied()) {
            files.live.statistics().calls().global_shadow_mode.fetch_add(1, Relaxed);
        }
        answer.overrule();
        let headers = self.files.as_ref().and_then(|files| files.settings.headers.as_ref());
        let headers = headers.map_or_else(Vec::new, |names| answer.three_headers(names));
        Ok(self.finish(call, terms, answer, headers))
    }

    /// Peeks at a group in one step. Descriptors of 0 hits are told of what was refused as well.
    async fn look<'r>(
        &self,
        caller: &mut Call<'_>,
        terms: &[Terms<'_>],
        group: &'r Group<'r>,
    ) -> Result<Decisions<'r>, Status> {
        let (decisions, refused) =
            tokio::join!(self.apply(caller, Verb::Peek, group), self.refused(terms, group));
        let mut decisions = decisions?;
        for (request, usage) in refused {
            decisions.add_usage(request, &usage);
        }
        Ok(decisions)
    }

    /// Does the same to a whole group in one step.
    async fn apply<'r>(
        &self,
        caller: &mut Call<'_>,
        verb: Verb,
        group: &'r Group<'r>,
    ) -> Result<Decisions<'r>, Status> {
        decided(caller.apply(verb, &group.requests).await)
    }

    /// Does the same to each of a group, whatever becomes of the others.
    async fn apart<'r>(
        &self,
        caller: &mut Call<'_>,
        verb: Verb,
        group: &'r Group<'r>,
    ) -> Result<Vec<Decisions<'r>>, Status> {
        let mut decisions = Vec::with_capacity(group.requests.len());
        for request in &group.requests {
            decisions.push(decided(caller.apply(verb, std::slice::from_ref(request)).await)?);
        }
        Ok(decisions)
    }

    /// Fields for the client's answer: those that are configured, of these decisions.
    fn headers(&self, answer: &Answer<'_>, shown: &Decisions<'_>) -> Vec<HeaderValue> {
        let options = &self.app.headers;
        let mut headers = Vec::new();
        if let Some(names) = self.files.as_ref().and_then(|files| files.settings.headers.as_ref()) {
            headers = answer.three_headers(names);
        } else if self.response_headers {
            // Waits are told of the answer as a whole, which a look may deny.
            let fields = HeaderOptions { retry_after: false, retry_after_ms: false, ..*options };
            headers.extend(fields.headers(shown).into_iter().map(|(name, value)| header(name, value)));
        }
        headers.extend(answer.retry_after(options));
        headers
    }

    fn finish(
        &self,
        call: &RateLimitRequest,
        terms: &[Terms<'_>],
        answer: Answer<'_>,
        headers: Vec<HeaderValue>,
    ) -> RateLimitResponse {
        let mut metadata = answer.why();
        if self.files.as_ref().is_some_and(|files| files.settings.dynamic_metadata) {
            let of_call = metadata::of_call(call, terms, answer.statuses());
            metadata.get_or_insert_default().fields.extend(of_call.fields);
        }
        answer.finish(headers, metadata)
    }
}

/// The decisions, unless the policy of a rule is not in force: then nothing was decided, and nothing may pass for it.
fn decided(decisions: Decisions<'_>) -> Result<Decisions<'_>, Status> {
    match decisions.error() {
        None => Ok(decisions),
        Some(error) => Err(Status::unavailable(format!("{error}; the limits are being reloaded, try again"))),
    }
}

/// Which requests of a group have no room under their policy, or only look.
fn not_to_charge(decisions: &Decisions<'_>) -> Vec<usize> {
    decisions.iter().filter(|one| one.asked() == 0 || is_over(one)).map(|one| one.request()).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
    use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
    use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;
    use envoy_types::pb::google::protobuf::UInt64Value;
    use slidegate::{ManualClock, PolicySet, Timestamp};

    use super::*;
    use crate::caller::Protocol;
    use crate::config::Config;
    use slidegate_envoy::{ConfigWatcher, HeaderNames};

    const RULES: &str = "
domain: domain
descriptors:
  - {key: second, rate_limit: {unit: second, requests_per_unit: 10}}
  - {key: minute, rate_limit: {unit: minute, requests_per_unit: 10}}
  - {key: hour, rate_limit: {unit: hour, requests_per_unit: 10}}
  - {key: day, rate_limit: {unit: day, requests_per_unit: 10}}
  - {key: fifteen, rate_limit: {unit: hour, requests_per_unit: 15}}
  - {key: fourteen, rate_limit: {unit: hour, requests_per_unit: 14}}
";

    /// A service with these rules in fixed windows, whose clock stands at so many seconds.
    fn at(test: &str, secs: u64) -> (Limits, ManualClock) {
        let path = std::env::temp_dir().join(format!("slidegate-rls-{test}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        std::fs::write(path.join("rules.yaml"), RULES).unwrap();
        let mut settings = Settings::of_folder(path.clone());
        settings.options.algorithm = "fixed-window".parse().unwrap();
        settings.headers = Some(HeaderNames {
            limit: "RateLimit-Limit".into(),
            remaining: "RateLimit-Remaining".into(),
            reset: "RateLimit-Reset".into(),
        });
        let (watcher, live) = ConfigWatcher::start(&settings, &PolicySet::default()).unwrap();
        std::fs::remove_dir_all(path).unwrap();
        let clock = ManualClock::at(Timestamp::from_secs(secs));
        let config = Config { policies: watcher.policies().unwrap(), ..Config::default() };
        let app = Arc::new(App::on_clock(config, clock.clone()));
        (Limits::new(app, &Grpc::default(), Some(Files { live, settings })), clock)
    }

    /// Decides descriptors of one entry each, with so many hits.
    async fn ask(limits: &Limits, keys: &[&str], hits: u64) -> RateLimitResponse {
        let descriptor = |key: &&str| RateLimitDescriptor {
            entries: vec![Entry { key: (*key).into(), value: "value".into() }],
            hits_addend: Some(UInt64Value { value: hits }),
            ..RateLimitDescriptor::default()
        };
        let descriptors = keys.iter().map(descriptor).collect();
        limits
            .decide(
                &RateLimitRequest { domain: "domain".into(), descriptors, hits_addend: 0 },
                &Protocol::Grpc.into(),
            )
            .await
            .unwrap()
    }

    fn told(answer: &RateLimitResponse) -> Vec<(Code, u32, i64)> {
        let statuses = answer.statuses.iter();
        let reset =
            |one: &Option<envoy_types::pb::google::protobuf::Duration>| one.map_or(-1, |span| span.seconds);
        statuses.map(|one| (one.code(), one.limit_remaining, reset(&one.duration_until_reset))).collect()
    }

    /// Who changes from the reference compares numbers: its windows begin at whole units of the epoch, and so do ours.
    #[tokio::test]
    async fn in_fixed_windows_counts_and_resets_are_the_references() {
        let (limits, clock) = at("windows", 1234);
        assert_eq!(told(&ask(&limits, &["second"], 5).await), [(Code::Ok, 5, 1)]);
        // One of them is under no limit: the other is told at its place.
        assert_eq!(
            told(&ask(&limits, &["none", "minute"], 10).await),
            [(Code::Ok, 0, -1), (Code::Ok, 0, 26)]
        );
        let over = ask(&limits, &["none", "minute"], 1).await;
        assert_eq!((over.overall_code(), told(&over)[1]), (Code::OverLimit, (Code::OverLimit, 0, 26)));
        clock.advance(Duration::from_secs(25));
        assert_eq!(told(&ask(&limits, &["minute"], 1).await), [(Code::OverLimit, 0, 1)]);
        clock.advance(Duration::from_secs(1));
        assert_eq!(told(&ask(&limits, &["minute"], 1).await), [(Code::Ok, 9, 60)]);

        let (limits, _) = at("long-windows", 1_000_000);
        ask(&limits, &["hour", "day"], 10).await;
        let over = ask(&limits, &["hour", "day"], 1).await;
        assert_eq!(told(&over), [(Code::OverLimit, 0, 800), (Code::OverLimit, 0, 36_800)]);
        assert_eq!(
            told(&ask(&limits, &["hour"], 0).await),
            [(Code::Ok, 0, 800)],
            "a look at a full key is OK"
        );
    }

    /// The three fields are those of the descriptor that a client meets first.
    #[tokio::test]
    async fn headers_are_of_the_least_that_remains_or_of_the_last_that_denies() {
        let fields = |answer: &RateLimitResponse| {
            let headers = answer.response_headers_to_add.iter();
            headers.map(|header| format!("{}: {}", header.key, header.value)).collect::<Vec<_>>()
        };
        let (limits, _) = at("headers", 2222);
        let full = ask(&limits, &["minute"], 10).await;
        assert_eq!(fields(&full), ["RateLimit-Limit: 10", "RateLimit-Remaining: 0", "RateLimit-Reset: 58"]);
        ask(&limits, &["hour"], 3).await;
        let least = ask(&limits, &["day", "hour", "none"], 1).await;
        assert_eq!(fields(&least)[1..], ["RateLimit-Remaining: 6", "RateLimit-Reset: 1378"]);
        let denied = ask(&limits, &["hour", "minute", "day"], 1).await;
        assert_eq!(
            fields(&denied),
            ["RateLimit-Limit: 10", "RateLimit-Remaining: 0", "RateLimit-Reset: 58", "retry-after: 58"]
        );
    }

    /// A step of the reference that is not taken over: there a refused batch uses up the window, and its neighbours'.
    #[tokio::test]
    async fn what_is_refused_burns_nothing_as_it_would_in_the_reference() {
        let (limits, _) = at("free", 1234);
        assert_eq!(told(&ask(&limits, &["hour", "day"], 11).await)[0], (Code::OverLimit, 0, 0));
        assert_eq!(told(&ask(&limits, &["hour"], 10).await), [(Code::Ok, 0, 2366)]);
        assert_eq!(told(&ask(&limits, &["day", "hour"], 5).await)[0], (Code::Ok, 10, 0));
        assert_eq!(told(&ask(&limits, &["day"], 10).await), [(Code::Ok, 0, 85_166)]);
        // What the reference answers with STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT: only one of the two has room for 2.
        ask(&limits, &["fifteen", "fourteen"], 13).await;
        let over = told(&ask(&limits, &["fifteen", "fourteen"], 2).await);
        assert_eq!(over, [(Code::Ok, 2, 2366), (Code::OverLimit, 0, 2366)]);
        assert_eq!(told(&ask(&limits, &["fifteen"], 2).await), [(Code::Ok, 0, 2366)]);
    }
}
