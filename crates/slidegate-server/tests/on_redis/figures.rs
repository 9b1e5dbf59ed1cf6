//! Every figure of every view, on every instance, against a count of the answers that clients got.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, catch_unwind};

use serde_json::{Value, json};
use slidegate_testkit::redis::RedisServer;
use slidegate_testkit::service::{Server, run, text};
use slidegate_testkit::{TempDir, until_true};

const POLICIES: &str = "
policies:
  - {name: log, scope: [user], window: 1h, limit: {by: plan, values: {pro: 60}, default: 20}}
  - {name: spend, scope: [user], quota: 45/1h, algorithm: token-bucket, counts: {usd: 0.5}, unit: usd}
  - {name: quiet, scope: [user], quota: 30/1h, mode: shadow}
  - {name: tried, scope: [org], quota: 100000/1h, candidate: 250/1h}
";

type Sums = BTreeMap<(String, String), f64>;

/// What clients were answered.
#[derive(Default)]
struct Answered {
    allowed: u64,
    denied: u64,
    /// By policy: checks that it allowed, and that it denied.
    verdicts: BTreeMap<String, (u64, u64)>,
    /// By policy and key.
    used: Sums,
    denials: Sums,
}

impl Answered {
    fn check(&mut self, server: &Server, n: u64) {
        // A seed that is fixed, so that a failure is one again.
        let random = n.wrapping_mul(6_364_136_223_846_793_005).rotate_left(23);
        let (user, usd) = (random % 6, 1 + random / 7 % 4);
        let plan = if user < 3 { "pro" } else { "free" };
        let attributes = json!({ "user": format!("u{user}"), "org": "o", "plan": plan });
        let answer = server
            .post("/v1/check", &json!({ "attributes": attributes, "cost": { "usd": usd } }).to_string());
        *if answer.status == 200 { &mut self.allowed } else { &mut self.denied } += 1;
        for one in answer.json()["policies"].as_array().unwrap() {
            let name = |field: &str| one[field].as_str().unwrap().to_owned();
            let (policy, place) = (name("policy"), (name("policy"), name("key")));
            let is_allowed = one["allowed"] == true;
            let verdicts = self.verdicts.entry(policy).or_default();
            *if is_allowed { &mut verdicts.0 } else { &mut verdicts.1 } += 1;
            *self.used.entry(place.clone()).or_default() += one["cost"].as_f64().unwrap();
            if !is_allowed {
                *self.denials.entry(place).or_default() += 1.0;
            }
        }
    }

    fn verdicts(&self, policy: &str) -> (u64, u64) {
        self.verdicts[policy]
    }
}

fn list<'a>(view: &'a Value, field: &str) -> &'a [Value] {
    view[field].as_array().map_or(&[], Vec::as_slice)
}

/// A list's sums of a field, by policy and key, without candidates and what is 0.
fn sums(view: &Value, field: &str) -> Sums {
    let place = |one: &Value| {
        let policy = one["policy"].as_str().or_else(|| view["policy"].as_str()).unwrap();
        (policy.to_owned(), one["key"].as_str().unwrap().to_owned())
    };
    let all =
        list(view, "keys").iter().map(|one| (place(one), (one[field].as_f64().unwrap() * 1e6).round() / 1e6));
    all.filter(|((policy, _), sum)| !policy.ends_with(".candidate") && *sum > 0.0).collect()
}

/// The counts of a list that are not what it says of them: the true count, or more by what it names.
fn wrong_counts(view: &Value, truth: &Sums) -> Vec<String> {
    let (counts, over) = (sums(view, "count"), sums(view, "at_most_over"));
    let bound = view["error_bound"].as_f64().unwrap();
    let is_right = |place: &(String, String), truth: f64| match counts.get(place) {
        Some(count) => {
            let least = count - over.get(place).unwrap_or(&0.0);
            (least - 1e-6..count + 1e-6).contains(&truth)
        }
        None => truth <= bound,
    };
    let wrong =
        truth.iter().filter(|(place, truth)| !place.0.ends_with(".candidate") && !is_right(place, **truth));
    wrong
        .map(|(place, truth)| {
            format!("{place:?}: {truth}, shown {:?} less {:?}", counts.get(place), over.get(place))
        })
        .collect()
}

fn total(history: &Value, field: &str) -> u64 {
    list(history, field).iter().map(|count| count.as_u64().unwrap()).sum()
}

/// Waits until what is shown is what is expected.
fn until_same<T: PartialEq + Debug>(what: &str, mut pair: impl FnMut() -> (T, T)) {
    let mut last = None;
    let is_same = catch_unwind(AssertUnwindSafe(|| {
        until_true(what, || {
            let (shown, expected) = pair();
            let is_same = shown == expected;
            last = Some((shown, expected));
            is_same
        });
    }));
    let (shown, expected) = last.unwrap();
    assert!(is_same.is_ok(), "{what}: {shown:?} instead of {expected:?}");
}

