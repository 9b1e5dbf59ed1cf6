//! Closed periods: what each customer used in a month is delivered once, by whichever instance lives.

use std::collections::{BTreeMap, HashMap};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::sync::atomic::{AtomicU16, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use slidegate::Calendar;
use slidegate_testkit::redis::RedisServer;
use slidegate_testkit::service::Server;
use slidegate_testkit::{TempDir, until_true};

const SECOND_US: i64 = 1_000_000;
const DAY_US: i64 = 86_400 * SECOND_US;

/// A receiver that stores what it accepts: bodies by id, and how often each came.
struct Receiver {
    url: String,
    received: Arc<Mutex<HashMap<String, (Value, usize)>>>,
    /// Its status.
    status: Arc<AtomicU16>,
    /// While it has received this many, further senders wait.
    most: Arc<AtomicUsize>,
}

impl Receiver {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/hooks", listener.local_addr().unwrap());
        let (received, status) = (Arc::<Mutex<HashMap<_, _>>>::default(), Arc::new(AtomicU16::new(204)));
        let most = Arc::new(AtomicUsize::new(usize::MAX));
        let (known, answers, bound) = (Arc::clone(&received), Arc::clone(&status), Arc::clone(&most));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                while known.lock().unwrap().len() >= bound.load(Ordering::Relaxed) {
                    std::thread::sleep(Duration::from_millis(1));
                }
                let stream = stream.unwrap();
                stream.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
                let mut reader = BufReader::new(stream);
                let head: Vec<_> = reader
                    .by_ref()
                    .lines()
                    .map_while(Result::ok)
                    .take_while(|line| !line.is_empty())
                    .collect();
                let field =
                    |name: &str| head.iter().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
                let (Some(length), Some(id)) = (field("content-length"), field("webhook-id")) else {
                    continue;
                };
                let mut body = vec![0; length.parse().unwrap()];
                // A sender may have been killed or stopped.
                if reader.read_exact(&mut body).is_err() {
                    continue;
                }
                let status = answers.load(Ordering::Relaxed);
                if status < 300 {
                    let body: Value = serde_json::from_slice(&body).unwrap();
                    let mut known = known.lock().unwrap();
                    let (first, times) = known.entry(id.to_owned()).or_insert_with(|| (body.clone(), 0));
                    assert_eq!(*first, body, "one id, one message");
                    *times += 1;
                }
                let answer = format!("HTTP/1.1 {status} x\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
                let _ = reader.get_mut().write_all(answer.as_bytes());
            }
        });
        Self { url, received, status, most }
    }

    fn count(&self) -> usize {
        self.received.lock().unwrap().len()
    }

    /// How often a message came again.
    fn repeated(&self) -> usize {
        self.received.lock().unwrap().values().map(|(_, times)| times - 1).sum()
    }

    /// Totals by key, of messages that have not been taken before.
    fn take(&self) -> BTreeMap<String, u64> {
        let messages = std::mem::take(&mut *self.received.lock().unwrap());
        let count = messages.len();
        let of = |(body, _): (Value, usize)| {
            (body["data"]["key"].as_str().unwrap().to_owned(), body["data"]["used"].as_u64().unwrap())
        };
        let totals: BTreeMap<_, _> = messages.into_values().map(of).collect();
        assert_eq!(totals.len(), count, "a key has one id");
        totals
    }
}

fn berlin() -> Calendar {
    Calendar::month().with_time_zone("Europe/Berlin").unwrap()
}

/// The machine's time, in microseconds since the epoch.
fn now() -> i64 {
    jiff::Timestamp::now().as_microsecond()
}

/// Two instances over a Redis server whose month ends soon, on one clock.
struct Fleet {
    _folder: TempDir,
    redis: RedisServer,
    receiver: Receiver,
    instances: Vec<Server>,
    config: String,
    /// The end of the month, in microseconds since the epoch.
    border: i64,
}

impl Fleet {
    fn start(name: &str) -> Self {
        let (folder, receiver) = (TempDir::new(name), Receiver::start());
        let redis = RedisServer::builder().with_clock().start();
        let text = format!(
            "store: {{redis: '{}', deadline: 10s}}\n\
             webhook: {{url: '{}', secret: whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw}}\n\
             policies:\n\
             \x20 - {{name: monthly, scope: [user], limit: {{by: plan, values: {{pro: 5000}}, default: 1000}}, window: month, time_zone: Europe/Berlin, notify: closed, unit: cents}}\n\
             \x20 - {{name: daily, scope: [user], limit: 9000, window: day}}\n",
            redis.url(),
            receiver.url
        );
        let config = folder.file("slidegate.yaml", text);
        let border = i64::try_from(berlin().period(now().cast_unsigned()).end).unwrap();
        let mut fleet = Self { _folder: folder, redis, receiver, instances: Vec::new(), config, border };
        fleet.at(-3600 * SECOND_US);
        fleet.instances = (0..2).map(|_| fleet.instance()).collect();
        fleet
    }

