//! The page of one instance, where two share a store.

use serde_json::{Value, json};
use slidegate_testkit::redis::RedisServer;
use slidegate_testkit::service::Server;
use slidegate_testkit::{TempDir, until, until_true};

use crate::browser::Browser;
use crate::{WIDTHS, check, confirm, look_up, traffic, watch};

/// Whoever opens the page behind a load balancer does not know which instance serves it.
#[test]
fn the_page_of_one_instance_shows_and_changes_the_fleet_and_tells_when_its_store_is_gone() {
    let (folder, redis) = (TempDir::new("dashboard-fleet"), RedisServer::start());
    let config = format!(
        "policies: [{{name: per-user, scope: [user], quota: 100/1h}}]\nstore: {{redis: '{}', deadline: 1s}}\n",
        redis.url_as_user()
    );
    let file = folder.file("slidegate.yaml", config);
    let [one, two] = [(); 2].map(|()| Server::start(&["--config", &file]));
    let instances = until("both know each other", || {
        let instances = one.get("/v1/status").json()["fleet"]["instances"].clone();
        Some(instances).filter(|instances| instances.as_array().unwrap().len() == 2)
    });
    // What an instance counts before another knows it is not in the chart of that one.
    traffic(&one, "alice", 3);
    traffic(&two, "alice", 4);
    let other = instances.as_array().unwrap().iter().find(|instance| instance["this"] == false).unwrap();

    let browser = Browser::start("fleet");
    watch(&browser, &one);
    browser.until_text("#status-facts", "2 instances: ");
    for instance in instances.as_array().unwrap() {
        browser.until_text("#status-facts", instance["name"].as_str().unwrap());
    }
    let this = instances.as_array().unwrap().iter().find(|instance| instance["this"] == true).unwrap();
    let name = this["name"].as_str().unwrap();
    browser.until_text("#rates-instance", "are those of 2 instances together.");
    let chart_has = |allowed: u32| {
        browser.until(&format!(
            "document.getElementById('rates-chart').ariaLabel.includes(' {allowed} allowed,')"
        ));
        browser.until(&format!(
            "document.querySelector('#policies-rows td.n').title.startsWith('{allowed} in ')"
        ));
    };
    chart_has(7);
    let used = |sum: u64| {
        browser.until(&format!("document.querySelector('#top-rows td.n span')?.innerText === '{sum}'"));
    };
    used(7);
    let choose = |of: &str, id: &Value| {
        browser.run(&format!(
            "const select = document.getElementById('{of}-instance'); select.value = {id}; \
             select.dispatchEvent(new Event('change', {{ bubbles: true }}))"
        ));
    };
    choose("top", &other["id"]);
    used(4);
    choose("top", &json!(""));
    used(7);
    choose("history", &this["id"]);
    browser.until_text("#rates-instance", &format!("are those of this instance only: {name}."));
    chart_has(3);
    choose("history", &json!(""));
    chart_has(7);

    look_up(&browser, "alice");
    confirm(&browser, "#act-block button[type=submit]");
    until_true("it is blocked on the other", || check(&two, &json!({ "user": "alice" })) == 429);
    browser.expect_silence();

    redis.kill();
    for size in WIDTHS {
        browser.screen(size);
        watch(&browser, &one);
        browser.until_text("#alarm-SlidegateStoreDegraded", &redis.address());
        browser.until("document.title === 'Store unavailable · slidegate'");
        let top = "document.getElementById('alarms').getBoundingClientRect().top < 200";
        assert_eq!(browser.value(top), true, "above everything else at {size:?}");
        let fits = "document.documentElement.scrollWidth <= document.documentElement.clientWidth";
        assert_eq!(browser.value(fits), true, "no scrolling to the side at {size:?}");
    }
    redis.restart();
    // It was stopped without an append-only file.
    browser.until("document.title === 'Usage lost by the store · slidegate'");
    browser.until_text(
        "#alarm-SlidegateStoreUsageLost",
        "Keys of per-user (per 1h) may be admitted once more until ",
    );
}

