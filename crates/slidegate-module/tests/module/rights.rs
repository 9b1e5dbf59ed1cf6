//! Rights and key positions: what a server knows of the commands.

use slidegate_testkit::redis::{RedisServer, Reply};

const COMMANDS: [&str; 3] = ["slidegate.check1", "rl.check", "cl.throttle"];

/// A proxy or a cluster that does not find the key sends the command to the wrong node.
#[test]
fn the_first_argument_is_the_key() {
    let server = RedisServer::builder().module(true).start();
    for command in COMMANDS {
        let keys = server.admin(&["COMMAND", "GETKEYS", command, "the-key", "1", "1", "1", "1"]);
        assert_eq!(keys, "the-key");
        let info = server.admin(&["COMMAND", "INFO", command]);
        for flag in ["write", "denyoom", "fast", "module", "RW", "access", "update"] {
            assert!(info.lines().any(|line| line == flag), "{command} lacks {flag}: {info}");
        }
    }
}

/// A call for several keys: all of its arguments but the first are keys.
#[test]
fn all_arguments_behind_the_call_are_keys() {
    let server = RedisServer::builder().module(true).start();
    for command in ["slidegate.decide", "slidegate.change"] {
        let keys = server.admin(&["COMMAND", "GETKEYS", command, "call", "one", "two", "three"]);
        assert_eq!(keys, "one\ntwo\nthree");
        let info = server.admin(&["COMMAND", "INFO", command]);
        for flag in ["write", "denyoom", "fast", "module", "RW", "access", "update"] {
            assert!(info.lines().any(|line| line == flag), "{command} lacks {flag}: {info}");
        }
    }
    server.admin(&["ACL", "SETUSER", "app", "on", ">secret", "~app:*", "-@all", "+slidegate.decide"]);
    let mut conn = server.connect();
    conn.call(&["AUTH", "app", "secret"]).unwrap();
    for (second, is_permitted) in [("app:2", true), ("other", false)] {
        let reply = conn.call(&["SLIDEGATE.DECIDE", "call", "app:1", second]).unwrap();
        let Reply::Error(error) = reply else { panic!("{reply:?}") };
        assert_eq!(!error.starts_with("NOPERM"), is_permitted, "{error}");
    }
}

/// A user who may only reach some keys reaches no other one through the module.
#[test]
fn key_patterns_and_commands_are_enforced() {
    let server = RedisServer::builder().module(true).start();
    let [check, throttle] = ["+rl.check", "-cl.throttle"];
    server.admin(&[
        "ACL",
        "SETUSER",
        "app",
        "on",
        ">secret",
        "~app:*",
        "%R~read:*",
        "-@all",
        check,
        throttle,
    ]);
    let mut conn = server.connect();
    conn.call(&["AUTH", "app", "secret"]).unwrap();
    assert!(matches!(conn.call(&["RL.CHECK", "app:1", "1", "1m"]).unwrap(), Reply::List(_)));
    for refused in [
        &["RL.CHECK", "other", "1", "1m"][..],
        &["RL.CHECK", "read:1", "1", "1m"],
        &["CL.THROTTLE", "app:1", "1", "1", "1"],
    ] {
        let reply = conn.call(refused).unwrap();
        assert!(matches!(&reply, Reply::Error(error) if error.starts_with("NOPERM")), "{reply:?}");
    }
}

/// Since 7.2 a module may say which categories its commands are in. Before, they are in none, which
/// docs/redis-module.md says.
#[test]
fn categories_take_rights_away_where_the_server_knows_them() {
    let server = RedisServer::builder().module(true).start();
    let has_categories = server.admin(&["ACL", "CAT"]).lines().any(|line| line == "slidegate");
    server.admin(&["ACL", "SETUSER", "reader", "on", ">secret", "~*", "+@all", "-@write"]);
    let mut conn = server.connect();
    conn.call(&["AUTH", "reader", "secret"]).unwrap();
    let reply = conn.call(&["RL.CHECK", "key", "1", "1m"]).unwrap();
    let is_refused = matches!(&reply, Reply::Error(error) if error.starts_with("NOPERM"));
    assert_eq!(is_refused, has_categories, "{reply:?}");
    if has_categories {
        server.admin(&["ACL", "SETUSER", "limiter", "on", ">secret", "~*", "-@all", "+@slidegate"]);
        conn.call(&["AUTH", "limiter", "secret"]).unwrap();
        assert!(matches!(conn.call(&["RL.CHECK", "key", "1", "1m"]).unwrap(), Reply::List(_)));
    }
}
