//! Reservations over HTTP: costs that are known at the end, and limits on what is in flight.

use std::fs::File;
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use slidegate::clock::{Clock, SystemClock};
use slidegate_testkit::TempDir;
use slidegate_testkit::http::Response;
use slidegate_testkit::service::{Server, Token, run, text};

mod rejected;

const TOKENS: [&str; 2] = ["--policy", "100/1h per user named tokens"];

fn with_file(folder: &TempDir, policies: &str) -> Server {
    let file = folder.file("slidegate.yaml", policies);
    Server::start(&["--config", &file])
}

fn reserve(server: &Server, body: &Value) -> Response {
    let mut body = body.clone();
    body["attributes"] = json!({ "user": "alice" });
    server.post("/v1/reserve", &body.to_string())
}

fn ticket(response: &Response) -> String {
    assert_eq!(response.status, 200, "{}", response.body);
    response.json()["ticket"].as_str().unwrap().to_owned()
}

fn settle(server: &Server, ticket: &str, cost: u64) -> Value {
    let response = server.post("/v1/settle", &json!({ "ticket": ticket, "cost": cost }).to_string());
    assert_eq!(response.status, 200, "{}", response.body);
    response.json()
}

/// Used, held and remaining of alice's key.
fn usage(server: &Server, policy: &str) -> (u64, u64, u64) {
    let key = server.get(&format!("/v1/keys/{policy}/alice")).json();
    let number = |name: &str| key[name].as_u64().unwrap();
    (number("used"), number("held"), number("remaining"))
}

fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let happened = (0..800).any(|_| {
        thread::sleep(Duration::from_millis(10));
        is_so()
    });
    assert!(happened, "{what} did not happen");
}

