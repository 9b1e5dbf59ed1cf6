//! Instances that share limits: the service on real Redis servers that start, freeze and stop.
//!
//! Every test starts the servers it needs, on loopback, and ends them.

use std::fs::File;

use serde_json::{Value, json};
use slidegate_testkit::http::Response;
use slidegate_testkit::redis::{RedisCluster, RedisSentinels, RedisServer, acl};
use slidegate_testkit::service::{Server, run, slidegate, text};
use slidegate_testkit::{TempDir, until, until_true};

/// A policy for each fallback.
const FALLBACKS: &str = "
policies:
  - {name: per-user, scope: [user], quota: 4/1h}
  - {name: smooth, scope: [token], quota: 4/1h, on_store_error: allow}
  - {name: login, scope: [login], quota: 4/1h, on_store_error: deny}
";

/// A server on this store, with a limit per user and one per token. Its deadline is longer than a
/// reply takes on a busy machine.
fn patient(folder: &TempDir, url: &str, user: u32) -> Server {
    let limits = format!(
        "policies:\n  - {{name: per-user, scope: [user], quota: {user}/1h}}\n  - {{name: per-token, scope: [token], quota: 9/1h}}\n"
    );
    let config = format!("store: {{redis: '{url}', deadline: 10s}}\n{limits}");
    Server::start(&["--config", &folder.file("slidegate.yaml", config)])
}

fn check(server: &Server, name: &str, value: &str) -> Response {
    server.post("/v1/check", &json!({ "attributes": { name: value } }).to_string())
}

fn source(server: &Server, user: &str) -> Value {
    check(server, "user", user).json()["source"].clone()
}

fn readiness(server: &Server) -> Value {
    let answer = server.get("/readyz");
    assert_eq!((answer.status, &answer.json()["status"]), (200, &json!("ready")));
    answer.json()
}

