//! Values that others wrote, or that are damaged.

use slidegate_testkit::redis::{RedisServer, Reply};

use crate::calls::{Algorithm, Both, By, NOW_US, Quota};
use crate::decide::{Call, Hold, Part};

const ALGORITHMS: [Algorithm; 4] = [Algorithm::Log, Algorithm::Window, Algorithm::Fixed, Algorithm::Bucket];
const MINUTE: u64 = 60_000_000;

fn error(reply: &Reply) -> &str {
    let Reply::Error(error) = reply else { panic!("{reply:?} is not an error") };
    error
}

/// Instances fall back, and find holds, by these very words.
#[test]
fn what_is_no_usage_is_reported_as_by_the_scripts_and_stays() {
    let mut both = Both::start();
    both.at(NOW_US);
    let values: &[&[u8]] = &[b"hello", b"\x15", &[0x15; 33], &[0x10; 12], &[0x30; 12], b"\x1f", b"\x00"];
    for algorithm in ALGORITHMS {
        let quota = Quota::new(algorithm, 10, MINUTE);
        for value in values {
            both.call(&[b"SET", b"key", value]);
            let by_script = both.check(By::Script, "key", &quota, &[1]);
            let by_module = both.check(By::Module, "key", &quota, &[1]);
            assert_eq!(error(&by_module), error(&by_script), "{algorithm:?} {value:?}");
            assert!(error(&by_module).starts_with("SLIDEGATE value is "), "{by_module:?}");
            assert_eq!(both.stored("key").as_deref(), Some(*value));
        }
    }
}

/// A value of the right algorithm with the wrong length is damaged, and one of another algorithm
/// starts afresh.
#[test]
fn values_of_other_algorithms_start_afresh() {
    let mut both = Both::start();
    both.at(NOW_US);
    for algorithm in ALGORITHMS {
        let quota = Quota::new(algorithm, 10, MINUTE);
        for tag in [0x11, 0x12, 0x13, 0x14, 0x21, 0x22] {
            for length in [1, 12, 21, 27, 28, 47] {
                let mut value = vec![0; length];
                value[0] = tag;
                let said = [By::Script, By::Module].map(|by| {
                    both.call(&[b"SET", b"key", &value]);
                    (both.check(by, "key", &quota, &[1]), both.stored("key"))
                });
                // Zeros in a value of its own algorithm make a window of 0, by which scripts divide.
                let is_own = u64::from(tag) % 16 == [4, 2, 1, 3][algorithm as usize];
                if is_own {
                    assert!(error(&said[1].0).starts_with("SLIDEGATE value is damaged: "), "{said:?}");
                    assert_eq!(said[1].1.as_deref(), Some(value.as_slice()));
                } else {
                    assert_eq!(said[0], said[1], "{algorithm:?} {tag} {length}");
                }
            }
        }
    }
}

/// A log that another program cut off must not be filled up with zeros, which would count as charges
/// of the year 1970.
#[test]
fn a_truncated_ring_is_marked_by_the_charge_that_finds_it() {
    let mut both = Both::start();
    let quota = Quota::new(Algorithm::Log, 100, MINUTE);
    for at in 0..20 {
        both.at(NOW_US + at);
        both.check(By::Module, "key", &quota, &[1]);
    }
    let whole = both.stored("key").unwrap();
    both.call(&[b"SET", b"key", &whole[..whole.len() - 1]]);
    // A denial needs the header only.
    assert!(matches!(both.check(By::Module, "key", &quota, &[101]), Reply::Bytes(_)));
    both.at(NOW_US + 30);
    let cut_off = "SLIDEGATE value is damaged: its ring is cut off";
    assert_eq!(error(&both.check(By::Module, "key", &quota, &[1])), cut_off);
    assert_eq!(both.stored("key").unwrap()[0], 0x1f);
    for by in [By::Script, By::Module] {
        assert!(
            error(&both.check(by, "key", &quota, &[1])).starts_with("SLIDEGATE value is damaged: it has ")
        );
    }
}

