//! Instances that count themselves through the store.

use std::time::Duration;

use slidegate::store::{FallbackStore, ServiceStore};
use slidegate::{PolicySet, SharedGate};
use slidegate_redis::RedisStore;
use slidegate_testkit::redis::RedisServer;

use crate::callers::{check, daily, options};

const TABLE: &str = "sg1:~instances";
const SECOND_US: i64 = 1_000_000;

fn store(server: &RedisServer) -> RedisStore {
    RedisStore::new(options(&server.url_as_user())).unwrap()
}

/// An autoscaler starts and ends instances, and nobody changes a setting: each must know how many
/// there are, and none may count forever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn instances_count_themselves_by_the_servers_clock() {
    let server = RedisServer::builder().with_clock().start();
    let stores = [(); 3].map(|()| store(&server));
    for (at, store) in stores.iter().enumerate() {
        assert_eq!(store.count_instances(None).await.unwrap(), at as u64 + 1);
        assert_eq!(store.count_instances(None).await.unwrap(), at as u64 + 1);
    }
    let [one, two, three] = &stores;
    assert_eq!(one.count_instances(None).await.unwrap(), 3);
    let ttl: u64 = server.admin(&["PTTL", TABLE]).trim().parse().unwrap();
    assert!((1..=10_000).contains(&ttl), "{ttl}");
    // Two go on, the third has ended.
    server.clock().set(6 * SECOND_US);
    assert_eq!(one.count_instances(None).await.unwrap(), 3);
    assert_eq!(two.count_instances(None).await.unwrap(), 3);
    server.clock().set(12 * SECOND_US);
    assert_eq!(one.count_instances(None).await.unwrap(), 2);
    assert_eq!(three.count_instances(None).await.unwrap(), 3, "it is back");
    // A clock that is set back neither loses instances nor keeps them forever.
    server.clock().set(-3600 * SECOND_US);
    assert_eq!(one.count_instances(None).await.unwrap(), 3);
    server.clock().set(-3589 * SECOND_US);
    assert_eq!(one.count_instances(None).await.unwrap(), 1);
}

/// Without Redis a limit holds only if the shares of all instances add up to it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_fallbacks_share_is_that_of_the_last_count() {
    let server = RedisServer::start();
    let gates = [(); 3].map(|()| {
        let policies = PolicySet::new([daily(6)]).unwrap();
        SharedGate::with_store(policies, FallbackStore::new(store(&server))).unwrap()
    });
    for _ in 0..2 {
        for gate in &gates {
            let counted = gate.store().primary().count_instances(None).await.unwrap();
            gate.store().share_among(counted);
        }
    }
    server.kill();
    let mut admitted = 0;
    for gate in &gates {
        assert_eq!(gate.store().instances(), 3);
        assert!(gate.store().primary().count_instances(None).await.is_err(), "nobody counts");
        for _ in 0..6 {
            admitted += u64::from(check(gate, "alice").await.allowed);
        }
    }
    assert_eq!(admitted, 6);
    // What was counted under the old share counts under the new one.
    let [gate, ..] = &gates;
    gate.store().share_among(2);
    let admitted = [check(gate, "alice").await.allowed, check(gate, "alice").await.allowed];
    assert_eq!(admitted, [true, false]);
}

/// Whatever another program writes, instances go on counting themselves, read a bounded part of it, and
/// tell of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_no_instance_wrote_into_the_table_is_not_counted_and_is_replaced() {
    let server = RedisServer::start();
    let store = store(&server);
    let other = self::store(&server);
    let long = "what no instance wrote ".repeat(130_000);
    let after = |line: &str| ["ffffffffffffffff 99999999999999\n", line].concat();
    let texts = ["hello", "1 x\n", "\n", "00ff 99999999999999\n", "\u{1b}[2J 1\n", &long, "\u{0}\u{1}"];
    let mixed = texts.map(after);
    let mixed = mixed.iter().map(|text| (text.as_str(), 3));
    for (at, (foreign, instances)) in texts.map(|text| (text, 2)).into_iter().chain(mixed).enumerate() {
        server.admin(&["SET", TABLE, foreign]);
        assert!(store.foreign_instances().await.unwrap() > 0, "{at}");
        assert!(other.count_instances(None).await.unwrap() < instances, "{at}");
        assert_eq!(store.count_instances(None).await.unwrap(), instances, "{at}");
        assert_eq!(store.foreign_instances().await.unwrap(), 0, "{at}");
        let table = server.admin(&["GET", TABLE]);
        assert!(table.len() < 200 && table.contains(store.instance_id()), "{at}: {table}");
        assert_eq!((other.stats().instances_replaced, store.stats().instances_replaced), (at as u64 + 1, 0));
    }
    server.admin(&["DEL", TABLE]);
    server.admin(&["RPUSH", TABLE, "a list"]);
    assert_eq!((store.count_instances(None).await.unwrap(), store.stats().instances_replaced), (1, 1));
    let now = server.admin(&["TIME"]).lines().next().unwrap().parse::<u64>().unwrap() * 1000;
    let crowd: String = (0..5000).map(|number| format!("{number:016x} {now}\n")).collect();
    server.admin(&["SET", TABLE, &crowd]);
    assert_eq!(store.count_instances(None).await.unwrap(), 1000);
    let left = server.admin(&["GET", TABLE]);
    assert_eq!(left.lines().filter(|line| !line.is_empty()).count(), 1000);
    assert!(slidegate::store::COUNT_INTERVAL * 3 <= Duration::from_secs(10), "an instance may miss two");
}