    fn instance(&self) -> Server {
        Server::start_with(&["--config", &self.config], &self.redis.clock().variables())
    }

    /// Moves all clocks to this time after the border.
    fn at(&self, after_us: i64) {
        self.redis.clock().set(self.border - now() + after_us);
    }

    /// From the border to one so many months later.
    fn months_us(&self, months: usize) -> i64 {
        let next = |border: i64, _| i64::try_from(berlin().period(border.cast_unsigned()).end).unwrap();
        (0..months).fold(self.border, next) - self.border
    }

    fn charge(&self, at: usize, user: &str, cost: u64) {
        let plan = if user == "alice" { "pro" } else { "free" };
        let body = json!({ "attributes": { "user": user, "plan": plan }, "cost": cost }).to_string();
        let checked = self.instances[at % self.instances.len()].post("/v1/check", &body);
        assert_eq!((checked.status, &checked.json()["source"]), (200, &json!("store")), "{}", checked.body);
    }
}

/// Lets one of two instances report so many of the users' totals, and no more. Returns all totals, and which instance
/// reports. The first hundred users have used 500 more in the next month.
fn reporting(name: &str, users: u64, reports: usize) -> (Fleet, BTreeMap<String, u64>, usize) {
    let fleet = Fleet::start(name);
    fleet.receiver.most.store(reports, Ordering::Relaxed);
    let mut expected = BTreeMap::new();
    for user in 0..users {
        let (name, cost) = (format!("user-{user}"), 1 + user % 7);
        fleet.charge(0, &name, cost);
        fleet.charge(1, &name, 2);
        expected.insert(name, cost + 2);
    }
    for user in 0..100 {
        // Nothing is reported in the first five seconds, however long this takes.
        fleet.at(SECOND_US);
        fleet.charge(user, &format!("user-{user}"), 500);
    }
    assert_eq!(fleet.receiver.count(), 0);
    fleet.at(60 * SECOND_US);
    until_true("one instance reports", || fleet.receiver.count() == reports);
    let sent = |server: &Server| server.count("slidegate_webhook_messages_total{outcome=\"sent\"}");
    let reporting = fleet.instances.iter().position(|server| sent(server) > 0).unwrap();
    (fleet, expected, reporting)
}

const REPORTED: &str = "slidegate_notifications_total{policy=\"monthly\"}";

/// Several instances report a period, one at a time: one that could not renew its claim must leave it to the others.
#[test]
fn an_instance_that_was_stopped_for_long_leaves_the_rest_to_the_one_that_has_its_claim() {
    let (mut fleet, expected, stopped) = reporting("closing-stopped", 200, 40);
    fleet.instances[stopped].signal("STOP");
    fleet.at(100 * SECOND_US);
    fleet.receiver.most.store(usize::MAX, Ordering::Relaxed);
    until_true("the other one reports the rest", || fleet.receiver.count() == expected.len());
    let other = fleet.instances.remove(1 - stopped);
    until_true("all are acknowledged", || other.count(REPORTED) >= expected.len() as u64 - 40);
    drop(other);
    fleet.instances[0].signal("CONT");
    // It reports the next month when it is through with this one.
    fleet.at(fleet.months_us(1) + 60 * SECOND_US);
    until_true("the next month is reported", || fleet.receiver.count() == expected.len() + 100);
    let again = fleet.receiver.repeated();
    assert!(again <= 16, "{again} were sent again");
}

