//! The fleet: what instances on one store show of each other.

use serde_json::{Value, json};
use slidegate_testkit::redis::RedisServer;
use slidegate_testkit::service::{Server, run, text};
use slidegate_testkit::{TempDir, until, until_true};

const POLICY: &str = "policies: [{name: per-user, scope: [user], quota: 3/1h}]\n";

/// The configuration of an instance whose decisions have all the time they need.
fn config(folder: &TempDir, name: &str, redis: &RedisServer, keys: &str) -> String {
    let store = format!("store: {{redis: '{}', deadline: 10s{keys}}}\n", redis.url_as_user());
    folder.file(name, format!("{store}{POLICY}"))
}

fn pair(file: &str) -> [Server; 2] {
    [(); 2].map(|()| Server::start(&["--config", file]))
}

fn check(server: &Server, user: &str, times: usize) {
    for _ in 0..times {
        server.post("/v1/check", &json!({ "attributes": { "user": user } }).to_string());
    }
}

fn fleet(server: &Server) -> Value {
    server.get("/v1/status").json()["fleet"].clone()
}

/// The ids of the instances that a server shows, or only its own.
fn ids(fleet: &Value, only_this: bool) -> Vec<String> {
    let instances = fleet["instances"].as_array().unwrap().iter();
    let shown = instances.filter(|one| !only_this || one["this"] == true);
    shown.map(|one| one["id"].as_str().unwrap().to_owned()).collect()
}

/// Waits until a server shows this many instances.
fn until_it_shows(server: &Server, instances: usize) -> Value {
    until("the instances are shown", || {
        Some(fleet(server)).filter(|fleet| ids(fleet, false).len() == instances)
    })
}

fn key_counts(server: &Server, query: &str) -> Vec<(String, u64)> {
    let top = server.get(&format!("/v1/top{query}")).json();
    let keys = top["keys"].as_array().unwrap_or_else(|| panic!("{top}")).iter();
    keys.map(|key| (key["key"].as_str().unwrap().to_owned(), key["count"].as_u64().unwrap())).collect()
}

/// Who asks one instance behind a load balancer sees who waits on all of them.
#[test]
fn calls_that_wait_are_summed() {
    let (folder, redis) = (TempDir::new("fleet-waiting"), RedisServer::start());
    let [one, two] = &pair(&config(&folder, "slidegate.yaml", &redis, ""));
    // Who asks for more waits, as a reservation may end at any time.
    let alice = json!({ "attributes": { "user": "alice" }, "cost": 3, "ttl": "1h" });
    let ticket = one.post("/v1/reserve", &alice.to_string()).json()["ticket"].clone();
    let acquire = json!({ "attributes": { "user": "alice" }, "timeout_ms": 60_000 }).to_string();
    std::thread::scope(|threads| {
        let waiters = [one, two, two].map(|at| {
            let acquire = &acquire;
            threads.spawn(move || at.post("/v1/acquire", acquire).status)
        });
        let waiting = |server: &Server| {
            let shown = fleet(server);
            let of = |one: &Value| one["waiting"].as_u64().unwrap();
            let mut each: Vec<_> = shown["instances"].as_array().unwrap().iter().map(of).collect();
            each.sort_unstable();
            (of(&shown), each)
        };
        for server in [one, two] {
            until_true("all who wait are shown", || waiting(server) == (3, vec![1, 2]));
        }
        one.post("/v1/cancel", &json!({ "ticket": ticket }).to_string());
        assert_eq!(waiters.map(|waiter| waiter.join().unwrap()), [200; 3]);
        until_true("nobody waits", || waiting(two) == (0, vec![0, 0]));
    });
}

