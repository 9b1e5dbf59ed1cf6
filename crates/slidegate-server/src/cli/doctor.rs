//! `slidegate doctor`: checks whether limits are shared through Redis and how to fix what prevents it.
//!
//! Judgements come from the store where possible: its self-test and examination, the servers' reports about
//! themselves, and the duration of real checks.

use std::fmt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use serde::Serialize;
use slidegate::store::{ServiceStore, StoreFailure};
use slidegate::{
    DecisionSource, Policy, PolicySet, Quota, Request, SharedGate,
    clock::{Clock, SystemClock},
};
use slidegate_redis::{FailureKind, RedisGate, RedisStore};
use tokio::time::timeout;

use super::failure::{Failure, fail};
use super::output;
use super::sources::PolicyArgs;
use crate::config::{Arguments, SharedStore};
use crate::envoy::Settings;

mod finding;
mod servers;

use finding::{Finding, Grade, fix};

#[derive(Debug, Args)]
pub(super) struct DoctorArgs {
    /// Config file (YAML) whose store is examined, or set the variable `SLIDEGATE_CONFIG` [default:
    /// `slidegate.yaml` in the current directory, if there is one]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Redis to examine, such as `redis://127.0.0.1:6379`; overrides the config file
    ///
    /// Use the variable `SLIDEGATE_REDIS` to keep a password out of the process list.
    #[arg(long, value_name = "URL")]
    redis: Option<String>,
    /// Examine the Redis of envoyproxy/ratelimit's environment variables, such as `REDIS_URL`
    #[arg(long)]
    envoy_env: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Timeout of the self-test, or twice the deadline. It takes four seconds on a master that refuses writes.
const SELF_TEST: Duration = Duration::from_millis(4500);
/// Number of timed checks, and the timeout for all of them.
const CHECKS: usize = 200;
const CHECKS_TIME: Duration = Duration::from_millis(1500);
/// The policy of these checks. Its key expires after 25 seconds if it cannot be reset.
const POLICY: &str = "slidegate-doctor";
const POLICY_WINDOW: Duration = Duration::from_secs(10);

/// The stages of the self-test, in order.
const STAGES: [(&str, &str); 5] = [
    ("reachable", "every master answers"),
    ("tls", ""),
    ("authentication", "accepted"),
    ("permissions", "the user may do what decisions need"),
    ("decisions", "checks, reservations and resets work by the scripts of this release"),
];

/// After this many stages a server answers questions about itself.
const ANSWERS: usize = 3;

/// All checks of one Redis.
#[derive(Debug, Serialize)]
struct Diagnosis {
    /// The URL without secrets.
    redis: String,
    /// The worst grade of the checks.
    result: Grade,
    checks: Vec<Finding>,
}

pub(super) fn run(args: &DoctorArgs) -> Result<ExitCode, Failure> {
    let (shared, policies, exposed) = args.shared_store()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .map_err(|error| Failure(format!("cannot start threads: {error}")))?;
    let diagnosis = runtime.block_on(diagnose(shared, &policies, &exposed))?;
    if args.json {
        output::print(serde_json::to_string(&diagnosis)?)?;
    } else {
        output::print(&diagnosis)?;
    }
    Ok(ExitCode::from(match diagnosis.result {
        Grade::Ok | Grade::Skipped => 0,
        Grade::Warning => 1,
        Grade::Fault => 2,
    }))
}

impl DoctorArgs {
    /// The store, the policies, and secret files that everyone may read.
    fn shared_store(&self) -> Result<(SharedStore, PolicySet, Vec<String>), Failure> {
        let policies = PolicyArgs::of_file(self.config.clone());
        // Listeners do not matter.
        let arguments = Arguments { redis: self.redis.clone(), has_other_grpc: true, ..Arguments::default() };
        let sources = if self.envoy_env {
            let settings = Settings::of_environment(&|name| std::env::var(name).ok());
            policies.sources_with_envoy(&settings?, arguments)?
        } else {
            policies.sources(&arguments)?
        };
        let config = sources.load()?;
        let Some(shared) = config.shared else {
            return fail(format!(
                "no Redis to examine: this configuration counts in memory ({}); give a url with --redis or \
                 SLIDEGATE_REDIS, or a config file that has `store: {{redis: ...}}`",
                policies.origin()
            ));
        };
        Ok((shared, config.policies, config.exposed))
    }
}

async fn diagnose(
    mut shared: SharedStore,
    configured: &PolicySet,
    exposed: &[String],
) -> Result<Diagnosis, Failure> {
    let deadline = shared.deadline;
    let quota = Quota::new(1_000_000, POLICY_WINDOW)?;
    let policies = PolicySet::new([Policy::new(POLICY, quota)?.with_scope(["user"])])?;
    let Some(options) = shared.options.redis() else { return fail("the store is not Redis") };
    let gate = SharedGate::new(policies, RedisStore::new(options.clone())?)?;
    let redis = gate.store().primary();
    let mut checks = self_test(redis, SELF_TEST.max(2 * deadline)).await;
    let answers = checks.iter().take(ANSWERS).all(|check| check.result == Grade::Ok);
    let decides = checks.iter().all(|check| check.result == Grade::Ok);
    if decides {
        checks.push(match redis.restriction() {
            None => Finding::ok("time", "scripts read the server's clock"),
            Some(restriction) => Finding::warning(
                "time",
                restriction,
                "give the user the right `+time`, or use a Redis that lets scripts call TIME",
            ),
        });
    }
    if answers {
        checks.extend(servers::examine(redis, configured).await);
        if let Some(policy) = configured.iter().find(|policy| policy.options().notify_closed) {
            checks.push(scan(redis, policy.name()).await);
        }
    }
    if decides {
        checks.push(latency(&gate, deadline).await);
    }
    checks.push(time_zones());
    checks.extend(exposed.iter().map(|warning| {
        let (found, fix) = warning.split_once("; ").unwrap_or((warning, ""));
        Finding::warning("secrets", found, fix)
    }));
    let result = checks.iter().map(|check| check.result).max().unwrap_or(Grade::Fault);
    Ok(Diagnosis { redis: redis.url(), result, checks })
}

/// Closed periods are found by scanning, which decisions do not need.
async fn scan(redis: &RedisStore, policy: &str) -> Finding {
    const CHECK: &str = "closed periods";
    match redis.list_policy_step(policy, None, 1).await {
        Ok(_) => Finding::ok(CHECK, "keys can be listed when a window ends"),
        Err(error) => Finding::warning(
            CHECK,
            format!("policy `{policy}` has `notify: closed`, and its keys cannot be listed: {error}"),
            "give the user the rights `+scan` and `+dbsize`",
        ),
    }
}

/// Instances with different time zone data end calendar windows at different times.
fn time_zones() -> Finding {
    let (version, source) = slidegate::clock::time_zone_data().unwrap_or(("none", "bundled"));
    Finding::ok("time zones", format!("version {version} ({source}); all instances need the same"))
}

/// The self-test, with one finding per stage.
async fn self_test(redis: &RedisStore, within: Duration) -> Vec<Finding> {
    let failed = match timeout(within, redis.self_test()).await {
        Ok(tested) => tested.err().map(|failure| (kind_of(&failure), failure.to_string())),
        Err(_) => {
            let found = format!("the self-test did not end within {} ms", within.as_millis());
            Some((FailureKind::Timeout, found))
        }
    };
    let at = failed.as_ref().map_or(STAGES.len(), |(kind, _)| stage(*kind));
    let not_encrypted = "not used: without it, passwords and ids are sent in clear text";
    let tls = if redis.url().starts_with("rediss") {
        "the server's certificate is accepted"
    } else {
        not_encrypted
    };
    let finding = |(number, (check, passed)): (usize, (&'static str, &'static str))| match &failed {
        Some((kind, text)) if number == at => {
            let (found, hint) = text.split_once("; ").unwrap_or((text, ""));
            let has_hint = !hint.is_empty() && *kind != FailureKind::Malformed;
            let fix = if has_hint { hint.to_owned() } else { fix(*kind, text) };
            Finding::fault(check, found, fix)
        }
        _ if number > at => {
            let found = format!("not judged, because of `{}`", STAGES[at].0);
            Finding { check, result: Grade::Skipped, found, fix: None }
        }
        _ if check == "tls" => Finding::ok(check, tls),
        _ => Finding::ok(check, passed),
    };
    STAGES.into_iter().enumerate().map(finding).collect()
}

fn kind_of(failure: &StoreFailure) -> FailureKind {
    let kind = FailureKind::ALL.into_iter().find(|kind| kind.name() == failure.kind());
    kind.unwrap_or(FailureKind::Other)
}

/// The stage at which the self-test failed.
fn stage(kind: FailureKind) -> usize {
    match kind {
        FailureKind::Tls => 1,
        FailureKind::Authentication => 2,
        FailureKind::NoPermission => 3,
        FailureKind::Connection
        | FailureKind::ConnectionLost
        | FailureKind::Timeout
        | FailureKind::BreakerOpen
        | FailureKind::Malformed => 0,
        _ => 4,
    }
}

/// Times checks made like those of requests, one after the other.
async fn latency(gate: &RedisGate, deadline: Duration) -> Finding {
    const CHECK: &str = "latency";
    let clock = SystemClock::new();
    let user = format!("{:x}", clock.now().as_micros());
    let request = Request::new().with("user", &user);
    let (began, mut times, mut fallbacks) = (clock.now(), Vec::with_capacity(CHECKS), 0);
    while times.len() < CHECKS && clock.now() - began < CHECKS_TIME {
        let sent = clock.now();
        let decisions = gate.check(&request).await;
        fallbacks +=
            usize::from(decisions.iter().any(|one| one.decision().source() != DecisionSource::Store));
        times.push(clock.now() - sent);
    }
    // The rest expires.
    let _ = timeout(deadline, gate.reset(&request)).await;
    times.sort_unstable();
    let percentile = |percent: usize| times[(times.len() * percent).div_ceil(100).max(1) - 1];
    let (p50, p99) = (percentile(50), percentile(99));
    let ms = |time: Duration| format!("{}.{:02} ms", time.as_millis(), time.as_micros() % 1000 / 10);
    let found = format!("p50 {}, p99 {} of {} checks", ms(p50), ms(p99), times.len());
    let limit = deadline.as_millis();
    let fix = format!(
        "bring Redis nearer, look for slow commands (SLOWLOG GET) and busy machines, or raise `store.deadline`, which is \
         {limit} ms"
    );
    if fallbacks > 0 {
        let found = format!("{found}; {fallbacks} were decided by the fallback");
        let is_most = fallbacks * 2 > times.len();
        return if is_most { Finding::fault(CHECK, found, fix) } else { Finding::warning(CHECK, found, fix) };
    }
    if p99 > deadline / 2 {
        return Finding::warning(CHECK, found, fix);
    }
    Finding::ok(CHECK, found)
}

impl fmt::Display for Diagnosis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.redis)?;
        for Finding { check, result, found, fix } in &self.checks {
            let result = match result {
                Grade::Ok => "ok",
                Grade::Skipped => "-",
                Grade::Warning => "WARNING",
                Grade::Fault => "FAULT",
            };
            writeln!(f, "  {result:<8} {check:<15} {found}")?;
            if let Some(fix) = fix {
                writeln!(f, "  {:<8} {:<15} fix: {fix}", "", "")?;
            }
        }
        let count = |grade| self.checks.iter().filter(|check| check.result == grade).count();
        let (warnings, faults) = (count(Grade::Warning), count(Grade::Fault));
        match self.result {
            Grade::Fault => {
                write!(f, "limits are not shared, or not exact: faults {faults}, warnings {warnings}")
            }
            Grade::Warning => write!(f, "limits are shared, with reservations: warnings {warnings}"),
            Grade::Ok | Grade::Skipped => write!(f, "limits are shared"),
        }
    }
}
