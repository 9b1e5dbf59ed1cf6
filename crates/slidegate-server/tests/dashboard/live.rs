//! Figures that follow the traffic, and what the page says when there are none.

use slidegate_testkit::service::Server;
use slidegate_testkit::{TempDir, until_true};

use crate::browser::Browser;
use crate::{traffic, watch};

/// Who has just started the service must learn what to do next, and see that it worked.
#[test]
fn an_empty_service_says_how_to_send_a_request_and_shows_it_within_moments() {
    let server = Server::start(&["--policy", "3/1h per user", "--policy", "100/1m named everyone"]);
    let browser = Browser::start("empty");
    watch(&browser, &server);
    browser.until_text("#first-command", &format!("curl -i '{}/v1/check?user=alice'", server.url));
    browser.until_text("#denials-of", "No denials in the last 5 to 10 minutes.");
    // The command is one that works.
    let command = browser.text("#first-command");
    let path = command.split('\'').nth(1).unwrap().strip_prefix(&server.url).unwrap();
    assert_eq!(server.get(path).status, 200);
    browser.until("document.getElementById('first').hidden");
    browser.until("document.querySelector('#policies-rows td.n').title.startsWith('1 in ')");
    browser.expect_silence();
}

/// A page that must be reloaded is no dashboard.
#[test]
fn figures_follow_the_traffic_by_themselves() {
    let server = Server::start(&["--policy", "5/1h per user", "--policy", "1000/1s named everyone"]);
    let browser = Browser::start("live");
    watch(&browser, &server);
    traffic(&server, "alice", 8);
    // The stream's own figures, which the chart is drawn from.
    browser.until("document.querySelector('#rates-chart canvas').width > 0");
    browser.until(
        "[...document.querySelectorAll('#policies-rows tr')][0].querySelectorAll('td.n')[1].title.startsWith('3 in ')",
    );
    // Those of one key are one row, and all of them are counted.
    let rows =
        "[...document.querySelectorAll('#denials-rows .times')].map((one) => parseInt(one.textContent) || 1)";
    browser.until(&format!("{rows}.reduce((sum, n) => sum + n, 0) === 3"));
    let why = browser.text("#denials-rows .why span");
    assert!(why.starts_with("used 5 of 5 / 1h; cost 1 fits in "), "{why}");
    assert_eq!(browser.text("#denials-rows time").len(), "14:03:22".len());
    browser.until_text("#top-rows", "alice");
    // Who is denied is listed first, until an order is chosen.
    browser.until_text("#top-count", "Denied");
    browser.click("#top-form label:nth-of-type(2) span");
    browser.until_text("#top-count", "Used");
    browser.until("Number(document.querySelector('#top-rows td.n span').innerText) >= 5");
    // What cannot be seen is said: the description is renewed now and then.
    browser.until("document.getElementById('rates-chart').ariaLabel.includes('3 denied')");
    browser.until_text("#status-facts", "in-process memory");
    // More than there are events of one key in a second.
    traffic(&server, "carol", 45);
    browser.until(
        "[...document.querySelectorAll('#denials-rows .times')].some((one) => one.innerText === '40')",
    );
    browser.until_text("#denials-of", "Denials in the last 5 to 10 minutes.");
    browser.click("#denials-pause");
    traffic(&server, "bob", 6);
    browser.until_text("#denials-held", "paused; 1 since");
    assert!(!browser.text("#denials-rows").contains("bob"));
    browser.click("#denials-pause");
    browser.until_text("#denials-rows", "bob");
    // Bars are of the limit: both have used theirs up.
    let parts = |key: &str| {
        let rows = "[...document.querySelectorAll('#top-rows tr')]";
        let bar = "?.querySelector('.bar').style.getPropertyValue('--part')";
        format!("{rows}.find((row) => row.querySelector('button').textContent === '{key}'){bar}")
    };
    browser.until(&format!("{} === '1' && {} === '1'", parts("alice"), parts("bob")));
    browser.click("#top-form label:nth-of-type(1) span");
    browser.until_text("#top-count", "Denied");
    browser.until(&format!("{} === '1'", parts("alice")));
    browser.click("#top-form label:nth-of-type(3) span");
    browser.until_text("#top-count", "Taken");
    browser.until_text("#top-rows tr:first-child", "100 %");
    browser.until_text("#top-rows tr:first-child", "5 of 5, wait ");
    browser.expect_silence();
}

/// A key that nears its limit is not denied yet: who reads otherwise calls the wrong customer.
#[test]
fn notifications_are_not_among_the_denials() {
    let folder = TempDir::new("dashboard-notify");
    let policies = "policies: [{name: per-user, scope: [user], quota: 1/1h, notify: 100%}]\n";
    let server = Server::start(&["--config", &folder.file("slidegate.yaml", policies)]);
    traffic(&server, "alice", 2);
    let events = || server.get("/v1/events").json()["events"].as_array().unwrap().len();
    until_true("both are reported", || events() == 2);
    let browser = Browser::start("notify");
    watch(&browser, &server);
    browser.until_text("#denials-rows", "used 1 of 1 / 1h; cost 1 fits in ");
    assert_eq!(browser.value("document.querySelectorAll('#denials-rows tr').length"), 1);
    browser.expect_silence();
}

/// Old figures that look new are worse than none.
#[test]
fn a_page_whose_service_hangs_or_ends_says_so_and_comes_back_with_it() {
    let server = Server::start(&["--policy", "5/1h per user"]);
    let browser = Browser::start("gone");
    watch(&browser, &server);
    server.signal("STOP");
    browser.until_text("#connection", "Disconnected");
    browser
        .until_text("#banner-text", "Live figures: the service is unreachable. The figures below are from ");
    assert_eq!(browser.value("document.title"), "disconnected · slidegate");
    server.signal("CONT");
    browser.until_text("#connection", "Live");
    browser.until("document.getElementById('banner').hidden");
    drop(server);
    browser.until_text("#connection", "Disconnected");
    browser.click("#try-now");
    browser.fill("#key-text", "alice");
    browser.click("#key-form button[type=submit]");
    browser.until_text("#keys > .note", "This key: the service is unreachable");
}

/// A part that a service has switched off must not take the others with it.
#[test]
fn a_part_that_is_switched_off_says_so_in_its_own_place() {
    let folder = TempDir::new("dashboard-off");
    let file = folder.file(
        "slidegate.yaml",
        "policies: [{name: per-user, scope: [user], quota: 5/1h}]\nobserve: {top: false, events: false}\n",
    );
    let server = Server::start(&["--config", &file]);
    let browser = Browser::start("off");
    watch(&browser, &server);
    browser.until_text("#top .note", "Top keys: this is switched off; write “top: true” under “observe”");
    browser
        .until_text("#denials .note", "Denials: this is switched off; write “events: true” under “observe”");
    traffic(&server, "alice", 6);
    browser.until("document.querySelectorAll('#policies-rows td.n')[1].title.startsWith('1 in ')");
    browser.fill("#key-text", "alice,bob");
    browser.click("#key-form button[type=submit]");
    browser.until_text(
        "#keys > .note",
        "This key: “alice,bob” has 2 values and policy “per-user” counts by user",
    );
}