/// Whoever asks one instance behind a load balancer sees what all of them do, and can look at one.
#[test]
fn totals_and_top_keys_are_those_of_all_instances_or_of_one() {
    let (folder, redis) = (TempDir::new("fleet"), RedisServer::start());
    let [one, two] = pair(&config(&folder, "slidegate.yaml", &redis, ""));
    check(&one, "alice", 2);
    check(&two, "alice", 3);
    check(&two, "bob", 1);
    // Of four requests of alice that fit or not, three were admitted.
    let counts = |server: &Server, query: &str| {
        let policies = server.get(&format!("/v1/policies{query}")).json();
        let counts = &policies["policies"][0]["counts"];
        (policies["instances"].clone(), counts["allowed"].clone(), counts["denied"].clone())
    };
    for server in [&one, &two] {
        until_true("all is summed", || counts(server, "") == (json!(2), json!(4), json!(2)));
        let keys = [("alice".to_owned(), 3), ("bob".to_owned(), 1)];
        until_true("top keys are summed", || key_counts(server, "") == keys);
        until_true("denials, too", || key_counts(server, "?by=denied") == [("alice".to_owned(), 2)]);
        server.assert_matches_openapi("GET", "/v1/status", None, 200);
        server.assert_matches_openapi("GET", "/v1/policies", None, 200);
    }
    let shown = until_it_shows(&one, 2);
    assert_eq!(
        (&shown["error"], &shown["differ"], &shown["degraded"]),
        (&json!(null), &json!(null), &json!(0))
    );
    let [other] = &ids(&fleet(&two), true)[..] else { panic!("{shown}") };
    assert_ne!(*other, ids(&shown, true)[0]);
    assert_eq!(counts(&one, &format!("?instance={other}")), (json!(1), json!(2), json!(2)));
    let alone = fleet_of(&one, other);
    let name = alone["instances"][0]["name"].as_str().unwrap();
    assert!(name.ends_with(&two.address.replace("127.0.0.1", "")), "{name}");
    assert_eq!(
        key_counts(&one, &format!("?instance={name}")),
        [("alice".to_owned(), 1), ("bob".to_owned(), 1)]
    );
    assert_eq!(one.metric("slidegate_fleet_differs_seconds"), 0.0);
    let history = |query: &str| one.get(&format!("/v1/history{query}")).json();
    assert_eq!(history("")["instances"], 2);
    assert_eq!(history(&format!("?instance={}", ids(&shown, true)[0]))["instances"], 1);
    assert_eq!(
        history(&format!("?instance={other}"))["detail"],
        format!("instance {name} keeps its history itself; ask it")
    );

    // The same from the shell.
    let said = |args: &[&str]| text(&run(&[args, &["--url", &one.url]].concat()).stdout);
    let title = "Top keys by usage in the last 5 to 10 minutes";
    assert!(said(&["top", "--once"]).starts_with(&format!("{title} on 2 instances\n")), "{}", said(&["top"]));
    assert!(said(&["top", "--instance", name]).starts_with(&format!("{title} on {name}\n")));
    assert!(said(&["policy", "list"]).trim_end().ends_with("allowed 4, denied 2"));
    assert!(said(&["policy", "list", "--instance", other]).trim_end().ends_with("allowed 2, denied 2"));
    let unknown = one.get("/v1/top?instance=x%1b");
    assert_eq!(unknown.status, 404);
    assert_eq!(
        unknown.json()["detail"],
        "unknown instance `x\\u{1b}`: must be a name or id that /v1/status lists under `fleet`"
    );
}

