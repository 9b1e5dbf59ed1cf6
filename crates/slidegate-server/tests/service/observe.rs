//! What the service tells of its decisions: metrics, events, top keys and streams, through real sockets.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use slidegate_testkit::TempDir;
use slidegate_testkit::service::{Server, installed, run, slidegate, text};

/// Longer than anything takes here. Who waits as long has found a fault.
const LONG: Duration = Duration::from_secs(60);

const POLICIES: &str = "
policies:
  - {name: per-user, scope: [user], quota: 10/1h}
  - {name: per-ip, scope: [ip], quota: 2/1h}
  - {name: tried, scope: [user], quota: 3/1h, mode: shadow}
";

fn start(folder: &TempDir, config: &str) -> Server {
    Server::start(&["--config", &folder.file("slidegate.yaml", config)])
}

fn ask(server: &Server, route: &str, attributes: &Value, cost: u64) -> Value {
    server.post(route, &json!({ "attributes": attributes, "cost": cost }).to_string()).json()
}

fn check(server: &Server, attributes: &Value) -> bool {
    ask(server, "/v1/check", attributes, 1)["allowed"].as_bool().unwrap()
}

/// The samples of `/metrics`: their name with labels, and their value.
fn metrics(server: &Server) -> BTreeMap<String, f64> {
    let answer = server.get("/metrics");
    assert_eq!(answer.status, 200);
    assert_eq!(answer.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    let samples = answer.body.lines().filter(|line| !line.starts_with('#'));
    samples
        .map(|line| {
            let (name, value) = line.rsplit_once(' ').unwrap();
            (name.to_owned(), value.parse().unwrap_or_else(|_| panic!("{line}")))
        })
        .collect()
}

fn count(metrics: &BTreeMap<String, f64>, name: &str) -> u64 {
    let value = metrics.get(name).unwrap_or_else(|| panic!("{name} is not among {:?}", metrics.keys()));
    // Counts of a test are small.
    format!("{value}").parse().unwrap()
}

/// Prints every sample of a page, one a line, as the parsers of Prometheus' own Python client read it.
const READ_METRICS: &str = r#"
import sys
page = sys.stdin.read()
if sys.argv[1] == "openmetrics":
    from prometheus_client.openmetrics.parser import text_string_to_metric_families
else:
    from prometheus_client.parser import text_string_to_metric_families
for family in text_string_to_metric_families(page):
    assert family.documentation, family.name
    for sample in family.samples:
        labels = ",".join(f"{name}={value!r}" for name, value in sorted(sample.labels.items()))
        print(f"{family.type} {sample.name} {labels} {float(sample.value)}")
"#;

/// The samples that a real parser finds in a page, in a fixed order.
fn parsed(format: &str, page: &str) -> Vec<String> {
    let mut parser = Command::new(installed("python/bin/python"))
        .args(["-c", READ_METRICS, format])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    parser.stdin.take().unwrap().write_all(page.as_bytes()).unwrap();
    let output = parser.wait_with_output().unwrap();
    assert!(output.status.success(), "{format} cannot be parsed: {page}");
    let mut samples: Vec<_> = text(&output.stdout).lines().map(str::to_owned).collect();
    samples.sort_unstable();
    samples
}

/// A scraper that is sent a format it did not ask for drops the page, and every alert that rests on it falls silent.
#[test]
fn metrics_come_in_the_text_format_that_is_asked_for_and_real_parsers_read_both() {
    let (folder, rules_folder) = (TempDir::new("observe-formats"), TempDir::new("observe-formats-rules"));
    let rules = "domain: d\ndescriptors: [{key: k, rate_limit: {unit: hour, requests_per_unit: 1}}]";
    rules_folder.file("rules.yaml", rules);
    let config = folder.file("slidegate.yaml", POLICIES);
    let server = Server::start(&["--config", &config, "--envoy-config", rules_folder.as_str()]);
    for user in ["a", "b"] {
        ask(&server, "/v1/check", &json!({ "user": user }), 4);
    }
    let call = r#"{"domain": "d", "descriptors": [{"entries": [{"key": "k", "value": "v"}]}]}"#;
    assert_eq!([(); 2].map(|()| server.post("/json", call).status), [200, 429]);
    let page = |accept: &str| server.ask_with(&format!("accept: {accept}\r\n"), "GET", "/metrics", None);
    for accept in ["*/*", "text/plain;version=0.0.4", "application/openmetrics-text;q=0.1, text/plain;q=0.2"]
    {
        let answer = page(accept);
        let told = (answer.header("content-type"), answer.header("vary"));
        assert_eq!(told, (Some("text/plain; version=0.0.4; charset=utf-8"), Some("Accept")), "{accept}");
        assert!(!answer.body.contains("# EOF") && !answer.body.contains("# UNIT"), "{}", answer.body);
    }
    let prometheus =
        "application/openmetrics-text;version=1.0.0;q=0.6,text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
    let metrics = page(prometheus);
    let media_type = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    let told = (metrics.header("content-type"), metrics.header("vary"));
    assert_eq!(told, (Some(media_type), Some("Accept")));
    assert!(metrics.body.ends_with("# EOF\n") && metrics.body.matches("# EOF").count() == 1);

    // The same samples, but for what the older format has no type for, and what passes between two pages.
    let comparable = |samples: Vec<String>| -> Vec<String> {
        let samples =
            samples.into_iter().filter(|line| !line.contains("_info") && !line.contains("_duration_"));
        samples.collect()
    };
    let (new, old) = (parsed("openmetrics", &metrics.body), parsed("text", &page("*/*").body));
    for line in [
        "counter slidegate_decisions_total policy='per-user',source='store',verdict='allow' 2.0",
        "gauge slidegate_policy_limit policy='per-user' 10.0",
        "unknown ratelimit_service_rate_limit_total_hits domain='d',key1='k' 2.0",
    ] {
        assert!(new.iter().any(|one| one == line), "{line}: {new:#?}");
        assert!(old.iter().any(|one| one == line), "{line}: {old:#?}");
    }
    assert!(old.iter().any(|line| line.starts_with("gauge slidegate_build_info version=")), "{old:#?}");
    assert_eq!(comparable(new), comparable(old));
}

/// An alert or an invoice is made of these: each must be what happened, to the last one.
#[test]
fn metrics_count_known_traffic_exactly() {
    let folder = TempDir::new("observe-metrics");
    let server = start(&folder, POLICIES);
    let (alice, ip) = (json!({ "user": "alice" }), json!({ "ip": "192.0.2.7" }));
    // 4 + 4 of 10 are near the limit, 3 more do not fit. In shadow 4 never fit.
    assert_eq!(ask(&server, "/v1/check", &alice, 4)["allowed"], true);
    assert_eq!(ask(&server, "/v1/check", &alice, 4)["allowed"], true);
    assert_eq!(ask(&server, "/v1/check", &alice, 3)["allowed"], false);
    ask(&server, "/v1/peek", &alice, 1);
    ask(&server, "/v1/refund", &alice, 2);
    ask(&server, "/v1/penalize", &alice, 5);
    assert_eq!([(); 3].map(|()| check(&server, &ip)), [true, true, false]);
    assert!(check(&server, &json!({ "nobody": "knows" })));
    let both = json!({ "attributes": { "user": "bob", "ip": "192.0.2.7" } });
    let batch = json!({ "requests": [both, both] }).to_string();
    assert_eq!(server.post("/v1/check/batch", &batch).status, 200);

    let now = metrics(&server);
    let decisions = |policy: &str, verdict: &str| {
        let labels = format!("policy=\"{policy}\",verdict=\"{verdict}\",source=\"store\"");
        count(&now, &format!("slidegate_decisions_total{{{labels}}}"))
    };
    assert_eq!([decisions("per-user", "allow"), decisions("per-user", "deny")], [4, 1]);
    assert_eq!([decisions("per-ip", "allow"), decisions("per-ip", "deny")], [2, 3]);
    assert_eq!([decisions("tried", "allow"), decisions("tried", "shadow_deny")], [3, 2]);
    let of = |name: &str, policy: &str| count(&now, &format!("slidegate_{name}{{policy=\"{policy}\"}}"));
    // What another policy denied was charged nowhere, and a penalty is charged.
    assert_eq!(["per-user", "per-ip"].map(|policy| of("cost_admitted_total", policy)), [13, 2]);
    assert_eq!(["per-user", "per-ip", "tried"].map(|policy| of("cost_refused_total", policy)), [3, 3, 0]);
    assert_eq!(of("cost_refunded_total", "per-user"), 2);
    assert_eq!(["per-user", "per-ip"].map(|policy| of("near_limit_total", policy)), [1, 1]);
    assert_eq!([of("policy_limit", "per-user"), of("policy_window_seconds", "per-user")], [10, 3600]);
    assert_eq!([of("policy_enforced", "per-user"), of("policy_enforced", "tried")], [1, 0]);
    let requests = |verb: &str, verdict: &str| {
        let labels = format!("door=\"http\",verb=\"{verb}\",verdict=\"{verdict}\"");
        count(&now, &format!("slidegate_requests_total{{{labels}}}"))
    };
    assert_eq!([requests("check", "allow"), requests("check", "deny")], [5, 4]);
    assert_eq!(
        [requests("peek", "allow"), requests("refund", "allow"), requests("penalize", "allow")],
        [1; 3]
    );
    assert_eq!(count(&now, "slidegate_unmatched_requests_total{door=\"http\"}"), 1);
    assert_eq!(count(&now, "slidegate_decision_duration_seconds_count{door=\"http\"}"), 12);
    assert_eq!(count(&now, "slidegate_decision_duration_seconds_bucket{le=\"+Inf\",door=\"http\"}"), 12);
    assert_eq!(count(&now, "slidegate_denials_unrecorded_total"), 0);
    assert_eq!(count(&now, "slidegate_keys"), 3);
}

fn events(server: &Server, query: &str) -> Vec<Value> {
    server.get(&format!("/v1/events{query}")).json()["events"].as_array().unwrap().clone()
}

/// Whoever is asked why a client was denied an hour ago has nothing but this.
#[test]
fn every_denial_says_why_and_can_be_looked_up() {
    let folder = TempDir::new("observe-events");
    let log = folder.file("log", "");
    let server = Server::start_logging_to(
        &["--config", &folder.file("slidegate.yaml", POLICIES)],
        File::create(&log).unwrap(),
    );
    assert!(events(&server, "").is_empty());
    for ip in ["192.0.2.1", "192.0.2.2"] {
        assert_eq!([(); 3].map(|()| check(&server, &json!({ "ip": ip }))), [true, true, false]);
    }
    let carol = json!({ "user": "carol" });
    assert_eq!(ask(&server, "/v1/check", &carol, 11)["allowed"], false);
    let all = events(&server, "");
    let told: Vec<_> = all.iter().map(|event| (event["seq"].as_u64().unwrap(), &event["policy"])).collect();
    assert_eq!(
        told,
        [(4, &json!("tried")), (3, &json!("per-user")), (2, &json!("per-ip")), (1, &json!("per-ip"))]
    );
    let denial = &all[2];
    assert_eq!((&denial["key"], &denial["attributes"]), (&json!("192.0.2.2"), &json!({ "ip": "192.0.2.2" })));
    assert_eq!([&denial["limit"], &denial["used"], &denial["cost"]], [2, 2, 1]);
    assert_eq!((&denial["window_ms"], &denial["algorithm"]), (&json!(3_600_000), &json!("sliding-log")));
    assert_eq!([&denial["source"], &denial["mode"], &denial["door"]], ["store", "enforce", "http"]);
    assert_eq!(denial["verdict"], "deny");
    let at = denial["at"].as_str().unwrap();
    assert!(at.len() == 24 && at.starts_with("20") && at.ends_with('Z'), "{at}");
    let wait = denial["retry_after_ms"].as_u64().unwrap();
    assert!((3_000_000..=3_600_000).contains(&wait), "{wait}");
    // A cost that never fits has no wait, and what is in shadow says so.
    assert_eq!([&all[0]["retry_after_ms"], &all[1]["retry_after_ms"]], [&Value::Null; 2]);
    assert_eq!((&all[0]["mode"], &all[1]["mode"]), (&json!("shadow"), &json!("enforce")));

    let seqs = |query: &str| -> Vec<u64> {
        events(&server, query).iter().map(|event| event["seq"].as_u64().unwrap()).collect()
    };
    assert_eq!(seqs("?policy=per-ip"), [2, 1]);
    assert_eq!(seqs("?policy=per-ip&key=192.0.2.1"), [1]);
    assert_eq!(seqs("?key=carol&limit=1"), [4]);
    assert_eq!(seqs("?key=nobody"), [0; 0]);
    // The log has each key once, however often it is denied.
    assert!(!check(&server, &json!({ "ip": "192.0.2.1" })));
    let lines = lines_of(&log, 4);
    assert!(
        lines[0].contains("denied") && lines[0].contains("policy=\"per-ip\" key=\"192.0.2.1\""),
        "{lines:?}"
    );
    assert!(lines.iter().any(|line| line.contains("key=\"carol\"") && line.contains("mode=\"shadow\"")));
    assert_eq!(lines.iter().filter(|line| line.contains("192.0.2.1")).count(), 1);
}

/// The lines of denials in the log, once there are so many.
#[allow(clippy::disallowed_methods)] // A log is written in real time.
fn lines_of(log: &str, wanted: usize) -> Vec<String> {
    let deadline = std::time::Instant::now() + LONG;
    loop {
        let text = std::fs::read_to_string(log).unwrap();
        let lines: Vec<_> =
            text.lines().filter(|line| line.contains("slidegate::denials")).map(str::to_owned).collect();
        if lines.len() >= wanted {
            return lines;
        }
        assert!(std::time::Instant::now() < deadline, "{wanted} lines never came: {lines:#?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A filter that is silently ignored shows another client's denials.
#[test]
fn what_cannot_be_asked_is_a_problem_that_names_it() {
    let folder = TempDir::new("observe-problems");
    let server = start(&folder, POLICIES);
    for (path, status, detail) in [
        (
            "/v1/events?polcy=p",
            400,
            "parameter `polcy` is not known here; known are policy, key and limit, once each",
        ),
        ("/v1/events?limit=0", 400, "limit is `0`; give a whole number from 1 to 1024"),
        ("/v1/events?policy=p", 404, "there is no policy `p`; /v1/policies lists them"),
        ("/v1/top?by=name", 400, "by is `name`; write `used` or `denied`"),
        ("/v1/top?limit=1001", 400, "limit is `1001`; give a whole number from 1 to 1000"),
        (
            "/v1/top?key=a&limit=1",
            400,
            "parameter `key` is not known here; known are policy, by and limit, once each",
        ),
        ("/v1/live?x", 400, "parameter `x` is not known here; known are nothing, once each"),
    ] {
        let answer = server.get(path);
        assert_eq!(
            (answer.status, answer.header("content-type")),
            (status, Some("application/problem+json"))
        );
        assert_eq!(answer.json()["detail"], detail, "{path}");
    }
    let off = "observe: {metrics: false, events: false, top: false}\n";
    let silent = start(&folder, &format!("{off}{POLICIES}"));
    for _ in 0..3 {
        check(&silent, &json!({ "ip": "192.0.2.1" }));
    }
    for (path, setting) in [("/metrics", "metrics"), ("/v1/events", "events"), ("/v1/top", "top")] {
        let answer = silent.get(path);
        let detail =
            format!("this is switched off; write `{setting}: true` under `observe` in the configuration");
        assert_eq!((answer.status, &answer.json()["detail"]), (404, &json!(detail)));
    }
}

/// A stream of server-sent events.
struct Stream(BufReader<TcpStream>);

impl Stream {
    fn open(server: &Server, path: &str, more: &str) -> Self {
        let mut stream = server.connect();
        stream.set_read_timeout(Some(LONG)).unwrap();
        let head =
            format!("GET {path} HTTP/1.1\r\nhost: localhost\r\naccept: text/event-stream\r\n{more}\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        let mut stream = Self(BufReader::new(stream));
        let head: Vec<_> = std::iter::from_fn(|| stream.line().filter(|line| !line.is_empty())).collect();
        assert!(head[0].ends_with("200 OK"), "{head:?}");
        assert!(head.iter().any(|line| line == "content-type: text/event-stream"), "{head:?}");
        stream
    }

    /// The next line without its end. `None` at the end of the stream.
    fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        (self.0.read_line(&mut line).unwrap() > 0).then(|| line.trim_end().to_owned())
    }

    /// The name, id and content of the next event.
    fn next(&mut self) -> Option<(String, Option<u64>, Value)> {
        let (mut name, mut data, mut id) = (None, None, None);
        loop {
            let line = self.line()?;
            // Others are the sizes of chunks, and comments that keep the connection.
            match line.split_once(": ") {
                Some(("event", text)) => name = Some(text.to_owned()),
                Some(("data", text)) => data = Some(serde_json::from_str(text).unwrap()),
                Some(("id", text)) => id = text.parse().ok(),
                _ if line.is_empty() && name.is_some() && data.is_some() => {
                    return Some((name.unwrap(), id, data.unwrap()));
                }
                _ => {}
            }
        }
    }

    fn denial(&mut self) -> (u64, Value) {
        let (name, id, event) = self.next().expect("another event");
        assert_eq!((name.as_str(), event["seq"].as_u64()), ("denial", id));
        (id.unwrap(), event)
    }
}

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
    assert!(wrong.contains("Last-Event-ID is `x`; give the id of an event, a whole number"), "{wrong}");
    // Streams end with the service, which waits for nobody.
    server.signal("TERM");
    assert_eq!(again.next(), None);
    assert!(server.wait().success());
}

/// One browser tab that sleeps must not hold memory or anybody else.
#[test]
fn who_does_not_read_misses_events_and_holds_up_nobody() {
    let folder = TempDir::new("observe-slow");
    let server =
        start(&folder, "observe: {log_denials: false}\npolicies: [{name: p, scope: [user], quota: 0/1h}]");
    let mut slow = Stream::open(&server, "/v1/events", "");
    let mut quick = Stream::open(&server, "/v1/events", "");
    // Far more than the ring, the channel and the sockets' buffers hold. Keys are long, to fill those soon.
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
        match slow.next().unwrap() {
            (name, None, event) if name == "missed" => missed += event["messages"].as_u64().unwrap(),
            (_, id, _) => {
                assert!(id.unwrap() > last);
                last = id.unwrap();
            }
        }
    }
    // It may have been behind by less than is kept for it, if the sockets hold all of it.
    assert!(missed < seen, "{missed} of {seen}");
}

/// The page of operators draws this; it must add up to what happened.
#[test]
fn live_tells_rates_each_second_and_denials_at_once() {
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

fn top(server: &Server, query: &str) -> Value {
    server.get(&format!("/v1/top{query}")).json()
}

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
        let told: BTreeSet<_> = keys.iter().map(|key| key["key"].as_str().unwrap()).collect();
        for (key, truth) in exact.iter().filter(|(_, truth)| **truth > bound) {
            assert!(told.contains(key.as_str()), "{key} with {truth} is missing by {by}");
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
            "{}/v1/top returned 404 Not Found: there is no policy `q`; /v1/policies lists them\n",
            server.url
        )
    );
    let mut token = slidegate();
    token.args(["top", "--url", "http://127.0.0.1:1", "--once"]).env("SLIDEGATE_TOKEN", "t");
    assert_eq!(token.output().unwrap().status.code(), Some(2));
}

/// Everything that is told of these denials, the log included.
fn everything(config: &str, users: &[&str]) -> (String, Vec<Value>) {
    let folder = TempDir::new(&format!("observe-told-{}", config.len()));
    let log = folder.file("log", "");
    let arguments = ["--config", &folder.file("slidegate.yaml", config), "--log-format", "json"];
    let server = Server::start_logging_to(&arguments, File::create(&log).unwrap());
    let mut stream = Stream::open(&server, "/v1/events", "");
    for user in users {
        assert!(check(&server, &json!({ "user": user, "tenant": "acme" })));
        assert!(!check(&server, &json!({ "user": user, "tenant": "acme" })));
    }
    let streamed: Vec<_> = users.iter().map(|_| stream.denial().1).collect();
    let lines = lines_of(&log, users.len());
    for line in &lines {
        assert!(serde_json::from_str::<Value>(line).is_ok(), "{line}");
    }
    // By what the key is, its events are found in any case.
    for (user, event) in users.iter().zip(&streamed) {
        let key = format!("{},acme", event_key(user));
        let query = form_urlencoded::Serializer::new(String::new()).append_pair("key", &key).finish();
        assert_eq!(events(&server, &format!("?{query}")), std::slice::from_ref(event), "{query}");
    }
    let mut told = vec![server.get("/metrics").body, lines.join("\n"), json!(streamed).to_string()];
    told.extend(["/v1/events", "/v1/top", "/v1/top?by=denied"].map(|path| server.get(path).body));
    let shown = run(&["top", "--url", &server.url]);
    told.push(text(&shown.stdout));
    (told.join("\n"), streamed)
}

/// A key as texts have it.
fn event_key(user: &str) -> String {
    user.chars()
        .map(|c| match c {
            '%' | ',' => format!("%{:02X}", u32::from(c)),
            c if c.is_control() => c.to_string().bytes().map(|byte| format!("%{byte:02X}")).collect(),
            c => c.to_string(),
        })
        .collect()
}

/// A key that may not be told must not be in any of the places that tell keys.
#[test]
fn masked_and_hashed_keys_are_told_nowhere() {
    let users = ["mallory@example.com", "trent", "192.0.2.99", "ab"];
    for (how, start) in [("masked", "ma***,a***#"), ("hashed", "#")] {
        let config =
            format!("policies: [{{name: p, scope: [user, tenant], quota: 1/1h, keys_shown: {how}}}]");
        let (told, events) = everything(&config, &users);
        for secret in ["mallory", "allory", "example.com", "trent", "rent", "192.0.2", "acme"] {
            assert!(!told.contains(secret), "{how} tells `{secret}`: {told}");
        }
        let key = events[0]["key"].as_str().unwrap();
        assert!(key.starts_with(start), "{key}");
        let keys: BTreeSet<_> = events.iter().map(|event| event["key"].as_str().unwrap()).collect();
        assert_eq!(keys.len(), users.len(), "{keys:?}");
        assert!(events[0]["attributes"]["tenant"].is_string(), "{}", events[0]);
    }
}

/// Keys come from whoever sends requests; what shows them must not be steered by them.
#[test]
fn hostile_keys_break_no_line_of_any_output() {
    let users = [
        "\"} 1\nslidegate_fake_total 1\n",
        "x\r\nevent: denial\r\ndata: {}\r\n\r\n",
        "\u{1b}[2J\u{1b}]0;owned\u{7}",
        "a\u{2028}b\u{202e}c\u{0}",
        "' mode=\"shadow\" key=\"bob",
        "</script><script>alert(1)</script>",
    ];
    let config = "policies: [{name: p, scope: [user, tenant], quota: 1/1h}]";
    let (told, events) = everything(config, &users);
    assert_eq!(events.len(), users.len());
    for (user, event) in users.iter().zip(&events) {
        assert_eq!(event["key"], format!("{},acme", event_key(user)));
    }
    assert!(!told.chars().any(|c| c.is_control() && c != '\n'), "{told:?}");
    assert!(!told.lines().any(|line| line.starts_with("slidegate_fake") || line.starts_with("event:")));
}

/// Names of metrics in a file, as they are asked for.
fn names_in(text: &str) -> BTreeSet<String> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let parts = text.split(|c: char| !is_part(c));
    parts.filter(|part| part.starts_with("slidegate_")).map(str::to_owned).collect()
}

