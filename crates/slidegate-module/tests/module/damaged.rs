//! Values that others wrote, or that are damaged.

use slidegate_testkit::redis::{RedisServer, Reply};

use crate::calls::{Algorithm, Both, By, NOW_US, Quota};

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
    let mismatch = "ERR invalid quota or time: the caller and the module do not match";
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