/// Behind a load balancer, whoever asks the instance that has no traffic must not read that there is none.
#[test]
fn an_instance_without_traffic_shows_what_the_others_did_and_since_when_it_is_alone() {
    let (folder, redis) = (TempDir::new("fleet-quiet"), RedisServer::start());
    let policies = "policies:\n  - {name: per-user, scope: [user], quota: 10/1h, candidate: 5/1h}\n  \
                    - {name: tried, scope: [user], quota: 2/1h, mode: shadow}\n";
    let store = format!("store: {{redis: '{}', deadline: 10s}}\n{policies}", redis.url_as_user());
    let [quiet, busy] = pair(&folder.file("slidegate.yaml", store));
    check(&busy, "alice", 40);
    check(&busy, "bob", 9);
    let denied = |server: &Server| key_counts(server, "?by=denied&policy=per-user");
    until_true("denials by key", || denied(&quiet) == [("alice".to_owned(), 30)]);
    let closest = |server: &Server| {
        let keys = server.get("/v1/top?by=closest&policy=per-user").json()["keys"].clone();
        keys.as_array()
            .unwrap()
            .iter()
            .map(|one| (one["key"].clone(), one["share"].clone()))
            .collect::<Vec<_>>()
    };
    let expected = [(json!("alice"), json!(1.0)), (json!("bob"), json!(0.9))];
    until_true("the fullest keys", || closest(&quiet) == expected);
    // Of 49 requests, 5 and 4 are newly denied; the 30 that both deny are not.
    let shadow = |server: &Server| {
        let shadow = server.get("/v1/shadow").json();
        let (candidate, tried) = (&shadow["candidates"][0], &shadow["shadows"][0]);
        assert!(candidate["since"].is_string() == (candidate["requests"] != 0), "{candidate}");
        let of_candidate = ["requests", "newly_denied", "newly_allowed"].map(|name| candidate[name].clone());
        (
            shadow["instances"].clone(),
            of_candidate,
            [&tried["requests"], &tried["would_deny"]].map(Value::clone),
        )
    };
    let all = (json!(2), [49, 9, 0].map(|n| json!(n)), [49, 45].map(|n| json!(n)));
    for server in [&quiet, &busy] {
        until_true("the figures of shadow policies and candidates", || shadow(server) == all);
        server.assert_matches_openapi("GET", "/v1/shadow", None, 200);
    }
    assert_eq!(fleet(&quiet)["alone_since"], json!(null));
    redis.kill();
    let alone = until("it is alone", || Some(fleet(&quiet)).filter(|fleet| !fleet["error"].is_null()));
    assert!(alone["alone_since"].is_string(), "{alone}");
    let top = quiet.get("/v1/top?by=denied").json();
    assert_eq!((&top["instances"], &top["keys"]), (&json!(1), &json!([])));
    assert!(top["fleet_error"].is_string(), "{top}");
    quiet.assert_matches_openapi("GET", "/v1/status", None, 200);
}

/// What is held is in units, as on one instance: in millionths, half a dollar would look like half a million.
#[test]
fn open_reservations_are_summed_in_the_unit_of_their_policy() {
    let (folder, redis) = (TempDir::new("fleet-held"), RedisServer::start());
    let policy = "policies: [{name: spend, scope: [user], limit: 100, window: 1h, counts: {tokens: 0.25}}]";
    let store = format!("store: {{redis: '{}', deadline: 10s}}\n{policy}\n", redis.url_as_user());
    let [one, two] = pair(&folder.file("slidegate.yaml", store));
    for server in [&one, &two] {
        let body = json!({ "attributes": { "user": "alice" }, "cost": { "tokens": 40 } });
        assert_eq!(server.post("/v1/reserve", &body.to_string()).status, 200);
    }
    until_true("what both hold is summed", || {
        let policies = one.get("/v1/policies").json();
        let of = &policies["policies"][0];
        of["open_reservations"] == 2 && of["held_cost"] == 20
    });
}

fn fleet_of(server: &Server, instance: &str) -> Value {
    server.get(&format!("/v1/status?instance={instance}")).json()["fleet"].clone()
}

/// An instance that is shown after it died is searched for, and one that hangs is not counted on.
#[test]
fn instances_that_are_killed_or_hang_are_no_longer_shown() {
    let (folder, redis) = (TempDir::new("fleet-killed"), RedisServer::start());
    let file = config(&folder, "slidegate.yaml", &redis, "");
    let [one, two] = pair(&file);
    let three = Server::start(&["--config", &file]);
    until_it_shows(&one, 3);
    two.signal("KILL");
    three.signal("STOP");
    let left = until_it_shows(&one, 1);
    assert_eq!(ids(&left, false), ids(&left, true));
    three.signal("CONT");
    let back = until_it_shows(&one, 2);
    assert!(ids(&back, false).contains(&ids(&fleet(&three), true)[0]));
    // Without the store an instance knows itself, and says why.
    redis.kill();
    let alone =
        until("the others are unknown", || Some(fleet(&one)).filter(|fleet| !fleet["error"].is_null()));
    assert_eq!(ids(&alone, false), ids(&left, true));
}