/// The purpose of a shared store: a request over the limit is denied by every instance.
#[test]
fn two_servers_share_one_limit() {
    let redis = RedisServer::start();
    let folder = TempDir::new("shared-store");
    let (one, other) = (patient(&folder, &redis.url(), 4), patient(&folder, &redis.url(), 4));
    let shown = format!("store      redis://{}, shared\n", redis.address());
    assert!(one.greeting.contains(&shown), "{}", one.greeting);
    for remaining in [3, 1] {
        assert_eq!(check(&one, "user", "alice").json()["remaining"], remaining);
        assert_eq!(check(&other, "user", "alice").json()["remaining"], remaining - 1);
    }
    for server in [&one, &other] {
        let denied = check(server, "user", "alice");
        assert_eq!((denied.status, &denied.json()["source"]), (429, &json!("store")));
    }
    // Denials are cached as soon as the instance receives invalidations.
    until_true("a denial is cached", || source(&one, "alice") == "cached");

    let alice = json!({ "attributes": { "user": "alice" }, "cost": 2 }).to_string();
    assert_eq!(one.post("/v1/refund", &alice).json()["remaining"], 2);
    assert_eq!(one.post("/v1/peek", &alice).json()["used"], 2);
    assert_eq!(one.post("/v1/penalize", &alice).json()["used"], 4);
    assert_eq!(one.post("/v1/reset", &alice).json(), json!({ "existed": true }));
    let batch = format!(r#"{{"requests":[{alice},{alice},{alice}]}}"#);
    let decisions = one.post("/v1/check/batch", &batch).json()["decisions"].clone();
    let allowed: Vec<_> = decisions.as_array().unwrap().iter().map(|one| one["allowed"].clone()).collect();
    assert_eq!(allowed, [json!(true), json!(true), json!(false)]);

    let ready = readiness(&one);
    assert_eq!(ready["degraded"], false);
    assert_eq!(ready["store"]["url"], format!("redis://{}", redis.address()));
    let node = json!({
        "node": redis.address(), "connected": true, "module": false, "breaker": "closed",
        "reconnects": 0, "timeouts": 0
    });
    assert_eq!(ready["store"]["nodes"], json!([node]));
    one.assert_matches_openapi("GET", "/readyz", None, 200);
    one.assert_matches_openapi("POST", "/v1/check", Some(&alice), 429);
}

/// The alert on evictions must fire when there are some.
#[test]
fn evicted_keys_are_logged_and_counted() {
    let redis =
        RedisServer::builder().args(["--maxmemory", "3mb", "--maxmemory-policy", "allkeys-lru"]).start();
    let evicted = || {
        let stats = redis.admin(&["INFO", "stats"]);
        stats.lines().find_map(|line| line.strip_prefix("evicted_keys:")?.trim().parse::<u64>().ok()).unwrap()
    };
    let filler = "x".repeat(100_000);
    for number in 0..200 {
        redis.admin(&["SET", &format!("filler-{number}"), &filler]);
    }
    let evicted = evicted();
    assert!(evicted > 0);
    let log = redis.dir().join("service.log");
    let server = Server::start_logging_to(&["--redis", &redis.url()], File::create(&log).unwrap());
    let metric = "slidegate_store_evicted_keys_total ";
    until_true("evictions are counted", || {
        let page = server.get("/metrics").body;
        let line = page.lines().find_map(|line| line.strip_prefix(metric)).unwrap_or_default().to_owned();
        line.parse::<u64>().is_ok_and(|counted| counted >= evicted)
    });
    until_true("evictions are logged", || {
        std::fs::read_to_string(&log).unwrap().contains(" keys: limits were reset; give it more memory")
    });
    until_true("the setting that evicts is logged", || {
        let said = std::fs::read_to_string(&log).unwrap();
        said.contains("evicts keys when it is full (maxmemory-policy is `allkeys-lru`)")
    });
}

/// For a quota of a month, usage that a restart lost is the one thing to know: when, and until when limits suffer.
#[test]
fn usage_that_a_restart_lost_is_told_until_its_longest_window_has_passed() {
    let (folder, redis) = (TempDir::new("usage-lost"), RedisServer::start());
    let policies = "policies:
  - {name: burst, scope: [user], quota: 9/1m}
  - {name: monthly, scope: [user], limit: 9, window: month, time_zone: Europe/Berlin}
  - {name: streams, scope: [user], in_flight: 9}
";
    let config = format!("store: {{redis: '{}', deadline: 10s}}\n{policies}", redis.url());
    let file = folder.file("slidegate.yaml", config);
    let server = Server::start(&["--config", &file]);
    until_true("the store is examined", || redis.admin(&["EXISTS", "sg1:~canary:0"]) == "1");
    let lost = || server.get("/v1/status").json()["store"]["usage_lost"].clone();
    let counted = || server.get("/metrics").body.contains("\nslidegate_store_usage_losses_total 1\n");
    assert_eq!((lost(), counted()), (Value::Null, false));
    redis.restart();
    until_true("the loss is told", || !lost().is_null());
    let lost = lost();
    assert_eq!((&lost["policy"], &lost["window"]), (&json!("monthly"), &json!("month in Europe/Berlin")));
    let time = |name: &str| lost[name].as_str().unwrap().parse::<jiff::Timestamp>().unwrap();
    assert_eq!(time("until").duration_since(time("at")), jiff::SignedDuration::from_hours(31 * 24));
    assert!(counted(), "it is counted");
    server.assert_matches_openapi("GET", "/v1/status", None, 200);
    // One that starts later has it from the other.
    let later = Server::start(&["--config", &file]);
    until_true("the other one tells it too", || {
        later.get("/v1/status").json()["store"]["usage_lost"] == lost
    });
}

/// A limiter that waited for its store at the start would take down everything behind it.
#[test]
fn it_starts_without_redis_uses_fallbacks_and_switches_when_redis_starts() {
    let redis = RedisServer::start();
    redis.kill();
    let folder = TempDir::new("redis-late");
    // A refused connection is reported at once. A short deadline may pass before that on a busy machine.
    let config = folder.file("slidegate.yaml", format!("store: {{deadline: 10s}}{FALLBACKS}"));
    let log = folder.file("log", "");
    let server = Server::start_logging_to(
        &["--config", &config, "--redis", &redis.url()],
        File::create(&log).unwrap(),
    );
    let away = format!(
        "store      redis://{0}, NOT shared, so each policy uses its fallback: redis at {0}: ",
        redis.address()
    );
    assert!(server.greeting.contains(&away), "{}", server.greeting);

    let failure = format!("(redis at {}: ", redis.address());
    let explained = |answer: &Value, beginning: &str| {
        let why = answer["why"].as_str().unwrap();
        assert!(why.starts_with(&format!("{beginning} {failure}")), "{why}");
        assert!(why.contains("cannot connect"), "{why}");
    };
    let answer = check(&server, "user", "alice").json();
    assert_eq!((&answer["source"], &answer["allowed"]), (&json!("local"), &json!(true)));
    explained(&answer, "per-user: `alice` has used 1 of 4 per 1h, 3 remain; decided by fallback `local`");
    let answer = check(&server, "token", "t");
    assert_eq!((&answer.json()["source"], &answer.json()["allowed"]), (&json!("allow"), &json!(true)));
    explained(&answer.json(), "smooth: `t` was not counted; decided by fallback `allow`");
    // What remains is unknown, so no header contains it.
    assert_eq!((answer.header("ratelimit"), answer.header("x-ratelimit-remaining")), (None, None));
    assert_eq!(answer.header("ratelimit-policy"), Some("\"smooth\";q=4;w=3600"));
    let denied = check(&server, "login", "bob");
    let answer = denied.json();
    assert_eq!((denied.status, &answer["source"]), (503, &json!("deny")));
    explained(&answer, "login: `bob` was not counted; decided by fallback `deny`");

    let ready = readiness(&server);
    assert_eq!((&ready["degraded"], &ready["store"]["nodes"][0]["connected"]), (&json!(true), &json!(false)));
    assert!(ready["store"]["last_failure"].as_str().unwrap().contains("cannot connect"), "{ready}");
    assert_eq!(ready["store"]["last_failure_kind"], "connection", "{ready}");
    let failed = ready["store"]["errors"]["connection"].as_u64().unwrap();
    assert!(failed > 0, "{ready}");
    let metrics = server.get("/metrics").body;
    let counted = metrics
        .lines()
        .find_map(|line| line.strip_prefix("slidegate_store_errors_total{kind=\"connection\"} "));
    assert!(counted.is_some_and(|count| count.parse::<u64>().unwrap() >= failed), "{counted:?}");
    assert!(metrics.contains("slidegate_store_errors_total{kind=\"readonly\"} 0"), "{metrics}");
    for direction in ["forward", "backward"] {
        let none = format!("slidegate_store_clock_jumps_total{{direction=\"{direction}\"}} 0");
        assert!(metrics.contains(&none), "{metrics}");
    }
    assert_eq!(
        ready["store"]["clock"],
        json!({"forward_jumps": 0, "backward_jumps": 0, "last_jump_ms": 0, "resolution_us": 1})
    );
    let bob = json!({ "attributes": { "login": "bob" } }).to_string();
    server.assert_matches_openapi("GET", "/readyz", None, 200);
    server.assert_matches_openapi("POST", "/v1/check", Some(&bob), 503);
    server.assert_matches_openapi("POST", "/v1/reset", Some(&bob), 503);

    redis.restart();
    until_true("the store decides", || source(&server, "carol") == "store");
    until_true("the service is no longer degraded", || readiness(&server)["degraded"] == false);
    let output = until("the log says so", || {
        let output = std::fs::read_to_string(&log).unwrap();
        output.contains("store recovered").then_some(output)
    });
    assert!(output.contains("WARN"), "{output}");
    let again = output.lines().filter(|line| line.contains("store recovered")).count();
    assert_eq!(again, 1, "{output}");
}

/// A store that hangs must not make every caller wait.
#[test]
fn a_frozen_redis_delays_no_response_and_one_log_line_stands_for_many() {
    const CALLERS: usize = 4;
    const EACH: usize = 50;
    let redis = RedisServer::start();
    let folder = TempDir::new("redis-frozen");
    let config = folder
        .file("slidegate.yaml", format!("store: {{redis: '{}', deadline: 1s}}{FALLBACKS}", redis.url()));
    let log = folder.file("log", "");
    let server = Server::start_logging_to(&["--config", &config], File::create(&log).unwrap());
    assert_eq!(source(&server, "first"), "store");

    redis.pause();
    std::thread::scope(|scope| {
        for caller in 0..CALLERS {
            let server = &server;
            scope.spawn(move || {
                for request in 0..EACH {
                    let user = format!("user-{caller}-{request}");
                    let body = json!({ "attributes": { "user": user } }).to_string();
                    // Redis stays frozen: a call that waited for it would never return.
                    assert_eq!(server.post("/v1/check", &body).json()["source"], "local");
                }
            });
        }
    });
    assert_eq!(readiness(&server)["degraded"], true);
    let decisions = |output: &str| -> usize {
        let lines = output.lines().filter(|line| line.contains("decisions were made by fallbacks"));
        let counts = lines.map(|line| {
            assert!(line.contains("WARN") && line.contains("last_failure=\"redis at "), "{line}");
            line.split("decisions=").nth(1).unwrap().split(' ').next().unwrap().parse::<usize>().unwrap()
        });
        counts.sum()
    };
    let output = until("every one of them is accounted for", || {
        let output = std::fs::read_to_string(&log).unwrap();
        (decisions(&output) == CALLERS * EACH).then_some(output)
    });
    assert!(output.lines().count() < CALLERS * EACH / 4, "one line stands for many: {output}");

    redis.resume();
    until_true("the store decides again", || source(&server, "last") == "store");
    until_true("and the log says so", || {
        let output = std::fs::read_to_string(&log).unwrap();
        output.lines().any(|line| line.contains("INFO") && line.contains("store recovered"))
    });
    assert_eq!(
        redis.admin(&["EXISTS", "sg1:per-user:user-0-0", "sg1:per-user:user-3-49"]),
        "0",
        "what came too late charged nothing"
    );
}

/// A wrong address must fail at the start, without showing the password.
#[test]
fn a_wrong_store_is_an_error_and_exits_with_2() {
    let serve = |args: &[&str], variable: &str| {
        let output = slidegate()
            .args([&["serve", "--listen", "127.0.0.1:0"], args].concat())
            .env("SLIDEGATE_REDIS", variable)
            .output()
            .unwrap();
        assert_eq!((output.status.code(), text(&output.stdout).as_str()), (Some(2), ""));
        text(&output.stderr)
    };
    let example = "give for example `redis://127.0.0.1:6379`";
    assert_eq!(
        serve(&["--redis", "redis://me:hidden@h:x"], ""),
        format!("--redis: redis url: a port must be a number from 1 to 65535; {example}\n")
    );
    assert_eq!(
        serve(&[], "localhost:6379"),
        format!("SLIDEGATE_REDIS: redis url: it must begin with `redis://` or another scheme; {example}\n")
    );
    assert_eq!(
        serve(&["--redis", "redis://h", "--policy", "9007199254740993/1m per user"], ""),
        "policy `per-user`: invalid limit 9007199254740993: a shared store can count at most 9007199254740991\n"
    );
    let folder = TempDir::new("redis-bad");
    let config = folder.file("bad.yaml", format!("store:\n  redis: redis://h\n  deadline: 0s{FALLBACKS}"));
    let output = serve(&["--config", &config], "");
    assert!(
        output.ends_with(
            "bad.yaml:3: store: invalid deadline `0s`: must be 1ms to 1m with a unit (ms, s, m, h, d or w), for example `deadline: 50ms`\n"
        ),
        "{output}"
    );
}

/// A reviewer must see where limits are stored and what happens while the store is unavailable.
#[test]
fn validate_prints_the_store_and_each_fallback() {
    let folder = TempDir::new("redis-validate");
    let store = "store: {redis: 'redis://me:hidden@10.0.0.5', instances: 2, deadline: 20ms}";
    let config = folder.file("slidegate.yaml", format!("{store}{FALLBACKS}"));
    let output = run(&["validate", &config]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let output = text(&output.stdout);
    for words in [
        "While Redis is unreachable, each instance counts by itself, up to 2 per 1h.\n",
        "While Redis is unreachable, it allows everything.\n",
        "While Redis is unreachable, it denies everything.\n",
        "Limits are shared in redis://10.0.0.5:6379 by 2 instances, each with its share of the limit while Redis is unavailable. A decision takes at most 20 ms.\n",
    ] {
        assert!(output.contains(words), "{words} is not in {output}");
    }
    assert!(!output.contains("hidden"), "{output}");

    let alone = folder.file("alone.yaml", FALLBACKS);
    let output = text(&run(&["validate", &alone]).stdout);
    assert!(!output.contains("While redis") && !output.contains("shared"), "{output}");
    let named = slidegate().args(["validate", &alone]).env("SLIDEGATE_REDIS", "redis://h").output().unwrap();
    assert!(
        text(&named.stdout).contains(
            "Limits are shared in redis://h:6379 by all instances, which count themselves there, each with its share of \
             the limit while Redis is unavailable."
        )
    );
}

/// Operators copy the Redis user from the documentation.
#[test]
fn the_user_in_the_documentation_is_enough_and_the_one_of_the_tests() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/redis.md");
    let page = std::fs::read_to_string(path).unwrap();
    let quoted =
        page.split("ACL SETUSER slidegate on >PASSWORD").nth(1).unwrap().split("```").next().unwrap();
    let words = |text: &str| {
        text.split_whitespace().filter(|word| *word != "\\").map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(words(quoted), words(acl::MINIMUM));

    let redis = RedisServer::start();
    let folder = TempDir::new("redis-user");
    let policies = "policies: [{name: per-user, scope: [user], quota: 2/1h}]";
    let config = folder.file("slidegate.yaml", format!("{policies}\nstore: {{deadline: 10s}}\n"));
    let server = Server::start(&["--redis", &redis.url_as_user(), "--config", &config]);
    let statuses = [0; 3].map(|_| check(&server, "user", "alice").status);
    assert_eq!(statuses, [200, 200, 429]);
    assert_eq!(readiness(&server)["degraded"], false);
    assert!(!server.greeting.contains(acl::PASSWORD), "{}", server.greeting);
    let alice = json!({ "attributes": { "user": "alice" } }).to_string();
    assert_eq!(server.post("/v1/reset", &alice).json(), json!({ "existed": true }));
}

/// Operators size their servers by this table.
#[test]
fn the_sizes_in_the_documentation_are_those_of_a_server() {
    const POLICIES: &str = "
policies:
  - {name: a, when: {p: a}, scope: [user], quota: 10/1h}
  - {name: b, when: {p: b}, scope: [user], quota: 100/1h}
  - {name: c, when: {p: c}, scope: [user], quota: 1000/1h}
  - {name: d, when: {p: d}, scope: [user], quota: 1000/1d}
  - {name: f, when: {p: f}, scope: [user], quota: 5/1h, algorithm: fixed-window}
  - {name: t, when: {p: t}, scope: [user], quota: 5/1h, algorithm: token-bucket}
  - {name: w, when: {p: w}, scope: [user], quota: 5/1h, algorithm: sliding-window}
  - {name: u, when: {p: u}, scope: [user], quota: 5/3600001ms, algorithm: fixed-window}
  - {name: v, when: {p: v}, scope: [user], quota: 5/3600001ms, algorithm: sliding-window}
";
    let redis = RedisServer::start();
    let folder = TempDir::new("redis-sizes");
    // The default of 50 ms is short for a machine that does other work.
    let config = folder.file("slidegate.yaml", format!("{POLICIES}\nstore: {{deadline: 10s}}\n"));
    let server = Server::start(&["--config", &config, "--redis", &redis.url()]);
    let fill = |policy: &str, times: usize, user: &str| {
        let request = json!({ "attributes": { "p": policy, "user": user } });
        let batch = json!({ "requests": vec![request; times] }).to_string();
        let filled = server.post("/v1/check/batch", &batch).json();
        assert_eq!(filled["decisions"][times - 1]["used"], times);
        let key = format!("sg1:{policy}:{user}");
        let value: u64 = redis.admin(&["STRLEN", &key]).parse().unwrap();
        (value, redis.memory_usage(&key).unwrap())
    };
    // Overheads differ between versions; the documentation is about this one.
    let is_7_0 = redis.admin(&["INFO", "server"]).contains("redis_version:7.0.");
    let counters = [("f", 12, 72), ("w", 12, 72), ("u", 21, 88), ("v", 28, 88), ("t", 27, 88)];
    let logs = [("a", 10, 84, 152), ("b", 100, 444, 568), ("c", 1000, 4044, 4152), ("d", 1000, 6042, 6200)];
    let rows = counters.into_iter().map(|(policy, value, usage)| (policy, 1, value, usage)).chain(logs);
    for (policy, times, value, usage) in rows {
        // Redis may reuse the larger buffer of an argument of the call before, such as one of the
        // service's own. The smallest of three values has a buffer of its own.
        let used = ["alice", "bella", "chloe"].map(|user| {
            let (stored, used) = fill(policy, times, user);
            assert_eq!(stored, value, "{policy}");
            used
        });
        assert!(!is_7_0 || used.iter().min() == Some(&usage), "{policy}: {used:?}");
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/topology.md");
    let page = std::fs::read_to_string(path).unwrap();
    for row in [
        "| 12 | 72 |",
        "| 21, 28 | 88 |",
        "| 27 | 88 |",
        "| 84 | 152 |",
        "| 444 | 568 |",
        "| 4,044 | 4,152 |",
        "| 6,042 | 6,200 |",
    ] {
        assert!(page.contains(row), "{row}");
    }
}

/// Moving to a cluster or to Sentinels changes only the URL.
#[test]
fn a_cluster_and_the_master_of_sentinels_serve_as_well() {
    let cluster = RedisCluster::of_three();
    let folder = TempDir::new("cluster");
    let server = patient(&folder, &cluster.url_as_user(), 2);
    let both = json!({ "attributes": { "user": "alice", "token": "t" } }).to_string();
    let statuses = [0; 3].map(|_| server.post("/v1/check", &both).status);
    assert_eq!(statuses, [200, 200, 429]);
    // In another slot a denied charge is refunded in the background.
    until_true("the denied request is charged nowhere", || {
        let token = json!({ "attributes": { "token": "t" } }).to_string();
        server.post("/v1/peek", &token).json()["used"] == 2
    });
    let ready = readiness(&server);
    assert_eq!(ready["degraded"], false);
    let connected = |node: &&Value| node["connected"] == true;
    let nodes = ready["store"]["nodes"].as_array().unwrap();
    assert_eq!(nodes.iter().filter(connected).count(), 3, "{ready}");

    let sentinels = RedisSentinels::start();
    let server = patient(&folder, &sentinels.url_as_user(), 2);
    let statuses = [0; 3].map(|_| server.post("/v1/check", &both).status);
    assert_eq!(statuses, [200, 200, 429]);
    let nodes = readiness(&server)["store"]["nodes"].clone();
    assert_eq!(nodes[0]["node"], sentinels.master().address());
}
