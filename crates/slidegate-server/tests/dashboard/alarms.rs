//! Alarms.

use serde_json::json;
use slidegate_testkit::TempDir;
use slidegate_testkit::service::Server;

use crate::browser::Browser;
use crate::{check, watch};

/// An incident must be visible on the first screen, with what to do, at every width.
#[test]
fn alarms_stand_at_the_top_in_the_title_and_in_the_icon_until_they_are_over() {
    let folder = TempDir::new("dashboard-alarms");
    let policies = "policies: [{name: per-user, scope: [user], quota: 5/1h}]\n";
    // Nothing listens there.
    let store = "store: {redis: 'redis://127.0.0.1:1', memory: {max_keys: 64}}\n";
    let file = folder.file("slidegate.yaml", format!("{policies}{store}"));
    let server = Server::start(&["--config", &file]);
    let browser = Browser::start("alarms");
    browser.narrow(390);
    watch(&browser, &server);
    browser.until_text("#alarm-SlidegateStoreDegraded", "127.0.0.1:1");
    folder.file("slidegate.yaml", format!("{}{store}", policies.replace("5/1h", "many")));
    server.signal("HUP");
    browser.until_text("#alarm-SlidegateConfigRefused", "many");
    browser.until_text("#alarm-SlidegateConfigRefused", "The running config stays active.");
    assert!(browser.value("document.title").as_str().unwrap().starts_with("Config rejected, "));
    assert_eq!(browser.value("document.getElementById('icon').href.endsWith('icon_alarm.svg')"), true);
    until_on_first_screen(&browser, "#alarm-SlidegateConfigRefused");
    until_on_first_screen(&browser, "#alarm-SlidegateStoreDegraded");
    let runbook = "document.querySelector('#alarm-SlidegateConfigRefused a').getAttribute('href')";
    let runbook = browser.value(runbook).as_str().unwrap().to_owned();
    let (path, section) = runbook.split_once("#:~:text=").unwrap();
    assert!(
        server.get(path).body.contains(&format!("\n{}\n", section.replace("%23", "#").replace("%20", " ")))
    );
    folder.file("slidegate.yaml", format!("{policies}{store}"));
    server.signal("HUP");
    browser.until("!document.getElementById('alarm-SlidegateConfigRefused')");
    browser.expect_silence();

    // Reservations that nobody settles, a flood of new keys, which evict others while they count, and a webhook that
    // is away.
    let policies = policies.replace("5/1h", "5/1h, notify: 20%");
    let more = "store: {memory: {max_keys: 64}}\nwebhook: {url: 'http://127.0.0.1:1', secret: whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw}\n";
    let server = Server::start(&["--config", &folder.file("small.yaml", policies + more)]);
    watch(&browser, &server);
    check(&server, &json!({ "user": "first" }));
    for n in 0..60 {
        let body = json!({ "attributes": { "user": format!("user-{n}") }, "ttl": "10m" });
        server.post("/v1/reserve", &body.to_string());
    }
    browser.until_text("#alarm-SlidegateManyReservations", "are open");
    for n in 0..400 {
        check(&server, &json!({ "user": format!("another-{n}") }));
    }
    browser.until_text("#alarm-SlidegateKeysDropped", "were evicted");
    until_on_first_screen(&browser, "#alarm-SlidegateKeysDropped");
    until_on_first_screen(&browser, "#alarm-SlidegateManyReservations");
    browser.until_text("#alarm-SlidegateNotificationsLost", "not taken by the webhook");
    browser.expect_silence();
}

/// Waits until all of it is seen without scrolling.
fn until_on_first_screen(browser: &Browser, selector: &str) {
    browser.until(&format!(
        "scrollY === 0 && document.querySelector('{selector}').getBoundingClientRect().bottom <= innerHeight"
    ));
}
