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
use slidegate_redis::{FailureKind, RedisGate, RedisStore, ServerInfo};
use tokio::time::timeout;

use super::failure::{Failure, fail};
use super::output;
use super::sources::PolicyArgs;
use crate::config::{Arguments, SharedStore, longest_window};
use crate::envoy::Settings;

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

/// Timeout of the self-test. It takes four seconds on a master that refuses writes.
const SELF_TEST: Duration = Duration::from_millis(4500);
/// Timeout of each of the two steps that query servers about themselves.
const STEP: Duration = Duration::from_secs(2);
/// Number of timed checks, and the timeout for all of them.
const CHECKS: usize = 200;
const CHECKS_TIME: Duration = Duration::from_millis(1500);
/// The policy of these checks. Its key expires after 25 seconds if it cannot be reset.
const POLICY: &str = "slidegate-doctor";
const POLICY_WINDOW: Duration = Duration::from_secs(10);
/// Above this share of its memory, in percent, a server is nearly full.
const NEARLY_FULL_PERCENT: u64 = 90;
/// A replica lags if it has confirmed nothing for longer than this, in seconds. It confirms once per second.
const LAG_S: u64 = 10;
/// Clock differences up to this, in microseconds, are not reported.
const CLOCK_TOLERANCE_US: i64 = 1_000_000;
/// The oldest tested Redis version, as in docs/compatibility.md: major and minor.
const OLDEST_VERSION: [u64; 2] = [6, 2];

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

/// The grade of a check, from best to worst.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
enum Grade {
    Ok,
    /// Not judged: an earlier check failed and has its own grade.
    Skipped,
    /// Limits are shared, including reservations.
    Warning,
    /// Limits are not shared, or not exact.
    Fault,
}

/// The result of one check.
#[derive(Debug, Serialize)]
struct Finding {
    check: &'static str,
    result: Grade,
    found: String,
    /// How to fix it.
    fix: Option<String>,
}

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
    let mut checks = self_test(redis).await;
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
        checks.extend(servers(redis, configured).await);
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

impl Finding {
    fn ok(check: &'static str, found: impl Into<String>) -> Self {
        Self { check, result: Grade::Ok, found: found.into(), fix: None }
    }

    fn warning(check: &'static str, found: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { check, result: Grade::Warning, found: found.into(), fix: Some(fix.into()) }
    }

    fn fault(check: &'static str, found: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { check, result: Grade::Fault, found: found.into(), fix: Some(fix.into()) }
    }
}

/// Instances with different time zone data end calendar windows at different times.
fn time_zones() -> Finding {
    let (version, source) = slidegate::clock::time_zone_data().unwrap_or(("none", "bundled"));
    Finding::ok("time zones", format!("version {version} ({source}); all instances need the same"))
}

