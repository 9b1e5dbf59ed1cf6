//! Snapshots: a restart is not noticed by anybody but its operator.

use std::fs;
use std::net::IpAddr;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use proptest::prelude::*;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use slidegate::{
    Algorithm, Counts, Gate, MemoryStore, Policy, PolicySet, Quota, Request, Verdict,
    clock::{Clock, ManualClock, Timestamp},
    reserve::HoldStatus,
    store::{RestoredSnapshot, SnapshotError, SnapshotFile},
};
use slidegate_testkit::TempDir;

mod histories;

fn policy(name: &str, quota: Quota) -> Policy {
    Policy::new(name, quota).unwrap().with_scope(["user"])
}

fn set(policies: impl IntoIterator<Item = Policy>) -> PolicySet {
    PolicySet::new(policies).unwrap()
}

fn gate(policies: PolicySet, clock: impl Clock + 'static) -> Gate {
    Gate::with_memory(policies, MemoryStore::builder().clock(clock).build())
}

/// Saves a gate to a file, which is read back.
fn saved(gate: &Gate, dir: &TempDir) -> SnapshotFile {
    let mut file = SnapshotFile::open(dir.path().join("snapshot")).unwrap();
    let written = gate.save_to(&mut file, &[("note", b"kept")]).unwrap();
    assert_eq!(fs::metadata(file.path()).unwrap().len(), written.bytes);
    assert!(file.read().unwrap());
    assert_eq!((file.attachment("note"), file.attachment("other")), (Some(&b"kept"[..]), None));
    file
}

/// The next process: other policies, another clock.
fn restored(
    snapshot: &mut SnapshotFile,
    policies: PolicySet,
    clock: impl Clock + 'static,
) -> (Gate, RestoredSnapshot) {
    let store = MemoryStore::builder().clock(clock).for_snapshot(snapshot).build();
    let gate = Gate::with_memory(policies, store);
    let restored = gate.restore(snapshot).unwrap().unwrap();
    (gate, restored)
}

fn used(gate: &Gate, policy: &str, user: &str) -> u64 {
    gate.peek(&Request::new().with("user", user).under(policy)).strictest().unwrap().decision().used()
}

/// A store has keys of all kinds, and each must come back as itself.
#[test]
fn every_key_of_every_policy_comes_back() {
    let (dir, clock) = (TempDir::new("every"), ManualClock::new());
    let long = "a-name-that-is-too-long-to-be-stored-as-it-is";
    let address: IpAddr = "2001:db8::1".parse().unwrap();
    let policies = || {
        let by_user = Algorithm::ALL.map(|algorithm| {
            let quota = Quota::per_hour(50).with_algorithm(algorithm);
            let narrow = Quota::per_minute(7).with_algorithm(algorithm);
            policy(algorithm.name(), quota).with_override(["bob"], narrow).with_override([long], narrow)
        });
        let by_ip =
            Policy::new("ip", Quota::per_hour(2000).with_slots(20)).unwrap().with_scope(["ip", "user"]);
        set(by_user.into_iter().chain([by_ip]))
    };
    let gate = gate(policies(), clock.clone());
    let names: Vec<String> = (0..3000).map(|n| n.to_string()).collect();
    let all = || names.iter().map(String::as_str).chain(["bob", long, "", "*"]);
    for (n, user) in all().enumerate() {
        let request = Request::new().with("user", user).with("ip", address);
        for _ in 0..1 + n % 9 {
            let _ = gate.check(&request.clone().with_cost(1 + n as u64 % 2));
            clock.advance(Duration::from_millis(1));
        }
        // A quota that came with a request belongs to its key.
        if n % 3 == 0 {
            let inline = Quota::per_hour(20).with_algorithm(Algorithm::TokenBucket);
            let _ = gate.check(&Request::new().with("user", user).under("token-bucket").with_quota(inline));
        }
    }
    let mut snapshot = saved(&gate, &dir);
    let keys = gate.store().stats().keys as u64;
    clock.advance(Duration::from_secs(5));
    let (after, found) = restored(&mut snapshot, policies(), clock);
    assert_eq!((found.keys + found.expired, found.downtime.as_secs()), (keys, 5));
    assert_eq!((found.unknown_policy, found.other_algorithm, found.already_used), (0, 0, 0));
    assert_eq!(after.store().stats().keys as u64, found.keys);
    for user in all() {
        let request = Request::new().with("user", user).with("ip", address);
        let of = |gate: &Gate| gate.inspect(&request).unwrap();
        assert_eq!(format!("{:?}", of(&after)), format!("{:?}", of(&gate)), "{user}");
    }
    assert_eq!(
        after.restore(&mut snapshot).unwrap().unwrap().already_used,
        found.keys,
        "nothing is counted twice"
    );
}

