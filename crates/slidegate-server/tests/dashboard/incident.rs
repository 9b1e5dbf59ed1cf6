//! What an operator sees while one key floods: a table of checks, at each width.

use serde_json::json;
use slidegate_testkit::TempDir;
use slidegate_testkit::service::Server;

use crate::browser::Browser;
use crate::{WIDTHS, check, watch};

/// More letters than a column has.
const FLOODING: &str = "a-client-that-never-waits-and-has-a-long-name";
const RESULT: &str = "document.getElementById('act-result').innerText";

/// In an incident there is no time to look for the key, on whatever screen.
#[test]
fn a_flooding_key_is_named_and_at_hand_at_every_width() {
    let folder = TempDir::new("dashboard-incident");
    let mut policies: String = (0..50)
        .map(|n| {
            format!("  - {{name: quiet-{n}, scope: [user], quota: 900/1h, when: {{path: /quiet/{n}}}}}\n")
        })
        .collect();
    policies += "  - {name: api, scope: [user], quota: 5/1h, when: {path: /api}}\n\
                 \x20 - {name: shut, scope: [user], quota: 0/1h, when: {path: /shut}}\n\
                 \x20 - {name: typo, scope: [usr], quota: 5/1h}\n";
    let server =
        Server::start(&["--config", &folder.file("slidegate.yaml", format!("policies:\n{policies}"))]);
    // Usage ends at the limit, so that others have used more.
    for n in 0..12 {
        check(&server, &json!({ "user": format!("calm-{n}"), "path": "/quiet/1" }));
    }
    for n in 0..400 {
        check(&server, &json!({ "user": FLOODING, "path": "/api" }));
        check(&server, &json!({ "user": format!("calm-{}", n % 12), "path": "/shut" }));
    }
    let browser = Browser::start("incident");
    for size in WIDTHS {
        browser.screen(size);
        // It still floods.
        check(&server, &json!({ "user": FLOODING, "path": "/api" }));
        watch(&browser, &server);
        let text = |selector: &str| format!("document.querySelector('{selector}')?.innerText ?? ''");
        let says = |selector: &str, words: &str| format!("({}).includes({})", text(selector), json!(words));
        let below = |selector: &str| {
            format!("(document.querySelector('{selector}').getBoundingClientRect().top + scrollY)")
        };
        let alarms = "document.getElementById('alarms').clientHeight";
        let rows = "document.querySelectorAll('#policies-rows tr').length";
        for (what, expression) in [
            ("the alarm names the key", says("#alarm-SlidegateFloodingKey", FLOODING)),
            (
                "and its share",
                format!("/has 100 % of the 39. denials of api/.test({})", text("#alarm-SlidegateFloodingKey")),
            ),
            ("and leads to it", format!("document.querySelector('#alarm-SlidegateFloodingKey a:last-of-type').hash === '#key/api/{FLOODING}'")),
            ("what denies everything is named", says("#alarm-SlidegateManyDenials", "shut denied everything: 400 of 400")),
            ("what limits nothing is named", says("#alarm-SlidegatePolicyLimitsNothing", "typo: all requests lack")),
            (
                "nothing is green",
                "getComputedStyle(document.getElementById('connection'), '::before').backgroundColor !== 'rgb(31, 111, 74)'".into(),
            ),
            ("its key is the first", says("#top-rows tr:first-child", FLOODING)),
            ("keys are near the alarms", format!("{} - {alarms} < 0.75 * innerHeight", below("#top"))),
            ("denials are not far", format!("{} - {alarms} < 2.5 * innerHeight", below("#denials"))),
            ("what is shut is marked", says("#policies-rows tr:first-child", "denies everything")),
            ("those that deny are the first", says("#policies-rows tr:nth-child(2)", "api")),
            ("not all policies are shown", format!("{rows} === 6")),
            ("but can be", format!("(document.getElementById('policies-all').click(), {rows} === 53)")),
            ("and not", format!("(document.getElementById('policies-all').click(), {rows} === 6)")),
            ("a condition is plain text", says("#policies-rows tr:nth-child(2)", "when path is “/api”")),
            ("bars begin at the left", "getComputedStyle(document.querySelector('.bar')).backgroundPositionX === '0%'".into()),
            ("nothing is too wide", "document.documentElement.scrollWidth <= document.documentElement.clientWidth".into()),
            ("no backquotes", "!document.body.innerText.includes('`')".into()),
        ] {
            browser.until_so(&format!("{what} at {size:?}"), &expression);
        }
        browser.fill("#policies-form [name=filter]", "QUIET-4");
        browser.until(&format!("{rows} === 6"));
        browser.until_text("#policies-all", "Show all 11");
        browser.fill("#policies-form [name=filter]", " ");

        browser.click("#whole-keys");
        let is_whole =
            "[...document.querySelectorAll('button.key')].every((one) => one.scrollWidth <= one.clientWidth)";
        browser.until_so("whole keys are shown on demand", is_whole);
        browser.click("#alarm-SlidegateFloodingKey a:last-of-type");
        browser.until(&format!("document.getElementById('key-name').textContent === {}", json!(FLOODING)));
        browser.expect_silence();

        // What is confirmed is valid.
        for (field, value, button, error) in [
            ("#act-block [name=for]", "soon", "#act-block button", "unknown unit “soon”"),
            ("#act-block [name=for]", "400d", "#act-block button", "must be 1ms to 366d"),
            ("#act-override [name=quota]", "plenty", "#act-override button", "invalid quota “plenty”"),
        ] {
            browser.fill(field, value);
            browser.click(button);
            browser.until_so(error, &format!("{RESULT}.includes({})", json!(error)));
            assert_eq!(browser.value("document.getElementById('confirm-dialog').open"), false, "{value}");
        }
        browser.console();
    }
    // Who has blocked it has done what the alarm asks for.
    let body = json!({ "for": "1h" }).to_string();
    assert_eq!(server.change("POST", &format!("/v1/keys/api/{FLOODING}/block"), &[], &body).status, 200);
    browser.until("!document.getElementById('alarm-SlidegateFloodingKey')");
    let metrics = server.get("/metrics").body;
    assert!(metrics.contains("\nslidegate_flooding_keys 0\n"), "{metrics}");
}