/// Gateways of language models charge what an answer took, which is known when it is complete.
#[test]
fn a_reservation_is_held_until_it_is_settled_to_its_true_cost() {
    let server = Server::start(&TOKENS);
    let reserved = reserve(&server, &json!({ "cost": 60, "ttl": "1m" }));
    let first = ticket(&reserved);
    let json = reserved.json();
    assert_eq!((&json["used"], &json["held"], &json["remaining"]), (&json!(0), &json!(60), &json!(40)));
    assert_eq!(reserved.header("x-ratelimit-remaining"), Some("40"));
    let clock = SystemClock::new();
    let now_ms = clock.wall_time(clock.now()).as_micros() / 1000;
    let until_ms = json["until_ms"].as_u64().unwrap();
    assert!(until_ms > now_ms + 30_000 && until_ms < now_ms + 90_000, "{until_ms}");
    let why = json["why"].as_str().unwrap();
    assert_eq!(why, "tokens: `alice` has used 0 of 100 per 1h and holds 60 for open reservations, 40 remain");

    let denied = reserve(&server, &json!({ "cost": 50 }));
    assert_eq!((denied.status, denied.header("content-type")), (429, Some("application/problem+json")));
    let json = denied.json();
    assert_eq!((&json["violated-policies"], &json["held"]), (&json!(["tokens"]), &json!(60)));
    assert_eq!((&json["requested"], &json["fits_without_holds"]), (&json!(50), &json!(true)));
    assert!(json.get("ticket").is_none() && denied.header("retry-after").is_some());
    let checked = server.post("/v1/check", r#"{"attributes":{"user":"alice"},"cost":50}"#);
    assert_eq!((checked.status, &checked.json()["held"]), (429, &json!(60)), "a check respects holds");

    let settled = settle(&server, &first, 20);
    assert_eq!((&settled["outcome"], settled.get("ticket")), (&json!("changed"), None));
    let key = &settled["policies"][0];
    assert_eq!((&key["policy"], &key["status"]), (&json!("tokens"), &json!("changed")));
    assert_eq!((&key["used"], &key["cost"], &key["remaining"]), (&json!(20), &json!(20), &json!(80)));
    assert!(key.get("held").is_none());
    let _second = ticket(&reserve(&server, &json!({ "cost": 50 })));
    assert_eq!(usage(&server, "tokens"), (20, 50, 30));
    for cost in [20, 90] {
        let again = settle(&server, &first, cost);
        assert_eq!(
            (&again["outcome"], &again["policies"][0]["cost"]),
            (&json!("already_settled"), &json!(0))
        );
    }
    assert_eq!(usage(&server, "tokens"), (20, 50, 30));
}

/// An answer that took more than was reserved is charged in full.
#[test]
fn a_cost_above_the_reservation_is_charged() {
    let server = Server::start(&TOKENS);
    settle(&server, &ticket(&reserve(&server, &json!({ "cost": 60 }))), 150);
    assert_eq!(usage(&server, "tokens"), (150, 0, 0));
    let denied = reserve(&server, &json!({ "cost": 1 })).json();
    assert_eq!((&denied["fits_without_holds"], denied.get("held")), (&json!(false), None));
    let metrics = server.get("/metrics").body;
    for sample in ["sum{policy=\"tokens\"} 2.5", "count{policy=\"tokens\"} 1"] {
        assert!(metrics.contains(&format!("slidegate_settled_share_{sample}\n")), "{sample}: {metrics}");
    }
}

/// Who wonders where the quota went finds the gateway that crashed, and no key that is to be hidden.
#[test]
fn a_reservation_that_nobody_settles_is_an_event_and_is_counted() {
    let folder = TempDir::new("holds-expired");
    let log = folder.file("log", "");
    let policies = "
policies:
  - {name: charged, scope: [user], quota: 100/1h}
  - {name: dropped, scope: [user], quota: 100/1h, unsettled: forget, keys_shown: hashed}
  - {name: streams, scope: [user], in_flight: 4, mode: shadow}
";
    let server = Server::start_logging_to(
        &["--config", &folder.file("slidegate.yaml", policies)],
        File::create(&log).unwrap(),
    );
    let metric = |line: &str| server.get("/metrics").body.lines().any(|found| found == line);
    let lost = reserve(&server, &json!({ "cost": 60, "ttl": "6s" })).json();
    for (policy, held) in [("charged", 60), ("dropped", 60), ("streams", 1)] {
        assert!(metric(&format!("slidegate_reservations_open{{policy=\"{policy}\"}} 1")), "{policy}");
        assert!(metric(&format!("slidegate_held_cost{{policy=\"{policy}\"}} {held}")), "{policy}");
    }
    let listed = server.get("/v1/policies").json()["policies"][0].clone();
    assert_eq!((&listed["open_reservations"], &listed["held_cost"]), (&json!(1), &json!(60)));
    // Reservations that are settled, cancelled, extended or reset are not events.
    settle(&server, &ticket(&reserve(&server, &json!({ "cost": 1, "ttl": "5s" }))), 1);
    let cancelled = json!({ "ticket": ticket(&reserve(&server, &json!({ "cost": 1, "ttl": "5s" }))) });
    assert_eq!(server.post("/v1/cancel", &cancelled.to_string()).status, 200);
    let kept = ticket(&reserve(&server, &json!({ "cost": 3, "ttl": "5s" })));
    let extension = json!({ "ticket": kept, "hold": 5, "ttl": "1m" }).to_string();
    assert_eq!(server.post("/v1/extend", &extension).status, 200);
    let bob = json!({ "attributes": { "user": "bob" }, "cost": 9, "ttl": "5s" }).to_string();
    assert_eq!(server.post("/v1/reserve", &bob).status, 200);
    assert_eq!(
        server.post("/v1/reset", r#"{"attributes":{"user":"bob"}}"#).json(),
        json!({ "existed": true })
    );

    let events = || server.get("/v1/events").json()["events"].as_array().unwrap().clone();
    wait_until("an event for each policy", || events().len() >= 3);
    let mut events = events();
    events.sort_by_key(|event| event["policy"].as_str().unwrap().to_owned());
    assert_eq!(events.len(), 3, "{events:#?}");
    for (event, (policy, held, cost, used)) in
        events.iter().zip([("charged", 60, 60, 61), ("dropped", 60, 0, 1), ("streams", 1, 0, 0)])
    {
        assert_eq!((&event["policy"], &event["verdict"]), (&json!(policy), &json!("expired")), "{event}");
        assert_eq!((&event["reason"], &event["protocol"]), (&json!("expired"), &json!("http")), "{event}");
        assert_eq!((&event["held"], &event["cost"]), (&json!(held), &json!(cost)), "{event}");
        assert_eq!((&event["used"], &event["retry_after_ms"]), (&json!(used), &Value::Null), "{event}");
        assert!(event["until"].as_str().unwrap().ends_with('Z') && event["until"] == event["at"], "{event}");
    }
    assert_eq!((&events[0]["key"], &events[0]["attributes"]), (&json!("alice"), &json!({ "user": "alice" })));
    let hidden = events[1]["key"].as_str().unwrap();
    assert!(hidden.len() == 22 && hidden.starts_with('#'), "{hidden}");
    assert_eq!((&events[2]["mode"], &events[0]["mode"]), (&json!("shadow"), &json!("enforce")));
    let until_ms = events.iter().map(|event| {
        let until: jiff::Timestamp = event["until"].as_str().unwrap().parse().unwrap();
        u64::try_from(until.as_millisecond()).unwrap()
    });
    assert_eq!(until_ms.min(), lost["until_ms"].as_u64());
    for (policy, held) in [("charged", 5), ("dropped", 5), ("streams", 1)] {
        let expired = format!("slidegate_reservations_total{{policy=\"{policy}\",outcome=\"expired\"}} 1");
        assert!(metric(&expired), "{policy}");
        assert!(metric(&format!("slidegate_reservations_open{{policy=\"{policy}\"}} 1")), "{policy}");
        assert!(metric(&format!("slidegate_held_cost{{policy=\"{policy}\"}} {held}")), "{policy}");
    }
    // Denials of a key are denials alone.
    assert_eq!(server.get("/v1/keys/charged/alice").json()["denials"], json!([]));
    let lines = || std::fs::read_to_string(&log).unwrap();
    let is_logged = || lines().matches("slidegate::reservations").count() == 3;
    wait_until("a line for each policy", is_logged);
    assert!(lines().contains(r#"expired policy="charged" key="alice" held=60 cost=60"#), "{}", lines());
}

/// A gateway that crashes never settles, and must neither be free nor block its users for good.
#[test]
fn what_is_not_settled_in_time_is_charged_or_dropped_as_the_policy_says() {
    let folder = TempDir::new("holds-unsettled");
    let server = with_file(
        &folder,
        "policies:\n  - {name: charged, scope: [user], quota: 100/1h}\n  - {name: dropped, scope: [user], quota: 100/1h, unsettled: forget}\n",
    );
    let lost = ticket(&reserve(&server, &json!({ "cost": 60, "ttl": "50ms" })));
    wait_until("the end of the reservation", || usage(&server, "dropped").1 == 0);
    assert_eq!((usage(&server, "charged"), usage(&server, "dropped")), ((60, 0, 40), (0, 0, 100)));
    for _ in 0..2 {
        let late = settle(&server, &lost, 70);
        assert_eq!(late["outcome"], "expired");
        assert_eq!((usage(&server, "charged").0, usage(&server, "dropped").0), (70, 70));
    }
    let metrics = server.get("/metrics").body;
    assert!(
        metrics.contains(r#"slidegate_reservations_total{policy="charged",outcome="late"} 2"#),
        "{metrics}"
    );
}

/// A stream that needs more asks for it, and one that runs long says that it is alive.
#[test]
fn an_extension_holds_more_if_it_fits_and_longer_in_any_case() {
    let server = Server::start(&TOKENS);
    let first = ticket(&reserve(&server, &json!({ "cost": 60 })));
    let extend = |body: Value| server.post("/v1/extend", &body.to_string());
    let more = extend(json!({ "ticket": first, "hold": 90 }));
    assert_eq!((more.status, &more.json()["policies"][0]["held"]), (200, &json!(90)));
    let denied = extend(json!({ "ticket": first, "hold": 120 }));
    assert_eq!((denied.status, denied.header("content-type")), (429, Some("application/problem+json")));
    let json = denied.json();
    assert_eq!((&json["outcome"], &json["status"]), (&json!("denied"), &json!(429)));
    assert_eq!(json["detail"], "The extension does not fit under `tokens`. The reservation stays as it was.");
    assert_eq!(json["violated-policies"], json!(["tokens"]));
    assert_eq!(usage(&server, "tokens"), (0, 90, 10));
    let second = ticket(&reserve(&server, &json!({ "cost": 10 })));
    settle(&server, &second, 10);
    let both = extend(json!({ "tickets": [first, second] })).json();
    let outcomes: Vec<_> =
        both["reservations"].as_array().unwrap().iter().map(|one| &one["outcome"]).collect();
    assert_eq!(outcomes, ["changed", "already_settled"]);
}

/// A request that turns out to be long keeps its reservation with fewer calls.
#[test]
fn an_extension_may_change_the_time_of_one_or_several_reservations() {
    let server = Server::start(&TOKENS);
    let first = reserve(&server, &json!({ "cost": 10, "ttl": "30s" }));
    let until = |response: &Value| response["until_ms"].as_u64().unwrap();
    let (ticket, ends) = (ticket(&first), until(&first.json()));
    let extend = |body: Value| server.post("/v1/extend", &body.to_string()).json();
    let longer = extend(json!({ "ticket": ticket, "ttl": "10m" }));
    assert!(until(&longer) >= ends + 570_000, "{longer}");
    let shorter = extend(json!({ "tickets": [ticket], "ttl": "5s" }));
    let shorter = &shorter["reservations"][0];
    assert!(until(shorter) < ends, "{shorter}");
    // From then on, it is the time of the reservation.
    let again = extend(json!({ "ticket": shorter["ticket"] }));
    assert!(until(&again) < ends, "{again}");
}

/// A client whose connection broke reserves again, and must neither be charged nor hold twice.
#[test]
fn a_reservation_with_an_idempotency_key_is_made_once() {
    let server = Server::start(&TOKENS);
    let reserve = |id: &str, cost: u64| {
        let body = json!({ "attributes": { "user": "alice" }, "cost": cost }).to_string();
        let header = format!("idempotency-key: {id}\r\n");
        server.ask_with(&header, "POST", "/v1/reserve", Some(&body))
    };
    let [first, again] = [reserve("a", 10), reserve("a", 10)];
    assert_eq!((first.status, &first.body), (200, &again.body));
    assert_eq!(usage(&server, "tokens"), (0, 10, 90));
    reserve("a", 11);
    reserve("b", 10);
    assert_eq!(usage(&server, "tokens"), (0, 31, 69));
    assert_eq!(settle(&server, &ticket(&again), 4)["outcome"], "changed");
    assert_eq!(settle(&server, &ticket(&first), 4)["outcome"], "already_settled");
    assert_eq!(usage(&server, "tokens"), (4, 21, 75));
}

const CHAT: &str = "
policies:
  - {name: rpm, scope: [user], quota: 60/1h, counts: requests}
  - {name: tpm, scope: [user], quota: 100_000/1h}
  - {name: streams, scope: [user], in_flight: 4}
";

/// Fifty streams that start at once: requests, tokens and what runs at once are one decision.
#[test]
fn rates_and_what_is_in_flight_are_decided_together_and_a_denial_takes_nothing() {
    let folder = TempDir::new("holds-chat");
    let server = with_file(&folder, CHAT);
    let taken: Vec<Response> = thread::scope(|scope| {
        let callers: Vec<_> =
            (0..50).map(|_| scope.spawn(|| reserve(&server, &json!({ "cost": 2500 })))).collect();
        callers.into_iter().map(|caller| caller.join().unwrap()).collect()
    });
    let (passed, denied): (Vec<_>, Vec<_>) = taken.iter().partition(|response| response.status == 200);
    assert_eq!((passed.len(), denied.len()), (4, 46));
    let why = denied[0].json()["why"].as_str().unwrap().to_owned();
    assert!(why.starts_with("streams: `alice` has 4 of 4 in flight; the cost fits in at most "), "{why}");
    let all = || ["rpm", "tpm", "streams"].map(|policy| usage(&server, policy));
    assert_eq!(all(), [(4, 0, 56), (0, 10_000, 90_000), (0, 4, 0)]);

    // A check cannot give back, so it only asks.
    let check = r#"{"attributes":{"user":"alice"},"cost":1}"#;
    assert_eq!(server.post("/v1/check", check).json()["violated-policies"], json!(["streams"]));
    settle(&server, &ticket(passed[0]), 700);
    assert_eq!(all(), [(4, 0, 56), (700, 7_500, 91_800), (0, 3, 1)]);
    let cancelled = server.post("/v1/cancel", &json!({ "ticket": ticket(passed[1]) }).to_string());
    assert_eq!((cancelled.status, &cancelled.json()["outcome"]), (200, &json!("changed")));
    assert_eq!(all(), [(3, 0, 57), (700, 5_000, 94_300), (0, 2, 2)], "the request is given back as well");
    // A part of a settlement is not its end.
    let part = json!({ "ticket": ticket(passed[2]), "cost": 100, "final": false }).to_string();
    assert_eq!(server.post("/v1/settle", &part).status, 200);
    assert_eq!(usage(&server, "streams"), (0, 2, 2));
}

/// A fresh key that cannot be used at all is the most frequent complaint about reservations.
#[test]
fn an_estimate_of_the_policy_always_fits_an_unused_key_and_one_of_the_caller_may_not() {
    let folder = TempDir::new("holds-estimate");
    let server =
        with_file(&folder, "policies: [{name: tokens, scope: [user], quota: 100/1h, estimate: 1024}]\n");
    let denied = reserve(&server, &json!({ "cost": 1024 }));
    let json = denied.json();
    assert_eq!((denied.status, denied.header("retry-after")), (429, None));
    assert_eq!((&json["requested"], &json["fits_without_holds"]), (&json!(1024), &json!(false)));
    let why = json["why"].as_str().unwrap();
    assert!(why.ends_with("; reserve at most 100 of the estimate, and settle the rest"), "{why}");
    let unsaid = reserve(&server, &json!({}));
    assert_eq!((unsaid.status, &unsaid.json()["held"]), (200, &json!(100)));
}

/// A gateway with one code path reserves for everybody, also for whom no policy limits.
#[test]
fn a_reservation_that_nothing_limits_can_be_settled() {
    let server = Server::start(&TOKENS);
    let reserved = server.post("/v1/reserve", r#"{"attributes":{"ip":"192.0.2.7"}}"#);
    assert_eq!(reserved.json()["until_ms"], Value::Null);
    let settled = settle(&server, &ticket(&reserved), 7);
    assert_eq!((&settled["outcome"], &settled["policies"]), (&json!("changed"), &json!([])));
}

/// Support has to see who holds what; a dashboard, how many reservations are never settled.
#[test]
fn open_reservations_are_listed_and_counted() {
    let folder = TempDir::new("holds-listed");
    let server = with_file(&folder, CHAT);
    let first = ticket(&reserve(&server, &json!({ "cost": 2500, "ttl": "10m" })));
    let part = json!({ "ticket": first, "cost": 100, "final": false }).to_string();
    server.post("/v1/settle", &part);
    let show = || {
        let shown = run(&["key", "show", "tpm", "alice", "--url", &format!("http://{}", server.address)]);
        text(&shown.stdout) + &text(&shown.stderr)
    };
    assert!(show().contains("\n1 open reservation holds 2400:\n"), "{}", show());
    let _second = ticket(&reserve(&server, &json!({ "cost": 70 })));
    let key = server.get("/v1/keys/tpm/alice").json();
    assert_eq!((&key["open_holds"], &key["held"]), (&json!(2), &json!(2470)));
    let holds = key["holds"].as_array().unwrap();
    assert_eq!(
        (&holds[0]["held"], &holds[1]["held"], &holds[1]["settled"]),
        (&json!(70), &json!(2400), &json!(100))
    );
    assert!(holds[1]["ends_in_ms"].as_u64().unwrap() > 500_000 && holds[1]["unsettled"] == "charge");
    let shown = show();
    assert!(shown.contains("2 open reservations hold 2470:"), "{shown}");
    assert!(shown.contains("70 held, 0 settled, charged then"), "{shown}");
    let metrics = server.get("/metrics").body;
    for line in [
        "slidegate_holds 4",
        r#"slidegate_reservations_total{policy="tpm",outcome="reserved"} 2"#,
        r#"slidegate_reservations_total{policy="tpm",outcome="settled"} 1"#,
        r#"slidegate_reservations_total{policy="streams",outcome="reserved"} 2"#,
    ] {
        assert!(metrics.lines().any(|found| found == line), "{line}: {metrics}");
    }
    let policies = server.get("/v1/policies").json();
    let streams = &policies["policies"][2];
    assert_eq!(
        (&streams["algorithm"], &streams["limit"], &streams["window_ms"]),
        (&json!("in-flight"), &json!(4), &json!(30_000))
    );
    assert_eq!(
        (&policies["policies"][0]["counted"], &streams["counted"]),
        (&json!("requests"), &json!("requests"))
    );
}

/// An operator who raises a limit in flight does it under load, and learns who only asks.
#[test]
fn a_limit_in_flight_is_validated_explained_and_changed_while_it_is_in_use() {
    let folder = TempDir::new("holds-changed");
    let file = folder.file("slidegate.yaml", CHAT);
    let validated = text(&run(&["validate", &file]).stdout);
    assert!(
        validated.contains(
            "limited to 4 in flight for each user (released when settled, or 30s after the last heartbeat)"
        ),
        "{validated}"
    );
    assert!(
        validated.contains("warning: in flight under `streams`: only reservations count."),
        "{validated}"
    );
    let explained = text(&run(&["explain", "--config", &file, "user=alice"]).stdout);
    let line = "streams: applies to key `alice`: 4 in flight (lease 30s); each request counts as 1; only reservations count, other requests only check";
    assert!(explained.lines().any(|found| found == line), "{explained}");

    let server = Server::start(&["--config", &file]);
    let open: Vec<_> = (0..4).map(|_| ticket(&reserve(&server, &json!({})))).collect();
    assert_eq!(reserve(&server, &json!({})).status, 429);
    let change = |body: &str| server.change("PUT", "/v1/policies/streams", &[], body);
    assert_eq!(change(r#"{"limit":5}"#).status, 200);
    let _fifth = ticket(&reserve(&server, &json!({})));
    let refused = change(r#"{"quota":"100/1m"}"#);
    assert_eq!((refused.status, &refused.json()["field"]), (400, &json!("quota")));
    let own = server.change("POST", "/v1/keys/streams/alice/override", &[], r#"{"quota":"6","for":"10m"}"#);
    assert_eq!(own.status, 200, "{}", own.body);
    assert!(
        own.json()["done"].as_str().unwrap().starts_with("it has 6 in flight (lease 30s) until "),
        "{}",
        own.body
    );
    let _sixth = ticket(&reserve(&server, &json!({})));
    assert_eq!(reserve(&server, &json!({})).status, 429);
    server.reload(&file, &CHAT.replace("in_flight: 4", "in_flight: 2"), "");
    for ticket in &open {
        assert_eq!(settle(&server, ticket, 1)["outcome"], "changed", "no holder loses its permit");
    }
}

/// Client libraries of language models read these fields and no others.
#[test]
fn responses_have_the_fields_of_language_model_apis() {
    let policies = |style: &str| {
        format!(
            "policies:
- {{name: rpm, scope: [user], quota: 60/1h, counts: requests}}
- {{name: tpm, scope: [user], quota: 1000/1h, unit: tokens, overrides: {{bob: 10}}}}
headers: {{draft: off, x_ratelimit: {style}}}
"
        )
    };
    // Of requests and of tokens: the limit and what remains.
    const OPENAI: [&str; 4] = [
        "x-ratelimit-limit-requests",
        "x-ratelimit-remaining-requests",
        "x-ratelimit-limit-tokens",
        "x-ratelimit-remaining-tokens",
    ];
    const ANTHROPIC: [&str; 4] = [
        "anthropic-ratelimit-requests-limit",
        "anthropic-ratelimit-requests-remaining",
        "anthropic-ratelimit-tokens-limit",
        "anthropic-ratelimit-tokens-remaining",
    ];
    let fields =
        |response: &Response, names: [&str; 4]| names.map(|name| response.header(name).map(str::to_owned));
    let expected = |values: [&str; 4]| values.map(|value| Some(value.to_owned()));
    let folder = TempDir::new("unit-fields");
    let server = with_file(&folder, &policies("openai"));
    let reserved = reserve(&server, &json!({ "cost": 400 }));
    assert_eq!(fields(&reserved, OPENAI), expected(["60", "59", "1000", "600"]));
    assert_eq!(reserved.header("x-ratelimit-limit"), None);
    let reset = reserved.header("x-ratelimit-reset-requests");
    assert!(reset == Some("1h0m0s") || reset.is_some_and(|reset| reset.starts_with("59m5")), "{reset:?}");
    let body = json!({ "ticket": ticket(&reserved), "cost": 120 }).to_string();
    let settled = server.post("/v1/settle", &body);
    let [none, no_rest, limit, rest] = fields(&settled, OPENAI);
    assert_eq!((none, no_rest), (None, None), "requests are not settled");
    assert_eq!((limit.as_deref(), rest.as_deref()), (Some("1000"), Some("880")));
    let denied = server.post("/v1/check", r#"{"attributes": {"user": "bob"}, "cost": 11}"#);
    assert_eq!(denied.status, 429);
    assert_eq!(fields(&denied, OPENAI), expected(["60", "60", "10", "10"]));

    let folder = TempDir::new("unit-fields-of-anthropic");
    let server = with_file(&folder, &policies("anthropic"));
    let checked = server.get("/v1/check?user=alice&cost=1");
    assert_eq!(fields(&checked, ANTHROPIC), expected(["60", "59", "1000", "999"]));
    let reset = checked.header("anthropic-ratelimit-tokens-reset").unwrap();
    assert!(reset.len() == "2026-03-01T12:00:00Z".len() && reset.ends_with('Z'), "{reset}");
    assert_eq!(server.get("/v1/check?user=alice&cost=999").status, 200);
    let denied = server.get("/v1/check?user=alice&cost=1");
    let wait: u64 = denied.header("retry-after").unwrap().parse().unwrap();
    assert!((3000..=3600).contains(&wait), "{wait}");
}

/// Who pays for usage reads these figures: they are what was used, and beside it what is held.
#[test]
fn usage_figures_count_what_was_settled_and_show_what_is_held() {
    let server = Server::start(&["--policy", "100_000/1h per user named tokens"]);
    for _ in 0..5 {
        let ticket = ticket(&reserve(&server, &json!({ "cost": 1000 })));
        settle(&server, &ticket, 10);
    }
    let _open = ticket(&reserve(&server, &json!({ "cost": 700 })));
    assert_eq!(usage(&server, "tokens"), (50, 700, 99_250));
    let top = server.get("/v1/top").json();
    let first = &top["keys"][0];
    assert_eq!((&first["key"], &first["count"], &first["held"]), (&json!("alice"), &json!(50), &json!(700)));
    let metrics = server.get("/metrics").body;
    let metric = |name: &str| {
        let line = metrics.lines().find(|line| line.starts_with(&format!("slidegate_{name}")));
        line.and_then(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
    };
    assert_eq!(metric("cost_admitted_total{policy=\"tokens\"}"), Some(50.0), "{metrics}");
    assert_eq!(metric("held_cost{policy=\"tokens\"}"), Some(700.0));
    assert_eq!(metric("reservations_unnoted_total "), Some(0.0));
    let shown = run(&["top", "--url", &server.url]);
    let shown = text(&shown.stdout);
    let words: Vec<&str> = shown.lines().nth(3).unwrap().split_whitespace().collect();
    assert_eq!(words[..2], ["50", "700"], "{shown}");
    assert!(words.contains(&"tokens") && words.contains(&"alice"), "{shown}");
}