/// A shared limit that instances understand differently is not the limit that anybody wrote.
#[test]
fn instances_with_different_policies_are_reported_until_they_agree() {
    let (folder, redis) = (TempDir::new("fleet-differs"), RedisServer::start());
    let files = ["one.yaml", "two.yaml"].map(|name| config(&folder, name, &redis, ""));
    let [one, two] = files.each_ref().map(|file| Server::start(&["--config", file]));
    until_it_shows(&one, 2);
    assert_eq!(fleet(&one)["differ"], json!(null));
    let same = std::fs::read_to_string(&files[1]).unwrap();
    folder.file("two.yaml", same.replace("3/1h", "4/1h"));
    two.signal("HUP");
    for server in [&one, &two] {
        let differ = until("they differ", || {
            let differ = fleet(server)["differ"].clone();
            Some(differ).filter(|differ| !differ.is_null())
        });
        assert_eq!(differ["configs"].as_array().unwrap().len(), 2, "{differ}");
        assert_eq!(differ["versions"], json!([env!("CARGO_PKG_VERSION")]));
        assert_eq!(differ["longer_than_a_rollout"], false);
        until_true("it is measured", || server.metric("slidegate_fleet_differs_seconds") > 0.0);
        server.assert_matches_openapi("GET", "/v1/status", None, 200);
    }
    folder.file("two.yaml", same);
    two.signal("HUP");
    for server in [&one, &two] {
        until_true("they agree", || fleet(server)["differ"].is_null());
        assert_eq!(server.metric("slidegate_fleet_differs_seconds"), 0.0);
    }
}

/// Whoever may write to the store must not write on the terminals of operators.
#[test]
fn records_that_no_instance_wrote_are_counted_and_not_shown() {
    let (folder, redis) = (TempDir::new("fleet-hostile"), RedisServer::start());
    let server = Server::start(&["--config", &config(&folder, "slidegate.yaml", &redis, "")]);
    until_true("it has published", || redis.admin(&["KEYS", "sg1:~instance:*"]).contains("sg1:~instance:"));
    let (table, id) = ("sg1:~instances", "00000000000000ab");
    let name = format!("sg1:~instance:{{{table}}}:{id}");
    let own = redis.admin(&["GET", &format!("sg1:~instance:{{{table}}}:{}", ids(&fleet(&server), true)[0])]);
    let good: Value = serde_json::from_str(own.trim()).unwrap_or_else(|error| panic!("{error}: {own}"));
    let publish = |record: &str| {
        until_true("the table names it", || {
            let lines = redis.admin(&["GET", table]);
            let now = redis.admin(&["TIME"]).lines().next().unwrap().parse::<u64>().unwrap() * 1000;
            let own: String =
                lines.lines().filter(|line| !line.starts_with(id)).map(|line| format!("{line}\n")).collect();
            redis.admin(&["SET", table, &format!("{}\n{id} {now}\n", own.trim())]);
            redis.admin(&["SET", &name, record]);
            let shown = fleet(&server);
            shown["unreadable_records"] == 1 || ids(&shown, false).len() == 2
        });
        fleet(&server)
    };
    let mut other = good.clone();
    other["name"] = "other:1".into();
    // One that decides alone, with other time zone data, is told from one that shares.
    (other["time_zones"], other["degraded"]) = ("1999z".into(), true.into());
    let shown = publish(&other.to_string());
    assert_eq!((ids(&shown, false).len(), &shown["degraded"]), (2, &json!(1)));
    let differ = &shown["differ"];
    assert_eq!(differ["time_zones"][0], "1999z", "{differ}");
    assert_eq!(
        (differ["time_zones"].as_array().unwrap().len(), &differ["configs"]),
        (2, &json!([good["config"]]))
    );
    server.assert_matches_openapi("GET", "/v1/status", None, 200);
    other["name"] = "\u{1b}[2J".into();
    for hostile in [other.to_string(), "{}".to_owned(), "x".repeat(10_000)] {
        redis.admin(&["DEL", &name]);
        until_it_shows(&server, 1);
        let shown = publish(&hostile);
        assert_eq!((ids(&shown, false).len(), &shown["unreadable_records"]), (1, &json!(1)), "{hostile}");
    }
}

