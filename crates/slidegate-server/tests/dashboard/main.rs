//! The page, in a real browser, over a real server under real traffic.

// A test that cannot go on panics.
#![allow(clippy::unwrap_used)]

mod browser;

mod accessibility;
mod alarms;
mod demo;
mod files;
mod fleet;
mod history;
mod incident;
mod keys;
mod limits;
mod live;
mod report;
mod reservations;
mod shadow;
mod tokens;

use browser::Browser;
use serde_json::{Value, json};
use slidegate_testkit::service::Server;

/// A key that is a script, if anything takes it for markup.
const HOSTILE: &str = "<img src=x onerror=\"document.title='taken'\">";
const TAB: char = '\u{E004}';
const ENTER: char = '\u{E007}';

/// A desk and a telephone: whatever matters is seen on both.
const WIDTHS: [(u32, u32); 2] = [(1400, 1000), (390, 844)];

fn check(server: &Server, attributes: &Value) -> u16 {
    server.post("/v1/check", &json!({ "attributes": attributes }).to_string()).status
}

/// So many checks of a user.
fn traffic(server: &Server, user: &str, checks: usize) {
    for _ in 0..checks {
        check(server, &json!({ "user": user }));
    }
}

/// Opens the page and waits until it is alive.
fn watch(browser: &Browser, server: &Server) {
    browser.open(&server.url);
    browser.until_text("#connection", "Live");
    browser.until("document.querySelectorAll('#policies-rows tr').length > 0");
    // The stream sends the changes since the previous one.
    browser.until("document.getElementById('rate-denied').innerText !== '–'");
}

fn look_up(browser: &Browser, key: &str) {
    browser.fill("#key-text", key);
    browser.click("#key-form button[type=submit]");
    browser.until(&format!("document.getElementById('key-name').textContent === {}", json!(key)));
}

/// Presses the button of a change, and confirms it.
fn confirm(browser: &Browser, selector: &str) {
    browser.click(selector);
    browser.until("document.getElementById('confirm-dialog').open");
    browser.click("#confirm-go");
    browser.until("!document.getElementById('confirm-dialog').open");
}

fn fact(browser: &Browser, name: &str) -> String {
    let facts = "[...document.querySelectorAll('#key-facts > div')]";
    let found = format!(
        "{facts}.find((one) => one.firstChild.textContent === {})?.lastChild.textContent",
        json!(name)
    );
    browser.value(&found).as_str().unwrap_or("").to_owned()
}

fn until_fact(browser: &Browser, name: &str, value: &str) {
    browser.until(&format!(
        "[...document.querySelectorAll('#key-facts > div')].some((one) => one.textContent === {})",
        json!(format!("{name}{value}"))
    ));
}