/// Whoever opens a view on any instance decides by it. A figure that is a part, or a sample, must not pass for the whole.
#[test]
fn figures_of_all_views_are_what_clients_were_answered() {
    let (folder, redis) = (TempDir::new("figures"), RedisServer::start());
    let config = format!("store: {{redis: '{}', deadline: 2s}}{POLICIES}", redis.url());
    let file = folder.file("slidegate.yaml", config);
    let servers = [(); 3].map(|()| Server::start(&["--config", &file]));
    let knows_all = |server: &Server| list(&server.get("/v1/status").json()["fleet"], "instances").len() == 3;
    until_true("all know each other", || servers.iter().all(knows_all));
    let mut answered = Answered::default();
    // A round-robin over two of them; the third has no traffic.
    for n in 0..400 {
        answered.check(&servers[usize::from(n % 2 == 1)], n);
    }
    assert!(answered.denied > 50 && answered.allowed > 50, "{} {}", answered.allowed, answered.denied);
    let views = |server: &Server, when: &str| {
        let get = |path: &str| server.get(path).json();
        let used = |policy: &str| {
            let of = answered.used.iter().filter(|((of, _), used)| of == policy && **used > 0.0);
            of.map(|(place, used)| (place.clone(), *used)).collect::<Sums>()
        };
        for name in ["log", "spend", "quiet", "tried"] {
            let denied = if name == "quiet" { "shadow_denied" } else { "denied" };
            let cost: f64 = used(name).values().sum();
            until_same(&format!("{when}: policy {name}"), || {
                let view = get("/v1/policies");
                let counts =
                    &list(&view, "policies").iter().find(|one| one["name"] == name).unwrap()["counts"];
                let (allowed, refused) = answered.verdicts(name);
                let shown = json!([
                    view["instances"],
                    counts["allowed"],
                    counts[denied],
                    counts["cost_allowed"].as_f64()
                ]);
                (shown, json!([3, allowed, refused, cost]))
            });
        }
        until_true(&format!("{when}: shadow"), || {
            let view = get("/v1/shadow");
            let shadow = &view["shadows"][0];
            let (allowed, denied) = answered.verdicts("quiet");
            (&shadow["requests"], &shadow["would_deny"]) == (&json!(allowed + denied), &json!(denied))
                && view["candidates"][0]["requests"]
                    == answered.verdicts("tried").0 + answered.verdicts("tried").1
        });
        for (by, truth) in [("used", &answered.used), ("denied", &answered.denials)] {
            let wrong = || {
                let view = get(&format!("/v1/top?by={by}&limit=100"));
                assert_eq!(view["sampled"], false);
                wrong_counts(&view, truth)
            };
            until_same(&format!("{when}: most {by}"), || (wrong(), Vec::new()));
        }
        until_same(&format!("{when}: history"), || {
            let view = get("/v1/history");
            ((total(&view, "allowed"), total(&view, "denied")), (answered.allowed, answered.denied))
        });
        for policy in ["log", "spend", "quiet", "tried"] {
            let listed = get(&format!("/v1/keys?policy={policy}"));
            let exact =
                |sums: Sums| sums.into_iter().map(|(place, sum)| (place, sum.round())).collect::<Sums>();
            let (found, expected) = (exact(sums(&listed, "used")), exact(used(policy)));
            // What drains meanwhile is less than a unit.
            let is_near = found
                .iter()
                .zip(&expected)
                .all(|(one, other)| one.0 == other.0 && (one.1 - other.1).abs() <= 1.0);
            assert!(found.len() == expected.len() && is_near, "{when}: {policy}: {found:?} {expected:?}");
        }
        let closest = get("/v1/top?by=closest&limit=100");
        for user in 0..6 {
            let (key, limit) = (format!("u{user}"), if user < 3 { 60 } else { 20 });
            let used = answered.used[&("log".to_owned(), key.clone())];
            let shown = get(&format!("/v1/keys/log/{key}"));
            let plan = if user < 3 { json!("pro") } else { Value::Null };
            assert_eq!(
                (shown["used"].as_f64(), &shown["limit"], &shown["plan"]),
                (Some(used), &json!(limit), &plan),
                "{when}"
            );
            let line = text(&run(&["key", "show", "log", &key, "--url", &server.url]).stdout);
            assert!(
                line.starts_with(&format!("log: `{key}` has used {used} of {limit} per 1h")),
                "{when}: {line}"
            );
            let near = list(&closest, "keys")
                .iter()
                .find(|one| one["policy"] == "log" && one["key"] == key)
                .unwrap();
            assert!(
                (near["share"].as_f64().unwrap() - used / f64::from(limit)).abs() < 1e-6,
                "{when}: {near}"
            );
        }
        let top = text(&run(&["top", "--once", "--by", "denied", "--url", &server.url]).stdout);
        let most = answered.denials.iter().max_by(|one, other| one.1.total_cmp(other.1)).unwrap();
        assert!(top.contains("on 3 instances"), "{when}: {top}");
        assert!(
            top.lines().any(|line| line.trim_start().starts_with(&format!("{} ", most.1))),
            "{when}: {most:?}: {top}"
        );
    };
    for (n, server) in servers.iter().enumerate() {
        views(server, &format!("instance {n}"));
    }
    // While the store is away an instance says what it does not know; afterwards nothing is missing.
    redis.pause();
    until_true("all are degraded", || {
        servers.iter().all(|server| server.get("/v1/status").json()["store"]["degraded"] == true)
    });
    for server in &servers {
        let refused = server.get("/v1/keys?policy=log");
        assert_eq!(refused.status, 503, "{}", refused.body);
        let policies = server.get("/v1/policies").json();
        assert!(policies["instances"] != 3 || policies["fleet_error"].is_string(), "{policies}");
    }
    redis.resume();
    until_true("all are together again", || servers.iter().all(knows_all));
    for (n, server) in servers.iter().enumerate() {
        views(server, &format!("instance {n} after an outage"));
    }
    // Counts are of what was answered; usage is of the store.
    redis.admin(&["FLUSHALL"]);
    for server in &servers {
        assert_eq!(server.get("/v1/keys?policy=log").json()["keys"], json!([]));
        assert_eq!(server.get("/v1/keys/log/u0").json()["used"], 0);
        let counts = || list(&server.get("/v1/policies").json(), "policies")[0]["counts"]["allowed"].clone();
        until_true("the counts stay", || counts() == answered.verdicts("log").0);
    }
}
