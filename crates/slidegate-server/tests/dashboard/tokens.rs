//! Tokens: asked for, and what each may do.

use serde_json::json;
use slidegate_testkit::TempDir;
use slidegate_testkit::service::{Server, Token};

use crate::browser::Browser;
use crate::{ENTER, confirm, look_up, traffic, until_fact};

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
    browser.until(&format!("{buttons}.length > 5 && {buttons}.every((one) => one.offsetParent === null)"));
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
