//! One key: looked up, changed, and shown as text whatever it is.

use serde_json::json;
use slidegate_testkit::service::Server;

use crate::browser::Browser;
use crate::{HOSTILE, check, confirm, fact, look_up, traffic, until_fact, watch};

/// Support's work: see why a customer is denied, and let them go on.
#[test]
fn a_key_is_looked_up_and_changed() {
    let server = Server::start(&["--policy", "5/1h per user"]);
    traffic(&server, "alice", 7);
    let browser = Browser::start("key");
    watch(&browser, &server);
    look_up(&browser, "alice");
    until_fact(&browser, "Used", "5");
    assert_eq!((fact(&browser, "Remaining"), fact(&browser, "Quota")), ("0".to_owned(), "5 / 1h".to_owned()));
    browser.until("document.getElementById('key-chart').ariaLabel.startsWith('Usage of alice: 5 of 5 used')");
    assert_eq!(browser.text("#key-denials-count"), "2");

    browser.click("#act-reset button");
    browser.until_text("#confirm-facts", "used 5 of 5 / 1h");
    browser.until_text("#confirm-facts", "one key: alice under per-user");
    browser.until_text("#confirm-facts", "cost charged: 5 in the last 5 to 10 minutes");
    browser.until_text("#confirm-facts", "requests denied: 2 in the last 5 to 10 minutes");
    browser.click("#confirm-cancel");
    browser.until("!document.getElementById('confirm-dialog').open");
    assert_eq!(fact(&browser, "Used"), "5", "it was only asked");
    confirm(&browser, "#act-reset button");
    browser.until_text("#act-result", "Done: its usage is forgotten.");
    until_fact(&browser, "Used", "0");
    assert_eq!(check(&server, &json!({ "user": "alice" })), 200);

    browser.fill("#act-penalize input", "3");
    browser.click("#act-penalize button");
    until_fact(&browser, "Used", "4");
    browser.click("#act-result button");
    until_fact(&browser, "Used", "1");
    browser.click("#act-penalize button");
    until_fact(&browser, "Used", "4");
    browser.fill("#act-refund input", "2");
    browser.click("#act-refund button");
    until_fact(&browser, "Used", "2");

    browser.fill("#act-override [name=quota]", "50/1h");
    confirm(&browser, "#act-override button[type=submit]");
    until_fact(&browser, "Quota", "50 / 1h");
    browser.until_text("#key-marks", "override 50 / 1h until");
    traffic(&server, "alice", 20);
    until_fact(&browser, "Used", "22");
    browser.click("#act-clear-override");
    until_fact(&browser, "Quota", "5 / 1h");

    confirm(&browser, "#act-reset button");
    until_fact(&browser, "Used", "0");
    browser.click("#act-block button[type=submit]");
    browser.until_text("#confirm-facts", "every request is denied for 10m, on all instances");
    browser.click("#confirm-go");
    browser.until_text("#key-marks", "blocked until");
    assert_eq!(check(&server, &json!({ "user": "alice" })), 429);
    // The block is what denies, and not a limit of 0.
    browser.until_text("#denials-rows", "blocked until");
    let row = browser.text("#denials-rows .why span");
    assert!(row.contains(" by loopback; used 0 of 5 / 1h"), "{row}");
    until_fact(&browser, "Quota", "5 / 1h");
    assert!(fact(&browser, "Cost 1 fits").starts_with("in "), "{}", fact(&browser, "Cost 1 fits"));
    browser.click("#top-form label:nth-of-type(4) span");
    browser.until_text("#top-rows", "loopback");
    browser.until_text("#top-rows", "alice");
    // Where it was made it is taken back.
    browser.click("#act-result button");
    browser.until("document.getElementById('key-marks').innerText === ''");
    assert_eq!(check(&server, &json!({ "user": "alice" })), 200);
    browser.expect_silence();

    browser.fill("#act-override [name=quota]", "plenty");
    browser.click("#act-override button[type=submit]");
    browser.until_text("#act-result", "Not done: ");
    assert!(browser.text("#act-result").contains("plenty"), "{}", browser.text("#act-result"));
}

/// A client chooses its id, and an operator with rights to change limits looks at it.
#[test]
fn a_hostile_key_is_text_wherever_it_stands() {
    let server = Server::start(&["--policy", "1/1h per user", "--policy", "1/1h per user,agent named both"]);
    let browser = Browser::start("hostile");
    watch(&browser, &server);
    for _ in 0..3 {
        check(&server, &json!({ "user": HOSTILE, "agent": "a,b%\"'/..\u{202E}" }));
    }
    browser.until_text("#denials-rows", HOSTILE);
    browser.until_text("#top-rows", HOSTILE);
    browser.click("#top-rows button.key");
    browser.until(&format!("document.getElementById('key-name').textContent === {}", json!(HOSTILE)));
    until_fact(&browser, "Used", "1");
    // The key of two attributes, by the text that answers print for it.
    let answer = server.post(
        "/v1/check",
        &json!({ "attributes": { "user": HOSTILE, "agent": "a,b%\"'/..\u{202E}" } }).to_string(),
    );
    let policies = answer.json()["policies"].clone();
    let both = policies.as_array().unwrap().iter().find(|one| one["policy"] == "both").unwrap().clone();
    browser.value("(document.getElementById('key-policy').value = 'both')");
    look_up(&browser, both["key"].as_str().unwrap());
    until_fact(&browser, "Used", "1");
    // A key that is a step up in a path.
    check(&server, &json!({ "user": ".." }));
    browser.value("(document.getElementById('key-policy').value = 'per-user')");
    look_up(&browser, "..");
    until_fact(&browser, "Used", "1");
    assert_eq!(browser.value("document.title"), "slidegate");
    assert_eq!(browser.value("document.querySelectorAll('main img, main script').length"), 0);
    browser.expect_silence();
}
