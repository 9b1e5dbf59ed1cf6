//! `INCREX`, the counter with bounds of Redis 8.8 and Valkey 9.2, by a script that does the same: the
//! figures of `docs/algorithms.md` and `COMPARE.md`.

use slidegate::{DecisionSource, Policy, Quota, Request};
use slidegate_testkit::redis::{Connection, RedisServer, Reply};

use crate::callers::{gate, options};
use crate::hold_histories::START_US;

const SCRIPT: &str = include_str!("../../../../bench/redis/rivals/increx.lua");
const SECOND_US: u64 = 1_000_000;
/// A key has expired in the millisecond after its last.
const END_US: u64 = 60 * SECOND_US + 1_000;
const LIMIT: i64 = 100;
const WINDOW_MS: &str = "60000";

/// A counter of 100 per 60 s on a server whose clock is moved by hand.
struct Counter {
    server: RedisServer,
    conn: Connection,
}

impl Counter {
    fn start() -> Self {
        let server = RedisServer::builder().with_clock().start();
        let conn = server.connect();
        let counter = Self { server, conn };
        counter.at_us(0);
        counter
    }

    fn at_us(&self, us: u64) {
        self.server.clock().stand(START_US + us);
    }

    /// Adds so much, and returns what was added.
    fn add(&mut self, n: i64) -> i64 {
        let (n, limit) = (n.to_string(), LIMIT.to_string());
        match self.conn.call(&["EVAL", SCRIPT, "1", "counter", &n, &limit, WINDOW_MS]).unwrap() {
            Reply::List(reply) => match reply.as_slice() {
                [Reply::Integer(_), Reply::Integer(added)] => *added,
                other => panic!("{other:?}"),
            },
            other => panic!("{other:?}"),
        }
    }

    /// Asks so often for one, and returns how often it was allowed.
    fn ask(&mut self, times: i64) -> i64 {
        (0..times).map(|_| self.add(1)).sum()
    }
}

/// Who relies on the limit must know how much passes around the end of a window.
#[tokio::test]
async fn a_counter_admits_199_of_100_in_two_milliseconds_and_the_log_100() {
    let mut counter = Counter::start();
    let policy = Policy::new("p", Quota::per_minute(100)).unwrap().with_scope(["user"]);
    let log = gate([policy], options(&counter.server.url()).without_denial_cache());
    let request = Request::new().with("user", "alice");
    let mut admitted = [(0, 0); 3];
    for (at, (us, asks)) in [(0, 1), (END_US - 2_000, 200), (END_US, 200)].into_iter().enumerate() {
        counter.at_us(us);
        admitted[at].0 = counter.ask(asks);
        for _ in 0..asks {
            let decisions = log.check(&request).await;
            assert!(
                decisions.iter().all(|one| one.decision().source() == DecisionSource::Store),
                "{decisions:?}"
            );
            admitted[at].1 += i64::from(decisions.is_allowed());
        }
    }
    // The window begins with the first request, and the log's first charge has ended as well.
    assert_eq!(admitted, [(1, 1), (99, 99), (100, 1)]);
}

/// A denial tells nothing but that it is one: the wait is a second call.
#[test]
fn a_denial_changes_nothing_and_its_wait_is_the_life_of_the_key() {
    let mut counter = Counter::start();
    assert_eq!(counter.ask(100), 100);
    counter.at_us(45 * SECOND_US);
    assert_eq!(counter.add(1), 0);
    assert_eq!(counter.server.admin(&["GET", "counter"]), "100");
    assert_eq!(counter.server.admin(&["PTTL", "counter"]), "15000");
}

/// A request that fails after the end of its window gives its cost back to the next one.
#[test]
fn a_refund_after_the_end_of_its_window_admits_110_of_100_in_the_next() {
    let mut counter = Counter::start();
    assert_eq!(counter.add(10), 10);
    counter.at_us(END_US);
    assert_eq!(counter.add(-10), 0, "nobody has counted yet: it would leave the bounds");
    assert_eq!(counter.ask(200), 100);
    assert_eq!(counter.add(-10), -10);
    assert_eq!(counter.ask(200), 10);
}
