//! Keys that reach a share of their limit: events, the log, counters and the webhook.

use std::io::Read;
use std::net::TcpListener;
use std::sync::mpsc::{Receiver, channel};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::hmac::{HMAC_SHA256, Key, verify};
use slidegate_testkit::until_true;

use super::*;

const KEY: &str = "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// A message as its receiver gets it.
struct Received {
    head: String,
    body: String,
}

impl Received {
    fn field(&self, name: &str) -> &str {
        let line = self.head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        line.unwrap_or_else(|| panic!("no {name} in {}", self.head))
    }

    /// Verifies the signature as a receiver does.
    fn verified(&self) -> Value {
        let key = Key::new(HMAC_SHA256, &STANDARD.decode(KEY).unwrap());
        let signed =
            format!("{}.{}.{}", self.field("webhook-id"), self.field("webhook-timestamp"), self.body);
        let signature = self.field("webhook-signature").strip_prefix("v1,").unwrap();
        verify(&key, signed.as_bytes(), &STANDARD.decode(signature).unwrap())
            .expect("the signature is right");
        serde_json::from_str(&self.body).unwrap()
    }
}

/// A receiver that answers with these statuses, one after the other, and with the last one from then on.
fn receiver(statuses: &'static [u16]) -> (String, Receiver<Received>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/hooks", listener.local_addr().unwrap());
    let (sender, received) = channel();
    std::thread::spawn(move || {
        let mut statuses = statuses.iter().peekable();
        for stream in listener.incoming() {
            let mut reader = BufReader::new(stream.unwrap());
            let mut head = String::new();
            while !head.ends_with("\r\n\r\n") {
                if reader.read_line(&mut head).unwrap_or(0) == 0 {
                    break;
                }
            }
            let length =
                |line: &str| line.to_ascii_lowercase().strip_prefix("content-length: ")?.parse().ok();
            let Some(length) = head.lines().find_map(length) else { continue };
            let mut body = vec![0; length];
            reader.read_exact(&mut body).unwrap();
            let status = if statuses.len() > 1 { statuses.next() } else { statuses.peek().copied() }.unwrap();
            let answer = format!("HTTP/1.1 {status} x\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
            reader.get_mut().write_all(answer.as_bytes()).unwrap();
            if sender.send(Received { head, body: String::from_utf8(body).unwrap() }).is_err() {
                return;
            }
        }
    });
    (url, received)
}

fn config(url: &str) -> String {
    format!(
        "webhook: {{url: '{url}', secret: whsec_{KEY}}}\n\
         policies:\n\
         \x20 - {{name: per-user, scope: [user], quota: 10/1h, notify: [80%, 100%], keys_shown: masked}}\n\
         \x20 - {{name: silent, scope: [user], quota: 10/1h}}\n"
    )
}

/// A customer near the limit is notified once, before requests are denied, on every channel.
#[test]
fn a_key_that_nears_its_limit_is_reported_once_for_each_threshold() {
    let folder = TempDir::new("notify");
    let (url, received) = receiver(&[204]);
    let log = folder.file("log", "");
    let file = folder.file("slidegate.yaml", config(&url));
    let server = Server::start_logging_to(&["--config", &file], File::create(&log).unwrap());
    let alice = json!({ "user": "alice" });
    let checks = |times| (0..times).filter(|_| check(&server, &alice)).count();
    assert_eq!(checks(7), 7);
    // A cost that crosses two at once is reported for both.
    ask(&server, "/v1/check", &json!({ "user": "bob" }), 10);
    for threshold in [80, 100] {
        let message = received.recv_timeout(LONG).unwrap().verified();
        assert_eq!(
            (&message["data"]["threshold"], &message["data"]["used"]),
            (&json!(threshold), &json!(10))
        );
    }
    assert_eq!(checks(1), 1);
    let first = received.recv_timeout(LONG).unwrap();
    assert_eq!(first.head.lines().next(), Some("POST /hooks HTTP/1.1"));
    assert_eq!(first.field("content-type"), "application/json");
    let message = first.verified();
    assert_eq!(message["type"], "limit.threshold_reached");
    let data = &message["data"];
    assert_eq!(
        json!([
            data["policy"],
            data["threshold"],
            data["used"],
            data["limit"],
            data["verdict"],
            data["reason"]
        ]),
        json!(["per-user", 80, 8, 10, "notify", "threshold"])
    );
    assert!(!first.body.contains("alice"), "the policy masks keys: {}", first.body);
    // Up, down and up again is once.
    ask(&server, "/v1/refund", &alice, 5);
    assert_eq!(checks(9), 7);
    let message = received.recv_timeout(LONG).unwrap().verified();
    assert_eq!((&message["data"]["threshold"], &message["data"]["used"]), (&json!(100), &json!(10)));
    ask(&server, "/v1/refund", &alice, 5);
    assert_eq!(checks(7), 5);

    let events = server.get("/v1/events?policy=per-user").json();
    let events = events["events"].as_array().unwrap().iter().filter(|event| event["verdict"] == "notify");
    let seen: Vec<_> = events.map(|event| (event["used"].clone(), event["threshold"].clone())).collect();
    assert_eq!(seen.len(), 4, "{seen:?}");
    until_true("all are sent", || server.count("slidegate_webhook_messages_total{outcome=\"sent\"}") == 4);
    assert_eq!(server.count("slidegate_notifications_total{policy=\"per-user\"}"), 4);
    assert_eq!(server.count("slidegate_notifications_total{policy=\"silent\"}"), 0);
    assert!(received.try_recv().is_err(), "no other one");
    let line = "slidegate::notifications: threshold reached policy=\"per-user\"";
    until_true("all are logged", || std::fs::read_to_string(&log).unwrap().matches(line).count() == 4);
}

/// Who is on duty must hear of an attack that was stopped where they hear of limits that are reached.
#[test]
fn a_key_that_is_blocked_for_its_denials_is_reported_once_with_its_block() {
    let folder = TempDir::new("notify-blocked");
    let (url, received) = receiver(&[204]);
    let policy = "{name: login, scope: [user], quota: 0/1h, keys_shown: masked, \
                  escalate: {after: 3 denials in 1h, block: 10m}}";
    let webhook = format!("webhook: {{url: '{url}', secret: whsec_{KEY}}}");
    let server = start(&folder, &format!("{webhook}\npolicies: [{policy}]\n"));
    (0..3).for_each(|_| assert!(!check(&server, &json!({ "user": "mallory" }))));
    let message = received.recv_timeout(LONG).unwrap();
    assert!(!message.body.contains("mallory"), "the policy masks keys: {}", message.body);
    let message = message.verified();
    assert_eq!(message["type"], "key.blocked");
    let data = &message["data"];
    let reported = ["policy", "verdict", "reason", "limit", "used"].map(|field| data[field].clone());
    assert_eq!(json!(reported), json!(["login", "notify", "escalated", 0, 0]));
    assert_eq!(data["block"]["by"], "escalation");
    let wait_ms = data["retry_after_ms"].as_u64().unwrap();
    assert!((500_000..3_600_000).contains(&wait_ms), "that of the block: {wait_ms}");

    let events = || server.get("/v1/events").json()["events"].as_array().unwrap().clone();
    let reported = || events().into_iter().filter(|event| event["verdict"] == "notify").collect::<Vec<_>>();
    until_true("the event is there", || !reported().is_empty());
    let [event] = &reported()[..] else { panic!("{:?}", reported()) };
    assert_eq!((&event["reason"], &event["block"]), (&data["reason"], &data["block"]));
    assert_eq!(server.count("slidegate_escalations_total"), 1);
    assert!(received.try_recv().is_err(), "no other one");
}

/// A receiver that restarts must get what happened meanwhile, and be able to tell that it is the same.
#[test]
fn a_message_is_sent_again_until_its_receiver_takes_it() {
    let folder = TempDir::new("notify-retry");
    let (url, received) = receiver(&[500, 302, 200]);
    let server = start(&folder, &config(&url));
    ask(&server, "/v1/check", &json!({ "user": "alice" }), 8);
    let attempts: Vec<_> = (0..3).map(|_| received.recv_timeout(LONG).unwrap()).collect();
    for attempt in &attempts {
        assert_eq!(attempt.verified(), attempts[0].verified());
        assert_eq!(attempt.field("webhook-id"), attempts[0].field("webhook-id"));
    }
    until_true("it is sent", || server.count("slidegate_webhook_messages_total{outcome=\"sent\"}") == 1);
    assert_eq!(server.count("slidegate_webhook_retries_total"), 2);
    assert_eq!(server.count("slidegate_webhook_messages_total{outcome=\"failed\"}"), 0);
}

/// A receiver that hangs holds a bounded number of messages and no decision.
#[test]
fn messages_that_exceed_the_queue_are_dropped_and_counted() {
    let folder = TempDir::new("notify-queue");
    // It accepts connections and never answers.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", silent.local_addr().unwrap());
    let server = start(&folder, &config(&url));
    for batch in 0..4 {
        let one = |n: usize| json!({ "attributes": { "user": format!("{batch}-{n}") }, "cost": 8 });
        let batch = json!({ "requests": (0..100).map(one).collect::<Vec<_>>() }).to_string();
        assert_eq!(server.post("/v1/check/batch", &batch).status, 200);
    }
    until_true("all are reported", || {
        server.count("slidegate_notifications_total{policy=\"per-user\"}") == 400
    });
    // Half of the 256 wait, as the policy leaves the rest to others, and one may be sent.
    let dropped = server.count("slidegate_webhook_messages_total{outcome=\"dropped\"}");
    assert!((270..=272).contains(&dropped), "{dropped}");
    assert!(check(&server, &json!({ "user": "zoe" })));
}
