//! The HTTP API over real sockets: every route, and every mistake of clients.

use serde_json::{Value, json};
use slidegate_testkit::TempDir;
use slidegate_testkit::http::Response;
use slidegate_testkit::service::Server;

const POLICIES: [&str; 6] = [
    "--policy",
    "3/1h per user",
    "--policy",
    "2/1h per ip named per-ip",
    "--policy",
    "100/1h named everyone",
];

fn ask(attributes: &Value, cost: u64) -> String {
    json!({ "attributes": attributes, "cost": cost }).to_string()
}

fn alice(cost: u64) -> String {
    ask(&json!({ "user": "alice" }), cost)
}

/// The first thing anyone tries, and the answer they build on.
#[test]
fn a_check_is_allowed_until_the_limit_and_then_a_429_says_why() {
    let server = Server::start(&["--policy", "3/1h per user"]);
    for remaining in [2, 1, 0] {
        let answer = server.post("/v1/check", &alice(1));
        assert_eq!(answer.status, 200);
        let json = answer.json();
        assert_eq!(json["allowed"], true);
        assert_eq!((&json["policy"], &json["key"]), (&json!("per-user"), &json!("alice")));
        assert_eq!((&json["limit"], &json["remaining"]), (&json!(3), &json!(remaining)));
        assert_eq!(json["retry_after_ms"], 0);
        assert_eq!((&json["source"], &json["policies"][0]["source"]), (&json!("store"), &json!("store")));
        assert_eq!(answer.header("ratelimit-policy"), Some("\"per-user\";q=3;w=3600"));
        assert_eq!(answer.header("x-ratelimit-remaining"), Some(remaining.to_string().as_str()));
        assert_eq!(answer.header("retry-after"), None);
        assert_eq!(answer.header("cache-control"), Some("no-store"));
    }
    let denied = server.post("/v1/check", &alice(1));
    assert_eq!(denied.status, 429);
    assert_eq!(denied.header("content-type"), Some("application/problem+json"));
    let wait: u64 = denied.header("retry-after").unwrap().parse().unwrap();
    assert!((3590..=3600).contains(&wait), "{wait}");
    let json = denied.json();
    assert_eq!(json["allowed"], false);
    assert_eq!(json["violated-policies"], json!(["per-user"]));
    assert_eq!(json["status"], 429);
    assert_eq!((&json["used"], &json["remaining"], &json["cost"]), (&json!(3), &json!(0), &json!(0)));
    let why = json["why"].as_str().unwrap();
    assert!(why.starts_with("per-user: `alice` has used 3 of 3 per 1h; the cost fits in "), "{why}");
    assert_eq!(json["policies"][0]["window_ms"], 3_600_000);
}

/// Curl from the shell must work without quoting JSON.
#[test]
fn a_query_string_is_a_request_too() {
    let server = Server::start(&POLICIES);
    let answer = server.get("/v1/check?user=zo%C3%AB+a&cost=2").json();
    assert_eq!((&answer["key"], &answer["used"]), (&json!("zoë a"), &json!(2)));
    assert_eq!(server.get("/v1/check?user=zo%C3%AB+a&cost=2").status, 429);
    assert_eq!(server.get("/v1/check").json()["policy"], "everyone");
}

/// A key that could end a JSON text, or an entry of a log, is shown and explained as it is.
#[test]
fn a_reply_is_json_whatever_the_key_is() {
    let server = Server::start(&["--policy", "1/1h per user"]);
    for (user, key) in [
        ("a\"b\\c", "a\"b\\c"),
        ("\",\"x\":1", "\"%2C\"x\":1"),
        ("zoë\u{1f600}", "zoë\u{1f600}"),
        ("a\n\0", "a%0A%00"),
    ] {
        for (status, used) in [(200, 1), (429, 1)] {
            let answer = server.post("/v1/check", &ask(&json!({ "user": user }), 1));
            let json = answer.json();
            assert_eq!((answer.status, &json["key"], &json["used"]), (status, &json!(key), &json!(used)));
            assert_eq!(json["policies"][0]["key"], key);
            let why = json["why"].as_str().unwrap();
            assert!(why.starts_with(&format!("per-user: `{key}` has used 1 of 1 per 1h")), "{why}");
        }
    }
}

