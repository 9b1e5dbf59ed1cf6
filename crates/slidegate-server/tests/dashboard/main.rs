//! The page, in a real browser, over a real server under real traffic.

// A test that cannot go on panics.
#![allow(clippy::unwrap_used)]

mod browser;
mod fleet;
mod report;

use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Duration;

use browser::Browser;
use serde_json::{Value, json};
use slidegate_testkit::TempDir;
use slidegate_testkit::service::{Server, run, slidegate, text};

/// A key that is a script, if anything takes it for markup.
const HOSTILE: &str = "<img src=x onerror=\"document.title='taken'\">";
const TAB: char = '\u{E004}';
const ENTER: char = '\u{E007}';

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

/// One inline script or one font from elsewhere, and the policy that protects the page would have
/// to be loosened.
#[test]
fn the_page_comes_whole_from_the_service_with_headers_that_protect_it() {
    let server = Server::start(&["--policy", "3/1h per user"]);
    let page = server.get("/");
    let mut open = vec!["/".to_owned()];
    let mut seen: Vec<String> = Vec::new();
    while let Some(path) = open.pop() {
        let answer = server.get(&path);
        assert_eq!(answer.status, 200, "{path}");
        let policy = answer.header("content-security-policy").unwrap();
        assert!(policy.starts_with("default-src 'none'; script-src 'self'; style-src 'self';"), "{policy}");
        assert!(policy.contains("frame-ancestors 'none'") && !policy.contains("unsafe"), "{policy}");
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
        assert_eq!(answer.header("referrer-policy"), Some("no-referrer"));
        assert_eq!(answer.header("cache-control"), Some("no-cache"));
        for ours in answer.body.split('"').filter(|part| part.starts_with("/dashboard/")) {
            if !seen.contains(&ours.to_owned()) {
                seen.push(ours.to_owned());
                open.push(ours.to_owned());
            }
        }
        for module in answer.body.split('\'').filter_map(|part| part.strip_prefix("./")) {
            let module = format!("/dashboard/{module}");
            if !seen.contains(&module) {
                seen.push(module.clone());
                open.push(module);
            }
        }
    }
    assert!(seen.len() > 15, "{seen:?}");
    assert_eq!(page.header("content-type"), Some("text/html; charset=utf-8"));
    assert!(!page.body.contains("style=") && !page.body.contains("<style"), "inline styles are refused");
    let tag = page.header("etag").unwrap();
    let again = format!(
        "GET / HTTP/1.1\r\nhost: {}\r\nconnection: close\r\nif-none-match: {tag}\r\n\r\n",
        server.address
    );
    assert!(server.raw(again.as_bytes()).starts_with("HTTP/1.1 304 "));
    assert_eq!(server.post("/", "").status, 405);
    let licence = server.get("/dashboard/uplot.LICENSE");
    assert!(licence.body.starts_with("The MIT License (MIT)"), "{}", licence.body);
}

/// A vendored file that somebody has touched is no longer what its licence and its origin say.
#[test]
fn vendored_files_are_those_that_were_taken() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/dashboard/vendor");
    let notes = std::fs::read_to_string(format!("{folder}/README.md")).unwrap();
    let sums = notes.split("```text\n").nth(1).unwrap().split("```").next().unwrap();
    assert_eq!(sums.lines().count(), 3);
    let mut judge = Command::new("sha256sum")
        .args(["--check", "--strict", "--quiet"])
        .current_dir(folder)
        .stdin(Stdio::piped())
        .spawn()
        .expect("sha256sum is there");
    judge.stdin.take().unwrap().write_all(sums.as_bytes()).unwrap();
    assert!(judge.wait().unwrap().success());
}

