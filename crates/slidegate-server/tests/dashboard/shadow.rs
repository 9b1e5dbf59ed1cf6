//! Shadow policies and candidates.

use serde_json::json;
use slidegate_testkit::TempDir;
use slidegate_testkit::service::Server;

use crate::browser::Browser;
use crate::{check, confirm, traffic, watch};

/// A limit is tried in shadow first, and taken over when it is known whom it would hit.
#[test]
fn shadow_differences_are_shown_and_a_candidate_is_promoted_and_taken_back() {
    let folder = TempDir::new("dashboard-shadow");
    let file = folder.file(
        "slidegate.yaml",
        "policies:\n  - {name: per-user, scope: [user], quota: 5/1h, candidate: 2/1h}\n  \
         - {name: tried, scope: [user], quota: 1/1h, mode: shadow}\n",
    );
    let server = Server::start(&["--config", &file]);
    traffic(&server, "alice", 4);
    let browser = Browser::start("shadow");
    watch(&browser, &server);
    browser.until_text("#candidates-rows", "5 / 1h → 2 / 1h");
    browser.until("document.querySelectorAll('#candidates-rows td.n')[1].innerText === '2'");
    browser.until_text("#candidates-rows", "alice");
    browser.until_text("#shadows-rows", "tried");
    browser.until("document.querySelectorAll('#shadows-rows td.n')[1].innerText === '3'");
    browser.click("#candidates-rows button.write");
    browser
        .until_text("#confirm-facts", "all keys of per-user: 50 % of 4 compared requests are newly denied");
    browser.click("#confirm-go");
    browser.until_text("#shadow-result", "The candidate of per-user is active.");
    browser.until_text("#policies-rows", "2 / 1h sliding-log");
    assert_eq!(check(&server, &json!({ "user": "alice" })), 429);
    browser.click("#shadow-result button");
    browser.until_text("#policies-rows", "5 / 1h sliding-log");
    // The list of changes has the same button.
    confirm(&browser, "#candidates-rows button.write");
    browser.until_text("#policies-rows", "2 / 1h sliding-log");
    browser.click("#changes summary");
    browser.click("#changes-list button:not([hidden])");
    browser.until_text("#policies-rows", "5 / 1h sliding-log");
    browser.until_text("#changes-list", "undone by");
    browser.expect_silence();
}
