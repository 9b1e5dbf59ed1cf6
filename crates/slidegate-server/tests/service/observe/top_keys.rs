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