/// The self-test, with one finding per stage.
async fn self_test(redis: &RedisStore) -> Vec<Finding> {
    let failed = match timeout(SELF_TEST, redis.self_test()).await {
        Ok(tested) => tested.err().map(|failure| (kind_of(&failure), failure.to_string())),
        Err(_) => {
            let found = format!("the self-test did not end within {} ms", SELF_TEST.as_millis());
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

/// How to fix a failure whose text does not say so.
fn fix(kind: FailureKind, text: &str) -> String {
    let fix = match kind {
        _ if text.contains("DB index") => {
            "end the url with the number of a database that the server has, such as `/0`"
        }
        _ if text.contains("cluster support disabled") => {
            "the server is no cluster: write `redis://HOST:PORT`"
        }
        _ if text.contains("command 'SENTINEL'") || text.contains("command `SENTINEL`") => {
            "the server is no Sentinel: give the address of one, with port 26379 as a rule, or write `redis://HOST:PORT`"
        }
        FailureKind::Connection if text.contains("timed out") => {
            "look whether the server is stopped, and whether the host of the url is right and a firewall drops packets"
        }
        FailureKind::Connection if !text.contains("reset by peer") => {
            "start the server, or correct the host and port of the url; look at firewalls"
        }
        FailureKind::Connection | FailureKind::ConnectionLost | FailureKind::Malformed => {
            "give the address of a Redis server; if the server speaks TLS at this port, use a url that begins with `rediss`"
        }
        FailureKind::Timeout | FailureKind::Late | FailureKind::BreakerOpen => {
            "look whether the server is stopped or runs slow commands (SLOWLOG GET), and whether the network drops \
             packets"
        }
        FailureKind::Authentication => {
            "correct the user and password of the url (`redis://USER:PASSWORD@HOST`), or of the server (ACL SETUSER)"
        }
        FailureKind::NoPermission => return missing_right(text),
        FailureKind::ReadOnly | FailureKind::MasterDown => {
            "give the url of the master, or those of its Sentinels: `redis+sentinel://HOST,HOST/NAME`"
        }
        FailureKind::OutOfMemory => "raise `maxmemory`, or delete what else is stored there",
        FailureKind::Misconfigured => "look at the server's disk and log: it cannot save, and refuses writes",
        FailureKind::TooFewReplicas => "start its replicas, or lower `min-replicas-to-write`",
        FailureKind::Loading => "wait until the server has loaded its data",
        FailureKind::Busy => "end the slow script of another client: SCRIPT KILL",
        FailureKind::ClusterDown | FailureKind::Redirected => {
            "look at CLUSTER INFO: each slot needs a master; give a url that begins with `redis+cluster`"
        }
        FailureKind::NoScript => "do without the proxy in between, or use a Redis that keeps scripts",
        FailureKind::WrongType | FailureKind::ForeignValue => {
            "use a database of its own for slidegate, or upgrade: something else, or a newer release, writes keys that \
             begin with `sg1:`"
        }
        _ => {
            "use a server that runs Lua scripts, such as Redis 7.0 or Valkey: see docs/redis.md, Redis versions"
        }
    };
    fix.to_owned()
}

/// How to grant the right that a refusal names.
fn missing_right(text: &str) -> String {
    let within = |before: &str, after: char| Some(text.split_once(before)?.1.split_once(after)?.0);
    let right = within("give it `", '`').map(str::to_owned);
    let right = right.or_else(|| within("to run the '", '\'').map(|command| format!("+{command}")));
    let right = right.or_else(|| text.contains(" key").then(|| "~sg1:*".to_owned()));
    let right = right.unwrap_or_else(|| "...".to_owned());
    format!("give the user the right: `ACL SETUSER USER {right}`; docs/redis.md lists all that it needs")
}

/// Counts the instances, and checks whether another program writes into their list.
async fn instances(redis: &RedisStore) -> Finding {
    let fix = "find the program that writes to `sg1:~instances`; instances replace it within 3 seconds";
    match timeout(STEP, redis.foreign_instances()).await {
        Ok(Ok(0)) => Finding::ok("instances", "their list holds what instances wrote"),
        Ok(Ok(bytes)) => Finding::warning(
            "instances",
            format!("their list holds {bytes} bytes that no instance wrote"),
            fix,
        ),
        Ok(Err(error)) => Finding::warning("instances", format!("their list is not readable: {error}"), fix),
        Err(_) => Finding::warning("instances", "their list was not read in time", fix),
    }
}

async fn servers(redis: &RedisStore, policies: &PolicySet) -> Vec<Finding> {
    let Ok(servers) = timeout(STEP, redis.servers()).await else {
        return vec![Finding::warning("server", "no reply to INFO", fix(FailureKind::Timeout, ""))];
    };
    let (known, unknown): (Vec<_>, Vec<_>) = servers.iter().partition(|server| server.has_fields());
    let mut findings = Vec::new();
    if !unknown.is_empty() || servers.is_empty() {
        let nodes: Vec<_> = unknown.iter().map(|server| server.node.as_str()).collect();
        findings.push(Finding::warning(
            "server",
            format!(
                "replication, memory, persistence and version are unknown: no reply to INFO from {}",
                nodes.join(", ")
            ),
            "give the user the right `+info`",
        ));
    }
    if !known.is_empty() {
        for judge in [version, replication, memory] {
            findings.extend(worst(known.iter().map(|server| judge(server, redis))));
        }
        findings.extend(worst(known.iter().map(|server| persistence(server, longest_window(policies)))));
        findings.extend(worst(known.iter().map(|server| module(server, redis))));
        findings.extend(history(redis).await);
    }
    findings.push(instances(redis).await);
    findings.extend(worst(servers.iter().map(clock)));
    findings
}

/// All bad findings of one check over all servers, or else the first good one.
fn worst(findings: impl Iterator<Item = Finding>) -> Vec<Finding> {
    let mut findings: Vec<_> = findings.collect();
    if findings.iter().any(|finding| finding.result > Grade::Ok) {
        findings.retain(|finding| finding.result > Grade::Ok);
    } else if findings.len() > 1 {
        let others = findings.len() - 1;
        findings.truncate(1);
        findings.iter_mut().for_each(|first| first.found += &format!("; {others} more are well"));
    }
    findings
}

fn number(server: &ServerInfo, field: &str) -> u64 {
    server.field(field).and_then(|number| number.parse().ok()).unwrap_or(0)
}

fn version(server: &ServerInfo, _: &RedisStore) -> Finding {
    let node = &server.node;
    let version = server.field("redis_version").unwrap_or("0");
    let numbers: Vec<u64> = version.split('.').take(2).filter_map(|number| number.parse().ok()).collect();
    match server.field("valkey_version") {
        Some(valkey) => Finding::ok("version", format!("{node} is Valkey {valkey}")),
        None if numbers[..] < OLDEST_VERSION[..] => Finding::warning(
            "version",
            format!("{node} is Redis {version}, which is not tested with slidegate"),
            format!("use Redis {}.{} or later, or Valkey", OLDEST_VERSION[0], OLDEST_VERSION[1]),
        ),
        None => Finding::ok("version", format!("{node} is Redis {version}")),
    }
}

fn replication(server: &ServerInfo, _: &RedisStore) -> Finding {
    const CHECK: &str = "replication";
    let node = &server.node;
    if server.field("role") == Some("slave") {
        let of = |name| server.field(name).unwrap_or("?");
        let (host, port, link) = (of("master_host"), of("master_port"), of("master_link_status"));
        let found = format!("{node} is a replica of {host}:{port} (link {link}), and replicas refuse writes");
        return Finding::fault(CHECK, found, fix(FailureKind::ReadOnly, ""));
    }
    let is_replica =
        |name: &str| name.strip_prefix("slave").is_some_and(|number| number.parse::<u32>().is_ok());
    let replicas: Vec<_> = server.fields().filter(|(name, _)| is_replica(name)).collect();
    let is_behind = |text: &str| {
        let part = |name: &str| text.split(',').find_map(|part| part.strip_prefix(name)?.strip_prefix('='));
        part("state") != Some("online") || part("lag").and_then(|lag| lag.parse().ok()) > Some(LAG_S)
    };
    if let Some((_, behind)) = replicas.iter().find(|(_, text)| is_behind(text)) {
        return Finding::warning(
            CHECK,
            format!("{node} is a master with a replica that is behind ({behind})"),
            "look at the replica's log and network: after a failover, what it has not received may be used again",
        );
    }
    match replicas.len() {
        0 => Finding::ok(CHECK, format!("{node} is a master without replicas")),
        count => Finding::ok(CHECK, format!("{node} is a master, followed by {count}")),
    }
}

fn memory(server: &ServerInfo, _: &RedisStore) -> Finding {
    let node = &server.node;
    let (used, most) = (number(server, "used_memory"), number(server, "maxmemory"));
    let of_machine = number(server, "total_system_memory");
    let (most, name) = if most > 0 { (most, "maxmemory") } else { (of_machine, "the machine's memory") };
    let mb = |bytes: u64| bytes.div_ceil(1_000_000);
    if most == 0 {
        return Finding::ok("memory", format!("{node} uses {} MB", mb(used)));
    }
    let found = format!("{node} uses {} MB of {} MB, {name}", mb(used), mb(most));
    if used.saturating_mul(100) < most.saturating_mul(NEARLY_FULL_PERCENT) {
        return Finding::ok("memory", found);
    }
    let fix = "raise `maxmemory`, or delete what else is stored there: a full server refuses writes, and policies use \
               their fallbacks";
    Finding::warning("memory", found, fix)
}

fn persistence(server: &ServerInfo, longest: Option<&Policy>) -> Finding {
    let node = &server.node;
    let states = ["rdb_last_bgsave_status", "aof_last_write_status", "aof_last_bgrewrite_status"];
    if let Some(state) = states.into_iter().find(|state| server.field(state) == Some("err")) {
        return Finding::warning(
            "persistence",
            format!("{node} could not save to disk ({state} is `err`)"),
            "look at the server's disk and log: it may refuse writes until it can save",
        );
    }
    if server.field("aof_enabled") == Some("1") {
        return Finding::ok("persistence", format!("{node} writes an append-only file"));
    }
    let found = format!("{node} writes no append-only file: after a restart, limits may be used once more");
    // Usage of an hour is soon there again.
    match longest.filter(|policy| policy.quota().window() > Duration::from_secs(3600)) {
        None => Finding::ok("persistence", found),
        Some(policy) => Finding::warning(
            "persistence",
            format!("{found}, those of `{}` for {}", policy.name(), policy.quota().window_text()),
            "set `appendonly yes` if that matters; see docs/quotas.md",
        ),
    }
}

fn module(server: &ServerInfo, redis: &RedisStore) -> Finding {
    let node = &server.node;
    let is_used = redis.nodes().iter().any(|state| state.node == *node && state.has_module);
    let loaded = server.fields().find_map(|(name, value)| {
        let rest = value.strip_prefix("name=slidegate,ver=").filter(|_| name == "module")?;
        rest.split(',').next()
    });
    match (loaded, is_used) {
        (None, false) => Finding::ok("module", format!("{node} has no native module: scripts decide")),
        (None, true) => Finding::ok("module", format!("{node} has the native module, which decides")),
        (Some(version), true) => {
            Finding::ok("module", format!("{node} has version {version} of the native module, which decides"))
        }
        (Some(version), false) => Finding::warning(
            "module",
            format!(
                "{node} has version {version} of the native module, but scripts decide: it is not offered to the user"
            ),
            "give the user the rights `+command|info +slidegate.check1 +slidegate.decide +slidegate.change`, and use the \
             module of this release",
        ),
    }
}

/// Runs the store's examination for what silently breaks limits.
async fn history(redis: &RedisStore) -> Vec<Finding> {
    let Ok(found) = timeout(STEP, redis.examine()).await else {
        return vec![Finding::warning("history", "no reply", fix(FailureKind::Timeout, ""))];
    };
    if found.is_empty() {
        return vec![Finding::ok("history", "no keys are evicted when memory is full, and none were")];
    }
    let finding = |text: &String| {
        let (found, fix) = text.split_once("; ").unwrap_or((text, "see docs/redis.md, Redis settings"));
        Finding::warning("history", found, fix)
    };
    found.iter().map(finding).collect()
}

fn clock(server: &ServerInfo) -> Finding {
    const CHECK: &str = "clock";
    let node = &server.node;
    let Some((least, most)) = server.clock_ahead_us else {
        let found = format!("not judged: no reply to TIME from {node}");
        return Finding { check: CHECK, result: Grade::Skipped, found, fix: None };
    };
    // The minimum difference.
    let (off_us, direction) = if least > 0 { (least, "ahead of") } else { ((-most).max(0), "behind") };
    if off_us < CLOCK_TOLERANCE_US {
        return Finding::ok(
            CHECK,
            format!("{node} and this machine agree to {} ms", off_us.max(1000) / 1000),
        );
    }
    let found = format!("{node} is {} s {direction} this machine", off_us / 1_000_000);
    let fix = "synchronise both clocks by NTP: limits are counted by the server's clock, as are the ends of fixed windows \
               and reported dates";
    Finding::warning(CHECK, found, fix)
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
