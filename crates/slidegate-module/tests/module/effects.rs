//! What a decision leaves behind: in replicas, in the append-only file, for `WATCH`.

use slidegate_testkit::redis::{RedisServer, Reply, acl};
use slidegate_testkit::until_true;

use crate::calls::{Algorithm, Both, By, NOW_US, Quota};
use crate::decide::{Call, Hold, Part};
use crate::holds::run_by_module;

const QUOTAS: [(&str, Algorithm, u64); 5] = [
    ("log", Algorithm::Log, 20),
    ("long", Algorithm::Log, 500),
    ("window", Algorithm::Window, 100),
    ("fixed", Algorithm::Fixed, 100),
    ("bucket", Algorithm::Bucket, 100),
];

/// Charges a key of each kind until its log has grown, wrapped around and has been renewed.
fn charge_all(both: &mut Both, from_us: u64) {
    for at in 0..150 {
        both.at(from_us + at * 400_000);
        for (key, algorithm, limit) in QUOTAS {
            let quota = Quota::new(algorithm, limit, 10_000_000);
            assert!(matches!(
                both.check(By::Module, key, &quota, &[1 + at % 3]),
                Reply::Bytes(_) | Reply::List(_)
            ));
        }
        both.call(&[b"RL.CHECK", b"rl", b"20", b"10s"]);
        both.call(&[b"CL.THROTTLE", b"cl", b"20", b"10", b"5"]);
    }
}

/// Calls for several keys, refunds, and tables of holds that are made, grow and go.
fn hold_all(both: &mut Both, from_us: u64) {
    for seed in 1..=20 {
        run_by_module(both, seed, from_us);
    }
    // What has expired meanwhile, and was not read again, is still there elsewhere.
    both.at(from_us);
}

/// In the future, so that the true clocks of other servers expire nothing.
const FROM_US: u64 = 4_000_000_000_000_000;

/// Value and expiry of every key, by name.
fn everything(server: &RedisServer) -> Vec<(String, Reply, Reply)> {
    let mut keys: Vec<_> = server.admin(&["KEYS", "*"]).lines().map(str::to_owned).collect();
    keys.sort();
    let of = |key: String| {
        let [dump, expires] = ["GET", "PEXPIRETIME"].map(|command| server.ask(&[command, &key]).unwrap());
        (key, dump, expires)
    };
    keys.into_iter().map(of).collect()
}

/// What a replica without the module has of what this leaves, which are so many keys at least.
fn replicate(charge: impl Fn(&mut Both, u64), least: usize) {
    let mut both = Both::start();
    let port = both.server.port().to_string();
    let replica = RedisServer::builder().module(false).args(["--replicaof", "127.0.0.1", port.as_str()]);
    let replica = replica.start();
    both.server.until_followed_by(1);
    charge(&mut both, FROM_US);
    let expected = everything(&both.server);
    assert!(expected.len() >= least, "{}", expected.len());
    until_true("the replica has what the master has", || everything(&replica) == expected);
    let stats = replica.admin(&["INFO", "commandstats"]);
    assert!(!stats.contains("cmdstat_slidegate"), "{stats}");
}

/// What a server without the module loads from the append-only file.
fn load(charge: impl Fn(&mut Both, u64), least: usize) {
    let args = ["--appendonly", "yes", "--appendfsync", "always"];
    let mut both = Both::on(RedisServer::builder().with_clock().module(true).args(args).start());
    charge(&mut both, FROM_US);
    let expected = everything(&both.server);
    assert!(expected.len() >= least, "{}", expected.len());
    both.server.kill();
    let folder = ["--dir", both.server.dir().to_str().unwrap()];
    let restarted = RedisServer::builder().module(false).args(args).args(folder).start();
    assert_eq!(everything(&restarted), expected);
    assert!(!restarted.admin(&["MODULE", "LIST"]).contains("slidegate"));
}

/// A replica without the module, and every old release that takes over, must have the same usage.
#[test]
fn a_replica_without_the_module_has_the_same_values() {
    replicate(charge_all, QUOTAS.len() + 2);
}

/// The same of calls for several keys and of holds.
#[test]
fn holds_reach_a_replica_without_the_module() {
    replicate(hold_all, 20);
}

/// A server that is started again without the module must start, and have the same usage.
#[test]
fn an_append_only_file_loads_without_the_module() {
    load(charge_all, QUOTAS.len() + 2);
}

/// The same of calls for several keys and of holds.
#[test]
fn holds_are_loaded_without_the_module() {
    load(hold_all, 20);
}

/// A denial that counts as a change would make caches of clients useless, and transactions fail.
#[test]
fn a_denial_changes_nothing() {
    let mut both = Both::start();
    let quota = Quota::new(Algorithm::Log, 1, 3_600_000_000);
    both.check(By::Module, "key", &quota, &[1]);
    let value = both.stored("key");
    let changes = |both: &mut Both| {
        let info = both.server.admin(&["INFO", "persistence"]);
        info.lines().find(|line| line.starts_with("rdb_changes")).unwrap().to_owned()
    };
    let before = changes(&mut both);
    let mut watching = both.server.connect();
    for (cost, is_executed) in [(1, true), (0, true)] {
        watching.call(&["WATCH", "key"]).unwrap();
        both.check(By::Module, "key", &quota, &[cost]);
        watching.call(&["MULTI"]).unwrap();
        watching.call(&["PING"]).unwrap();
        assert_eq!(watching.call(&["EXEC"]).unwrap() != Reply::Nil, is_executed);
    }
    assert_eq!((both.stored("key"), changes(&mut both)), (value, before));
    watching.call(&["WATCH", "other"]).unwrap();
    both.check(By::Module, "other", &quota, &[1]);
    watching.call(&["MULTI"]).unwrap();
    watching.call(&["PING"]).unwrap();
    assert_eq!(watching.call(&["EXEC"]).unwrap(), Reply::Nil, "a charge is a change");
}

