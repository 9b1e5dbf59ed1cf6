//! Server-sent events of denials and rates.

use super::*;

/// A page that was closed for a minute must not miss what happened in it, nor see it twice.
#[test]
fn events_stream_with_filters_and_go_on_where_they_were() {
    let folder = TempDir::new("observe-stream");
    let mut server = start(&folder, POLICIES);
    let ip = |n: u32| json!({ "ip": format!("192.0.2.{n}") });
    let deny = |server: &Server, n| assert_eq!([(); 3].map(|()| check(server, &ip(n))), [true, true, false]);
    deny(&server, 1);
    let mut all = Stream::open(&server, "/v1/events", "");
    let mut one = Stream::open(&server, "/v1/events?policy=per-ip&key=192.0.2.3", "");
    deny(&server, 2);
    ask(&server, "/v1/check", &json!({ "user": "carol" }), 11);
    deny(&server, 3);
    // Only what happened since it began.
    assert_eq!([(); 4].map(|()| all.denial().0), [2, 3, 4, 5]);
    let (seq, event) = one.denial();
    assert_eq!((seq, &event["key"]), (5, &json!("192.0.2.3")));

    let mut again = Stream::open(&server, "/v1/events?policy=per-ip", "last-event-id: 1\r\n");
    assert_eq!([(); 2].map(|()| again.denial().0), [2, 5]);
    deny(&server, 4);
    assert_eq!(again.denial().0, 6);
    // An id of before a restart: everything that is kept.
    let mut after_restart = Stream::open(&server, "/v1/events", "last-event-id: 900\r\n");
    assert_eq!([(); 6].map(|()| after_restart.denial().0), [1, 2, 3, 4, 5, 6]);
    let head =
        "GET /v1/events HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\naccept: text/event-stream\r\n";
    let wrong = server.raw(format!("{head}last-event-id: x\r\n\r\n").as_bytes());
    assert!(
        wrong.contains("invalid Last-Event-ID `x`: must be the id of an event, a whole number"),
        "{wrong}"
    );
    // Streams end with the service, which waits for nobody.
    server.signal("TERM");
    assert_eq!(again.next(), None);
    assert!(server.wait().success());
}

/// One browser tab that sleeps must not hold memory or anybody else.
#[test]
fn a_slow_reader_misses_events_and_delays_nobody() {
    let folder = TempDir::new("observe-slow");
    let server =
        start(&folder, "observe: {log_denials: false}\npolicies: [{name: p, scope: [user], quota: 0/1h}]");
    let mut slow = Stream::open(&server, "/v1/events", "");
    let mut quick = Stream::open(&server, "/v1/events", "");
    // Far more than the ring, the channel and the sockets' buffers hold. Keys are long, to fill
    // those soon.
    const ROUNDS: usize = 100;
    let body = |round: usize| {
        let one = |n: usize| json!({ "attributes": { "user": format!("{round}-{n}-{}", "x".repeat(220)) } });
        json!({ "requests": (0..100).map(one).collect::<Vec<_>>() }).to_string()
    };
    let mut seen = 0;
    for round in 0..ROUNDS {
        assert_eq!(server.post("/v1/check/batch", &body(round)).status, 200);
        // What is left out, when a second has had enough, never comes.
        let recorded = events(&server, "?limit=1")[0]["seq"].as_u64().unwrap();
        while seen < recorded {
            seen = quick.denial().0;
        }
    }
    assert_eq!(events(&server, "?limit=1024").len(), 1024);
    let mut missed = 0;
    let mut last = 0;
    while last < seen {
        match slow.next() {
            Some((name, None, event)) if name == "missed" => missed += event["messages"].as_u64().unwrap(),
            Some((_, id, _)) => {
                assert!(id.unwrap() > last);
                last = id.unwrap();
            }
            // On a busy machine the rounds take longer than a client may take nothing. No other end is
            // expected.
            None => {
                let status = server.get("/v1/status").json();
                assert_eq!(
                    status["connections"]["protocols"]["http"]["closed"]["write_timeout"], 1,
                    "{status}"
                );
                break;
            }
        }
    }
    // It may have been behind by less than is kept for it, if the sockets hold all of it.
    assert!(missed < seen, "{missed} of {seen}");
}

/// The page of operators draws this; it must add up to what happened.
#[test]
fn live_streams_rates_each_second_and_denials_at_once() {
    let folder = TempDir::new("observe-live");
    let server = start(&folder, POLICIES);
    let mut live = Stream::open(&server, "/v1/live", "");
    let until_rates = |live: &mut Stream| loop {
        let (name, _, data) = live.next().unwrap();
        if name == "rates" {
            return data;
        }
        assert_eq!(name, "denial");
    };
    until_rates(&mut live);
    for _ in 0..3 {
        check(&server, &json!({ "user": "alice", "ip": "192.0.2.1" }));
    }
    let mut sums = [0, 0, 0];
    let mut of_ip = [0, 0];
    while sums[0] + sums[1] < 3 {
        let rates = until_rates(&mut live);
        assert_eq!(rates["store_degraded"], false);
        let of = |rates: &Value, name: &str| rates[name].as_u64().unwrap_or(0);
        for (sum, name) in sums.iter_mut().zip(["allowed", "denied", "shadow_denied"]) {
            *sum += of(&rates, name);
        }
        for (sum, name) in of_ip.iter_mut().zip(["allowed", "denied"]) {
            *sum += of(&rates["by_policy"]["per-ip"], name);
        }
    }
    assert_eq!((sums, of_ip), ([2, 1, 0], [2, 1]));
}
