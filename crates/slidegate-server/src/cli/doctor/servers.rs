//! What servers report about themselves, judged: version, replication, memory, persistence, module, clock.

use std::time::Duration;

use slidegate::store::ServiceStore;
use slidegate::{Policy, PolicySet};
use slidegate_redis::{FailureKind, RedisStore, ServerInfo};
use tokio::time::timeout;

use super::finding::{Finding, Grade, fix};
use crate::config::longest_window;

/// Timeout of each of the two steps that query servers about themselves.
const STEP: Duration = Duration::from_secs(2);
/// Above this share of its memory, in percent, a server is nearly full.
const NEARLY_FULL_PERCENT: u64 = 90;
/// A replica lags if it has confirmed nothing for longer than this, in seconds. It confirms once per second.
const LAG_S: u64 = 10;
/// Clock differences up to this, in microseconds, are not reported.
const CLOCK_TOLERANCE_US: i64 = 1_000_000;
/// The oldest tested Redis version, as in docs/compatibility.md: major and minor.
const OLDEST_VERSION: [u64; 2] = [6, 2];

/// What servers report about themselves, and what the store's examination finds.
pub(super) async fn examine(redis: &RedisStore, policies: &PolicySet) -> Vec<Finding> {
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
            format!(
                "{found}; the longest window is that of `{}`: {}",
                policy.name(),
                policy.quota().window_text()
            ),
            "set `appendonly yes` if that matters: see docs/redis.md",
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
