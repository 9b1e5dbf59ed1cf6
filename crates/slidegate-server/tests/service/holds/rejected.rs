//! What reservations and their changes reject: bad input, tickets of others, clients without rights.

use super::*;

/// Every mistake is a 4xx that names the field, and changes nothing.
#[test]
fn bad_input_is_refused_by_name_and_holds_nothing() {
    let mut server = Server::start(&TOKENS);
    let own = ticket(&reserve(&server, &json!({ "cost": 10 })));
    let long = "A".repeat(5000);
    let many: Vec<&str> = vec!["x"; 257];
    let names: serde_json::Map<_, _> = (0..17).map(|n| (format!("n{n}"), json!(1))).collect();
    let cases = [
        ("reserve", json!({ "attributes": {}, "ttl": "0s" }), "ttl", "must be 1ms to 1h"),
        (
            "reserve",
            json!({ "attributes": {}, "ttl": 5 }),
            "ttl",
            "integer `5`, expected 1ms to 1h with a unit, for example `30s`",
        ),
        (
            "reserve",
            json!({ "attributes": {}, "ttl": "5" }),
            "ttl",
            "invalid ttl `5`: must be 1ms to 1h with a unit",
        ),
        (
            "reserve",
            json!({ "attributes": {}, "ttl": "2h" }),
            "ttl",
            "invalid ttl `2h`: must be 1ms to 1h; extend the hold",
        ),
        (
            "reserve",
            json!({ "attributes": {}, "ttl": "soon" }),
            "ttl",
            "invalid ttl `soon`: must be 1ms to 1h with a unit, for example `30s`",
        ),
        ("reserve", json!({ "attributes": {}, "cost": {} }), "cost", "the cost has 0 names; give 1 to 16"),
        (
            "reserve",
            json!({ "attributes": {}, "cost": names }),
            "cost",
            "the cost has 17 names; give 1 to 16",
        ),
        (
            "reserve",
            json!({ "attributes": {}, "cost": { "a b": 1 } }),
            "cost",
            "invalid name of a cost `a b`",
        ),
        ("reserve", json!({ "attributes": {}, "cost": { "a": -1 } }), "cost.a", "integer `-1`"),
        (
            "reserve",
            json!({ "attributes": {}, "cost": { "a": 1_u64 << 52, "b": 1_u64 << 52 } }),
            "cost",
            "is too large",
        ),
        (
            "reserve",
            json!({ "attributes": { "user": "a" }, "policy": "nope" }),
            "policy",
            "invalid policy `nope`",
        ),
        ("settle", json!({ "cost": 1 }), "body", "missing field `ticket`"),
        ("settle", json!({ "ticket": own }), "body", "missing field `cost`"),
        ("settle", json!({ "ticket": own, "cost": 1, "ttl": "1s" }), "ttl", "unknown field `ttl`"),
        (
            "settle",
            json!({ "ticket": "", "cost": 1 }),
            "ticket",
            "invalid ticket ``: must be the text that a reservation returned, unchanged",
        ),
        ("settle", json!({ "ticket": "<b>\r\n", "cost": 1 }), "ticket", "invalid ticket `<b>\\r\\n`"),
        (
            "settle",
            json!({ "ticket": long, "cost": 1 }),
            "ticket",
            "invalid ticket `AAAAAAAAAAAAAAAAAAAA...`",
        ),
        ("settle", json!({ "ticket": &own[..own.len() - 4], "cost": 1 }), "ticket", "invalid ticket"),
        ("extend", json!({}), "ticket", "missing field `ticket`; give one, or a list as `tickets`"),
        ("extend", json!({ "ticket": own, "tickets": [] }), "tickets", "give one of them"),
        ("extend", json!({ "tickets": [own], "hold": 9 }), "hold", "give `ticket`, or leave `hold` out"),
        ("extend", json!({ "tickets": [own, "x"] }), "tickets[1]", "invalid ticket `x`"),
        ("extend", json!({ "ticket": own, "ttl": "2h" }), "ttl", "must be 1ms to 1h"),
        ("extend", json!({ "tickets": [own], "ttl": "soon" }), "ttl", "invalid ttl `soon`"),
        ("extend", json!({ "tickets": many }), "tickets", "there are 257 tickets; give at most 256"),
        ("extend", json!({ "ticket": own, "hold": { "a b": 9 } }), "hold", "invalid name of a cost"),
        ("cancel", json!({ "ticket": 7 }), "ticket", "expected a text"),
    ];
    for (route, body, field, detail) in cases {
        let response = server.post(&format!("/v1/{route}"), &body.to_string());
        let json = response.json();
        let found = json["detail"].as_str().unwrap();
        assert_eq!((response.status, json["field"].as_str()), (400, Some(field)), "{route} {body}: {found}");
        assert!(found.contains(detail), "{route} {body}: {found}");
    }
    let twice = server.post("/v1/reserve", r#"{"attributes":{},"cost":{"a":1,"a":2}}"#).json();
    assert_eq!(
        (&twice["field"], &twice["detail"]),
        (&json!("cost.a"), &json!("cost `a` is given more than once; give it once"))
    );
    for (route, header) in [("extend", "idempotency-key: 1\r\n"), ("reserve", "idempotency-key: \u{e9}\r\n")]
    {
        let body = json!({ "ticket": own, "attributes": {} }).to_string();
        let key = server.ask_with(header, "POST", &format!("/v1/{route}"), Some(&body));
        assert_eq!((key.status, &key.json()["field"]), (400, &json!("Idempotency-Key")), "{route}");
    }
    assert_eq!(usage(&server, "tokens"), (0, 10, 90));
    assert!(server.is_running());
}

/// A gateway must tell a reservation that is lost from one that is settled. A ticket of another service,
/// or one that a client changed, must not change the usage of any key.
#[test]
fn a_foreign_or_changed_ticket_is_404_and_changes_no_key() {
    let (server, other) = (Server::start(&TOKENS), Server::start(&TOKENS));
    let own = ticket(&reserve(&server, &json!({ "cost": 10 })));
    let foreign = ticket(&reserve(&other, &json!({ "cost": 10 })));
    let unknown = server.post("/v1/settle", &json!({ "ticket": foreign, "cost": 90 }).to_string());
    let problem = unknown.json();
    assert_eq!((unknown.status, &problem["field"]), (404, &json!("ticket")));
    assert_eq!(
        problem["detail"],
        "unknown ticket: another store made it, the store has lost it, its policies were removed or count \
         another unit, or its text was changed; nothing was charged or released"
    );
    assert_eq!(usage(&server, "tokens"), (0, 10, 90));
    let mut counted = 1;
    for at in 0..own.len() {
        let letter = if own.as_bytes()[at] == b'A' { "B" } else { "A" };
        let changed = format!("{}{letter}{}", &own[..at], &own[at + 1..]);
        for (route, cost) in [("settle", Some(7)), ("extend", None), ("cancel", None)] {
            let mut body = json!({ "ticket": changed });
            if let Some(cost) = cost {
                body["cost"] = json!(cost);
            }
            let response = server.post(&format!("/v1/{route}"), &body.to_string());
            assert!([400, 404].contains(&response.status), "{route} {at}: {}", response.body);
            counted += u64::from(response.status == 404);
        }
    }
    assert_eq!(usage(&server, "tokens"), (0, 10, 90));
    let line = format!("slidegate_unknown_tickets_total {counted}");
    assert!(server.get("/metrics").body.contains(&line), "{line}");
    assert_eq!(settle(&server, &own, 3)["policies"].as_array().map(Vec::len), Some(1));
}

/// A client that may not check may not reserve or settle either.
#[test]
fn reservations_need_the_rights_of_checks() {
    let folder = TempDir::new("holds-access");
    let token = Token::new("gateway", "decide");
    let file = folder.file(
        "slidegate.yaml",
        "policies: [{name: tokens, scope: [user], quota: 100/1h}]\nadmin: {decisions: token}\n",
    );
    let server = Server::start_with(&["--config", &file], &[("SLIDEGATE_ADMIN_TOKENS", &token.entry)]);
    let statuses = ["check", "reserve", "settle", "extend", "cancel"]
        .map(|route| server.post(&format!("/v1/{route}"), r#"{"attributes":{}}"#).status);
    assert_eq!(statuses, [401; 5]);
    let body = r#"{"attributes":{"user":"alice"}}"#;
    assert_eq!(server.ask_with(&token.header(), "POST", "/v1/reserve", Some(body)).status, 200);
}
