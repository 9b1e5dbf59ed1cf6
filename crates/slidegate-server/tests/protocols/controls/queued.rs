//! Two changes of one reservation, the first of which waits for the store: the outcomes are those of a
//! store that replies.

use super::*;

/// Changes that end a reservation, and so wait for the store.
const LAST: [&str; 3] = ["settle 50", "settle 0", "cancel"];
/// Changes that may follow.
const SECOND: [&str; 6] = ["settle 50", "settle 0", "cancel", "settle part 60", "extend", "extend to 70"];

fn change(instance: &Instance, change: &str, ticket: &str) -> (u16, String) {
    let (route, body) = match change.rsplit_once(' ') {
        Some(("settle", cost)) => ("settle", json!({ "cost": cost.parse::<u64>().unwrap() })),
        Some(("settle part", cost)) => {
            ("settle", json!({ "cost": cost.parse::<u64>().unwrap(), "final": false }))
        }
        Some(("extend to", hold)) => ("extend", json!({ "hold": hold.parse::<u64>().unwrap() })),
        _ => (change, json!({})),
    };
    let mut body = body;
    body["ticket"] = ticket.into();
    let (status, answer) = instance.post(&format!("/v1/{route}"), &body, "");
    (status, answer["outcome"].as_str().unwrap_or_default().to_owned())
}

fn pairs() -> impl Iterator<Item = (&'static str, &'static str)> {
    LAST.into_iter().flat_map(|first| SECOND.into_iter().map(move |second| (first, second)))
}

fn key(first: &str, second: &str) -> String {
    format!("{first}-{second}").replace(' ', "-")
}

/// A customer who settles and then cancels would otherwise run for free in every outage.
#[test]
fn the_first_change_counts_whether_the_store_replies_or_not() {
    let (redis, folder) = (RedisServer::start(), TempDir::new("controls-queued"));
    let start = |name: &str, deadline: &str| {
        Instance::start(
            &folder,
            name,
            &format!("store: {{redis: '{}', deadline: {deadline}}}\n", redis.url()),
        )
    };
    // One waits for a slow machine, and the other does not wait for a store that is stopped.
    let (instance, hasty) = (start("patient", "30s"), start("hasty", "100ms"));
    let reserve = |key: &str| {
        let body = json!({ "attributes": { "user": key }, "cost": 50, "ttl": "1h" });
        let (status, answer) = instance.post("/v1/reserve", &body, "");
        assert_eq!(status, 200, "{answer}");
        answer["ticket"].as_str().unwrap().to_owned()
    };
    let mut expected = Vec::new();
    for (first, second) in pairs() {
        let key = format!("there-{}", key(first, second));
        let ticket = reserve(&key);
        assert_eq!(change(&instance, first, &ticket), (200, "changed".to_owned()), "{first}");
        let after = change(&instance, second, &ticket);
        assert_eq!(after, (200, "already_settled".to_owned()), "{first}, {second}");
        expected.push(instance.usage(&key));
    }
    let tickets: Vec<_> = pairs().map(|(first, second)| reserve(&key(first, second))).collect();
    redis.pause();
    for ((first, second), ticket) in pairs().zip(&tickets) {
        assert_eq!(change(&hasty, first, ticket), (202, "queued".to_owned()), "{first}");
        let after = change(&hasty, second, ticket);
        // What is repeated waits as before.
        let said = if first == second { (202, "queued") } else { (200, "already_settled") };
        assert_eq!((after.0, &*after.1), said, "{first}, {second}");
    }
    redis.resume();
    until_true("nothing waits for the store", || {
        hasty.server.get("/metrics").body.lines().any(|line| line == "slidegate_settlements_pending 0")
    });
    let used: Vec<_> = pairs().map(|(first, second)| instance.usage(&key(first, second))).collect();
    assert_eq!(used, expected);
    for ((first, second), ticket) in pairs().zip(&tickets) {
        let after = change(&instance, second, ticket);
        assert_eq!(after, (200, "already_settled".to_owned()), "{first}, {second}");
    }
    assert!(used.iter().all(|(_, held)| *held == 0), "{used:?}");
}