/// An expired ring is read to the end, wherever that is.
#[test]
fn a_ring_without_its_bytes_is_reported_when_it_is_read() {
    let mut both = Both::start();
    let quota = Quota::new(Algorithm::Log, 100, MINUTE);
    for at in 0..20 {
        both.at(NOW_US + at);
        both.check(By::Module, "key", &quota, &[1]);
    }
    let whole = both.stored("key").unwrap();
    let header = &whole[..48];
    both.call(&[b"SET", b"key", header]);
    both.at(NOW_US + MINUTE + 5);
    assert_eq!(
        error(&both.check(By::Module, "key", &quota, &[1])),
        "SLIDEGATE value is damaged: its ring is cut off"
    );
    assert_eq!(both.stored("key").as_deref(), Some(header));
}

/// A user of the key of a list or a hash in the same server gets the server's own error.
#[test]
fn a_key_of_another_type_is_refused() {
    let mut both = Both::start();
    both.call(&[b"RPUSH", b"key", b"x"]);
    let quota = Quota::new(Algorithm::Fixed, 10, MINUTE);
    for by in [By::Script, By::Module] {
        assert!(error(&both.check(by, "key", &quota, &[1])).starts_with("WRONGTYPE "));
    }
    assert!(error(&both.call(&[b"RL.CHECK", b"key", b"1", b"1m"])).starts_with("WRONGTYPE "));
}

/// An instance and the module may be of different releases.
#[test]
fn arguments_that_the_module_does_not_know_are_refused() {
    let server = RedisServer::builder().module(true).start();
    let mut conn = server.connect();
    let packed = Quota::new(Algorithm::Log, 10, MINUTE).for_module();
    let time: &[u8] = b"9007199254740991";
    let mut call = |args: &[&[u8]]| {
        let command = [&[b"SLIDEGATE.CHECK1".as_slice()], args].concat();
        error(&conn.call(&command).unwrap()).to_owned()
    };
    assert!(call(&[b"key", time, &packed]).contains("wrong number of arguments"));
    let mismatch = "ERR invalid call: the caller and the module do not match";
    assert_eq!(call(&[b"key", time, &packed[1..], b"1"]), mismatch);
    assert_eq!(call(&[b"key", b"-1", &packed, b"1"]), mismatch);
    let requests =
        "ERR invalid requests: must be up to 2048 whole numbers, costs and how many requests of each";
    assert_eq!(call(&[b"key", time, &packed, b"1", b"0"]), requests);
    assert_eq!(call(&[b"key", time, &packed, b"9007199254740992"]), requests);
    let many = vec![b"1".as_slice(); 2049];
    assert_eq!(call(&[&[b"key".as_slice(), time, &packed], many.as_slice()].concat()), requests);
    assert_eq!(server.admin(&["DBSIZE"]), "0");
}

fn two(algorithm: Algorithm, has_holds: bool) -> Call {
    let quotas = vec![Quota::new(algorithm, 100, MINUTE); 2];
    let parts = vec![Part::plain(0, 'c'), Part::plain(1, 'c')];
    Call { quotas, costs: vec![1], parts, has_holds, once_ms: None }
}

/// All or nothing: a key that cannot be read must not have cost the others anything.
#[test]
fn a_damaged_key_leaves_all_keys_of_the_call_as_they_were() {
    let mut both = Both::start();
    both.at(NOW_US);
    for algorithm in ALGORITHMS {
        for has_holds in [false, true] {
            let call = two(algorithm, has_holds);
            for value in [&b"hello"[..], b"\x10", b"\x1f", &[0x15; 33]] {
                both.call(&[b"FLUSHALL"]);
                call.run(&mut both, By::Module, "p");
                let first = both.stored("p:key:0");
                both.call(&[b"SET", b"p:key:1", value]);
                let [by_script, by_module] = [By::Script, By::Module].map(|by| {
                    let reply = call.run(&mut both, by, "p");
                    error(&reply).to_owned()
                });
                // A table without its holds: the script reports what it would read next.
                if value.len() < 33 || !has_holds {
                    assert_eq!(by_module, by_script, "{algorithm:?} {value:?}");
                }
                assert!(by_module.starts_with("SLIDEGATE value 2 is "), "{by_module}");
                assert_eq!(both.stored("p:key:0"), first, "{algorithm:?} {value:?}");
                assert_eq!(both.stored("p:key:1").as_deref(), Some(value));
            }
            both.call(&[b"DEL", b"p:key:1"]);
            both.call(&[b"RPUSH", b"p:key:1", b"x"]);
            let first = both.stored("p:key:0");
            for by in [By::Script, By::Module] {
                let reply = call.run(&mut both, by, "p");
                assert!(error(&reply).starts_with("WRONGTYPE "), "{by:?}: {reply:?}");
            }
            assert_eq!(both.stored("p:key:0"), first);
        }
    }
}

