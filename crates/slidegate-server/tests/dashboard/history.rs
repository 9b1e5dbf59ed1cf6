//! The last hour: the chart, links to a time, and exports.

use slidegate_testkit::service::Server;

use crate::browser::Browser;
use crate::{traffic, watch};

/// Who opens the page in an incident must see what came before it, and send a colleague there.
#[test]
fn the_page_opens_with_the_last_hour_and_links_lead_to_a_time_and_a_policy() {
    let server = Server::start(&["--policy", "5/1h per user", "--policy", "1000/1s named everyone"]);
    traffic(&server, "alice", 8);
    assert_eq!(server.change("PUT", "/v1/policies/everyone", &[], r#"{"limit": 500}"#).status, 200);
    let browser = Browser::start("history");
    watch(&browser, &server);
    // What was decided before the page was opened.
    browser.until("document.getElementById('rates-chart').ariaLabel.includes('5 allowed, 3 denied')");
    browser.until_text("#rates-markers", "Limit changed: everyone: 500 per 1s (sliding-log), by loopback");
    browser.until_text("#rates-markers", "Started: slidegate ");
    browser.value("(document.getElementById('history-view').value = 'denied')");
    browser.value("document.getElementById('history-view').dispatchEvent(new Event('change'))");
    browser.until_text("#rates-title", "Denials per second, by policy");
    browser.until_text("#rates-legend", "per-user");
    browser.click("#history-form label:last-of-type span");
    browser.click("#rates-table summary");
    browser.click("#rates-rows a");
    browser.until("location.hash.startsWith('#at/2')");
    browser.until("!document.getElementById('rates-now').hidden");
    let link = browser.value("location.href").as_str().unwrap().to_owned();
    browser.click("#rates-now");
    browser.until("location.hash === ''");
    browser.open("about:blank");
    browser.open(&link);
    browser.until_text("#rates-when", "at ");
    browser.until("!document.getElementById('rates-now').hidden");
    browser.click("#policies-rows button.link");
    browser.until("location.hash === '#policy/per-user'");
    browser.until("document.getElementById('history-policy').value === 'per-user'");
    browser.until("document.getElementById('denials-policy').value === 'per-user'");
    // What is exported is what is shown; a spreadsheet takes no key for a formula.
    let load = "import('/dashboard/exports.js').then(({ csv }) => (globalThis.csv = csv))";
    browser.value(load);
    browser.until("globalThis.csv");
    let rows = r#"[{ "key": "=HYPERLINK(1)", "count": 2 }, { "key": "a,\"b", "count": -1 }]"#;
    let csv = browser.value(&format!("csv({rows})"));
    assert_eq!(csv, "key,count\r\n'=HYPERLINK(1),2\r\n\"a,\"\"b\",-1\r\n");
    browser.value("(URL.createObjectURL = (blob) => { blob.text().then((text) => (globalThis.exported = text)); return 'data:,'; })");
    browser.click("#rates .exports button");
    browser.until("globalThis.exported && JSON.parse(globalThis.exported).some((row) => row.Denied >= 0 || row['per-user'] >= 0)");
    browser.expect_silence();
}