/// Who has just started the service must learn what to do next, and see that it worked.
#[test]
fn an_empty_service_says_how_to_send_a_request_and_shows_it_within_moments() {
    let server = Server::start(&["--policy", "3/1h per user", "--policy", "100/1m named everyone"]);
    let browser = Browser::start("empty");
    watch(&browser, &server);
    browser.until_text("#first-command", &format!("curl -i '{}/v1/check?user=alice'", server.url));
    browser.until_text("#denials .note", "No denials yet.");
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
    // Those of one second are one row, and all of them are counted.
    let rows =
        "[...document.querySelectorAll('#denials-rows .times')].map((one) => parseInt(one.textContent) || 1)";
    browser.until(&format!("{rows}.reduce((sum, n) => sum + n, 0) === 3"));
    let why = browser.text("#denials-rows .why span");
    assert!(why.starts_with("used 5 of 5 / 1h; cost 1 fits in "), "{why}");
    assert_eq!(browser.text("#denials-rows time").len(), "14:03:22".len());
    browser.until_text("#top-rows", "alice");
    browser.until("Number(document.querySelector('#top-rows td.n span').innerText) >= 5");
    // What cannot be seen is said: the description is renewed now and then.
    browser.until("document.getElementById('rates-chart').ariaLabel.includes('3 denied')");
    browser.until_text("#status-facts", "in-process memory");
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
    browser.click("#top-form label:nth-of-type(2) span");
    browser.until_text("#top-count", "Denied");
    browser.until(&format!("{} === '1'", parts("alice")));
    browser.click("#top-form label:nth-of-type(3) span");
    browser.until_text("#top-count", "Taken");
    browser.until_text("#top-rows tr:first-child", "100 %");
    browser.until_text("#top-rows tr:first-child", "5 of 5, wait ");
    browser.expect_silence();
}

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
    browser.until_text("#rates-markers", "Limit changed: everyone: 500/1s sliding-log, by loopback");
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
    confirm(&browser, "#act-override button[type=submit]");
    browser.until_text("#act-result", "Not done: ");
    assert!(browser.text("#act-result").contains("plenty"), "{}", browser.text("#act-result"));
}

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
    browser.until_text("#limit-result", "per-user: 5/1h sliding-log.");
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
    browser.click("#limit-go");
    browser.until_text(
        "#limit-said",
        "Not changed: invalid window “soon”: unknown unit “soon”; use ms, s, m, h, d or w",
    );
    browser.fill("#limit-form [name=window]", "2m");
    browser.press(ENTER);
    browser.until_text("#limit-said", "to 9 / 2m,");
    browser.press(ENTER);
    browser.until_text("#limit-result", "per-ip: 9/2m sliding-log.");
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
    browser.until_text("#limit-result", "monthly: 200/month in Europe/Berlin fixed-window.");

    browser.click("#policies-rows tr:nth-child(2) button.write");
    browser.until_text("#limit-now", "Now 100 / 1h sliding-log, by plan: 10 for free, 10,000 for pro.");
    browser.until_text("#limit-now", "Only the limit of everything else is changed here");
    browser.fill("#limit-form [name=limit]", "50");
    browser.press(ENTER);
    browser.press(ENTER);
    browser.until_text("#limit-result", "tiers: 50/1h sliding-log.");
    browser.expect_silence();
}