/// A percentile between two buckets' ends is a guess: an alert on one fires at 11 ms or stays silent at 49 ms.
#[test]
fn every_latency_that_an_alert_compares_with_is_the_end_of_a_bucket() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/prometheus/alerts.yml");
    let alerts = std::fs::read_to_string(path).unwrap();
    let server = Server::start(&["--policy", "1/1h per user", "--redis", "redis://127.0.0.1:1"]);
    check(&server, &json!({ "user": "alice" }));
    let page = server.get("/metrics").body;
    let mut compared = 0;
    for expression in alerts.lines().filter_map(|line| line.trim().strip_prefix("expr: ")) {
        // `histogram_quantile(0.99, sum by (...) (rate(NAME_bucket[5m]))) > 0.025`
        for part in expression.split("histogram_quantile(").skip(1) {
            let at = part.find("_bucket").expect("a percentile of a histogram");
            let begins = part[..at].rfind(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap() + 1;
            let name = &part[begins..at];
            let (_, threshold) = part.rsplit_once("))) > ").expect("a percentile is compared with a number");
            let threshold: f64 = threshold.split(' ').next().unwrap().parse().unwrap();
            let ends = page.lines().filter_map(|line| {
                let (_, end) = line.strip_prefix(name)?.strip_prefix("_bucket{")?.split_once("le=\"")?;
                end.split('"').next()?.parse::<f64>().ok()
            });
            let ends: Vec<f64> = ends.collect();
            assert!(ends.iter().any(|end| (end - threshold).abs() < 1e-9), "{threshold} of {name}: {ends:?}");
            compared += 1;
        }
    }
    assert_eq!(compared, alerts.matches("_seconds_bucket").count(), "every percentile was looked at");
    assert!(compared > 0);
}