/// Where Redis is paid by the command, or others may read it, one setting keeps the service silent.
#[test]
fn an_instance_that_is_told_to_publishes_nothing() {
    let (folder, redis) = (TempDir::new("fleet-off"), RedisServer::start());
    let server = Server::start(&["--config", &config(&folder, "slidegate.yaml", &redis, ", fleet: false")]);
    let other = Server::start(&["--config", &config(&folder, "other.yaml", &redis, "")]);
    let counted = |server: &Server| server.get("/readyz").json()["store"]["instances"].clone();
    until_true("it counts", || counted(&server) == 2);
    until_true("the other one has published", || {
        redis.admin(&["KEYS", "sg1:~instance:*"]).contains("sg1:~instance:")
    });
    assert_eq!(redis.admin(&["KEYS", "sg1:~instance:*"]).trim().lines().count(), 1);
    assert_eq!(ids(&fleet(&other), false).len(), 1);
    assert_eq!(fleet(&server), json!(null));
    let alone = Server::start(&["--policy", "3/1h per user"]);
    assert_eq!(fleet(&alone), json!(null));
    for server in [&server, &alone] {
        assert!(!server.get("/metrics").body.contains("slidegate_fleet_"));
        let refused = server.get("/v1/status?instance=a");
        assert_eq!(refused.status, 404);
        assert_eq!(
            refused.json()["detail"],
            "there is no fleet: instances show each other only with a shared store and `store.fleet: true`; leave \
             `instance` out"
        );
    }
}

/// Support exports the keys of all instances from the store; names that are hashes there are counted.
#[test]
fn the_keys_of_a_policy_are_listed_from_the_store_in_pages() {
    let (folder, redis) = (TempDir::new("fleet-keys"), RedisServer::start());
    let policies =
        "policies: [{name: p, scope: [ip], quota: 10/1h}, {name: other, scope: [user], quota: 1000/1h}]\n";
    let store = format!("store: {{redis: '{}', deadline: 10s}}\n{policies}", redis.url());
    let [one, two] = pair(&folder.file("slidegate.yaml", store));
    for from in (0..1200).step_by(100) {
        let of = |n: u32| match n % 100 {
            0 => json!({ "attributes": { "ip": format!("10.0.0.{}", n / 100), "user": "a b" }, "cost": 8 }),
            _ => json!({ "attributes": { "ip": format!("2001:db8:{n:x}:100::1") } }),
        };
        let body = json!({ "requests": (from..from + 100).map(of).collect::<Vec<_>>() });
        assert_eq!(one.post("/v1/check/batch", &body.to_string()).status, 200);
    }
    let pages = |query: &str| {
        let (mut keys, mut unnamed, mut cursor) = (std::collections::BTreeMap::new(), 0, String::new());
        loop {
            let page = two.get(&format!("/v1/keys?{query}{cursor}")).json();
            for one in page["keys"].as_array().unwrap_or_else(|| panic!("{page}")) {
                keys.insert(one["key"].as_str().unwrap().to_owned(), one["used"].as_u64().unwrap());
            }
            unnamed += page["unnamed"].as_u64().unwrap();
            let Some(next) = page["cursor"].as_str() else { return (keys, unnamed) };
            cursor = format!("&cursor={next}");
        }
    };
    let (keys, unnamed) = pages("policy=p&limit=200");
    assert_eq!((keys.len(), unnamed), (1200, 0));
    assert_eq!((keys["2001:db8:ff:100::/56"], keys["10.0.0.3"]), (1, 8));
    let (keys, _) = pages("policy=p&over=80");
    assert_eq!((keys.len(), keys.values().all(|used| *used == 8)), (12, true), "{keys:?}");
    let (keys, unnamed) = pages("policy=other");
    assert_eq!((keys.len(), unnamed), (0, 1), "a space is not in names of the store");
    let refused = two.get("/v1/keys?policy=p&cursor=memory.1.0.0.-");
    let said = "the cursor is that of a store in memory, and this one is shared; give none to begin";
    assert_eq!((refused.status, &refused.json()["detail"]), (400, &json!(said)));
    redis.kill();
    let refused = two.get("/v1/keys?policy=p");
    assert_eq!(refused.status, 503, "{}", refused.body);
}