/// Two users whose names differ in one byte must not share a limit because the byte is not UTF-8.
#[test]
fn keys_that_differ_in_one_byte_never_share_a_limit() {
    let server = Server::start(&["--policy", "1/1h per user"]);
    let check = |user: &str| server.get(&format!("/v1/check?user={user}")).status;
    assert_eq!((check("%f1"), check("%f2"), check("%EF%BF%BD")), (200, 200, 200));
    assert_eq!((check("%F1"), check("%f2"), check("%EF%BF%BD")), (429, 429, 429));
    assert_eq!(server.get("/v1/check?user=%f1").json()["key"], "%F1");
    // Each is found, and reset, by the text that answers print.
    assert_eq!(server.get("/v1/keys/per-user/%25F1").json()["used"], 1);
    assert_eq!(server.change("POST", "/v1/keys/per-user/%25F1/reset", &[], "{}").status, 200);
    assert_eq!((check("%f1"), check("%f2")), (200, 429));
    let raw = server.get("/v1/keys/per-user/%F1");
    let detail =
        "invalid path: must be UTF-8; write a key as responses print it, with `%25FF` for the byte FF";
    assert_eq!((raw.status, &raw.json()["detail"]), (400, &json!(detail)));
    let filter = server.get("/v1/events?key=%F1");
    assert_eq!((filter.status, &filter.json()["field"]), (400, &json!("key")));
}

/// Looking must be free, and a look that finds no room is no error.
#[test]
fn peek_refund_penalize_and_reset_do_what_they_say() {
    let server = Server::start(&["--policy", "3/1h per user"]);
    let peeked = server.post("/v1/peek", &alice(4));
    assert_eq!((peeked.status, &peeked.json()["allowed"]), (200, &json!(false)));
    assert_eq!(peeked.json()["retry_after_ms"], Value::Null);
    assert_eq!(server.post("/v1/peek", &alice(3)).json()["allowed"], true);

    server.post("/v1/check", &alice(2));
    let refunded = server.post("/v1/refund", &alice(5)).json();
    assert_eq!((&refunded["cost"], &refunded["remaining"]), (&json!(2), &json!(3)));

    let penalized = server.post("/v1/penalize", &alice(10)).json();
    assert_eq!((&penalized["used"], &penalized["remaining"]), (&json!(10), &json!(0)));
    assert_eq!(server.post("/v1/check", &alice(1)).status, 429);

    assert_eq!(server.post("/v1/reset", &alice(1)).json(), json!({ "existed": true }));
    assert_eq!(server.post("/v1/reset", &alice(1)).json(), json!({ "existed": false }));
    assert_eq!(server.post("/v1/check", &alice(3)).status, 200);
}

/// A gateway that asks for many at once needs each answer at its place.
#[test]
fn a_batch_is_answered_in_order_and_refused_whole_if_one_cannot_be_read() {
    let server = Server::start(&["--policy", "3/1h per user"]);
    let one = |user: &str, cost| json!({ "attributes": { "user": user }, "cost": cost });
    let body = json!({ "requests": [one("a", 3), one("b", 1), one("a", 1), one("c", 4)] }).to_string();
    let answer = server.post("/v1/check/batch", &body);
    assert_eq!(answer.status, 200);
    let decisions = answer.json()["decisions"].as_array().unwrap().clone();
    let found: Vec<_> =
        decisions.iter().map(|d| (d["key"].as_str().unwrap(), d["allowed"].as_bool().unwrap())).collect();
    assert_eq!(found, [("a", true), ("b", true), ("a", false), ("c", false)]);

    let body = json!({ "requests": [one("z", 1), { "attributes": { "user": "z", "": "nowhere" } }] });
    let answer = server.post("/v1/check/batch", &body.to_string());
    assert_eq!((answer.status, &answer.json()["field"]), (400, &json!("requests[1].attributes")));
    assert_eq!(
        server.post("/v1/peek", &body["requests"][0].to_string()).json()["used"],
        0,
        "none was charged"
    );

    let many: Vec<_> = (0..1001).map(|_| one("m", 0)).collect();
    let answer = server.post("/v1/check/batch", &json!({ "requests": many }).to_string());
    assert_eq!((answer.status, &answer.json()["field"]), (400, &json!("requests")));
    assert_eq!(answer.json()["detail"], "the batch has 1001 requests; send at most 1000");
}

