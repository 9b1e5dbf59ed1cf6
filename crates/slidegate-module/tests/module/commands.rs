//! `RL.CHECK` and `CL.THROTTLE`, as applications call them without slidegate.

use slidegate_testkit::redis::{Connection, RedisServer, Reply, module};

use crate::calls::NOW_US;

fn numbers(conn: &mut Connection, command: &str) -> Vec<i64> {
    let command: Vec<_> = command.split(' ').collect();
    let Reply::List(items) = conn.call(&command).unwrap() else { panic!("{command:?} replies no list") };
    let number = |item: &Reply| if let Reply::Integer(number) = item { *number } else { panic!("{item:?}") };
    items.iter().map(number).collect()
}

fn error(conn: &mut Connection, command: &str) -> String {
    let command: Vec<_> = command.split(' ').collect();
    match conn.call(&command).unwrap() {
        Reply::Error(error) => error,
        other => panic!("{command:?}: {other:?}"),
    }
}

/// A user who loads the module and nothing else gets the exact sliding window.
#[test]
fn rl_check_is_the_exact_sliding_window() {
    let server = RedisServer::builder().with_clock().module(true).start();
    let mut conn = server.connect();
    let at = |after_ms: u64| server.clock().stand(NOW_US + after_ms * 1000);
    at(0);
    assert_eq!(numbers(&mut conn, "RL.CHECK alice 3 10s"), [1, 3, 2, 0, 10_000]);
    at(4000);
    assert_eq!(numbers(&mut conn, "rl.check alice 3 10s cost 2"), [1, 3, 0, 0, 10_000]);
    at(9999);
    assert_eq!(numbers(&mut conn, "RL.CHECK alice 3 10s"), [0, 3, 0, 1, 4001]);
    assert_eq!(numbers(&mut conn, "RL.CHECK alice 3 10s COST 3"), [0, 3, 0, 4001, 4001]);
    assert_eq!(numbers(&mut conn, "RL.CHECK alice 3 10s COST 4"), [0, 3, 0, -1, 4001]);
    assert_eq!(numbers(&mut conn, "RL.CHECK alice 3 10s COST 0"), [1, 3, 0, 0, 4001]);
    at(10_000);
    assert_eq!(numbers(&mut conn, "RL.CHECK alice 3 10s"), [1, 3, 0, 0, 10_000]);
    // A changed limit counts what was charged.
    assert_eq!(numbers(&mut conn, "RL.CHECK alice 4 10s"), [1, 4, 0, 0, 10_000]);
    assert_eq!(numbers(&mut conn, "RL.CHECK bob 0 10s"), [0, 0, 0, -1, 0]);
}

/// Users of redis-cell load another library and change nothing.
#[test]
fn cl_throttle_replies_as_redis_cell_does() {
    let server = RedisServer::builder().with_clock().module(true).start();
    let mut conn = server.connect();
    server.clock().stand(NOW_US);
    // 3 at once, then 30 a minute.
    assert_eq!(numbers(&mut conn, "CL.THROTTLE user 2 30 60"), [0, 3, 2, -1, 2]);
    assert_eq!(numbers(&mut conn, "CL.THROTTLE user 2 30 60 2"), [0, 3, 0, -1, 6]);
    assert_eq!(numbers(&mut conn, "CL.THROTTLE user 2 30 60 1"), [1, 3, 0, 2, 6]);
    assert_eq!(numbers(&mut conn, "CL.THROTTLE user 2 30 60 4"), [1, 3, 0, -1, 6]);
    assert_eq!(numbers(&mut conn, "CL.THROTTLE user 2 30 60 0"), [0, 3, 0, -1, 6]);
    server.clock().stand(NOW_US + 2_000_000);
    assert_eq!(numbers(&mut conn, "CL.THROTTLE user 2 30 60 1"), [0, 3, 0, -1, 6]);
}