/// An operator who asks where the quota went finds reservations that are open, and one that nobody
/// settled.
#[test]
fn open_reservations_are_shown_with_their_policy_and_expired_ones_with_the_denials() {
    let server = Server::start(&["--policy", "100/1h per user named tokens"]);
    let reserve = |cost: u64, ttl: &str| {
        let body = json!({ "attributes": { "user": "alice" }, "cost": cost, "ttl": ttl });
        assert_eq!(server.post("/v1/reserve", &body.to_string()).status, 200);
    };
    reserve(60, "10m");
    let browser = Browser::start("reservations");
    watch(&browser, &server);
    browser.until_text("#policies-rows .under", "per user; 1 open reservation of 60");
    reserve(7, "1s");
    browser.until_text("#denials-rows .tag", "expired");
    browser.until_text("#denials-rows .why", "held 7, 7 charged");
    browser.expect_silence();
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

/// A dashboard is opened when something is wrong, and that is seldom at the desk.
#[test]
fn a_telephone_needs_no_scrolling_to_the_side() {
    let server = Server::start(&[
        "--policy",
        "2/1h per user",
        "--policy",
        "1000000/1d per user,agent named a-policy-with-a-long-name",
    ]);
    for user in ["alice", HOSTILE, &"w".repeat(300)] {
        for _ in 0..4 {
            check(&server, &json!({ "user": user, "agent": "curl/8" }));
        }
    }
    let browser = Browser::start("telephone");
    browser.narrow(390);
    watch(&browser, &server);
    browser.until("document.querySelectorAll('#denials-rows tr').length >= 3");
    look_up(&browser, &"w".repeat(300));
    until_fact(&browser, "Used", "2");
    let width = || browser.value("[document.documentElement.scrollWidth, innerWidth]");
    assert_eq!(width(), json!([390, 390]));
    browser.narrow(320);
    assert_eq!(width(), json!([320, 320]));
    browser.expect_silence();
}

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

    // Reservations that nobody settles, and a flood of new keys, which evict others while they count.
    let server = Server::start(&[
        "--config",
        &folder.file("small.yaml", format!("{policies}store: {{memory: {{max_keys: 64}}}}\n")),
    ]);
    watch(&browser, &server);
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
    browser.expect_silence();
}

/// Waits until all of it is seen without scrolling.
fn until_on_first_screen(browser: &Browser, selector: &str) {
    browser.until(&format!(
        "scrollY === 0 && document.querySelector('{selector}').getBoundingClientRect().bottom <= innerHeight"
    ));
}

/// A tool judges what a reader of code overlooks: contrast, roles, names, and the order of headings.
#[test]
fn axe_finds_no_violation_in_either_theme_and_at_any_width() {
    let script = slidegate_testkit::service::installed("node/node_modules/axe-core/axe.min.js");
    let script = std::fs::read_to_string(script).unwrap();
    let server = Server::start(&["--policy", "2/1h per user", "--policy", "100/1m named everyone"]);
    traffic(&server, "alice", 4);
    let browser = Browser::start("axe");
    for (scheme, width) in [("light", 1400), ("dark", 1400), ("light", 320)] {
        browser.prefer(scheme);
        browser.narrow(width);
        watch(&browser, &server);
        browser.until_text("#top-rows", "alice");
        look_up(&browser, "alice");
        browser.run(&script);
        let judged = browser.value(
            "axe.run(document).then((found) => [found.passes.length, found.violations.map(({ id, nodes }) => \
             `${id}: ${nodes.map(({ html }) => html).join(' ')}`)])",
        );
        assert!(judged[0].as_u64() > Some(20), "{judged}");
        assert_eq!(judged[1], json!([]), "{scheme} at {width}");
    }
    // It does find what is wrong.
    browser.value("document.getElementById('theme').replaceChildren()");
    let judged = browser.value("axe.run(document).then((found) => found.violations.map(({ id }) => id))");
    assert_eq!(judged, json!(["button-name"]));
}

