//! Top keys.

use super::*;

/// Somebody is going to be called because of this list.
#[test]
fn top_keys_are_within_the_stated_error_of_a_skewed_stream() {
    let folder = TempDir::new("observe-top");
    let server = start(&folder, "policies: [{name: p, scope: [user], quota: 20/1h}]");
    let (mut used, mut denied) = (BTreeMap::new(), BTreeMap::new());
    let mut state = 11u64;
    let mut key = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let share = f64::from(u32::try_from(state >> 32).unwrap()) / f64::from(u32::MAX);
        format!("k{}", 600_f64.powf(share).floor())
    };
    // Below what is sampled, so that the error is the sketch's alone.
    for _ in 0..9 {
        let keys: Vec<_> = (0..100).map(|_| key()).collect();
        let one = |key: &String| json!({ "attributes": { "user": key }, "cost": 2 });
        let batch = json!({ "requests": keys.iter().map(one).collect::<Vec<_>>() }).to_string();
        let decisions = server.post("/v1/check/batch", &batch).json();
        for (key, decision) in keys.into_iter().zip(decisions["decisions"].as_array().unwrap()) {
            let (counts, weight) =
                if decision["allowed"] == true { (&mut used, 2) } else { (&mut denied, 1) };
            *counts.entry(key).or_insert(0u64) += weight;
        }
    }
    for (by, exact) in [("used", &used), ("denied", &denied)] {
        let top = top(&server, &format!("?policy=p&by={by}&limit=1000"));
        assert_eq!((&top["sampled"], &top["by"], &top["policy"]), (&json!(false), &json!(by), &json!("p")));
        let bound = top["error_bound"].as_u64().unwrap();
        let keys = top["keys"].as_array().unwrap();
        let counts: Vec<_> = keys.iter().map(|key| key["count"].as_u64().unwrap()).collect();
        assert!(counts.is_sorted_by(|a, b| a >= b), "{counts:?}");
        for key in keys {
            let (count, over) = (key["count"].as_u64().unwrap(), key["at_most_over"].as_u64().unwrap());
            let truth = exact[key["key"].as_str().unwrap()];
            assert!(over <= bound && (count - over..=count).contains(&truth), "{key} is {truth}");
        }
        let found: BTreeSet<_> = keys.iter().map(|key| key["key"].as_str().unwrap()).collect();
        for (key, truth) in exact.iter().filter(|(_, truth)| **truth > bound) {
            assert!(found.contains(key.as_str()), "{key} with {truth} is missing by {by}");
        }
    }
    let most = denied.iter().max_by_key(|(_, count)| **count).unwrap();
    assert_eq!(top(&server, "?by=denied&limit=1")["keys"][0]["count"], *most.1);

    // The same from the shell, and once, as nobody looks at a pipe.
    let shown = run(&["top", "--url", &server.url, "--by", "denied", "--policy", "p", "--limit", "2"]);
    let shown = text(&shown.stdout);
    let lines: Vec<_> = shown.lines().collect();
    assert_eq!(lines[0], "Top keys of p by denials in the last 5 to 10 minutes");
    assert_eq!(lines.len(), 5, "{shown}");
    assert!(lines[3].contains(&most.1.to_string()) && lines[3].contains("  p "), "{shown}");
    assert!(!shown.contains('\u{1b}'));
    let json = run(&["top", "--url", &server.url, "--json"]);
    assert!(serde_json::from_slice::<Value>(&json.stdout).unwrap()["keys"].is_array());
    let refused = run(&["top", "--url", &server.url, "--policy", "q"]);
    assert_eq!(refused.status.code(), Some(2));
    assert_eq!(
        text(&refused.stderr),
        format!(
            "{}/v1/top returned 404 Not Found: unknown policy `q`: must be one that /v1/policies lists\n",
            server.url
        )
    );
    let mut token = slidegate();
    token.args(["top", "--url", "http://127.0.0.1:1", "--once"]).env("SLIDEGATE_TOKEN", "t");
    assert_eq!(token.output().unwrap().status.code(), Some(2));
}

/// Who looks for the next incident asks which keys are nearly full, not which have used most.
#[test]
fn keys_are_listed_by_the_part_of_their_limit_and_blocked_ones_by_their_end() {
    let folder = TempDir::new("closest");
    let server = start(&folder, POLICIES);
    for (user, ip, checks) in [("alice", "192.0.2.1", 4), ("bob", "192.0.2.2", 1)] {
        for _ in 0..checks {
            check(&server, &json!({ "user": user, "ip": ip }));
        }
    }
    let closest = top(&server, "?by=closest&limit=3");
    let row = |one: &Value| {
        let now = &one["now"];
        let figure = |name: &str| now[name].as_u64().unwrap();
        (one["policy"].clone(), one["key"].clone(), figure("remaining"), figure("limit"))
    };
    let rows: Vec<_> = closest["keys"].as_array().unwrap().iter().map(row).collect();
    assert_eq!(rows.len(), 3, "{closest}");
    assert_eq!(rows[0], (json!("per-ip"), json!("192.0.2.1"), 0, 2));
    assert_eq!(rows[1], (json!("tried"), json!("alice"), 1, 3), "denied by per-ip twice, so used twice");
    assert_eq!(rows[2], (json!("per-ip"), json!("192.0.2.2"), 1, 2));
    assert!(closest["keys"][0]["now"]["retry_after_ms"].as_u64() > Some(3_500_000), "{closest}");
    assert_eq!(closest["keys"][1]["now"]["retry_after_ms"], 0);
    // Looking is not use.
    let again = top(&server, "?by=closest&limit=3");
    assert_eq!(again["keys"].as_array().unwrap().iter().map(row).collect::<Vec<_>>(), rows);

    assert_eq!(top(&server, "?by=blocked")["keys"], json!([]));
    for (user, time) in [("alice", "20m"), ("bob", "10m")] {
        let path = format!("/v1/keys/per-user/{user}/block");
        assert_eq!(server.change("POST", &path, &[], &json!({ "for": time }).to_string()).status, 200);
    }
    let blocked = top(&server, "?by=blocked");
    let keys: Vec<_> = blocked["keys"].as_array().unwrap().iter().map(|one| one["key"].clone()).collect();
    assert_eq!(keys, ["bob", "alice"], "{blocked}");
    assert_eq!(blocked["keys"][0]["by"], "loopback");
    let used = top(&server, "?policy=per-user");
    assert_eq!(used["keys"][0]["now"]["is_blocked"], true, "{used}");
}

/// A page that polls this list must not count a customer by another plan's limit, as a peek without the plan would.
#[test]
fn a_look_leaves_a_key_under_the_limit_of_its_plan() {
    let folder = TempDir::new("observe-top-tiers");
    let server = start(
        &folder,
        "policies: [{name: p, scope: [user], window: 1h, algorithm: token-bucket, \
         limit: {by: plan, values: {team: 600}, default: 6}}]",
    );
    let check = |cost: u64| {
        let body = json!({ "attributes": { "user": "alice", "plan": "team" }, "cost": cost });
        server.post("/v1/check", &body.to_string()).status
    };
    assert_eq!(check(590), 200);
    let closest = top(&server, "?by=closest");
    let now = &closest["keys"][0]["now"];
    assert_eq!(now["limit"], 600, "{closest}");
    assert!(now["remaining"].as_u64() < Some(300), "{closest}");
    assert_eq!(check(300), 429);
}
