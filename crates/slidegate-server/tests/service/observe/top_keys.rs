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

/// A customer at 99 % of the limit must be on the list, also after many others.
#[test]
fn a_key_near_its_limit_is_listed_first_after_many_others() {
    let folder = TempDir::new("observe-closest");
    let server = start(&folder, "policies: [{name: p, scope: [user], quota: 100/1h}]");
    check(&server, &json!({ "user": "alice" }));
    let body = json!({ "attributes": { "user": "alice" }, "cost": 98 });
    assert_eq!(server.post("/v1/check", &body.to_string()).status, 200);
    for batch in 0..5 {
        let one = |n| json!({ "attributes": { "user": format!("user-{batch}-{n}") } });
        let requests: Vec<_> = (0..100).map(one).collect();
        assert_eq!(server.post("/v1/check/batch", &json!({ "requests": requests }).to_string()).status, 200);
    }
    let closest = top(&server, "?by=closest&limit=2");
    assert_eq!((&closest["keys"][0]["key"], &closest["keys"][0]["share"]), (&json!("alice"), &json!(0.99)));
    assert_eq!(closest["keys"][1]["share"], 0.01, "{closest}");
    let looked_up = closest["looked_up"].as_u64().unwrap();
    assert_eq!(looked_up, 64, "it says of how many");
    server.assert_matches_openapi("GET", "/v1/top?by=closest", None, 200);
}

/// The keys of a policy on all pages, and how many cannot be named.
fn pages(server: &Server, query: &str) -> (Vec<Value>, u64) {
    let (mut keys, mut unnamed, mut cursor) = (Vec::new(), 0, String::new());
    for _ in 0..200 {
        let page = server.get(&format!("/v1/keys?policy={query}{cursor}"));
        assert_eq!(page.status, 200, "{}", page.body);
        let page = page.json();
        keys.extend(page["keys"].as_array().unwrap().iter().cloned());
        unnamed += page["unnamed"].as_u64().unwrap();
        match page["cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return (keys, unnamed),
        }
    }
    panic!("200 pages");
}

/// Support exports who is near the limit, and must learn of keys that the export cannot name.
#[test]
fn the_keys_of_a_policy_are_listed_with_their_usage_in_pages() {
    let folder = TempDir::new("observe-keys");
    let policies = "policies:\n  - {name: p, scope: [user], window: 1h, limit: {by: plan, values: {team: 600}, default: 10}}\n  \
                    - {name: hidden, scope: [ip], quota: 10/1h, keys_shown: hashed}\n  - {name: all, quota: 10000/1h}\n";
    let server = start(&folder, policies);
    let cost = |n: u64| if n.is_multiple_of(10) { 9 } else { 1 };
    for from in (0..1500).step_by(100) {
        let one = |n: u64| json!({ "attributes": { "user": format!("u,{n}") }, "cost": cost(n) });
        let body = json!({ "requests": (from..from + 100).map(one).collect::<Vec<_>>() });
        assert_eq!(server.post("/v1/check/batch", &body.to_string()).status, 200);
    }
    let check = |attributes: Value, cost: u64| {
        let body = json!({ "attributes": attributes, "cost": cost }).to_string();
        assert_eq!(server.post("/v1/check", &body).status, 200);
    };
    check(json!({ "user": "a key of more than 15 bytes" }), 9);
    check(json!({ "user": "alice", "plan": "team", "ip": "2001:db8:1:2345::7" }), 10);
    let (keys, unnamed) = pages(&server, "p&limit=100");
    assert_eq!((keys.len(), unnamed), (1501, 1));
    let names: BTreeSet<_> = keys.iter().map(|one| one["key"].as_str().unwrap()).collect();
    assert_eq!(names.len(), 1501, "each once");
    let alice = keys.iter().find(|one| one["key"] == "alice").unwrap();
    assert_eq!([&alice["used"], &alice["limit"], &alice["plan"]], [&json!(10), &json!(600), &json!("team")]);
    assert!(alice["resets_at"].is_string(), "{alice}");
    let (keys, _) = pages(&server, "p&over=80%");
    assert_eq!(keys.len(), 150);
    for one in &keys {
        let n: u64 = one["key"].as_str().unwrap().strip_prefix("u%2C").unwrap().parse().unwrap();
        assert_eq!(
            (cost(n), &one["used"], &one["share"], &one["plan"]),
            (9, &json!(9), &json!(0.9), &json!(null))
        );
    }
    let of = |query: &str| server.get(&format!("/v1/keys{query}")).json();
    let (hidden, _) = pages(&server, "hidden");
    assert!(hidden[0]["key"].as_str().is_some_and(|key| key.starts_with('#')), "{hidden:?}");
    let all = of("?policy=all");
    assert_eq!((&all["keys"][0]["key"], &all["cursor"]), (&json!("*"), &json!(null)));
    server.assert_matches_openapi("GET", "/v1/keys?policy=p&limit=1", None, 200);
    for (query, said) in [
        ("", "policy is missing; give one that /v1/policies lists, for example `?policy=per-user`"),
        ("?policy=q", "unknown policy `q`: must be one that /v1/policies lists"),
        (
            "?policy=p&over=high",
            "invalid over `high`: must be a share of the limit from 0% to 100%, for example `80%`",
        ),
        (
            "?policy=p&over=101",
            "invalid over `101`: must be a share of the limit from 0% to 100%, for example `80%`",
        ),
        ("?policy=p&limit=1001", "invalid limit `1001`: must be a whole number from 1 to 1000"),
        ("?policy=p&cursor=x", "cursor `x` is invalid; send the one from the last step, or none to begin"),
        (
            "?policy=p&cursor=node.1.0.0.0.0.-",
            "the cursor is that of a shared store, and this one is in memory; give none to begin",
        ),
        (
            "?policy=p&key=a",
            "unknown parameter `key`: must be one of policy, over, limit and cursor, once each",
        ),
    ] {
        assert_eq!(of(query)["detail"], said, "{query}");
    }
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
