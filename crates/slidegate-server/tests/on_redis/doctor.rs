//! `slidegate doctor` on servers that are broken in one way each, and on servers that are well.

use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};
use slidegate_testkit::certificates::Authority;
use slidegate_testkit::redis::{FakeRedis, FakeReply, RedisCluster, RedisServer, Shape, acl};
use slidegate_testkit::service::{Server, run, slidegate, text};
use slidegate_testkit::{TempDir, ports};
use tokio::time::Instant;

/// The longest that the command may take on a busy machine with a server that does not answer; it bounds itself to less.
const LONGEST: Duration = Duration::from_secs(15);

/// What one run found.
struct Diagnosed {
    code: i32,
    json: Value,
}

/// Runs the command on a Redis. The deadline is longer than a reply takes on a machine under a load of 30.
fn doctor(url: &str) -> Diagnosed {
    doctor_with(&format!("store: {{redis: '{url}', deadline: 10s}}\n"))
}

fn doctor_with(store: &str) -> Diagnosed {
    doctor_of("quota: 5/1m", store)
}

/// Runs the command with one policy of this quota.
fn doctor_of(quota: &str, store: &str) -> Diagnosed {
    let folder = TempDir::new("doctor");
    let policies = format!("policies: [{{name: per-user, scope: [user], {quota}}}]\n");
    let config = folder.file("slidegate.yaml", format!("{policies}{store}"));
    let output = run(&["doctor", "--json", "--config", &config]);
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    for secret in [acl::PASSWORD, "wrong-password"] {
        assert!(!out.contains(secret) && !err.contains(secret), "{out}{err}");
    }
    let json = serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}{err}"));
    Diagnosed { code: output.status.code().unwrap(), json }
}

/// A url of the wrong kind is the mistake of a first start.
#[test]
fn a_url_of_the_wrong_kind_is_corrected() {
    let redis = RedisServer::start();
    let plain = redis.url();
    let as_kind = |scheme: &str, rest: &str| plain.replace("redis://", scheme) + rest;
    for (url, check, found, fix) in [
        (as_kind("redis://", "/99"), "decisions", "DB index", "such as `/0`"),
        (
            as_kind("redis+cluster://", ""),
            "reachable",
            "cluster support disabled",
            "write `redis://HOST:PORT`",
        ),
        (as_kind("redis+sentinel://", "/main"), "reachable", "SENTINEL", "no Sentinel"),
    ] {
        doctor(&url).names((check, "fault"), found, fix);
    }
}

impl Diagnosed {
    /// Asserts the exit code, and that a check has a finding and a fix with these words.
    fn names(&self, (check, result): (&str, &str), found: &str, fix: &str) {
        let code = if result == "fault" { 2 } else { 1 };
        assert_eq!((self.code, &self.json["result"]), (code, &json!(result)), "{:#}", self.json);
        let is_it = |one: &&Value| one["check"] == check && one["result"] == result;
        let has = |one: &Value, name: &str, words: &str| one[name].as_str().unwrap_or("").contains(words);
        let checks = self.json["checks"].as_array().unwrap();
        let named = checks.iter().filter(is_it).any(|one| has(one, "found", found) && has(one, "fix", fix));
        assert!(named, "{check} {result}, `{found}`, `{fix}`: {:#}", self.json);
    }

    fn is_well(&self) {
        assert_eq!((self.code, &self.json["result"]), (0, &json!("ok")), "{:#}", self.json);
        let checks = self.json["checks"].as_array().unwrap();
        assert!(checks.iter().all(|one| one["result"] == "ok" && one["fix"].is_null()), "{:#}", self.json);
    }
}

/// A server whose usual user has these changes of its rights.
fn with_rights(rights: &[&str]) -> RedisServer {
    let server = RedisServer::start();
    server.admin(&[&["ACL", "SETUSER", acl::USER], rights].concat());
    server
}

/// A deployment script goes on only if everything is well, and the reader must see what was looked at.
#[test]
fn a_healthy_server_is_exit_code_0_and_keeps_nothing() {
    let server = with_rights(&["+info"]);
    let well = doctor(&server.url_as_user());
    well.is_well();
    let checks = well.json["checks"].as_array().unwrap();
    let checks: Vec<_> = checks.iter().map(|one| one["check"].as_str().unwrap()).collect();
    assert_eq!(
        checks,
        [
            "reachable",
            "tls",
            "authentication",
            "permissions",
            "decisions",
            "time",
            "version",
            "replication",
            "memory",
            "persistence",
            "module",
            "history",
            "instances",
            "clock",
            "latency",
            "time zones"
        ]
    );
    // Counts from one examination to the next.
    assert_eq!(server.admin(&["KEYS", "sg1:*"]).trim(), "sg1:~canary:0");

    let (folder, url) = (TempDir::new("doctor-text"), server.url());
    let store = format!("store: {{redis: '{url}', deadline: 10s}}\n");
    let config = format!("policies: [{{name: per-user, scope: [user], quota: 5/1m}}]\n{store}");
    let output = run(&["doctor", "--config", &folder.file("slidegate.yaml", config)]);
    let out = text(&output.stdout);
    assert!(out.starts_with(&format!("{url}\n  ok       reachable ")), "{out}");
    assert!(out.contains(" latency         p50 "), "{out}");
}

