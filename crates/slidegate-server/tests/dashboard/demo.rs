//! `slidegate demo`, and the pictures of the documentation.

use std::process::Stdio;
use std::time::Duration;

use slidegate_testkit::TempDir;
use slidegate_testkit::service::{Server, run, slidegate, text};

use crate::browser::Browser;
use crate::watch;

/// Who has just heard of it sees a live page within a minute.
#[test]
fn the_demo_fills_the_page_and_ends_by_itself() {
    let listen = ["demo", "--listen", "127.0.0.1:0"];
    let mut server = Server::start_command(slidegate().args(listen), Stdio::null());
    let browser = Browser::start("demo");
    watch(&browser, &server);
    assert!(server.greeting.ends_with(&format!("\nopen       {}/\n", server.url)), "{}", server.greeting);
    browser.until_text("#policies-rows", "concurrent");
    browser.until_text("#denials-rows", "login");
    browser.until("document.getElementById('rates-chart').ariaLabel.includes(' allowed')");
    browser.until("parseFloat(document.getElementById('rate-allowed').innerText) > 5");
    assert!(
        server.get("/metrics").body.contains(r#"{policy="tokens",outcome="settled"}"#),
        "reservations fit"
    );
    // The pictures of the documentation: SLIDEGATE_SCREENSHOTS names the folder that keeps them. They show the flood.
    let folder = TempDir::new("screenshots");
    let wanted = std::env::var("SLIDEGATE_SCREENSHOTS").ok();
    if wanted.is_some() {
        browser.until("document.getElementById('alarm-SlidegateFloodingKey')");
        std::thread::sleep(Duration::from_secs(30));
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
    browser.click(if wanted.is_some() {
        "#alarm-SlidegateFloodingKey a:last-of-type"
    } else {
        "#top-rows button"
    });
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
