//! Calendar windows, units and decimals, as operators see and change them.

use std::fs::{self, File};

use serde_json::{Value, json};
use slidegate_testkit::service::{Server, text};
use slidegate_testkit::{TempDir, until_true};

use crate::admin::{check, command, post, said};

/// A monthly limit has to be seen as one wherever it is shown or changed.
#[test]
fn a_calendar_window_survives_a_change_of_its_limit_and_an_override() {
    let folder = TempDir::new("admin-calendar");
    let policies =
        "policies: [{name: monthly, scope: [user], limit: 10, window: month, time_zone: Europe/Berlin}]\n";
    let log = folder.file("log", "");
    let config = folder.file("slidegate.yaml", policies);
    let server = Server::start_logging_to(&["--config", &config], File::create(&log).unwrap());
    let put = |body: &Value| server.change("PUT", "/v1/policies/monthly", &[], &body.to_string());
    let listed = || said(&server, &["policy", "list"]);
    assert!(listed().starts_with("monthly: 10 per month in Europe/Berlin (fixed-window)"), "{}", listed());
    for (body, expected) in [
        (json!({ "limit": 20 }), "monthly: 20 per month in Europe/Berlin (fixed-window), changed"),
        (
            json!({ "anchor": 15 }),
            "monthly: 20 per month in Europe/Berlin from day 15 (fixed-window), changed",
        ),
        (
            json!({ "window": "month", "time_zone": "Asia/Tokyo" }),
            "monthly: 20 per month in Asia/Tokyo from day 15 (fixed-window), changed",
        ),
        (
            json!({ "window": "day", "time_zone": "Europe/Berlin" }),
            "monthly: 20 per day in Europe/Berlin (fixed-window), changed",
        ),
        (
            json!({ "window": "month", "anchor": 15 }),
            "monthly: 20 per month in Europe/Berlin from day 15 (fixed-window), changed",
        ),
        (
            json!({ "window": "month" }),
            "monthly: 20 per month in Europe/Berlin from day 15 (fixed-window), changed",
        ),
        (
            json!({ "quota": "30/month" }),
            "monthly: 30 per month in Europe/Berlin from day 15 (fixed-window), changed",
        ),
        (
            json!({ "candidate": "40/quarter" }),
            "monthly: 30 per month in Europe/Berlin from day 15 (fixed-window), changed at run time, candidate 40 per \
             quarter in Europe/Berlin from day 15;",
        ),
    ] {
        let answer = put(&body);
        assert_eq!(answer.status, 200, "{}", answer.body);
        assert!(listed().starts_with(expected), "{}", listed());
    }
    let month = "30 per month in Europe/Berlin from day 15";
    let hour =
        "50 per 1h (fixed-window), candidate 40 per quarter in Europe/Berlin from day 15 (fixed-window)";
    assert_eq!(
        said(&server, &["policy", "set", "monthly", "50/1h"]),
        format!("monthly: {month} -> {hour} (change 9)")
    );
    until_true("the log has the same", || {
        fs::read_to_string(&log)
            .unwrap()
            .contains(&format!(r#"policy="monthly" key="" detail="{month} -> {hour}""#))
    });
    said(&server, &["policy", "undo"]);
    let wrong = put(&json!({ "time_zone": "Mars/Phobos" }));
    assert!(wrong.status >= 400 && wrong.body.contains("IANA time zone database"), "{}", wrong.body);
    let overridden = post(&server, "/v1/keys/monthly/alice/override", &json!({ "quota": "70", "for": "1h" }));
    assert_eq!(overridden.status, 200, "{}", overridden.body);
    let shown = said(&server, &["key", "show", "monthly", "alice"]);
    assert!(shown.contains("used 0 of 70 per month in Europe/Berlin from day 15"), "{shown}");
    let other = post(&server, "/v1/keys/monthly/alice/override", &json!({ "quota": "70/year", "for": "1h" }));
    let why = "invalid quota `70/year`: policy `monthly` has no such calendar window; give a limit, for example `40`";
    assert_eq!((other.status, &other.json()["detail"]), (400, &json!(why)));
}

/// Support reads how much is used and when it is free again, not twenty times one second.
#[test]
fn a_counter_is_shown_with_its_border_its_unit_and_its_decimals() {
    let folder = TempDir::new("admin-counter");
    let policies = "
policies:
  - {name: monthly, scope: [user], limit: 2, window: month, time_zone: Europe/Berlin, counts: {in: 0.25}, unit: cents}
  - {name: hourly, scope: [user], quota: 9/1h, algorithm: fixed-window}
  - {name: log, scope: [user], quota: 9/1h}
";
    let server = Server::start(&["--config", &folder.file("slidegate.yaml", policies)]);
    assert_eq!(check(&server, "alice").status, 200);
    for (policy, first, second, has_list) in [
        (
            "monthly",
            "1 of 2 cents per month in Europe/Berlin (fixed-window), 1 remain",
            ", 00:00 Europe/Berlin, in ",
            false,
        ),
        ("hourly", "1 of 9 per 1h (fixed-window), 8 remain", ":00 UTC, in ", false),
        ("log", "1 of 9 per 1h (sliding-log), 8 remain", "a cost of 1 fits now", true),
    ] {
        let shown = said(&server, &["key", "show", policy, "alice"]);
        let lines: Vec<_> = shown.lines().collect();
        assert_eq!(lines[0], format!("{policy}: `alice` has used {first}"));
        assert!(lines[1].contains(second), "{shown}");
        assert_eq!(lines[1].starts_with("resets on "), !has_list, "{shown}");
        for list in ["charges:", "if nothing more is charged:"] {
            assert_eq!(lines.contains(&list), has_list, "{shown}");
        }
    }
    for (action, cost, done) in [
        ("refund", "0.25", "0.25 cents was refunded"),
        ("penalize", "1.249999", "1.249999 cents was charged"),
        ("penalize", "0.000001", "0.000001 cents was charged"),
    ] {
        let done = format!("monthly: `alice`: {done}");
        assert_eq!(said(&server, &["key", action, "monthly", "alice", "--cost", cost]), done);
    }
    let denied = check(&server, "alice").json();
    let why = denied["why"].as_str().unwrap();
    let full = "has used 2 of 2 cents";
    assert!(
        why.starts_with(&format!("monthly: `alice` {full} per month in Europe/Berlin; resets on 1 ")),
        "{why}"
    );
    let detail = denied["detail"].as_str().unwrap();
    assert!(
        detail.contains(&format!("{full}. Retry in ")) && detail.ends_with(", 00:00 Europe/Berlin."),
        "{detail}"
    );
    let key = server.get("/v1/keys/monthly/alice").json();
    let [starts, ends] = ["window_starts", "window_ends"].map(|name| key[name].as_str().unwrap().to_owned());
    assert!(starts < ends && ends.ends_with(":00:00Z"), "{key}");
    assert_eq!((&key["unit"], key["room"].as_array().unwrap().len()), (&json!("cents"), 1), "{key}");
    assert_eq!(server.get("/v1/keys/log/alice").json()["window_ends"], Value::Null);
    for (policy, cost, why) in [
        ("log", "0.5", "invalid cost `0.5`: must be a whole number from 1 to 9007199254740991"),
        (
            "monthly",
            "0",
            "invalid cost `0`: must be more than 0, at most 9007199254740991, with at most 6 decimals",
        ),
    ] {
        let refused = command(&server, &["key", "penalize", policy, "alice", "--cost", cost]);
        assert!(text(&refused.stderr).contains(why), "{}", text(&refused.stderr));
    }
}
