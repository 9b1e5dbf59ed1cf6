//! Open and expired reservations.

use serde_json::json;
use slidegate_testkit::service::Server;

use crate::browser::Browser;
use crate::watch;

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