/// A bill must have each customer's month once, although an instance dies while it reports.
#[test]
fn a_thousand_totals_arrive_once_though_an_instance_is_killed_among_them() {
    let before = 200;
    let (mut fleet, expected, reporting) = reporting("closing", 1000, before);
    fleet.instances[reporting].signal("KILL");
    let mut killed = fleet.instances.remove(reporting);
    killed.wait();
    fleet.receiver.most.store(usize::MAX, Ordering::Relaxed);
    // The claim of the killed one ends.
    fleet.at(100 * SECOND_US);
    until_true("the other one reports the rest", || fleet.receiver.count() == 1000);
    until_true("all are acknowledged", || fleet.instances[0].count(REPORTED) >= 1000 - before as u64);
    let again = fleet.receiver.repeated();
    assert!(again <= 16, "{again} were sent twice, with the same ids");
    let one = fleet.receiver.received.lock().unwrap().values().next().unwrap().0.clone();
    assert_eq!((&one["type"], &one["data"]["limit"]), (&json!("period.closed"), &json!(1000)), "{one}");
    assert_eq!(
        (&one["data"]["reason"], &one["data"]["policy"]),
        (&json!("closed"), &json!("monthly")),
        "{one}"
    );
    let text = |us: i64| berlin().time_text(slidegate::clock::Timestamp::from_micros(us.cast_unsigned()));
    let began = i64::try_from(berlin().period(fleet.border.cast_unsigned() - 1).begin).unwrap();
    let period = json!({ "begins": text(began), "ends": text(fleet.border), "time_zone": "Europe/Berlin", "unit": "cents", "plan": null });
    assert_eq!(one["data"]["period"], period);
    assert!(text(fleet.border).contains("T00:00:00+0"), "{period}");
    assert_eq!(fleet.receiver.take(), expected);
    let key = fleet.instances[0].get("/v1/keys/monthly/user-7").json();
    assert_eq!(key["used"], 500, "the new month counts on: {key}");

    // The next month: only what was used in it.
    fleet.instances.push(fleet.instance());
    fleet.at(fleet.months_us(1) + 60 * SECOND_US);
    until_true("its totals arrive", || fleet.receiver.count() == 100);
    assert_eq!(fleet.receiver.take(), (0..100).map(|user| (format!("user-{user}"), 500)).collect());
}

/// An evening without the receiver, or a store that lost everything, must not become wrong bills.
#[test]
fn a_receiver_that_was_away_gets_all_and_an_emptied_store_reports_nothing() {
    let fleet = Fleet::start("closing-away");
    let users = ["alice", "bob", "carol@example.com"];
    for (user, cost) in users.iter().zip(1..) {
        fleet.charge(0, user, cost);
    }
    fleet.receiver.status.store(503, Ordering::Relaxed);
    fleet.at(60 * SECOND_US);
    let retries =
        || fleet.instances.iter().map(|server| server.count("slidegate_webhook_retries_total")).sum::<u64>();
    until_true("the receiver refuses all", || retries() >= 3);
    fleet.receiver.status.store(200, Ordering::Relaxed);
    fleet.at(DAY_US);
    until_true("it is asked again", || fleet.receiver.count() == 3);
    let messages: Vec<_> =
        fleet.receiver.received.lock().unwrap().values().map(|(one, _)| one["data"].clone()).collect();
    for (key, limit, plan) in [("alice", 5000, json!("pro")), ("bob", 1000, Value::Null)] {
        let one = messages.iter().find(|one| one["key"] == key).unwrap();
        assert_eq!((&one["limit"], &one["period"]["plan"]), (&json!(limit), &plan), "{one}");
    }
    let received = fleet.receiver.take();
    // The store has only a hash of an id that is not plain.
    let hashed = received.iter().find(|(key, _)| key.starts_with('#')).map(|(key, used)| (key.len(), *used));
    assert_eq!((received["alice"], received["bob"], hashed), (1, 2, Some((23, 3))), "{received:?}");

    fleet.charge(1, "alice", 5);
    fleet.redis.admin(&["FLUSHALL"]);
    fleet.at(fleet.months_us(1) + 60 * SECOND_US);
    fleet.charge(0, "bob", 5);
    // The claim of an instance that has looked at all keys lasts longest.
    until_true("the next month was looked at", || {
        let claims = fleet.redis.admin(&["KEYS", "sg1:~claim:*"]);
        let lives_ms = |claim: &str| fleet.redis.admin(&["PTTL", claim]).parse::<i64>().unwrap_or(0);
        claims.split_whitespace().any(|claim| lives_ms(claim) > 86_400_000)
    });
    assert_eq!(fleet.receiver.count(), 0);

    // A receiver that is away for good is not waited for any longer than a week.
    fleet.charge(0, "bob", 5);
    fleet.receiver.status.store(503, Ordering::Relaxed);
    fleet.at(fleet.months_us(2) + 7 * DAY_US - 120 * SECOND_US);
    let dropped = "slidegate_notifications_dropped_total{reason=\"undelivered\"}";
    let dropped = || fleet.instances.iter().map(|server| server.count(dropped)).sum::<u64>();
    until_true("it is counted", || dropped() == 1);
}