/// Operators ask one instance what all of them do, and must not be shown one that has ended.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_instance_publishes_is_read_by_all_until_it_no_longer_counts() {
    let server = RedisServer::builder().with_clock().start();
    let [one, two, silent] = [(); 3].map(|()| store(&server));
    assert_eq!(one.count_instances(Some(b"first")).await.unwrap(), 1);
    assert_eq!(two.count_instances(Some(b"second")).await.unwrap(), 2);
    assert_eq!(silent.count_instances(None).await.unwrap(), 3);
    assert_eq!(one.count_instances(Some(b"third")).await.unwrap(), 3);
    let records = async || {
        let mut records = silent.instance_records().await.unwrap();
        records.sort_by(|a, b| a.record.cmp(&b.record));
        records.into_iter().map(|one| (one.id, one.record)).collect::<Vec<_>>()
    };
    let of = |store: &RedisStore, record: &[u8]| (store.instance_id().to_owned(), record.to_vec());
    assert_eq!(records().await, [of(&two, b"second"), of(&one, b"third")]);
    // They lie in one slot, so that a cluster reads them at once, and none stays for long.
    for name in server.admin(&["KEYS", "sg1:~instance:*"]).lines() {
        assert!(name.starts_with("sg1:~instance:{sg1:~instances}:"), "{name}");
        let ttl: u64 = server.admin(&["PTTL", name]).trim().parse().unwrap();
        assert!((1..=10_000).contains(&ttl), "{ttl}");
    }
    let failure = one.count_instances(Some(&[b'x'; 4097])).await.unwrap_err().to_string();
    assert_eq!(failure, "redis: record: invalid size of 4097 bytes: must be at most 4096");
    server.clock().set(11 * SECOND_US);
    assert_eq!(one.count_instances(Some(b"fourth")).await.unwrap(), 1);
    assert_eq!(records().await, [of(&one, b"fourth")]);
}

/// A false alarm clears the cached denials of a whole fleet. All instances count the same canaries, and one may be
/// stopped while it does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_others_count_meanwhile_is_no_lost_history() {
    let server = RedisServer::start();
    let examined = (0..8).map(|_| {
        let one = store(&server);
        tokio::spawn(async move {
            let mut findings = Vec::new();
            for _ in 0..50 {
                findings.extend(one.examine().await);
            }
            findings
        })
    });
    for findings in examined.collect::<Vec<_>>() {
        assert_eq!(findings.await.unwrap(), [""; 0]);
    }
    assert_eq!(server.admin(&["GET", "sg1:~canary:0"]), "400");
}

/// Two instances must not notify a customer twice of the same threshold.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_all_instances_one_gets_a_claim_until_it_ends() {
    let server = RedisServer::start();
    let [one, two] = [(); 2].map(|()| store(&server));
    let long = Duration::from_secs(3600);
    let (first, second) = tokio::join!(one.claim(b"alice:80", long), two.claim(b"alice:80", long));
    assert_ne!(first.unwrap(), second.unwrap(), "one of two");
    assert!(two.claim(b"alice:100", long).await.unwrap());
    assert!(!one.claim(b"alice:100", long).await.unwrap());
    let names = server.admin(&["KEYS", "sg1:~claim:*"]);
    assert_eq!(names.trim().lines().count(), 2);
    assert!(!names.contains("alice"), "{names}");
    let short = Duration::from_millis(1);
    assert!(one.claim(b"bob", short).await.unwrap());
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert!(!one.extend_claim(b"bob", long).await.unwrap(), "it has ended");
    assert!(two.claim(b"bob", long).await.unwrap());
    assert!(!one.extend_claim(b"bob", long).await.unwrap(), "it is another's");
    assert!(two.extend_claim(b"bob", long).await.unwrap());
    server.kill();
    assert!(one.claim(b"carol", short).await.is_err());
    assert!(two.extend_claim(b"bob", long).await.is_err());
}