/// A request that nothing limits must be reported as such, not only as allowed.
#[test]
fn a_request_under_no_policy_is_allowed_and_says_so() {
    let server = Server::start(&["--policy", "3/1h per user"]);
    let answer = server.get("/v1/check?usr=alice");
    assert_eq!(answer.status, 200);
    let json = answer.json();
    assert_eq!((&json["allowed"], &json["policy"]), (&json!(true), &Value::Null));
    assert_eq!(json["why"], "no enforced policy applies to these attributes, so nothing limits the request");
    assert_eq!(answer.header("ratelimit"), None);
}

/// Who names a policy wants that one alone, and must not pass because of a slip of the pen.
#[test]
fn a_policy_that_is_named_decides_alone_and_one_that_cannot_is_told() {
    let server = Server::start(&POLICIES);
    let under = |policy: &str, attributes: Value| {
        json!({ "policy": policy, "attributes": attributes, "cost": 2 }).to_string()
    };
    let both = json!({ "user": "alice", "ip": "192.0.2.7" });
    server.assert_matches_openapi("POST", "/v1/check", Some(&under("per-ip", both.clone())), 200);
    let denied = server.post("/v1/check", &under("per-ip", both.clone())).json();
    assert_eq!(denied["violated-policies"], json!(["per-ip"]));
    assert_eq!(denied["policies"].as_array().unwrap().len(), 1, "{denied}");
    assert_eq!(server.post("/v1/peek", &under("per-user", both.clone())).json()["used"], 0);
    assert_eq!(server.post("/v1/refund", &under("per-ip", both.clone())).json()["used"], 0);
    let batch = format!(r#"{{"requests":[{}]}}"#, under("per-ip", both.clone()));
    assert_eq!(server.post("/v1/check/batch", &batch).json()["decisions"][0]["remaining"], 0);
    assert_eq!(server.post("/v1/reset", &under("per-ip", both.clone())).json(), json!({ "existed": true }));
    for (policy, attributes, field, detail) in [
        (
            "per-ipp",
            both.clone(),
            "policy",
            "invalid policy `per-ipp`: must be a policy in force; `slidegate policy list` lists them",
        ),
        (
            "per-ip",
            json!({ "user": "alice" }),
            "attributes",
            "policy `per-ip` counts by `ip`; give that attribute",
        ),
    ] {
        for route in ["/v1/check", "/v1/peek", "/v1/refund", "/v1/penalize", "/v1/reset"] {
            let answer = server.post(route, &under(policy, attributes.clone()));
            assert_eq!(answer.status, 400, "{route}: {}", answer.body);
            assert_eq!((&answer.json()["field"], &answer.json()["detail"]), (&json!(field), &json!(detail)));
        }
    }
    let resp = Server::start(&["--resp", "127.0.0.1:0"]);
    let found = resp.post("/v1/check", &under("THROTTLE", json!({ "key": "a" })));
    assert_eq!((found.status, &found.json()["field"]), (400, &json!("policy")), "it has no quota of its own");
    // In a query string it is the same.
    let query = |query: &str| server.get(&format!("/v1/check?{query}"));
    assert_eq!(
        query("user=bob&ip=192.0.2.8&policy=per-user").json()["policies"].as_array().unwrap().len(),
        1
    );
    assert_eq!(server.post("/v1/peek", &under("per-ip", json!({ "ip": "192.0.2.8" }))).json()["used"], 0);
    let proxied = "x-forwarded-uri: /\r\nx-forwarded-method: GET\r\n";
    for proxy in ["/v1/check?", "/v1/auth/caddy?"] {
        let get = |query: &str| server.ask_with(proxied, "GET", &format!("{proxy}{query}"), None);
        let typo = get("user=bob&policy=per-usr");
        let detail =
            "invalid policy `per-usr`: must be a policy in force; `slidegate policy list` lists them";
        assert_eq!((typo.status, &typo.json()["detail"]), (400, &json!(detail)), "{proxy}");
        let lacking = get("route=api&policy=per-user");
        let detail = "policy `per-user` counts by `user`; give that attribute";
        assert_eq!((lacking.status, &lacking.json()["detail"]), (400, &json!(detail)), "{proxy}");
    }
}

/// A program that is a proxy's limiter may take an error for an unavailable service, so what its clients
/// choose is decided: each value is limited by itself, and what is no address as one client.
#[test]
fn values_of_any_bytes_and_length_are_decided() {
    let policies = "
policies:
  - {name: per-user, scope: [user], quota: 1/1h}
  - {name: per-ip, scope: [ip], quota: 1/1h}
  - {name: per-host, scope: [host], quota: 1/1h}
  - {name: api, when: {host: API.example.com}, quota: 0/1h}
";
    let dir = TempDir::new("http-values");
    let server = Server::start(&["--config", &dir.file("slidegate.yaml", policies)]);
    let (long, longer) = ("x".repeat(9000), "x".repeat(60_000));
    let (other, nine) = (format!("{}y", "x".repeat(8999)), "x".repeat(9001));
    let by_query = |name: &str, value: &str| {
        let request =
            format!("GET /v1/check?{name}={value} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
        Response::parse(&server.raw(request.as_bytes())).status
    };
    let by_body = |name: &str, value: &[u8]| {
        let body = [format!(r#"{{"attributes":{{"{name}":""#).as_bytes(), value, b"\"}}"].concat();
        let head = format!(
            "POST /v1/check HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        Response::parse(&server.raw(&[head.as_bytes(), &body].concat())).status
    };
    for (status, again) in [(200, ""), (429, " again")] {
        for value in [&long, &longer, &other, "%ff", "%fe", "%00", "%0d%0a", "%22", "%F0%9F%98", "+", "%"] {
            assert_eq!(by_query("user", value), status, "{}{again}", &value[..value.len().min(20)]);
        }
        let values: [&[u8]; 8] =
            [b"\xfd", b"a\xffb", br"\ud800", br"\udfff\ud800", br"\u0001", nine.as_bytes(), b"", br"\\"];
        for value in values {
            assert_eq!(by_body("user", value), status, "{}{again}", value.escape_ascii());
        }
        for host in ["shop.example", "shop.example:80", "SHOP.example."] {
            let expected = if host == "shop.example" { status } else { 429 };
            assert_eq!(by_query("host", host), expected, "{host}{again}");
        }
    }
    assert_eq!(by_body("host", b"Shop.Example:8080"), 429);
    for host in ["api.example.com", "API.example.com", "api.example.com:443", "Api.Example.Com."] {
        assert_eq!((by_query("host", host), by_body("host", host.as_bytes())), (429, 429), "{host}");
    }
    // What is no address is one client, whatever it is.
    let first = by_query("ip", "localhost");
    assert_eq!(first, 200);
    for ip in
        ["localhost", "unknown", "", "1.2.3", "192.0.2.7:80", "%ff", &long, "[::1]", "192.0.2.7,192.0.2.8"]
    {
        assert_eq!(by_query("ip", ip), 429, "{}", &ip[..ip.len().min(20)]);
    }
    assert_eq!(by_query("ip", "192.0.2.7"), 200, "an address is counted by itself");
    let key = server.get("/v1/keys/per-ip/unknown");
    assert_eq!((key.status, &key.json()["used"]), (200, &json!(1)), "{}", key.body);
}

/// Every kind of bad input: a 4xx that names the field, and a server that lives on.
#[test]
fn bad_input_is_refused_by_name_and_charges_nothing() {
    let mut server = Server::start(&POLICIES);
    let deep = format!(r#"{{"attributes":{}"#, "[".repeat(5000));
    let many: String = (0..40).map(|n| format!(r#""a{n}":"x","#)).collect();
    let many = format!(r#"{{"attributes":{{{many}"z":"x"}}}}"#);
    let cases: &[(&str, &str, &str)] = &[
        ("", "body", "the body is not a JSON object; send for example"),
        ("{", "body", "EOF while parsing an object"),
        ("[]", "body", "the body is not a JSON object"),
        ("null", "body", "the body is not a JSON object"),
        (r#"{"attributes":{"user":"a"}} x"#, "body", "goes on after its JSON"),
        ("{}", "body", "missing field `attributes`"),
        (
            r#"{"attributes":{},"cots":2}"#,
            "cots",
            "unknown field `cots`, expected one of `attributes`, `cost`, `policy`",
        ),
        (r#"{"attributes":["user"]}"#, "attributes", "expected an object of texts"),
        (r#"{"attributes":{"user":42}}"#, "attributes.user", r#"expected a text; write numbers as "42""#),
        (r#"{"attributes":{"user":null}}"#, "attributes.user", "expected a text"),
        (r#"{"attributes":{"user":"a","user":"b"}}"#, "attributes.user", "attribute `user` is given twice"),
        (r#"{"attributes":{"":"a"}}"#, "attributes", "the name of attribute 1 has 0 bytes"),
        (r#"{"attributes":{},"cost":-1}"#, "cost", "integer `-1`, expected a whole number from 0"),
        (r#"{"attributes":{},"cost":1.5}"#, "cost", "floating point `1.5`, expected a whole number"),
        (r#"{"attributes":{},"cost":1e300}"#, "cost", "expected a whole number"),
        (r#"{"attributes":{},"cost":"2"}"#, "cost", r#"string "2", expected a whole number"#),
        (r#"{"attributes":{},"cost":9007199254740992}"#, "cost", "cost 9007199254740992 is too large"),
        (r#"{"attributes":{},"cost":99999999999999999999999}"#, "cost", "expected a whole number"),
        (&deep, "attributes", "invalid type: sequence"),
        (&many, "attributes", "more than 32 attributes"),
    ];
    for route in ["/v1/check", "/v1/peek", "/v1/refund", "/v1/penalize", "/v1/reset"] {
        for (body, field, detail) in cases {
            let answer = server.post(route, body);
            let json = answer.json();
            let found = json["detail"].as_str().unwrap();
            assert_eq!(answer.status, 400, "{route} {body}: {found}");
            assert_eq!(answer.header("content-type"), Some("application/problem+json"));
            assert_eq!(json["field"], *field, "{route} {body}: {found}");
            assert!(found.contains(detail), "{route} {body}: {found}");
        }
    }
    let batch =
        server.post("/v1/check/batch", r#"{"requests":[{"attributes":{}},{"attributes":{"user":7}}]}"#);
    assert_eq!((batch.status, &batch.json()["field"]), (400, &json!("requests[1].attributes.user")));
    let invalid = server.raw(
        b"POST /v1/check HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: 3\r\n\r\n\xff\xfe\x00",
    );
    assert!(invalid.starts_with("HTTP/1.1 400"), "{invalid}");
    let cost = server.get("/v1/check?user=a&cost=-1");
    assert_eq!((cost.status, &cost.json()["field"]), (400, &json!("cost")));
    assert_eq!(server.get("/v1/check?user=a&user=b").json()["field"], "user");
    let twice = server.get("/v1/check?cost=1&user=a&cost=1");
    let detail = "cost is given more than once; give it once";
    assert_eq!((twice.status, &twice.json()["field"]), (400, &json!("cost")));
    assert_eq!(twice.json()["detail"], detail);
    let body = r#"{"attributes":{"user":"a"},"cost":1,"cost":1}"#;
    for (route, body) in [
        ("/v1/check", body.to_owned()),
        ("/v1/reset", body.to_owned()),
        ("/v1/check/batch", format!(r#"{{"requests":[{body}]}}"#)),
    ] {
        let answer = server.post(route, &body);
        assert_eq!(answer.status, 400, "{route}");
        assert!(answer.body.contains("duplicate field `cost`"), "{route}: {}", answer.body);
    }
    let everyone = server.post("/v1/peek", r#"{"attributes":{}}"#).json();
    assert_eq!(everyone["used"], 0, "nothing was charged");
    assert!(server.is_running());
}

/// A gateway that misspells a cost must find out from the first answer, not from the bill.
#[test]
fn a_cost_that_no_policy_counts_is_a_400_and_charges_nothing() {
    let folder = TempDir::new("http-unknown-cost");
    let policies = "policies: [{name: tpm, scope: [user], quota: 5000/1h, counts: output}]\n";
    let server = Server::start(&["--config", &folder.file("slidegate.yaml", policies)]);
    let detail = "unknown cost `ouput`: no policy counts it, and policy `tpm` counts `output`, which is missing; \
                  correct the name, or add `output`";
    let body = |cost: Value| json!({ "attributes": { "user": "alice" }, "cost": cost });
    let (right, wrong) = (body(json!({ "output": 10, "input": 1 })), body(json!({ "ouput": 10 })));
    for route in ["check", "peek", "refund", "penalize", "reset", "reserve"] {
        let answer = server.post(&format!("/v1/{route}"), &wrong.to_string());
        let json = answer.json();
        assert_eq!((answer.status, &json["field"], &json["detail"]), (400, &json!("cost"), &json!(detail)));
    }
    let batch = server.post("/v1/check/batch", &json!({ "requests": [&right, &wrong] }).to_string());
    assert_eq!((batch.status, &batch.json()["field"]), (400, &json!("requests[1].cost")));
    let used = |held: u64| {
        let json = server.get("/v1/keys/tpm/alice").json();
        assert_eq!((&json["used"], json["held"].as_u64().unwrap_or(0)), (&json!(0), held), "{json}");
    };
    used(0);
    let ticket = server.post("/v1/reserve", &right.to_string()).json()["ticket"].clone();
    for (route, field) in [("settle", "cost"), ("extend", "hold")] {
        let body = json!({ "ticket": ticket, field: { "ouput": 3 } }).to_string();
        let answer = server.post(&format!("/v1/{route}"), &body);
        let json = answer.json();
        assert_eq!((answer.status, &json["field"], &json["detail"]), (400, &json!(field), &json!(detail)));
    }
    used(10);
}

/// A body that never ends must not fill the memory, nor a wrong path be a riddle.
#[test]
fn large_bodies_unknown_paths_and_wrong_methods_are_told_apart() {
    let mut server = Server::start(&POLICIES);
    let large = format!(r#"{{"attributes":{{"user":"{}"}}}}"#, "x".repeat(70_000));
    let answer = server.post("/v1/check", &large);
    assert_eq!(answer.status, 413);
    assert_eq!(
        answer.json()["detail"],
        "the body is larger than 65536 bytes; send less, or several requests"
    );

    let answer = server.post("/v1/chekc", "{}");
    assert_eq!(answer.status, 404);
    assert!(
        answer.json()["detail"]
            .as_str()
            .unwrap()
            .starts_with("unknown path `/v1/chekc`: must be one of /v1/check, ")
    );

    let answer = server.ask("DELETE", "/v1/check", None);
    assert_eq!((answer.status, answer.header("allow")), (405, Some("GET,HEAD,POST")));
    assert_eq!(answer.header("content-type"), Some("application/problem+json"));

    for garbage in [
        &b"\x16\x03\x01\x02\x00\x01\x00"[..],
        b"GET\r\n\r\n",
        b"POST /v1/check HTTP/1.1\r\ncontent-length: -5\r\n\r\n",
    ] {
        let _ = server.raw(garbage);
    }
    assert_eq!(server.get("/healthz").json(), json!({ "status": "ok" }));
    assert!(server.is_running());
}

/// People decide by what the service says it enforces.
#[test]
fn the_policies_in_force_are_listed_in_numbers_and_words() {
    let server = Server::start(&POLICIES);
    let listed = server.get("/v1/policies").json();
    let first = &listed["policies"][0];
    assert_eq!(
        (&first["name"], &first["limit"], &first["scope"]),
        (&json!("per-user"), &json!(3), &json!(["user"]))
    );
    assert_eq!((&first["window_ms"], &first["algorithm"]), (&json!(3_600_000), &json!("sliding-log")));
    assert_eq!(listed["policies"].as_array().unwrap().len(), 3);
    let ready = server.get("/readyz");
    assert_eq!((ready.status, &ready.json()["status"]), (200, &json!("ready")));
    assert_eq!(
        (&ready.json()["degraded"], &ready.json()["store"]),
        (&json!(false), &json!({ "kind": "memory" }))
    );
}

/// A description that lies is worse than none: each path, method and answer is held against it.
#[test]
fn openapi_is_true_to_the_routes() {
    // With everything that brings routes of its own along.
    let folder = TempDir::new("openapi-routes");
    folder.file(
        "rules.yaml",
        "domain: d\ndescriptors: [{key: k, rate_limit: {unit: hour, requests_per_unit: 1}}]",
    );
    let server = Server::start(&[&POLICIES[..], &["--envoy-config", folder.as_str()]].concat());
    let document = server.get("/openapi.json").json();
    let paths = document["paths"].as_object().unwrap();
    let unknown = server.get("/nowhere").json()["detail"].as_str().unwrap().to_owned();
    let routed: Vec<_> = unknown.split("must be one of ").nth(1).unwrap().split(", ").collect();
    let mut described: Vec<_> = paths.keys().map(String::as_str).collect();
    described.sort_unstable();
    let mut sorted = routed.clone();
    sorted.sort_unstable();
    assert_eq!(described, sorted, "every path is described and every described path is there");

    for (path, methods) in paths {
        let allow = server.ask("PATCH", path, None);
        if path == "/json" {
            assert_eq!(allow.status, 400, "the reference takes any method, and so it is said");
            continue;
        }
        if path.starts_with("/v1/auth") {
            assert_ne!(allow.status, 405, "{path} takes any method, and so it is said");
            continue;
        }
        assert_eq!(allow.status, 405, "{path}");
        let mut allowed: Vec<_> =
            allow.header("allow").unwrap().split(',').filter(|m| *m != "HEAD").collect();
        allowed.sort_unstable();
        let described: Vec<_> = methods.as_object().unwrap().keys().map(|m| m.to_uppercase()).collect();
        assert_eq!(allowed, described, "{path}");
    }

    let request = ask(&json!({ "user": "o" }), 1);
    let batch = json!({ "requests": [{ "attributes": { "user": "p" }, "cost": 9 }, { "attributes": {} }] })
        .to_string();
    let judge = |method: &str, path: &str, body: Option<&str>, status: u16| {
        server.assert_matches_openapi(method, path, body, status);
    };
    judge("POST", "/v1/check", Some(&request), 200);
    judge("POST", "/v1/check", Some(&ask(&json!({ "user": "o" }), 9)), 429);
    judge("POST", "/v1/check", Some("{}"), 400);
    judge("POST", "/v1/check", Some(&" ".repeat(70_000)), 413);
    judge("GET", "/v1/check?user=q&cost=1", None, 200);
    judge("GET", "/v1/check?user=q&cost=3", None, 429);
    judge("GET", "/v1/check?cost=x", None, 400);
    judge("POST", "/v1/check/batch", Some(&batch), 200);
    for route in ["/v1/peek", "/v1/refund", "/v1/penalize", "/v1/reset"] {
        judge("POST", route, Some(&request), 200);
    }
    let reserved = server.post("/v1/reserve", &request).json()["ticket"].as_str().unwrap().to_owned();
    let ticket = json!({ "ticket": reserved });
    let settle = json!({ "ticket": reserved, "cost": 1 }).to_string();
    judge("POST", "/v1/reserve", Some(&request), 200);
    let nine = ask(&json!({ "user": "o" }), 9);
    judge("POST", "/v1/check", Some(&nine), 429);
    judge("POST", "/v1/reserve", Some(&nine), 429);
    judge("POST", "/v1/reserve", Some("{}"), 400);
    judge("POST", "/v1/extend", Some(&ticket.to_string()), 200);
    judge("POST", "/v1/extend", Some(&json!({ "ticket": reserved, "hold": 9 }).to_string()), 429);
    judge("POST", "/v1/extend", Some(&json!({ "tickets": [reserved] }).to_string()), 200);
    judge("POST", "/v1/settle", Some(&settle.replace("}", ",\"final\":false}")), 200);
    judge("POST", "/v1/settle", Some(&settle), 200);
    judge("POST", "/v1/cancel", Some(&ticket.to_string()), 200);
    for route in ["/v1/settle", "/v1/extend", "/v1/cancel"] {
        judge("POST", route, Some(r#"{"ticket":"x","cost":1}"#), 400);
        judge("POST", route, Some(&" ".repeat(70_000)), 413);
    }
    judge("GET", "/v1/auth", None, 404);
    judge("POST", "/v1/auth", None, 404);
    for route in [
        "/v1/policies",
        "/v1/status",
        "/v1/shadow",
        "/v1/changes",
        "/v1/events",
        "/v1/top",
        "/v1/history",
        "/v1/history?minutes=5",
        "/healthz",
        "/readyz",
        "/openapi.json",
    ] {
        judge("GET", route, None, 200);
    }
    let call = r#"{"domain": "d", "descriptors": [{"entries": [{"key": "k", "value": "v"}]}]}"#;
    judge("POST", "/json", Some(call), 200);
    judge("POST", "/json", Some(call), 429);
    for (route, media_type) in [
        ("/", "text/html; charset=utf-8"),
        ("/dashboard/app.js", "text/javascript; charset=utf-8"),
        ("/healthcheck", "text/plain; charset=utf-8"),
        ("/rlconfig", "text/plain; charset=utf-8"),
    ] {
        let answer = server.get(route);
        assert_eq!((answer.status, answer.header("content-type")), (200, Some(media_type)), "{route}");
    }
    let missing = server.get("/dashboard/none.js").json()["detail"].clone();
    assert_eq!(missing, "the dashboard has no file `none.js`; open `/`");
}

/// The responses to auth requests are described too, for a proxy that sends no attributes.
#[test]
fn openapi_is_true_to_the_auth_routes() {
    let folder = TempDir::new("openapi-auth");
    let attributes = "attributes: {path: none, method: none}";
    for (preset, denied) in [("caddy", 429), ("nginx", 403)] {
        let policies = "policies: [{name: per-user, scope: [user], quota: 1/1h}]";
        let text = format!("{policies}\nauth: {{preset: {preset}, {attributes}}}\n");
        let server = Server::start(&["--config", &folder.file("slidegate.yaml", text)]);
        assert_eq!(server.get("/v1/auth?user=a").status, 200);
        server.assert_matches_openapi("GET", "/v1/auth?user=a", None, denied);
        server.assert_matches_openapi("POST", "/v1/auth?user=a", None, denied);
        server.assert_matches_openapi("GET", "/v1/auth?cost=x", None, 400);
    }
}

/// A client that lost its connection does not know whether it was charged. It sends the check
/// again.
#[test]
fn a_check_with_an_id_is_charged_once_however_often_it_is_sent() {
    let server = Server::start(&["--policy", "3/1h per user"]);
    let once = |id: &str, body: &str| {
        server.ask_with(&format!("idempotency-key: {id}\r\n"), "POST", "/v1/check", Some(body))
    };
    // The connection ends before the answer is read.
    let body = alice(2);
    let request = format!(
        "POST /v1/check HTTP/1.1\r\nhost: localhost\r\nidempotency-key: order-1\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    std::io::Write::write_all(&mut server.connect(), request.as_bytes()).unwrap();
    let first = once("order-1", &body);
    assert_eq!((first.status, &first.json()["remaining"]), (200, &json!(1)));
    server.post("/v1/check", &alice(1));
    let again = once("order-1", &body);
    assert_eq!((again.status, again.json()["remaining"].clone()), (200, json!(1)));
    assert_eq!(again.header("ratelimit"), first.header("ratelimit"));
    assert_eq!(server.post("/v1/peek", &alice(0)).json()["used"], 3);

    // Denied: decided again once there is room. By query it is the same check.
    assert_eq!(once("order-2", &alice(1)).status, 429);
    server.post("/v1/refund", &alice(1));
    assert_eq!(once("order-2", &alice(1)).status, 200);
    let query = server.ask_with("idempotency-key: order-2\r\n", "GET", "/v1/check?user=alice", None);
    assert_eq!((query.status, &query.json()["remaining"]), (200, &json!(0)));
}

/// An id that is not understood must not look as if it were honoured.
#[test]
fn an_id_that_is_none_or_stands_where_it_counts_for_nothing_is_refused() {
    let server = Server::start(&["--policy", "3/1h per user"]);
    let long = "x".repeat(129);
    let not_an_id = "the id is not 1 to 128 visible ASCII characters; give for example a UUID";
    for id in ["", "a b", "caf\u{e9}", &long] {
        let fields = format!("idempotency-key: {id}\r\n");
        let answer = server.ask_with(&fields, "POST", "/v1/check", Some(&alice(1)));
        assert_eq!((answer.status, &answer.json()["detail"]), (400, &json!(not_an_id)), "{id}");
        assert_eq!(answer.json()["field"], "Idempotency-Key");
    }
    let twice = "idempotency-key: a\r\nidempotency-key: a\r\n";
    let answer = server.ask_with(twice, "POST", "/v1/check", Some(&alice(1)));
    assert_eq!(answer.json()["detail"], "the header is sent twice; give one id");
    let batch = format!(r#"{{"requests":[{}]}}"#, alice(1));
    for (route, body) in [
        ("/v1/check/batch", &batch),
        ("/v1/peek", &alice(1)),
        ("/v1/refund", &alice(1)),
        ("/v1/penalize", &alice(1)),
        ("/v1/reset", &alice(1)),
    ] {
        let answer = server.ask_with("idempotency-key: a\r\n", "POST", route, Some(body));
        let detail = "only a single check or reservation has an idempotency key, so leave the header out";
        assert_eq!((answer.status, &answer.json()["detail"]), (400, &json!(detail)), "{route}");
    }
    let longest = format!("idempotency-key: {}\r\n", &long[1..]);
    assert_eq!(server.ask_with(&longest, "POST", "/v1/check", Some(&alice(1))).json()["remaining"], 2);
}
