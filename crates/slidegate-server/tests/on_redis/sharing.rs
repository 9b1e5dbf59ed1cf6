//! Whether limits are shared: a store that answers and refuses decisions, and how many instances
//! there are.

use std::fs::{File, read_to_string};

use serde_json::{Value, json};
use slidegate_testkit::redis::{RedisServer, acl};
use slidegate_testkit::service::{Server, run, text};
use slidegate_testkit::{TempDir, until_true};

const POLICY: &str = "policies: [{name: per-user, scope: [user], quota: 6/1h}]\n";

/// The configuration of an instance whose decisions have all the time they need.
fn config(folder: &TempDir, redis: &RedisServer, keys: &str) -> String {
    let store = format!("store: {{redis: '{}', deadline: 10s{keys}}}\n", redis.url_as_user());
    folder.file("slidegate.yaml", format!("{store}{POLICY}"))
}

fn check(server: &Server) -> Value {
    server.post("/v1/check", &json!({ "attributes": { "user": "alice" } }).to_string()).json()
}

fn metric(server: &Server, name: &str) -> Option<String> {
    let page = server.get("/metrics").body;
    page.lines().find_map(|line| Some(line.strip_prefix(name)?.trim().to_owned()))
}

/// A Redis that answers pings and lets no script ask for the time admits the limit once for each
/// instance, while all that an operator looks at says that the limit is shared.
#[test]
fn a_store_that_refuses_decisions_is_not_called_shared_anywhere() {
    let (folder, redis) = (TempDir::new("not-shared"), RedisServer::start());
    let set = |right: &str| redis.admin(&["ACL", "SETUSER", acl::USER, right]);
    set("-time");
    let log = folder.file("log", "");
    let server =
        Server::start_logging_to(&["--config", &config(&folder, &redis, "")], File::create(&log).unwrap());
    let refused = |command: &str| {
        let words =
            format!("refuses `{command}` in scripts (if its user lacks the right, give it `+{command}`): ");
        format!("redis at {}: {words}", redis.address())
    };
    let banner = format!(
        "store      redis://{}, NOT shared, so each policy uses its fallback: {}",
        redis.address(),
        refused("time")
    );
    assert!(server.greeting.contains(&banner), "{}", server.greeting);
    let expect = |command: &str| {
        until_true("it is known", || {
            let ready = server.get("/readyz").json();
            let reason = ready["store"]["not_shared"].as_str().unwrap_or_default().to_owned();
            ready["degraded"] == true
                && ready["store"]["shared"] == false
                && ready["store"]["refuses_decisions"] == true
                && reason.starts_with(&refused(command))
        });
        assert_eq!(server.get("/v1/status").json()["store"]["shared"], false);
        assert_eq!(metric(&server, "slidegate_store_shared ").as_deref(), Some("0"));
        let warning =
            format!("limits are not shared; policies use their fallbacks reason=\"{}", refused(command));
        until_true("it is logged", || read_to_string(&log).unwrap().contains(&warning));
        assert_eq!(check(&server)["source"], "local");
    };
    expect("time");
    server.assert_matches_openapi("GET", "/readyz", None, 200);
    let until_shared = || {
        until_true("limits are shared", || {
            let ready = server.get("/readyz").json();
            (&ready["degraded"], &ready["store"]["shared"]) == (&json!(false), &json!(true))
        });
        assert_eq!(metric(&server, "slidegate_store_shared ").as_deref(), Some("1"));
        assert_eq!(check(&server)["source"], "store");
    };
    set("+time");
    until_shared();
    server.assert_matches_openapi("GET", "/readyz", None, 200);
    // A right that is taken while it runs is found by the next decision.
    set("-time");
    assert_eq!(check(&server)["source"], "local");
    expect("time");
    set("+time");
    until_shared();
    let said = read_to_string(&log).unwrap();
    assert!(!said.contains(acl::PASSWORD), "{said}");
}

/// Some services do not let scripts call `TIME`: limits are shared by a coarser clock, which must be
/// told.
#[test]
fn a_store_that_refuses_only_the_time_is_shared_and_says_what_that_changes() {
    let (folder, redis) = (TempDir::new("no-time"), RedisServer::start());
    redis.admin(&["ACL", "SETUSER", acl::USER, "-time", "+pttl", "+pexpiretime"]);
    let server = Server::start(&["--config", &config(&folder, &redis, ", require: shared")]);
    let banner = ", shared; scripts may not call `time`: charges count for their window and up to 2 ms\n";
    assert!(server.greeting.contains(banner), "{}", server.greeting);
    assert_eq!(check(&server)["source"], "store");
    let ready = server.get("/readyz").json();
    assert_eq!(
        (&ready["store"]["shared"], &ready["store"]["clock"]["resolution_us"]),
        (&json!(true), &json!(1000))
    );
    server.assert_matches_openapi("GET", "/readyz", None, 200);
    let seconds = metric(&server, "slidegate_store_clock_resolution_seconds ");
    assert_eq!(seconds.as_deref(), Some("0.001"));
}

/// Where a limit must hold over all instances, one that cannot share it must not start.
#[test]
fn an_instance_that_requires_sharing_starts_only_if_limits_are_shared() {
    let (folder, redis) = (TempDir::new("require-shared"), RedisServer::start());
    let file = config(&folder, &redis, ", require: shared");
    assert!(Server::start(&["--config", &file]).greeting.contains(", shared\n"));
    let refused = |reason: &str| {
        let output = run(&["serve", "--config", &file, "--listen", "127.0.0.1:0"]);
        assert_eq!(output.status.code(), Some(2));
        let said = text(&output.stderr);
        let words = "store: limits are not shared, which `require: shared` demands: redis at";
        assert!(said.starts_with(&format!("{words} {}: {reason}", redis.address())), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    };
    redis.admin(&["ACL", "SETUSER", acl::USER, "-time"]);
    refused("refuses `time` in scripts (if its user lacks the right, give it `+time`): ");
    redis.kill();
    refused("cannot connect");
}

/// An autoscaler changes how many instances there are: in an outage, their shares must add up to the
/// limit without anybody changing a setting.
#[test]
fn shares_of_a_fleet_that_grew_add_up_to_the_limit() {
    let (folder, redis) = (TempDir::new("counted"), RedisServer::start());
    let file = config(&folder, &redis, "");
    let counted = |server: &Server| server.get("/readyz").json()["store"]["instances"].clone();
    let mut fleet = vec![Server::start(&["--config", &file])];
    assert_eq!(counted(&fleet[0]), 1, "it counts itself before it listens");
    for number in 2..=3 {
        fleet.push(Server::start(&["--config", &file]));
        assert_eq!(counted(&fleet[number - 1]), number);
    }
    until_true("all know of all", || fleet.iter().all(|server| counted(server) == 3));
    assert_eq!(metric(&fleet[0], "slidegate_store_instances ").as_deref(), Some("3"));
    let other = TempDir::new("fixed");
    let fixed = Server::start(&["--config", &config(&other, &redis, ", instances: 7")]);
    assert_eq!(counted(&fixed), 7, "as configured");
    until_true("all four are counted", || fleet.iter().all(|server| counted(server) == 4));
    drop(fixed);
    until_true("it is gone", || fleet.iter().all(|server| counted(server) == 3));
    redis.kill();
    let admitted: usize =
        fleet.iter().map(|server| (0..6).filter(|_| check(server)["allowed"] == true).count()).sum();
    assert_eq!(admitted, 6);
    assert_eq!(counted(&fleet[0]), 3, "the last count stays");
}
