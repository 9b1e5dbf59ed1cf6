//! Every width, theme and input device.

use serde_json::json;
use slidegate_testkit::service::Server;

use crate::browser::Browser;
use crate::{ENTER, HOSTILE, TAB, check, look_up, traffic, until_fact, watch};

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
