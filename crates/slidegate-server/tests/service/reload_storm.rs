//! A storm of reloads under load: the file changes all the time, is often invalid, and SIGHUP comes
//! in between.

use std::collections::HashMap;
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

use serde_json::{Value, json};
use slidegate_testkit::TempDir;
use slidegate_testkit::service::Server;

const USERS: u32 = 10;
/// What each user may do in the end.
const LIMIT: u64 = 200;
/// Reloads that are waited for.
const RELOADS: u64 = 25;

/// The policy of every version, and others that come and go before and after it.
fn version(number: u64) -> String {
    let other =
        |name: &str| format!("  - {{name: {name}-{}, scope: [user], quota: 100000/1h}}\n", number % 4);
    let limit = if number.is_multiple_of(2) { LIMIT } else { LIMIT / 2 };
    let always = format!("  - {{name: always, scope: [user], quota: {limit}/1h}}\n");
    format!("policies:\n{}{always}{}", other("before"), other("after"))
}

/// Checks once. `None` for a decision that `always` was no part of.
fn check(server: &Server, user: u32) -> Option<bool> {
    let body = json!({ "attributes": { "user": format!("user-{user}") } }).to_string();
    let answer = server.post("/v1/check", &body);
    let decision = answer.json();
    assert!(matches!(answer.status, 200 | 429), "{}", answer.body);
    let decisions = decision["policies"].as_array().cloned().unwrap_or_else(|| vec![decision.clone()]);
    let is_always = |one: &Value| one["policy"] == "always";
    decisions.iter().any(is_always).then(|| decision["allowed"] == true)
}

/// Operators change limits in an incident, by hand and by machine. No request may pass unlimited
/// meanwhile, and none may be forgotten.
#[test]
fn reloads_under_load_lose_no_policy_and_no_charge() {
    let folder = TempDir::new("reload-storm");
    let file = folder.file("slidegate.yaml", version(0));
    let server = Server::start_logging_to(&["--config", &file], std::process::Stdio::null());
    let is_over = AtomicBool::new(false);
    let reloads = || server.get("/v1/status").json()["config"]["reloads"].as_u64().unwrap();
    let admitted = thread::scope(|scope| {
        let clients: Vec<_> = (0..2)
            .map(|client| {
                let (server, is_over) = (&server, &is_over);
                scope.spawn(move || {
                    let mut admitted = HashMap::<u32, u64>::new();
                    for turn in 0.. {
                        if is_over.load(Relaxed) {
                            break;
                        }
                        let user = (turn + client) % USERS;
                        let allowed = check(server, user).expect("every decision is under the policy");
                        *admitted.entry(user).or_default() += u64::from(allowed);
                    }
                    admitted
                })
            })
            .collect();
        let mut number = 0;
        while reloads() < RELOADS {
            number += 1;
            // In place, so that a reload may read half of it; often no YAML at all.
            fs::write(&file, if number % 5 == 0 { "policies: [{" } else { "" }).unwrap();
            server.signal("HUP");
            fs::write(&file, version(number)).unwrap();
            server.signal("HUP");
        }
        is_over.store(true, Relaxed);
        clients.into_iter().map(|client| client.join().expect("no decision without the policy")).fold(
            HashMap::<u32, u64>::new(),
            |mut all, one| {
                one.into_iter().for_each(|(user, admitted)| *all.entry(user).or_default() += admitted);
                all
            },
        )
    });
    fs::write(&file, version(0)).unwrap();
    server.signal("HUP");
    let limit = || server.get("/v1/policies").json()["policies"][1]["limit"] == LIMIT;
    slidegate_testkit::until_true("the last version is in force", limit);
    for user in 0..USERS {
        let mut total = admitted.get(&user).copied().unwrap_or_default();
        assert!(total <= LIMIT, "user-{user}: {total}");
        while check(&server, user).expect("under the policy") {
            total += 1;
        }
        assert_eq!(total, LIMIT, "user-{user}");
    }
    assert!(admitted.values().sum::<u64>() > 0, "there was a load");
}