/// Policies are changed while a service is stopped: usage follows the name, as after a hot reload.
#[test]
fn usage_belongs_to_the_name_and_scope_of_its_policy() {
    let (dir, clock) = (TempDir::new("names"), ManualClock::new());
    let minute = Quota::per_minute(10);
    let before =
        ["kept", "lowered", "other-algorithm", "other-scope", "removed"].map(|name| policy(name, minute));
    let gate = gate(set(before), clock.clone());
    for _ in 0..6 {
        let _ = gate.check(&Request::new().with("user", "alice"));
    }
    let mut snapshot = saved(&gate, &dir);
    let after = set([
        policy("new", minute),
        policy("other-algorithm", minute.with_algorithm(Algorithm::TokenBucket)),
        policy("lowered", Quota::per_minute(4)),
        Policy::new("other-scope", minute).unwrap().with_scope(["user", "path"]),
        policy("kept", minute),
    ]);
    let (gate, found) = restored(&mut snapshot, after, clock);
    assert_eq!((found.keys, found.unknown_policy, found.other_algorithm), (2, 2, 1));
    let of = |policy: &str| used(&gate, policy, "alice");
    assert_eq!((of("kept"), of("lowered"), of("other-algorithm"), of("new")), (6, 6, 0, 0));
    assert!(gate.check(&Request::new().with("user", "alice").under("lowered")).is_denied());
}

/// Keys that were used more than once are evicted last, after a restart as before it.
#[test]
fn busy_keys_stay_busy_and_the_bounds_of_the_new_store_hold() {
    let (dir, clock) = (TempDir::new("busy"), ManualClock::new());
    let quota = Quota::per_hour(10).with_algorithm(Algorithm::TokenBucket);
    let gate = gate(set([policy("p", quota)]), clock.clone());
    for n in 0..2000 {
        let _ = gate.check(&Request::new().with("user", format!("once-{n}").as_str()));
    }
    for n in 0..300 {
        for cost in [1, 6] {
            let _ = gate.check(&Request::new().with("user", format!("busy-{n}").as_str()).with_cost(cost));
        }
    }
    let mut snapshot = saved(&gate, &dir);
    let store = MemoryStore::builder().clock(clock).max_keys(1000).for_snapshot(&snapshot).build();
    let after = Gate::with_memory(set([policy("p", quota)]), store);
    after.restore(&mut snapshot).unwrap();
    assert_eq!(after.store().stats().keys, 1000);
    for n in 0..5000 {
        let _ = after.check(&Request::new().with("user", format!("flood-{n}").as_str()));
    }
    let lost = (0..300).filter(|n| used(&after, "p", &format!("busy-{n}")) != 7).count();
    assert_eq!(lost, 0);
}