/// A table that was cut off must not be filled up with zeros, which would be holds of nothing.
#[test]
fn a_truncated_table_is_reported_when_its_holds_are_read() {
    let mut both = Both::start();
    both.at(NOW_US);
    let mut call = two(Algorithm::Fixed, true);
    call.parts.truncate(1);
    for id in 1..=3 {
        let hold = Some(Hold { id, ttl_us: MINUTE, is_dropped: false });
        call.parts[0] = Part { hold, ..Part::plain(0, 'h') };
        call.run(&mut both, By::Module, "p");
    }
    let whole = both.stored("p:key:0").unwrap();
    for length in [1, 31, 32, 61, whole.len() - 1] {
        both.call(&[b"SET", b"p:key:0", &whole[..length]]);
        call.parts[0].hold = Some(Hold { id: 9, ttl_us: MINUTE, is_dropped: false });
        let reply = call.run(&mut both, By::Module, "p");
        let cut_off = format!("it has {length} bytes");
        let expected = if length < 32 { &cut_off } else { "its holds are cut off" };
        assert_eq!(error(&reply), format!("SLIDEGATE value 1 is damaged: {expected}"));
        assert_eq!(both.stored("p:key:0").as_deref(), Some(&whole[..length]));
    }
    // The header is enough for a check that fits.
    let check = Call { parts: vec![Part::plain(0, 'c')], ..call };
    assert!(matches!(check.run(&mut both, By::Module, "p"), Reply::List(_)));
}

/// Two handles of one key would each write what the other does not know.
#[test]
fn calls_out_of_bounds_are_refused_before_anything_is_read() {
    let server = RedisServer::builder().module(true).start();
    let mut conn = server.connect();
    let mut call = |args: &[&[u8]]| error(&conn.call(args).unwrap()).to_owned();
    let mismatch = "ERR invalid call: the caller and the module do not match";
    let wrong_keys = "ERR invalid keys: must be those of the call, each once";
    let two = two(Algorithm::Log, false).for_module("p");
    let packed = two[0].as_slice();
    assert_eq!(call(&[b"SLIDEGATE.DECIDE", packed, b"a", b"a"]), wrong_keys);
    assert_eq!(call(&[b"SLIDEGATE.DECIDE", packed, b"a"]), wrong_keys);
    assert_eq!(call(&[b"SLIDEGATE.DECIDE", packed, b"a", b"b", b"c"]), wrong_keys);
    for command in [&b"SLIDEGATE.DECIDE"[..], b"SLIDEGATE.CHANGE"] {
        assert_eq!(call(&[command, b"", b"a"]), mismatch);
        assert_eq!(call(&[command, &[2; 60], b"a"]), mismatch, "another version");
    }
    for length in 0..packed.len() {
        let error = call(&[b"SLIDEGATE.DECIDE", &packed[..length], b"a", b"b"]);
        // Cut between its parts, it is a call for fewer keys.
        assert!([mismatch, wrong_keys].contains(&error.as_str()), "{length} bytes: {error}");
    }
    let longer = [packed, &[0]].concat();
    assert_eq!(call(&[b"SLIDEGATE.DECIDE", &longer, b"a", b"b"]), mismatch);
    // 2049 requests, of up to 2048.
    let mut many = packed.to_vec();
    many[9..11].copy_from_slice(&2049u16.to_le_bytes());
    many.splice(11..11, vec![0; 2048 * 7]);
    assert_eq!(call(&[b"SLIDEGATE.DECIDE", &many, b"a", b"b"]), mismatch);
    assert_eq!(server.admin(&["DBSIZE"]), "0");
}