/// Usage of a minute is soon there again; that of a month is not.
#[test]
fn persistence_is_rated_by_the_longest_window() {
    let server = RedisServer::start();
    let store = format!("store: {{redis: '{}', deadline: 10s}}\n", server.url());
    for (quota, window) in [("quota: 5/2h", "2h"), ("limit: 5, window: month", "month")] {
        let found =
            format!("limits may be used once more; the longest window is that of `per-user`: {window}");
        doctor_of(quota, &store).names(("persistence", "warning"), &found, "set `appendonly yes`");
    }
    for quota in ["quota: 5/1h", "in_flight: 5"] {
        doctor_of(quota, &store).is_well();
    }
    server.admin(&["CONFIG", "SET", "appendonly", "yes"]);
    doctor_of("limit: 5, window: month", &store).is_well();
    // What decisions do not need, closed periods do.
    let closed = "limit: 5, window: month, notify: closed";
    doctor_of(closed, &store).is_well();
    let as_user = store.replace(&server.url(), &server.url_as_user());
    let found = "policy `per-user` has `notify: closed`, and its keys cannot be listed";
    doctor_of(closed, &as_user).names(("closed periods", "warning"), found, "`+scan`");
}

/// One of several masters may be the broken one.
#[test]
fn every_master_of_a_cluster_is_examined() {
    let cluster = RedisCluster::start(Shape { masters: 3, replicas_each: 0 });
    doctor(&cluster.url()).is_well();
    let master = cluster.master_of(6000);
    master.admin(&["CONFIG", "SET", "maxmemory-policy", "volatile-ttl"]);
    let found = format!("redis at {} evicts keys", master.address());
    doctor(&cluster.url()).names(("history", "warning"), &found, "set it to `noeviction`");
}

/// Without a Redis there is nothing that could be well.
#[test]
fn a_configuration_that_counts_in_memory_is_an_error() {
    let folder = TempDir::new("doctor");
    let mut command = slidegate();
    let output = command.arg("doctor").current_dir(folder.path()).stdin(Stdio::null()).output().unwrap();
    let err = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{err}");
    assert!(
        err.starts_with("no Redis to examine: this configuration counts in memory (the default policy"),
        "{err}"
    );
    assert!(err.contains("give a url with --redis or SLIDEGATE_REDIS"), "{err}");
}

/// The most frequent mistakes of a first deployment: host, port, and what listens there.
#[test]
fn what_is_no_redis_is_named_with_its_fix() {
    let address = format!("127.0.0.1:{}", ports::free());
    let found = format!("redis at {address}: cannot connect: ");
    doctor(&format!("redis://{address}")).names(("reachable", "fault"), &found, "start the server");

    let http = Server::start(&["--policy", "5/1m per user"]);
    doctor(&format!("redis://{}", http.address)).names(
        ("reachable", "fault"),
        "cannot connect: ",
        "give the address of a Redis server",
    );

    let server = RedisServer::start();
    server.pause();
    let waits = "deadline: 1s";
    let began = Instant::now();
    let paused = doctor_with(&format!("store: {{redis: '{}', {waits}}}\n", server.url()));
    let took = began.elapsed();
    server.resume();
    assert!(took < LONGEST, "it took {took:?}");
    paused.names(("reachable", "fault"), "", "look whether the server is stopped");
}

/// A password is wrong more often than a server is down, and must not end up in a terminal's log.
#[test]
fn a_wrong_password_is_named_with_its_fix() {
    let server = RedisServer::start();
    let url = format!("redis://{}:wrong-password@{}", acl::USER, server.address());
    let fix = "correct the user and password of the url";
    doctor(&url).names(("authentication", "fault"), "cannot connect: ", fix);
}

/// A user with too few rights answers pings and decides nothing.
#[test]
fn each_missing_right_is_named_with_the_command_that_gives_it() {
    for (taken, right) in [
        ("-evalsha", "+evalsha"),
        ("-script|load", "+script|load"),
        ("-ping", "+ping"),
        ("-strlen", "+strlen"),
        ("-time", "+time"),
        ("resetkeys", "~sg1:*"),
    ] {
        let server = with_rights(&["+info", taken]);
        let fix = format!("`ACL SETUSER USER {right}`");
        doctor(&server.url_as_user()).names(("permissions", "fault"), "redis at ", &fix);
    }
    let server = RedisServer::start();
    doctor(&server.url_as_user()).names(("server", "warning"), "no reply to INFO", "`+info`");
}