/// A user who types a command must read what is wrong with it.
#[test]
fn wrong_arguments_are_named() {
    let server = RedisServer::builder().module(true).start();
    let mut conn = server.connect();
    for (command, expected) in [
        ("RL.CHECK k", "ERR wrong number of arguments for 'rl.check' command"),
        ("RL.CHECK k 1 1m COST", "ERR wrong number of arguments for 'rl.check' command"),
        ("RL.CHECK k 1 1m TIMES 2", "ERR wrong number of arguments for 'rl.check' command"),
        ("RL.CHECK k -1 1m", "ERR invalid limit `-1`: must be a whole number from 0 to 9007199254740991"),
        ("RL.CHECK k 1 1m COST x", "ERR invalid cost `x`: must be a whole number from 0 to 9007199254740991"),
        ("RL.CHECK k 1 0s", "ERR invalid window `0s`: must be 1ms to 366d, for example `1m`"),
        ("CL.THROTTLE k 1 1", "ERR wrong number of arguments for 'cl.throttle' command"),
        ("CL.THROTTLE k 1 0 1", "ERR invalid count `0`: must be a whole number from 1 to 9007199254740991"),
        ("CL.THROTTLE k 1 1 0", "ERR invalid period `0`: must be a whole number from 1 to 31622400"),
    ] {
        // Servers quote names in other ways.
        let said = error(&mut conn, command).replace(['\u{2018}', '\u{2019}', '\''], "'");
        assert_eq!(said, expected, "{command}");
    }
    let long = "9".repeat(10_000);
    for (window, expected) in [
        (
            "1\0m",
            "ERR invalid window `1\\0m`: must be a number and a unit; use ms, s, m, h, d or w, for example `30s`",
        ),
        (
            &long,
            &format!(
                "ERR invalid window `{}`: must be a number and a unit; use ms, s, m, h, d or w, for example `30s`",
                &long[..40]
            ),
        ),
    ] {
        let replied = conn.call(&["RL.CHECK", "k", "1", window]).unwrap();
        assert_eq!(replied, Reply::Error(expected.to_owned()));
    }
    assert_eq!(server.admin(&["DBSIZE"]), "0");
}

/// A server that has an `RL.CHECK` of its own, or of another module, still loads this one.
#[test]
fn another_prefix_renames_the_commands_for_applications_alone() {
    let path = module().to_str().unwrap();
    let load = ["--enable-module-command", "yes", "--loadmodule", path, "prefix", "SG."];
    let server = RedisServer::builder().module(false).args(load).start();
    let mut conn = server.connect();
    assert_eq!(numbers(&mut conn, "sg.check alice 3 10s"), [1, 3, 2, 0, 10_000]);
    assert_eq!(numbers(&mut conn, "CL.THROTTLE bob 2 1 60"), [0, 3, 2, -1, 60]);
    assert!(error(&mut conn, "RL.CHECK alice 3 10s").contains("unknown command"));
    // Instances of slidegate find theirs.
    for command in ["slidegate.check1", "slidegate.decide", "slidegate.change"] {
        assert!(server.admin(&["COMMAND", "INFO", command]).starts_with(command));
    }
}

/// The server says only that the module was not loaded: its log has to say why.
#[test]
fn load_arguments_that_are_none_are_named_in_the_log() {
    let server = RedisServer::builder().module(false).args(["--enable-module-command", "yes"]).start();
    let path = module().to_str().unwrap();
    for (arguments, line) in [
        (
            &["prefix", "S G."][..],
            "invalid prefix `S G.`: must be 1 to 32 letters, digits, `.`, `_` or `-`, for example `SG.`",
        ),
        (
            &["SG."],
            "invalid arguments `SG.`: must be none, or `prefix` and a prefix, for example `prefix SG.`",
        ),
    ] {
        let reply = server.ask(&[&["MODULE", "LOAD", path], arguments].concat()).unwrap();
        assert!(matches!(&reply, Reply::Error(_)), "{reply:?}");
        let log = std::fs::read_to_string(server.dir().join("log")).unwrap();
        assert!(log.lines().any(|one| one.ends_with(line)), "{line}: {log}");
    }
}
