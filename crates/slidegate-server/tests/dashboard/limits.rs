//! Limits that are edited.

use serde_json::json;
use slidegate_testkit::TempDir;
use slidegate_testkit::service::Server;

use crate::browser::Browser;
use crate::{ENTER, check, traffic, watch};

/// Limits are changed in a hurry: the page says what it is about to do, does it once, and takes it
/// back.
#[test]
fn a_limit_is_edited_confirmed_and_undone() {
    let server = Server::start(&["--policy", "3/1h per user", "--policy", "9/90s per ip"]);
    traffic(&server, "alice", 4);
    let browser = Browser::start("limit");
    watch(&browser, &server);
    let edit = "#policies-rows tr:first-child button.write";
    browser.until("document.querySelectorAll('#policies-rows td.n')[1].title.startsWith('1 in ')");
    let limit = || server.get("/v1/policies").json()["policies"][0].clone();
    browser.click(edit);
    browser.until_text("#limit-title", "Limit of per-user");
    browser.until_text("#limit-now", "Now 3 / 1h sliding-log. In the last ");
    browser.until_text("#limit-now", " this instance denied 1 of 4 checks.");
    assert_eq!(browser.value("document.querySelector('#limit-form [name=window]').value"), "1h");
    browser.click("#limit-go");
    browser.until_text("#limit-said", "This is the current limit.");

    // By the keyboard alone: the field has the focus, and what is asked has it next.
    browser.fill("#limit-form [name=limit]", "5");
    browser.press(ENTER);
    browser.until_text("#limit-said", "Change per-user from 3 / 1h to 5 / 1h, at once and on all instances?");
    assert_eq!(browser.value("document.activeElement.id"), "limit-go");
    assert_eq!(limit()["limit"], 3, "it was only asked");
    browser.click("#limit-back");
    browser.until("document.getElementById('limit-go').innerText === 'Review'");
    browser.press(ENTER);
    browser.until("document.getElementById('limit-go').innerText === 'Change it'");
    browser.press(ENTER);
    browser.until_text("#limit-result", "per-user: 3 per 1h -> 5 per 1h (sliding-log).");
    assert_eq!((&limit()["limit"], &limit()["origin"]), (&json!(5), &json!("changed")));
    assert_eq!(check(&server, &json!({ "user": "alice" })), 200, "what was used stays, and more fits");
    browser.until_text("#policies-rows tr:first-child .marks", "changed");
    // The focus is where the way back is.
    browser.press(ENTER);
    browser.until_text("#limit-result", "Undone. per-user: as the configuration says.");
    assert_eq!((&limit()["limit"], &limit()["origin"]), (&json!(3), &json!("file")));

    // A valid window, and an invalid one.
    browser.click("#policies-rows tr:nth-child(2) button.write");
    browser.until_text("#limit-now", "Now 9 / 90s sliding-log.");
    browser.fill("#limit-form [name=window]", "soon");
    browser.expect_silence();
    browser.click("#limit-go");
    browser.until_text(
        "#limit-said",
        "Not changed: invalid window “soon”: unknown unit “soon”; use ms, s, m, h, d or w",
    );
    browser.fill("#limit-form [name=window]", "2m");
    browser.press(ENTER);
    browser.until_text("#limit-said", "to 9 / 2m,");
    browser.press(ENTER);
    browser.until_text("#limit-result", "per-ip: 9 per 90s -> 9 per 2m (sliding-log).");
    assert_eq!(server.get("/v1/policies").json()["policies"][1]["window_ms"], 120_000);
    browser.click("#policies-rows tr:nth-child(2) button.write");
    browser.press('\u{E00C}');
    browser.until("!document.getElementById('limit-dialog').open");
    assert_eq!(browser.value("document.activeElement.ariaLabel"), "Edit the limit of per-ip");
}

/// A month that became 31 days, or a tier that did not change, is found on the customer's invoice.
#[test]
fn a_limit_with_a_calendar_or_tiers_keeps_them_when_it_is_edited() {
    let folder = TempDir::new("calendar-and-tiers");
    let policies = "policies:\n  - {name: monthly, scope: [user], limit: 1, window: month, time_zone: Europe/Berlin}\n  \
                    - {name: tiers, scope: [user], window: 1h, limit: {by: plan, values: {free: 10, pro: 10000}, default: 100}}\n";
    let server = Server::start(&["--config", &folder.file("slidegate.yaml", policies)]);
    let browser = Browser::start("calendar");
    watch(&browser, &server);
    browser.until_text("#policies-rows", "1 / month in Europe/Berlin fixed-window");
    traffic(&server, "alice", 2);
    browser.until_text("#denials-rows", "used 1 of 1 / month in Europe/Berlin; cost 1 fits in ");
    browser.click("#policies-rows tr:first-child button.write");
    browser.until_text("#limit-now", "A calendar window is changed in the config file.");
    browser.until("document.querySelector('#limit-form [name=window]').readOnly");
    browser.fill("#limit-form [name=limit]", "200");
    browser.press(ENTER);
    browser.until_text("#limit-said", "to 200 / month in Europe/Berlin, at once");
    browser.press(ENTER);
    browser.until_text("#limit-result", "-> 200 per month in Europe/Berlin (fixed-window).");

    browser.click("#policies-rows tr:nth-child(2) button.write");
    browser.until_text("#limit-now", "Now 100 / 1h sliding-log, by plan: 10 for free, 10,000 for pro.");
    browser.until_text("#limit-now", "Only the limit of everything else is changed here");
    browser.fill("#limit-form [name=limit]", "50");
    browser.press(ENTER);
    browser.until_text("#limit-said", "to 50 / 1h, at once");
    browser.press(ENTER);
    browser.until_text("#limit-result", "tiers: 100 per 1h -> 50 per 1h (sliding-log).");
    browser.expect_silence();
}