/// Limits are shared there, and a charge counts for a little longer: no fault, but worth knowing.
#[test]
fn a_server_that_refuses_time_in_scripts_is_a_warning() {
    let server = with_rights(&["+info", "-time", "+pttl", "+pexpiretime"]);
    let diagnosed = doctor(&server.url_as_user());
    diagnosed.names(("time", "warning"), "scripts may not call `time`", "`+time`");
}

/// Each of these loses or refuses charges only later, under load.
#[test]
fn settings_that_break_limits_later_are_warnings() {
    let server = RedisServer::start();
    server.admin(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    doctor(&server.url()).names(("history", "warning"), "`allkeys-lru`", "set it to `noeviction`");

    let server = RedisServer::start();
    // So much that connections do not matter.
    server.admin(&["DEBUG", "POPULATE", "100000", "other", "200"]);
    let info = server.admin(&["INFO", "memory"]);
    let used = info.lines().find_map(|line| line.strip_prefix("used_memory:")).unwrap();
    let used: u64 = used.trim().parse().unwrap();
    server.admin(&["CONFIG", "SET", "maxmemory", &(used * 100 / 95).to_string()]);
    doctor(&server.url()).names(("memory", "warning"), "maxmemory", "raise `maxmemory`");
}

/// A server that answers and refuses every write looks healthy to a ping.
#[test]
fn servers_that_refuse_writes_are_faults() {
    let full = RedisServer::builder().args(["--maxmemory", "1"]).start();
    doctor(&full.url()).names(("decisions", "fault"), "OOM ", "raise `maxmemory`");

    let lonely = RedisServer::builder().args(["--min-replicas-to-write", "1"]).start();
    doctor(&lonely.url()).names(("decisions", "fault"), "NOREPLICAS ", "`min-replicas-to-write`");

    let master = RedisServer::start();
    let replica = RedisServer::start();
    replica.admin(&["REPLICAOF", "127.0.0.1", &master.port().to_string()]);
    master.until_followed_by(1);
    let found = format!("{} is a replica of 127.0.0.1:{}", replica.address(), master.port());
    doctor(&replica.url()).names(("replication", "fault"), &found, "give the url of the master");
    doctor(&master.url()).is_well();
}

/// Some managed clusters run no scripts at all, and no right changes that.
#[test]
fn a_server_without_scripts_is_a_fault() {
    let fake = FakeRedis::greeting(|command| {
        let name = command.first().map(|name| name.to_ascii_uppercase());
        FakeReply::from(match name.as_deref() {
            Some(b"PING") => "+PONG\r\n",
            _ => "-ERR unknown command\r\n",
        })
    });
    let diagnosed = doctor(&fake.url());
    diagnosed.names(("decisions", "fault"), "unknown command", "use a server that runs Lua scripts");
}

/// Who encrypts on one side only sees time-outs and protocol errors that say nothing of TLS.
#[test]
fn each_mistake_with_tls_is_named_with_its_fix() {
    let folder = TempDir::new("doctor-tls");
    let authority = Authority::new("authority");
    let (certificate, key) = authority.sign(&["127.0.0.1"]).write(&folder, "server");
    let trusted = folder.file("authority.crt", authority.pem());
    let port = ports::free().to_string();
    let tls = ["--tls-port", &port, "--tls-auth-clients", "no", "--tls-ca-cert-file", &trusted];
    let server = RedisServer::builder()
        .args(tls.into_iter().chain(["--tls-cert-file", &certificate, "--tls-key-file", &key]))
        .start();
    let with_authority = |url: &str| {
        let waits = "deadline: 10s";
        doctor_with(&format!("store: {{redis: '{url}', ca_file: '{trusted}', {waits}}}\n"))
    };
    with_authority(&format!("rediss://127.0.0.1:{port}")).is_well();
    doctor(&format!("rediss://127.0.0.1:{port}")).names(("tls", "fault"), "UnknownIssuer", "`ca_file`");
    let plain = with_authority(&format!("rediss://{}", server.address()));
    plain.names(("reachable", "fault"), "cannot connect: ", "use its `tls-port`, or a url without TLS");
    doctor(&format!("redis://127.0.0.1:{port}")).names(
        ("reachable", "fault"),
        "cannot connect: ",
        "use a url that begins with `rediss`",
    );
}

/// Limits follow the server's clock: fixed windows and reported dates are then off as well.
#[test]
fn a_clock_that_is_off_is_a_warning() {
    let server = RedisServer::builder().with_clock().start();
    server.clock().set(70_000_000);
    doctor(&server.url()).names(("clock", "warning"), "s ahead of this machine", "by NTP");
    server.clock().set(-70_000_000);
    doctor(&server.url()).names(("clock", "warning"), "s behind this machine", "by NTP");
}