/// Requests that run across a restart still count, and their holders settle them with what they got
/// before it.
#[test]
fn holds_outlive_a_restart_and_those_that_ended_meanwhile_are_charged() {
    let (dir, clock) = (TempDir::new("holds"), ManualClock::new());
    let tokens = || policy("tokens", Quota::per_minute(100));
    let streams = || {
        let quota = Quota::in_flight(2, Duration::from_secs(60)).unwrap();
        policy("streams", quota).with_counts(Counts::Requests)
    };
    let other = || policy("other", Quota::per_minute(5)).with_counts(Counts::Named("unused".into()));
    let before = gate(set([tokens(), streams()]), clock.clone());
    let request = |cost| Request::new().with("user", "alice").with_cost(cost);
    let long = before.reserve_for(&request(60), Duration::from_secs(60)).unwrap().into_ticket().unwrap();
    let short = before.reserve_for(&request(10), Duration::from_secs(20)).unwrap().into_ticket().unwrap();
    let mut snapshot = saved(&before, &dir);
    clock.advance(Duration::from_secs(30));
    // The next release has one more policy, which comes first.
    let (after, restored) = restored(&mut snapshot, set([other(), tokens(), streams()]), clock.clone());
    assert_eq!(restored.holds, 4);
    let counted = |policy: &str| {
        let peek = Request::new().with("user", "alice").under(policy);
        let found = after.peek(&peek);
        let found = found.strictest().unwrap();
        (found.decision().used(), found.decision().held())
    };
    assert_eq!((counted("tokens"), counted("streams")), ((10, 60), (0, 1)));
    let text = long.to_string();
    let settled = after.settle(&text.parse().unwrap(), 20).unwrap();
    assert_eq!(settled.status(), HoldStatus::Changed);
    assert_eq!((counted("tokens"), counted("streams")), ((30, 0), (0, 0)));
    assert_eq!(after.settle(&short, 14).unwrap().status(), HoldStatus::Expired);
    assert_eq!(counted("tokens"), (34, 0), "a late settlement charges what the hold did not");
    // What was charged for the short one counts from its end on, 10 s before the restart.
    clock.advance(Duration::from_secs(49));
    assert_eq!(counted("tokens"), (34, 0));
    clock.advance(Duration::from_secs(1));
    assert_eq!(counted("tokens"), (24, 0));
}

/// A program that forgot to build its store for the snapshot must not set a good file aside.
#[test]
fn a_store_that_was_not_built_for_a_snapshot_damages_none() {
    let (dir, clock) = (TempDir::new("forgotten"), ManualClock::new());
    let quota = Quota::per_hour(9);
    let before = gate(set([policy("p", quota)]), clock.clone());
    let _ = before.check(&Request::new().with("user", "alice"));
    let mut snapshot = saved(&before, &dir);
    let error = gate(set([policy("p", quota)]), clock.clone()).restore(&mut snapshot).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the store hashes keys in another way: build it with `MemoryStoreBuilder::for_snapshot`"
    );
    assert!(error.is_for_another_store() && !error.is_damaged() && !error.is_in_use());
    assert_eq!(restored(&mut snapshot, set([policy("p", quota)]), clock).1.keys, 1);
}

/// A disk that loses a bit must not decide who is admitted: every damage is found before anything
/// is restored.
#[test]
fn every_flipped_bit_and_every_cut_is_detected() {
    let (dir, clock) = (TempDir::new("damage"), ManualClock::new());
    let gate =
        gate(set(Algorithm::ALL.map(|a| policy(a.name(), Quota::per_hour(9).with_algorithm(a)))), clock);
    for user in ["alice", "bob"] {
        let _ = gate.check(&Request::new().with("user", user).with_cost(3));
        drop(gate.reserve(&Request::new().with("user", user).with_cost(2)));
    }
    let mut file = saved(&gate, &dir);
    let whole = fs::read(file.path()).unwrap();
    let mut assert_damaged = |bytes: &[u8], what: String| {
        fs::write(file.path(), bytes).unwrap();
        let error = file.read().expect_err(&what);
        assert!(error.is_damaged(), "{what}: {error}");
        error.to_string()
    };
    for at in 0..whole.len() {
        for bit in [at % 8, (at + 3) % 8] {
            let mut flipped = whole.clone();
            flipped[at] ^= 1 << bit;
            assert_damaged(&flipped, format!("bit {bit} of byte {at}"));
        }
        assert_damaged(&whole[..at], format!("cut after {at} bytes"));
    }
    let longer = [whole.as_slice(), b"\0"].concat();
    let wrong = "the snapshot is cut off or damaged: its checksum is wrong";
    assert_eq!(assert_damaged(&longer, "a byte more".into()), wrong);
    assert_eq!(assert_damaged(&whole[..12], "the beginning".into()), wrong);
    assert_eq!(
        assert_damaged(b"GIF89a, and more", "foreign".into()),
        "the file is not a snapshot of slidegate"
    );
    let mut newer = whole.clone();
    newer[8] = 5;
    assert_eq!(assert_damaged(&newer, "newer".into()), "the snapshot has format 5, and this release reads 4");
}