/// A dashboard of metrics that are not there is empty, and an alert on one never fires.
#[test]
fn dashboard_and_alerts_use_what_is_exposed_and_every_alert_is_explained() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let read = |path: &str| std::fs::read_to_string(root.join(path)).unwrap();
    // A store that nobody listens for: its metrics are there all the same.
    let server = Server::start(&["--policy", "1/1h per user", "--redis", "redis://127.0.0.1:1"]);
    check(&server, &json!({ "user": "alice" }));
    let page = server.get("/metrics").body;
    let mut exposed = BTreeSet::new();
    for line in page.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
        let (name, kind) = line.split_once(' ').unwrap();
        let endings: &[&str] = match kind {
            "histogram" => &["_bucket", "_sum", "_count"],
            "counter" | "gauge" => &[""],
            other => panic!("{other}"),
        };
        exposed.extend(endings.iter().map(|ending| format!("{name}{ending}")));
    }
    let dashboard = read("deploy/grafana/slidegate.json");
    let alerts = read("deploy/prometheus/alerts.yml");
    for (file, text) in [("dashboard", &dashboard), ("alerts", &alerts)] {
        let used = names_in(text);
        assert!(used.len() > 5, "{file}: {used:?}");
        let unknown: Vec<_> = used.difference(&exposed).collect();
        assert!(unknown.is_empty(), "{file} uses {unknown:?}, exposed are {exposed:#?}");
    }
    let dashboard: Value = serde_json::from_str(&dashboard).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    assert!(panels.iter().all(|panel| panel["title"].is_string() && panel["targets"][0]["expr"].is_string()));
    // Labels that are asked for must be there too.
    for label in ["policy=", "verdict=", "source=", "door=", "node=", "state=", "result="] {
        assert!(page.contains(label), "{label}");
    }
    let operations = read("docs/observability.md");
    let names: Vec<_> = alerts.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    assert!(names.len() >= 8, "{names:?}");
    for name in names {
        assert!(operations.contains(&format!("| `{name}` |")), "{name} is not in the run book");
    }
    for metric in &exposed {
        let stem =
            ["_bucket", "_sum", "_count", "_total", "_info"].iter().find_map(|end| metric.strip_suffix(end));
        let stem = stem.unwrap_or(metric);
        assert!(operations.contains(stem), "{metric} is not explained");
    }
}
