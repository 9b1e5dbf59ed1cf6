//! Tokens: asked for, and what each may do.

use serde_json::json;
use slidegate_testkit::TempDir;
use slidegate_testkit::service::{Server, run, text};

use crate::browser::Browser;
use crate::{ENTER, confirm, look_up, traffic, until_fact};

/// Readers must see that they cannot make changes, and a token must not outlive its tab.
#[test]
fn a_token_is_asked_for_and_one_that_may_only_read_sees_no_buttons_of_changes() {
    let token = |scope: &str| {
        let made = text(&run(&["token", "new", "--name", scope, "--scope", scope]).stdout);
        let word = |name: &str| {
            let line = made.lines().find_map(|line| line.strip_prefix(name));
            line.unwrap_or_else(|| panic!("no {name} in {made}")).trim().to_owned()
        };
        (word("token "), word("environment ").split_once('=').unwrap().1.to_owned())
    };
    let ((reader, may_read), (writer, may_write)) = (token("read"), token("write"));
    let digest = |line: &str| line.rsplit(':').next().unwrap().to_owned();
    let folder = TempDir::new("dashboard-tokens");
    let file = folder.file(
        "slidegate.yaml",
        format!(
            "policies: [{{name: per-user, scope: [user], quota: 5/1h}}]\nadmin: {{tokens: [{{name: r, scope: read, sha256: {}}}, \
             {{name: w, scope: write, sha256: {}}}]}}\n",
            digest(&may_read),
            digest(&may_write)
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
    browser.fill("#token", &reader);
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
    browser.fill("#token", &writer);
    browser.press(ENTER);
    browser.until_text("#connection", "Live");
    look_up(&browser, "alice");
    confirm(&browser, "#act-reset button");
    browser.until_text("#act-result", "Done: its usage is forgotten.");
}
