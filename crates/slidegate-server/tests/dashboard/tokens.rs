//! Tokens: asked for, and what each may do.

use serde_json::json;
use slidegate_testkit::TempDir;
use slidegate_testkit::service::{Server, Token};

use crate::browser::Browser;
use crate::{ENTER, WIDTHS, confirm, look_up, traffic, until_fact};

/// Readers must see that they cannot make changes, and a token must not outlive its tab.
#[test]
fn a_token_is_asked_for_and_one_that_may_only_read_sees_no_buttons_of_changes() {
    let [reader, writer] = ["read", "write"].map(|scope| Token::new(scope, scope));
    let folder = TempDir::new("dashboard-tokens");
    let file = folder.file(
        "slidegate.yaml",
        format!(
            "policies: [{{name: per-user, scope: [user], quota: 5/1h}}]\nadmin: {{tokens: [{{name: r, scope: read, sha256: {}}}, \
             {{name: w, scope: write, sha256: {}}}]}}\n",
            reader.sha256,
            writer.sha256
        ),
    );
    let server = Server::start(&["--config", &file]);
    traffic(&server, "alice", 3);
    let browser = Browser::start("token");
    browser.narrow(390);
    browser.open(&server.url);
    browser.until("document.getElementById('token-dialog').open");
    browser.until_text("#token-why", "token required");
    browser.fill("#token", "sg_guess");
    browser.press(ENTER);
    browser.until_text("#token-why", "Token rejected: unknown token");
    browser.fill("#token", &reader.secret);
    browser.press(ENTER);
    browser.until_text("#connection", "Live");
    browser.until("!document.getElementById('token-dialog').open");
    look_up(&browser, "alice");
    until_fact(&browser, "Used", "3");
    let buttons = "[...document.querySelectorAll('.key-acts button, button.write')]";
    for size in WIDTHS {
        browser.screen(size);
        browser
            .until(&format!("{buttons}.length > 5 && {buttons}.every((one) => one.offsetParent === null)"));
    }
    assert_eq!(browser.value("[localStorage.length, document.cookie]"), json!([0, ""]));

    browser.click("#forget");
    browser.until("document.getElementById('token-dialog').open");
    browser.fill("#token", &writer.secret);
    browser.press(ENTER);
    browser.until_text("#connection", "Live");
    look_up(&browser, "alice");
    confirm(&browser, "#act-reset button");
    browser.until_text("#act-result", "Done: its usage is forgotten.");
}

/// A customer looks at their own key: the page must work for them, and show nothing that it cannot read.
#[test]
fn a_token_of_one_key_gets_the_page_of_this_key_alone() {
    let customer = Token::new("customer", "read");
    let folder = TempDir::new("dashboard-own-key");
    let file = folder.file(
        "slidegate.yaml",
        format!(
            "policies: [{{name: per-user, scope: [user], quota: 5/1h}}]\n\
             admin: {{tokens: [{{name: c, scope: read, key: per-user/acme/eu, sha256: {}}}]}}\n",
            customer.sha256
        ),
    );
    let server = Server::start(&["--config", &file]);
    traffic(&server, "acme/eu", 7);
    let browser = Browser::start("own-key");
    browser.open(&server.url);
    browser.fill("#token", &customer.secret);
    browser.press(ENTER);
    for size in WIDTHS {
        browser.screen(size);
        browser.until_text("#connection", "Live");
        until_fact(&browser, "Used", "5");
        assert_eq!(browser.text("#key-name"), "acme/eu");
        assert_eq!(browser.text("#key-denials-count"), "2");
        let seen = "[...document.querySelectorAll('main > section, .top nav, .banner, .alarms, button')].filter((one) => one.offsetParent)";
        let seen = browser.value(&format!("{seen}.map((one) => one.id)"));
        assert_eq!(seen, json!(["forget", "theme", "keys"]), "{size:?}");
        let text = browser.text("body");
        assert!(!text.contains("not allowed") && !text.contains("Disconnected"), "{text}");
        browser.open(&server.url);
    }
    traffic(&server, "acme/eu", 1);
    until_fact(&browser, "Used", "5");
    browser.until_text("#key-denials-count", "3");
}
