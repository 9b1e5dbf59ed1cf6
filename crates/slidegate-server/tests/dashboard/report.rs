//! The page of a replay, opened from its file.

use serde_json::json;
use slidegate_testkit::TempDir;
use slidegate_testkit::service::{run, text};

use crate::browser::Browser;

/// What clients call themselves when they do not mean well.
const HOSTILE: [&str; 5] = [
    "</script><script>document.title='taken'</script>",
    "<img src=x onerror=document.title='taken'>",
    "\u{202e}evil",
    "a'b`c&lt;d",
    "bob",
];

/// Two hours of five users, with bursts at the ends of minutes.
fn log() -> String {
    let mut log = String::new();
    for n in 0..1200 {
        let second = n * 6 / 10 * 10 + 55 + n % 10;
        log += &format!(
            "192.0.2.{} - {} [20/Nov/2026:{:02}:{:02}:{:02} +0000] \"GET /{} HTTP/1.1\" 200 5 \"-\" \"-\"\n",
            n % 3,
            HOSTILE[n / 10 % 5],
            10 + second / 3600,
            second / 60 % 60,
            second % 60,
            ["", "login"][n % 2],
        );
    }
    log + "<b>not a line</b>\n"
}

/// Writes a report with everything in it, and opens it.
fn open(browser: &Browser, folder: &TempDir) {
    let log = folder.file("access.log", log());
    let file = format!("{}/report.html", folder.as_str());
    let output = run(&[
        "replay",
        &log,
        "--policy",
        "8/1m per user named per-user",
        "--policy",
        "30/1m per ip named per-ip",
        "--sweep",
        "per-user.limit=10..40",
        "--report",
        &file,
    ]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    browser.open(&format!("file://{file}"));
    browser.until("document.documentElement.dataset.charts");
}

/// A report is opened by people who trust it, on machines without a network.
#[test]
fn the_report_draws_its_charts_from_one_file_and_hostile_keys_stay_text() {
    let (browser, folder) = (Browser::start("report"), TempDir::new("report"));
    open(&browser, &folder);
    // Allowed and denied over time, usage of two policies, and the sweep.
    assert_eq!(browser.value("document.documentElement.dataset.charts"), "5");
    assert_eq!(
        browser.value("document.querySelector('.chart.time').dataset.buckets"),
        "6",
        "two hours are 120 steps"
    );
    let readout = browser.text("#over-time .readout");
    assert!(readout.starts_with("Requests in steps of 1m."), "{readout}");
    assert_eq!(
        browser.value("[...document.querySelectorAll('.chart canvas')].every((one) => one.width > 0)"),
        true
    );
    assert_eq!(browser.value("performance.getEntriesByType('resource').length"), 0);
    assert_eq!(browser.value("document.title"), "Replay of 1200 requests - slidegate");
    assert_eq!(browser.value("document.querySelectorAll('img, b:not(.recommended b), iframe').length"), 0);
    // The scripts of the page: the data, the charts and the drawing.
    assert_eq!(browser.value("document.scripts.length"), 3);
    for expected in [HOSTILE[0], HOSTILE[1], "\\u{202e}evil", HOSTILE[3]] {
        let found = format!(
            "[...document.querySelectorAll('bdi')].some((one) => one.textContent === {})",
            json!(expected)
        );
        assert_eq!(browser.value(&found), true, "{expected}");
    }
    assert_eq!(browser.value("document.body.textContent.includes('\\u202e')"), false);
    let command = browser.text("#summary code");
    assert!(
        command.starts_with("slidegate replay ") && command.contains("--sweep per-user.limit=10..40"),
        "{command}"
    );
    let notes = browser.text("#notes");
    assert!(notes.contains("cannot know of retries after a denial"), "{notes}");
    assert!(notes.contains("1 line could not be parsed"), "{notes}");
    let recommended = browser.text(".recommended");
    assert_eq!(recommended, "Recommended limit: 10, the lowest tried");
    browser.expect_silence();
}

/// Reports are read on telephones, at night, and on paper.
#[test]
fn the_report_fits_a_telephone_follows_the_theme_and_opens_its_tables_for_print() {
    let (browser, folder) = (Browser::start("report-narrow"), TempDir::new("report-narrow"));
    browser.narrow(390);
    open(&browser, &folder);
    let too_wide = "document.documentElement.scrollWidth > document.documentElement.clientWidth";
    assert_eq!(browser.value(too_wide), false);
    let background = "getComputedStyle(document.querySelector('.panel')).backgroundColor";
    browser.prefer("dark");
    browser.until(&format!("{background} === 'rgb(26, 32, 41)'"));
    browser.prefer("light");
    browser.until(&format!("{background} === 'rgb(255, 255, 255)'"));
    assert_eq!(browser.value("document.querySelectorAll('details[open]').length"), 0);
    browser.value("dispatchEvent(new Event('beforeprint'))");
    assert_eq!(browser.value("document.querySelectorAll('details:not([open])').length"), 0);
    browser.value("dispatchEvent(new Event('afterprint'))");
    assert_eq!(browser.value("document.querySelectorAll('details[open]').length"), 0);
    browser.expect_silence();
}