/// An operator who lands on the instance without traffic must see the incident, and what it does not know.
#[test]
fn the_page_of_an_instance_without_traffic_shows_the_fleet_and_marks_what_it_missed() {
    let (folder, redis) = (TempDir::new("dashboard-quiet"), RedisServer::start());
    let config = format!(
        "policies: [{{name: per-user, scope: [user], quota: 10/1h, candidate: 5/1h}}]\nstore: {{redis: '{}', deadline: 1s}}\n",
        redis.url_as_user()
    );
    let file = folder.file("slidegate.yaml", config);
    let [quiet, busy] = [(); 2].map(|()| Server::start(&["--config", &file]));
    traffic(&busy, "alice", 40);
    let browser = Browser::start("quiet");
    watch(&browser, &quiet);
    browser.until("document.querySelector('#denials-rows .times')?.innerText === '30'");
    browser.until_text("#denials-of", "Of 2 instances.");
    browser.until("document.querySelectorAll('#candidates-rows td.n')[1].innerText === '5'");
    browser.until_text("#shadow-of", "Of 2 instances.");
    browser.click("#candidates-rows button.write");
    browser.until_text("#confirm-facts", "13 % of 40 compared requests are newly denied");
    browser.click("#confirm-cancel");
    browser.click("#top-form label:nth-of-type(3) span");
    browser.until_text("#top-rows tr:first-child", "alice");
    browser.until_text("#top-bound", "Of 2 instances.");
    assert_eq!(browser.value("document.getElementById('first').hidden"), true);
    traffic(&busy, "alice", 320);
    browser.until_text("#alarm-SlidegateFloodingKey", "alice has 100 % of the 350 denials of per-user");
    let history = || quiet.get("/v1/history?minutes=5").json();
    let read_at = || history()["complete_until_ms"].as_u64();
    let first = until("the other was read", read_at);
    until_true("and again", || read_at() > Some(first));
    browser.expect_silence();

    redis.kill();
    browser.until_text("#rates-instance", "The store has not replied since ");
    browser.until_text("#denials-of", "Of this instance only: the store does not reply.");
    let is_first_hidden = "document.getElementById('first').hidden";
    assert_eq!(browser.value(is_first_hidden), true, "that nobody asked is not known");
    watch(&browser, &quiet);
    browser.until_text("#rates-instance", "The store has not replied since ");
    assert_eq!(browser.value(is_first_hidden), true);
    redis.restart();
    let is_unknown = |history: &Value| history["others_unknown"].as_array().unwrap().contains(&json!(true));
    until_true("the gap is marked", || is_unknown(&history()));
    browser.click("#rates-table summary");
    browser.until_text("#rates-unknown", "the decisions of other instances are unknown");
    browser.until_text("#rates-rows", "\u{2013}");
}

/// Limits that instances understand differently are seen on whichever page an operator opens.
#[test]
fn instances_with_different_configs_raise_an_alarm_until_they_agree() {
    let (folder, redis) = (TempDir::new("dashboard-differ"), RedisServer::start());
    let config = |quota: &str| {
        let store = format!("store: {{redis: '{}', deadline: 10s}}\n", redis.url_as_user());
        format!("policies: [{{name: per-user, scope: [user], quota: {quota}}}]\n{store}")
    };
    let files = ["one.yaml", "two.yaml"].map(|name| folder.file(name, config("100/1h")));
    let [one, two] = files.each_ref().map(|file| Server::start(&["--config", file]));
    let browser = Browser::start("differ");
    for size in WIDTHS {
        browser.screen(size);
        watch(&browser, &one);
        browser.until_text("#status-facts", "2 instances: ");
        browser.until("document.getElementById('alarms').hidden");
        folder.file("two.yaml", config("200/1h"));
        two.signal("HUP");
        browser.until_text("#alarm-SlidegateInstancesDiffer", ": 2 configs (");
        browser.until("document.title === 'Instances differ · slidegate'");
        folder.file("two.yaml", config("100/1h"));
        two.signal("HUP");
        browser.until("document.getElementById('alarms').hidden");
    }
    browser.expect_silence();
}