/// Late calls belong to callers who have given up.
#[test]
fn a_late_call_charges_nothing() {
    let mut both = Both::start();
    both.at(NOW_US);
    let packed = Quota::new(Algorithm::Fixed, 1, 60_000_000).for_module();
    let latest = (NOW_US - 1).to_string();
    let late = both.call(&[b"SLIDEGATE.CHECK1", b"key", latest.as_bytes(), &packed, b"1"]);
    let now = Reply::Integer(NOW_US.cast_signed());
    assert_eq!(late, Reply::List(vec![Reply::Integer(-1), now]));
    assert_eq!(both.stored("key"), None);
    let in_time = NOW_US.to_string();
    let charged = both.call(&[b"SLIDEGATE.CHECK1", b"key", in_time.as_bytes(), &packed, b"1"]);
    assert!(matches!(charged, Reply::Bytes(_)));
}

/// A full server refuses to store more, and says so before anything is decided.
#[test]
fn a_full_server_refuses() {
    let server = RedisServer::builder().module(true).args(["--maxmemory", "1"]).start();
    let reply = server.ask(&["RL.CHECK", "key", "1", "1m"]).unwrap();
    assert!(matches!(&reply, Reply::Error(error) if error.starts_with("OOM ")), "{reply:?}");
}

/// An operator replaces the module by a newer one while the server runs, unless that would end the
/// server: Redis 8 calls an unloaded command again.
#[test]
fn the_module_is_unloaded_and_loaded_again_or_stays() {
    let server = RedisServer::builder().module(true).args(["--enable-module-command", "yes"]).start();
    // Valkey unloads no command that a user's rules name.
    server.admin(&["ACL", "DELUSER", acl::USER]);
    let mut client = server.connect();
    let mut allowed = || match client.call(&["RL.CHECK", "key", "9", "1m"]).unwrap() {
        Reply::List(numbers) => Ok(numbers[2].to_string()),
        other => Err(other.to_string()),
    };
    assert_eq!(allowed().unwrap(), "8");
    let info = server.admin(&["INFO", "server"]);
    let version = info.lines().find_map(|line| line.strip_prefix("redis_version:")).unwrap().to_owned();
    let major: u32 = version.split('.').next().unwrap().parse().unwrap();
    if major >= 8 {
        let refused = server.ask(&["MODULE", "UNLOAD", "slidegate"]).unwrap();
        assert!(matches!(&refused, Reply::Error(error) if error.contains("unloading")), "{refused:?}");
        assert_eq!(allowed().unwrap(), "7");
        return;
    }
    assert_eq!(server.admin(&["MODULE", "UNLOAD", "slidegate"]), "OK");
    assert!(allowed().unwrap_err().contains("unknown command"));
    let path = slidegate_testkit::redis::module().to_str().unwrap();
    assert_eq!(server.admin(&["MODULE", "LOAD", path]), "OK");
    assert_eq!(allowed().unwrap(), "7");
}

/// Who subscribes to events of keys sees what the module writes, as what scripts write.
#[test]
fn subscribers_get_the_events_of_what_is_written() {
    let server = RedisServer::builder().with_clock().module(true).args(["--notify-keyspace-events", "KA"]);
    let mut both = Both::on(server.start());
    let quota = Quota::new(Algorithm::Log, 10, 60_000_000);
    let hold = |key, id| {
        let hold = Some(Hold { id, ttl_us: 1_000_000, is_dropped: true });
        let parts = vec![Part { hold, ..Part::plain(key, 'h') }];
        Call { quotas: vec![quota; 3], costs: vec![1], parts, has_holds: true, once_ms: None }
    };
    for by in [By::Script, By::Module] {
        let prefix = format!("{by:?}");
        let mut events = both.server.connect();
        let pattern = format!("__keyspace@0__:{prefix}:*");
        events.call(&["PSUBSCRIBE", &pattern]).unwrap();
        both.at(NOW_US);
        let plain = |verb| Call { parts: vec![Part::plain(0, verb)], has_holds: false, ..hold(0, 0) };
        plain('c').run(&mut both, by, &prefix);
        plain('c').run(&mut both, by, &prefix);
        Call { costs: vec![2], ..plain('r') }.run(&mut both, by, &prefix);
        plain('p').run(&mut both, by, &prefix);
        plain('c').run(&mut both, by, &prefix);
        hold(0, 7).run(&mut both, by, &prefix);
        both.at(NOW_US + 2_000_000);
        hold(0, 8).run(&mut both, by, &prefix);
        let mut seen = Vec::new();
        while let Reply::List(message) = events.call(&["PING"]).unwrap() {
            let [_, _, Reply::Bytes(channel), Reply::Bytes(event)] = message.as_slice() else { break };
            let [channel, event] = [channel, event].map(|bytes| String::from_utf8(bytes.clone()).unwrap());
            let key = channel.rsplit_once(&prefix).unwrap().1.to_owned();
            seen.push(format!("{event} {}", key.trim_start_matches(':')));
        }
        // The end of a hold is written before the next one is made.
        let expected = [
            "set key:0",
            "expire key:0",
            "setrange key:0",
            "del key:0",
            "set key:0",
            "expire key:0",
            "rename_from key:0",
            "rename_to usage:0",
            "set key:0",
            "expire key:0",
            "rename_from usage:0",
            "rename_to key:0",
            "rename_from key:0",
            "rename_to usage:0",
            "set key:0",
            "expire key:0",
        ];
        assert_eq!(seen, expected, "by {by:?}");
    }
}