/// Snapshots are written while clients are served: none of what was charged before is missing, and
/// nothing is there that was not charged.
#[test]
fn a_snapshot_beside_decisions_and_changes_of_policies_has_all_that_was_charged_before() {
    const KEYS: u64 = 4000;
    let (dir, clock) = (TempDir::new("beside"), ManualClock::new());
    let quotas = |limit| {
        Algorithm::ALL
            .map(|algorithm| policy(algorithm.name(), Quota::per_day(limit).with_algorithm(algorithm)))
    };
    let gate = gate(set(quotas(1000)), clock.clone());
    let charged: Vec<_> = (0..KEYS).map(|_| AtomicU64::new(0)).collect();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for worker in 0..2 {
            let (gate, charged, stop) = (&gate, &charged, &stop);
            scope.spawn(move || {
                for n in (worker * 31..).step_by(7) {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    let key = n % KEYS;
                    charged[usize::try_from(key).unwrap()].fetch_add(1, Ordering::SeqCst);
                    let user = key.to_string();
                    assert!(gate.check(&Request::new().with("user", &user)).is_allowed());
                }
            });
        }
        for round in 0..6 {
            let counts = || charged.iter().map(|count| count.load(Ordering::SeqCst)).collect::<Vec<_>>();
            let before = counts();
            let mut snapshot = std::thread::scope(|scope| {
                let saving = scope.spawn(|| saved(&gate, &dir));
                gate.configure(set(quotas(2000 + round))).unwrap();
                saving.join().unwrap()
            });
            let after = counts();
            let (again, found) = restored(&mut snapshot, set(quotas(3000)), clock.clone());
            assert_eq!((found.unknown_policy, found.other_algorithm), (0, 0));
            for key in 0..KEYS {
                for algorithm in Algorithm::ALL {
                    let used = used(&again, algorithm.name(), &key.to_string());
                    let key = usize::try_from(key).unwrap();
                    // Each of the two threads may have counted one that it had yet to charge.
                    let bounds = before[key].saturating_sub(2)..=after[key];
                    assert!(bounds.contains(&used), "{algorithm} {key}: {used} of {bounds:?}");
                }
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
}

/// A clock whose elapsed time and date are apart, as those of a machine whose date was corrected.
#[derive(Debug, Clone)]
struct Apart {
    elapsed: ManualClock,
    ahead_us: u64,
}

impl Clock for Apart {
    fn now(&self) -> Timestamp {
        self.elapsed.now()
    }

    fn wall_time(&self, at: Timestamp) -> Timestamp {
        at + Duration::from_micros(self.ahead_us)
    }
}

/// The date is corrected while a service runs, so the next one counts elapsed time from elsewhere:
/// that must not admit anybody too often.
#[test]
fn another_begin_of_elapsed_time_never_frees_usage() {
    let dir = TempDir::new("apart");
    for algorithm in Algorithm::ALL {
        for (ahead_us, down_us) in [
            (0, 7_000_000),
            (250_000, 0),
            (250_000, 5_000_000),
            (31_000_000, 1_000_000),
            (47_000_123, 12_345_678),
        ] {
            let elapsed = ManualClock::at(Timestamp::from_secs(1_000_000_020));
            let quota = Quota::per_minute(100).with_algorithm(algorithm);
            let former = gate(set([policy("p", quota)]), Apart { elapsed: elapsed.clone(), ahead_us });
            for _ in 0..10 {
                let _ = former.check(&Request::new().with("user", "alice").with_cost(4));
                elapsed.advance(Duration::from_secs(3));
            }
            let mut snapshot = saved(&former, &dir);
            elapsed.advance(Duration::from_micros(down_us));
            // The next process begins with the corrected date.
            let begun = ManualClock::at(elapsed.now() + Duration::from_micros(ahead_us));
            let (next, found) = restored(&mut snapshot, set([policy("p", quota)]), begun.clone());
            assert_eq!(found.downtime.as_micros(), u128::from(down_us));
            let mut exact = true;
            for second in 0..130 {
                let [should, is] = [&former, &next].map(|gate| used(gate, "p", "alice"));
                assert!(is >= should, "{algorithm} {ahead_us} {down_us} after {second} s: {is} of {should}");
                exact &= is == should;
                elapsed.advance(Duration::from_secs(1));
                begun.advance(Duration::from_secs(1));
            }
            assert_eq!(used(&next, "p", "alice"), 0, "and locks nobody for more than a window");
            assert!(exact || algorithm == Algorithm::SlidingWindow && ahead_us > 0, "{algorithm} {ahead_us}");
        }
    }
}

/// A wall clock that was set back makes usage count longer, by one window at most, and never less.
#[test]
fn a_wall_clock_that_was_set_back_counts_as_no_downtime() {
    let dir = TempDir::new("set-back");
    for algorithm in Algorithm::ALL {
        let quota = Quota::per_minute(10).with_algorithm(algorithm);
        let clock = ManualClock::at(Timestamp::from_secs(2_000_000_000));
        let former = gate(set([policy("p", quota)]), clock.clone());
        let _ = former.check(&Request::new().with("user", "alice").with_cost(8));
        let mut snapshot = saved(&former, &dir);
        clock.set(Timestamp::from_secs(1_000_000_000));
        let (next, found) = restored(&mut snapshot, set([policy("p", quota)]), clock.clone());
        assert_eq!((found.downtime, used(&next, "p", "alice")), (Duration::ZERO, 8), "{algorithm}");
        clock.advance(Duration::from_secs(121));
        assert_eq!(used(&next, "p", "alice"), 0, "{algorithm}");
    }
}

/// Programs that need no more than a path must be as safe from each other as those with a file.
#[test]
fn a_gate_opens_its_file_and_is_saved_to_it() {
    let dir = TempDir::new("open");
    let [path, other] = ["usage", "other"].map(|name| dir.path().join(name));
    let policies = || set([policy("p", Quota::per_hour(5))]);
    let alice = Request::new().with("user", "alice");
    let gate = Gate::open(policies(), &path).unwrap();
    assert_eq!(gate.check(&alice).strictest().unwrap().decision().remaining(), 4, "nothing was saved yet");
    assert!(Gate::open(policies(), &path).unwrap_err().is_in_use());
    assert_eq!(gate.save(&path).unwrap().keys, 1);
    let _ = gate.check(&alice);
    gate.save(&path).unwrap();
    // The other file is locked instead.
    gate.save(&other).unwrap();
    assert!(Gate::open(policies(), &other).unwrap_err().is_in_use());
    assert!(Gate::new(policies()).save(&other).unwrap_err().is_in_use());
    let next = Gate::open(policies(), &path).unwrap();
    assert_eq!(next.check(&alice).strictest().unwrap().decision().remaining(), 2);
    drop((gate, next));
    fs::write(&path, "something else").unwrap();
    assert!(Gate::open(policies(), &path).unwrap_err().is_damaged());
}

/// A process that dies in the middle must leave the last good file, and no file for others to read.
#[test]
fn a_file_is_locked_and_replaced_and_damaged_ones_are_kept() {
    let dir = TempDir::new("file");
    let path = dir.path().join("usage.snapshot");
    let mut file = SnapshotFile::open(&path).unwrap();
    assert!(!file.read().unwrap());
    let gate = gate(set([policy("p", Quota::per_hour(5))]), ManualClock::new());
    assert_eq!(gate.restore(&mut file).unwrap(), None);
    let _ = gate.check(&Request::new().with("user", "alice"));
    gate.save_to(&mut file, &[]).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600, "keys are in clear");
    assert!(file.read().unwrap());
    let names = || {
        let names =
            fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<_> = names.collect();
        names.sort();
        names
    };
    assert_eq!(names(), ["usage.snapshot", "usage.snapshot.lock"]);
    let error = SnapshotFile::open(&path).unwrap_err();
    assert!(error.is_in_use());
    let expected = format!("another process saves its usage to `{}`; give each its own file", path.display());
    assert_eq!(error.to_string(), expected);
    // Whatever is found broken is kept, and so many of them only.
    for n in 0..9u8 {
        fs::write(&path, [n]).unwrap();
        assert!(file.read().unwrap_err().is_damaged());
        file.set_aside().unwrap();
    }
    let kept: Vec<_> = names().into_iter().filter(|name| name.contains("damaged")).collect();
    assert_eq!(kept.len(), 5, "{kept:?}");
    let mut left: Vec<u8> = kept.iter().map(|name| fs::read(dir.path().join(name)).unwrap()[0]).collect();
    left.sort_unstable();
    assert_eq!(left, [4, 5, 6, 7, 8], "the last ones");
    assert!(!file.read().unwrap());
}

/// A misspelt directory must be an error at the start, not at the first restart.
#[test]
fn a_place_that_cannot_be_written_is_refused_at_once() {
    let dir = TempDir::new("place");
    let open = |path: &str| -> SnapshotError { SnapshotFile::open(dir.path().join(path)).unwrap_err() };
    let name = dir.path().join("no/usage").display().to_string();
    assert_eq!(
        open("no/usage").to_string(),
        format!(
            "cannot save usage to `{name}`: No such file or directory (os error 2); create its directory"
        )
    );
    fs::create_dir(dir.path().join("usage")).unwrap();
    let name = dir.path().join("usage").display().to_string();
    assert_eq!(open("usage").to_string(), format!("cannot save usage to `{name}`: it is not a regular file"));
}

/// Others may write to a directory such as `/tmp`: what they put there must neither be overwritten by
/// the service nor stop its start.
#[test]
fn links_and_pipes_in_place_of_its_files_are_not_followed() {
    let dir = TempDir::new("links");
    let path = dir.path().join("usage.snapshot");
    let beside = |ending: &str| dir.path().join(format!("usage.snapshot.{ending}"));
    let theirs = dir.path().join("theirs");
    fs::write(&theirs, "theirs").unwrap();
    let pipe = |path: &std::path::Path| {
        // Not by a command: until it runs, its process would hold the locks that other tests give up.
        mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    };

    symlink(&theirs, beside("lock")).unwrap();
    let refused = SnapshotFile::open(&path).unwrap_err().to_string();
    let name = path.display();
    assert_eq!(
        refused,
        format!("cannot save usage to `{name}`: Too many levels of symbolic links (os error 40)")
    );
    fs::remove_file(beside("lock")).unwrap();
    pipe(&beside("lock"));
    let refused = SnapshotFile::open(&path).unwrap_err().to_string();
    assert_eq!(refused, format!("cannot save usage to `{name}`: No such device or address (os error 6)"));
    fs::remove_file(beside("lock")).unwrap();
    pipe(&path);
    let refused = SnapshotFile::open(&path).unwrap_err().to_string();
    assert_eq!(refused, format!("cannot save usage to `{name}`: it is not a regular file"));
    fs::remove_file(&path).unwrap();

    let mut file = SnapshotFile::open(&path).unwrap();
    symlink(&theirs, beside("tmp")).unwrap();
    let gate = gate(set([policy("p", Quota::per_hour(5))]), ManualClock::new());
    gate.save_to(&mut file, &[]).unwrap();
    assert_eq!(fs::read_to_string(&theirs).unwrap(), "theirs");
    assert!(fs::symlink_metadata(&path).unwrap().is_file());
    assert!(file.read().unwrap());
    // One that comes later makes no reader wait either.
    fs::remove_file(&path).unwrap();
    pipe(&path);
    assert_eq!(file.read().unwrap_err().to_string(), "cannot read the snapshot: it is not a regular file");
}