/// Who has just heard of it sees a live page within a minute.
#[test]
fn the_demo_fills_the_page_and_ends_by_itself() {
    let listen = ["demo", "--listen", "127.0.0.1:0"];
    let mut server = Server::start_command(slidegate().args(listen), Stdio::null());
    let browser = Browser::start("demo");
    watch(&browser, &server);
    browser.until_text("#policies-rows", "concurrent");
    browser.until_text("#denials-rows", "login");
    browser.until("document.getElementById('rates-chart').ariaLabel.includes(' allowed')");
    browser.until("parseFloat(document.getElementById('rate-allowed').innerText) > 5");
    assert!(
        server.get("/metrics").body.contains(r#"{policy="tokens",outcome="settled"}"#),
        "reservations fit"
    );
    // The pictures of the documentation: SLIDEGATE_SCREENSHOTS names the folder that keeps them. They show five
    // minutes of the demo.
    let folder = TempDir::new("screenshots");
    let wanted = std::env::var("SLIDEGATE_SCREENSHOTS").ok();
    if wanted.is_some() {
        std::thread::sleep(Duration::from_secs(310));
    }
    let folder = wanted.as_deref().unwrap_or(folder.as_str());
    let picture = |part: &str, height: u32| {
        browser.size(1120, height);
        for scheme in ["light", "dark"] {
            browser.prefer(scheme);
            let bytes = browser.screenshot(&format!("{folder}/{part}-{scheme}.png"));
            assert!((20_000..150_000).contains(&bytes), "{bytes} bytes");
        }
    };
    picture("dashboard", 860);
    browser.click("#top-rows button");
    browser.until_text("#key-facts", "Used");
    picture("key", 536);
    browser.expect_silence();
    server.signal("TERM");
    assert!(server.wait().success());
    let mut short = Server::start_command(slidegate().args(listen).args(["--for", "1s"]), Stdio::null());
    assert!(short.wait().success(), "it ends by itself");
    let refused = run(&["demo", "--listen", "0.0.0.0:0"]);
    assert!(text(&refused.stderr).contains("must be on loopback"), "{}", text(&refused.stderr));
}

/// Who cannot see the page or hold a pointer still has to lift a limit at night.
#[test]
fn every_control_has_a_name_and_the_keyboard_is_enough() {
    let server = Server::start(&["--policy", "2/1h per user"]);
    traffic(&server, "alice", 4);
    let browser = Browser::start("keyboard");
    watch(&browser, &server);
    browser.press(TAB);
    assert_eq!(browser.value("document.activeElement.innerText"), "Skip to content");
    // Choose a policy, then a key, then reset it: tab by tab.
    let tab_to = |selector: &str| {
        for _ in 0..80 {
            if browser.value(&format!("document.activeElement.matches({})", json!(selector))) == true {
                return;
            }
            browser.press(TAB);
        }
        panic!("the focus never came to {selector}");
    };
    browser.until_text("#top-rows", "alice");
    tab_to("#top-rows button");
    browser.press(ENTER);
    until_fact(&browser, "Used", "2");
    assert_eq!(browser.value("document.activeElement.id"), "keys-title");
    tab_to("#act-reset button");
    browser.press(ENTER);
    browser.until("document.activeElement.id === 'confirm-go'");
    browser.press(ENTER);
    until_fact(&browser, "Used", "0");
    assert_eq!(browser.value("document.activeElement.closest('form').id"), "act-reset");
    for (name, markup) in browser.names("button, input, select, summary, a, [role=img], [tabindex='0']") {
        assert!(!name.trim().is_empty(), "no name: {markup}");
    }
    let unnamed = "[...document.querySelectorAll('section')].filter((one) => !document.getElementById(one.getAttribute('aria-labelledby'))).length";
    assert_eq!(browser.value(unnamed), 0);
    assert_eq!(browser.value("document.querySelectorAll('table:not(:has(caption))').length"), 0);
    browser.expect_silence();
}

/// Bright pages at night, or a theme that is forgotten, are why pages get closed.
#[test]
fn the_theme_follows_the_system_until_one_is_chosen_and_is_remembered() {
    let server = Server::start(&["--policy", "2/1h per user"]);
    let browser = Browser::start("theme");
    browser.prefer("dark");
    watch(&browser, &server);
    let ground = || browser.value("getComputedStyle(document.body).backgroundColor");
    let dark = ground();
    browser.prefer("light");
    let light = ground();
    assert_ne!(dark, light);
    browser.click("#theme");
    browser.click("#theme");
    assert_eq!((browser.text("#theme").as_str(), ground()), ("Theme: dark", dark.clone()));
    watch(&browser, &server);
    assert_eq!(ground(), dark);
    browser.expect_silence();
}
