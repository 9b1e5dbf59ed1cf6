//! Leases of two instances, as operators see them.

// Whether a lease was settled in time is seen by the time that its instance took to stop.
#![allow(clippy::disallowed_methods)]

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use slidegate_testkit::redis::RedisServer;
use slidegate_testkit::service::{Server, run, text};
use slidegate_testkit::{TempDir, until};

/// Long enough to look at a lease while it is open.
const POLICIES: &str = "policies: [{name: p, scope: [user], quota: 100000/1h, lease: 1s}]\n";

/// Checks of one key. Returns how many were admitted, and how many of them from a lease.
fn check(server: &Server, checks: usize) -> (u64, u64) {
    let request = json!({ "attributes": { "user": "alice" } }).to_string();
    let sources = (0..checks).map(|_| {
        let answer = server.post("/v1/check", &request);
        assert_eq!(answer.status, 200, "{}", answer.body);
        answer.json()["policies"][0]["source"].as_str().unwrap().to_owned()
    });
    let leased = sources.filter(|source| source == "leased").count();
    (checks as u64, leased as u64)
}

/// After how many milliseconds the first of the leases that are shown ends.
fn ends_in(shown: &Value) -> Option<u64> {
    shown["holds"].as_array().unwrap().iter().filter_map(|hold| hold["ends_in_ms"].as_u64()).min()
}

/// Who sees half of a limit held must find out by whom, and that it comes back.
#[test]
fn operators_see_who_leases_a_key_and_get_it_back_when_an_instance_stops() {
    let (folder, redis) = (TempDir::new("leases"), RedisServer::start());
    let config = format!("store: {{redis: '{}', deadline: 10s}}\n{POLICIES}", redis.url());
    let config = folder.file("slidegate.yaml", config);
    let (mut one, other) = (Server::start(&["--config", &config]), Server::start(&["--config", &config]));
    let (mut admitted, mut leased) = (0, 0);
    let key = |server: &Server| server.get("/v1/keys/p/alice").json();
    let shown = until("a lease that the other instance can name", || {
        let (more, from_leases) = check(&one, 50);
        (admitted, leased) = (admitted + more, leased + from_leases);
        let shown = key(&other);
        shown["holds"].as_array().unwrap().iter().any(|hold| hold["lease_of"].is_string()).then_some(shown)
    });
    let status = one.get("/v1/status").json();
    let instances = status["fleet"]["instances"].as_array().unwrap();
    let holder =
        instances.iter().find(|instance| instance["this"] == true).unwrap()["name"].as_str().unwrap();
    let hold = &shown["holds"][0];
    assert_eq!(hold["lease_of"], holder, "{shown}");
    assert!(hold["ends_in_ms"].as_u64().unwrap() <= 1000 && hold["held"] == shown["held"], "{shown}");

    let (more, from_leases) = check(&one, 10);
    (admitted, leased) = (admitted + more, leased + from_leases);
    assert!(leased > 0);
    let status = one.get("/v1/status").json();
    let state = &status["store"]["leases"]["p"];
    let count = |field: &str| state[field].as_u64().unwrap();
    assert_eq!(count("admitted"), leased, "{state}");
    assert_eq!(one.count("slidegate_store_leases_admitted_total{policy=\"p\"}"), leased);
    let shown = until("a lease by name", || {
        check(&one, 1);
        admitted += 1;
        let shown = run(&["key", "show", "p", "alice", "--url", &other.url]);
        Some(text(&shown.stdout)).filter(|text| text.contains(&format!("leased by {holder}")))
    });
    assert!(shown.contains("1 lease holds"), "{shown}");

    // A lease that is shown is settled when its instance stops, unless the instance takes longer than the lease lasts.
    let (asked, before) = until("a lease that lasts a while", || {
        check(&one, 1);
        admitted += 1;
        let (asked, shown) = (Instant::now(), key(&other));
        (ends_in(&shown) > Some(500)).then_some((asked, shown))
    });
    let expired = one.get("/v1/status").json()["store"]["leases"]["p"]["expired"].clone();
    one.signal("TERM");
    assert!(one.wait().success());
    let has_settled = expired == 0 && asked.elapsed() < Duration::from_millis(ends_in(&before).unwrap());
    let after =
        until("its lease has ended", || Some(key(&other)).filter(|shown| has_settled || shown["held"] == 0));
    let used = after["used"].as_u64().unwrap();
    if has_settled {
        assert_eq!((used, &after["held"]), (admitted, &json!(0)), "{before} {after}");
    } else {
        println!("a slow machine: {expired} leases have ended unsettled");
        assert!(used >= admitted, "{before} {after}");
    }
}

/// A process that the system stops does not see its leases end. When it goes on, it must not admit from them: others have
/// had the rest of the limit meanwhile.
#[test]
fn an_instance_that_was_stopped_admits_nothing_from_a_lease_that_has_ended() {
    const LIMIT: u64 = 2000;
    let (folder, redis) = (TempDir::new("leases-stopped"), RedisServer::start());
    let config = format!(
        "store: {{redis: '{}', deadline: 10s}}\n\
         policies: [{{name: p, scope: [user], quota: {LIMIT}/1h, lease: 1s, on_store_error: deny}}]\n",
        redis.url()
    );
    let config = folder.file("slidegate.yaml", config);
    let [one, other] = [(); 2].map(|()| Server::start(&["--config", &config]));
    let ask = |server: &Server, cost: u64| {
        let request = json!({ "attributes": { "user": "alice" }, "cost": cost }).to_string();
        let answer = server.post("/v1/check", &request);
        let source = answer.json()["policies"][0]["source"].as_str().unwrap().to_owned();
        (if answer.status == 200 { cost } else { 0 }, source)
    };
    let mut admitted = 0;
    until("a lease", || {
        let (cost, source) = ask(&one, 1);
        admitted += cost;
        (source == "leased").then_some(())
    });
    one.signal("STOP");
    std::thread::scope(|threads| {
        let later = threads.spawn(|| (0..50).map(|_| ask(&one, 1)).collect::<Vec<_>>());
        // The slice counts as used from its end on; the others have what is left of the limit.
        until("the limit is used up", || {
            // In large steps: the first call to the stopped instance waits meanwhile, and may time out.
            let (cost, _) = ask(&other, 100);
            admitted += cost;
            let shown = other.get("/v1/keys/p/alice").json();
            (shown["held"] == 0 && shown["remaining"].as_u64() < Some(100)).then_some(())
        });
        loop {
            let (cost, _) = ask(&other, 1);
            admitted += cost;
            if cost == 0 {
                break;
            }
        }
        one.signal("CONT");
        let after = later.join().unwrap();
        assert!(after.iter().all(|(cost, source)| *cost == 0 && source != "leased"), "{after:?}");
    });
    assert!(admitted > 0 && admitted <= LIMIT, "{admitted}");
}
