//! What is asked: commands, their replies, and the errors of wrong arguments.

use super::{ask, command, exchange, serve, words};
use slidegate_testkit::TempDir;

/// It is where every decision of this port begins: the reply's order is documented, and clients
/// take it apart by place.
#[test]
fn a_check_answers_seven_fields_in_resp2_and_names_them_in_resp3() {
    let folder = TempDir::new("resp-check");
    let server = serve(&folder, "");
    let denied = |answer: &str| {
        // The hour that the first charge began has run on since.
        let fields: Vec<_> = answer.split("\\r\\n").collect();
        assert_eq!((fields[..4].join(" "), fields[6]), ("*7 :0 :5 :1".to_owned(), "+store"), "{answer}");
        assert_eq!(fields[7..9], ["$10", "over_limit"], "{answer}");
        let ms = |field: &str| field.strip_prefix(':').unwrap().parse::<u64>().unwrap();
        assert!(
            (3_000_000..=3_600_000).contains(&ms(fields[4])) && ms(fields[4]) == ms(fields[5]),
            "{answer}"
        );
    };
    let first = ask(&server, "RL.CHECK per-user alice COST 4");
    assert_eq!(first, "*7\\r\\n:1\\r\\n:5\\r\\n:1\\r\\n:0\\r\\n:3600000\\r\\n+store\\r\\n$-1\\r\\n");
    denied(&ask(&server, "rl.check per-user alice COST 2 PEEK"));
    denied(&ask(&server, "RL.CHECK per-user alice PEEK COST 2"));
    assert!(
        ask(&server, "RL.CHECK per-user alice COST 6").contains(":0\\r\\n:5\\r\\n:1\\r\\n:-1\\r\\n"),
        "never"
    );
    let named = exchange(&server, &[words("HELLO 3"), words("RL.CHECK per-user bob COST 0")].concat());
    let expected = "%7\\r\\n$7\\r\\nallowed\\r\\n#t\\r\\n$5\\r\\nlimit\\r\\n:5\\r\\n$9\\r\\nremaining\\r\\n:5\\r\\n\
                    $14\\r\\nretry_after_ms\\r\\n:0\\r\\n$14\\r\\nreset_after_ms\\r\\n:0\\r\\n$6\\r\\nsource\\r\\n+store\\r\\n$6\\r\\nreason\\r\\n_\\r\\n";
    assert!(named.ends_with(expected), "{named}");
    // A policy without a scope takes no key, and its conditions do not matter to who names it.
    assert!(ask(&server, "RL.CHECK all COST 2").starts_with("*7\\r\\n:1\\r\\n:3\\r\\n:1\\r\\n"));
    // One value for each attribute, in the scope's order: these are two keys.
    assert!(ask(&server, "RL.CHECK route a b").starts_with("*7\\r\\n:1\\r\\n:100\\r\\n:99\\r\\n"));
    assert!(ask(&server, "RL.CHECK route b a").starts_with("*7\\r\\n:1\\r\\n:100\\r\\n:99\\r\\n"));
    // Its denials deny nothing, and the wait shows them.
    assert!(ask(&server, "RL.CHECK trial alice").starts_with("*7\\r\\n:1\\r\\n:1\\r\\n:0\\r\\n:0\\r\\n"));
    let shadow = ask(&server, "RL.CHECK trial alice");
    assert!(shadow.starts_with("*7\\r\\n:1\\r\\n:1\\r\\n:0\\r\\n:3"), "{shadow}");
}

/// Failed work is refunded, and a locked-out user is reset.
#[test]
fn refund_gives_back_and_reset_forgets() {
    let folder = TempDir::new("resp-refund");
    let server = serve(&folder, "");
    ask(&server, "RL.CHECK per-user alice COST 5");
    assert!(
        ask(&server, "RL.REFUND per-user alice COST 2")
            .starts_with("*7\\r\\n:1\\r\\n:5\\r\\n:2\\r\\n:0\\r\\n")
    );
    assert!(ask(&server, "RL.REFUND per-user alice").starts_with("*7\\r\\n:1\\r\\n:5\\r\\n:3\\r\\n"));
    assert_eq!(ask(&server, "RL.RESET per-user alice"), ":1\\r\\n");
    assert_eq!(ask(&server, "RL.RESET per-user alice"), ":0\\r\\n");
    assert!(ask(&server, "RL.CHECK per-user alice COST 5").starts_with("*7\\r\\n:1\\r\\n"));
    // What CL.THROTTLE counts is forgotten by its name.
    assert!(ask(&server, "CL.THROTTLE k 0 1 3600").starts_with("*5\\r\\n:0\\r\\n"));
    assert_eq!(ask(&server, "RL.RESET CL.THROTTLE k"), ":1\\r\\n");
    assert!(ask(&server, "CL.THROTTLE k 0 1 3600").starts_with("*5\\r\\n:0\\r\\n"));
}

/// All or nothing holds for this protocol too.
#[test]
fn a_request_is_decided_under_every_policy_that_applies() {
    let folder = TempDir::new("resp-request");
    let server = serve(&folder, "");
    let one = |name: &str, limit: u32, remaining: u32| {
        format!(
            "*9\\r\\n:1\\r\\n:{limit}\\r\\n:{remaining}\\r\\n:0\\r\\n:3600000\\r\\n+store\\r\\n$-1\\r\\n${}\\r\\n{name}\\r\\n:1\\r\\n",
            name.len()
        )
    };
    assert_eq!(
        ask(&server, "RL.REQUEST user alice path /x COST 4"),
        format!(
            "*9\\r\\n:1\\r\\n:5\\r\\n:1\\r\\n:0\\r\\n:3600000\\r\\n+store\\r\\n$-1\\r\\n$8\\r\\nper-user\\r\\n*2\\r\\n{}{}",
            one("per-user", 5, 1),
            one("route", 100, 96)
        )
    );
    let denied = ask(&server, "RL.REQUEST user alice path /x COST 2");
    assert!(denied.starts_with("*9\\r\\n:0\\r\\n:5\\r\\n:1\\r\\n"), "{denied}");
    assert!(ask(&server, "RL.CHECK route alice /x PEEK").starts_with("*7\\r\\n:1\\r\\n:100\\r\\n:96\\r\\n"));
    assert_eq!(
        ask(&server, "RL.REQUEST colour red"),
        "*9\\r\\n:1\\r\\n$-1\\r\\n$-1\\r\\n$-1\\r\\n$-1\\r\\n$-1\\r\\n$-1\\r\\n$-1\\r\\n*0\\r\\n"
    );
    let listed = exchange(&server, &[words("HELLO 3"), words("RL.POLICIES")].concat());
    assert_eq!(listed.matches("%6").count(), 5, "the policies of the commands are not among them: {listed}");
    assert!(
        listed.contains("$6\\r\\npolicy\\r\\n$5\\r\\nroute\\r\\n$5\\r\\nlimit\\r\\n:100\\r\\n"),
        "{listed}"
    );
    assert!(listed.contains("$5\\r\\nscope\\r\\n*2\\r\\n$4\\r\\nuser\\r\\n$4\\r\\npath\\r\\n"), "{listed}");
    assert!(!server.get("/v1/policies").body.contains("THROTTLE"));
}

/// A key is whatever a client calls it; two that differ by one byte are two.
#[test]
fn keys_are_any_bytes() {
    let folder = TempDir::new("resp-bytes");
    let server = serve(&folder, "");
    let keys: [&[u8]; 8] = [b"", b"\0", b"\r\n", b"\xff\xfe", b"\xff\xff", b"COST", b"PEEK", &[b'x'; 50_000]];
    for key in keys {
        let remaining = exchange(&server, &command(&[b"RL.CHECK", b"per-user", key, b"COST", b"4"]));
        assert!(
            remaining.starts_with("*7\\r\\n:1\\r\\n:5\\r\\n:1\\r\\n"),
            "{}: {remaining}",
            key.escape_ascii()
        );
        let throttled = exchange(&server, &command(&[b"CL.THROTTLE", key, b"4", b"1", b"3600", b"4"]));
        assert!(
            throttled.starts_with("*5\\r\\n:0\\r\\n:5\\r\\n:1\\r\\n"),
            "{}: {throttled}",
            key.escape_ascii()
        );
    }
    // An attribute that is an address is one, whatever its spelling.
    assert!(
        ask(&server, "RL.CHECK per-ip 2001:db8::1 COST 4").starts_with("*7\\r\\n:1\\r\\n:5\\r\\n:1\\r\\n")
    );
    assert!(ask(&server, "RL.CHECK per-ip 2001:DB8:0::2").starts_with("*7\\r\\n:1\\r\\n:5\\r\\n:0\\r\\n"));
}

/// The figures of redis-cell's own documentation, and those of its code where a figure has a
/// fraction.
#[test]
fn cl_throttle_answers_in_the_order_and_rounding_of_redis_cell() {
    let folder = TempDir::new("resp-cell");
    let server = serve(&folder, "");
    let answer = |line: &str| ask(&server, line).replace("\\r\\n", " ").trim_end().to_owned();
    assert_eq!(answer("CL.THROTTLE user123 15 30 60"), "*5 :0 :16 :15 :-1 :2");
    assert_eq!(answer("CL.THROTTLE user123 15 30 60 0"), "*5 :0 :16 :15 :-1 :2", "a quantity of 0 looks");
    assert_eq!(answer("CL.THROTTLE user123 15 30 60 17"), "*5 :1 :16 :15 :-1 :2", "more than all never fits");
    // One in 50 minutes: the second waits for what is left of them, in whole seconds.
    assert_eq!(answer("CL.THROTTLE slow 0 1 3000"), "*5 :0 :1 :0 :-1 :3000");
    let waits = answer("CL.THROTTLE slow 0 1 3000");
    let fields: Vec<_> = waits.split(' ').collect();
    assert_eq!((fields[..4].join(" "), fields[4]), ("*5 :1 :1 :0".to_owned(), fields[5]), "{waits}");
    assert!((2900..=3000).contains(&fields[4][1..].parse::<u32>().unwrap()), "{waits}");
    // 10 in 15 s is one in 1.5 s, and so much is 2 s.
    assert_eq!(answer("CL.THROTTLE part 9 10 15"), "*5 :0 :10 :9 :-1 :2");
    // More than 1000 a second, which redis-cell refuses.
    assert_eq!(answer("CL.THROTTLE fast 9 2000 1"), "*5 :0 :10 :9 :-1 :1");
    // Usage is kept when the numbers change, and each command counts by itself.
    assert_eq!(answer("CL.THROTTLE more 4 1 3600 5"), "*5 :0 :5 :0 :-1 :18000");
    assert!(answer("CL.THROTTLE more 9 1 3600").starts_with("*5 :0 :10 :4 :-1 :2"));
    assert!(answer("THROTTLE more 5 1 3600").starts_with("*5 :1 :5 :4 "));
}

/// What throttlecrab-server 0.4.40 answers to the same commands on fresh keys.
#[test]
fn throttle_answers_in_the_order_and_rounding_of_throttlecrab() {
    let folder = TempDir::new("resp-crab");
    let server = serve(&folder, "");
    let answer = |line: &str| ask(&server, line).replace("\\r\\n", " ").trim_end().to_owned();
    assert_eq!(answer("THROTTLE a 10 100 60"), "*5 :1 :10 :9 :5 :0");
    assert_eq!(answer("THROTTLE b 10 1 3600 0"), "*5 :1 :10 :10 :28800 :0");
    assert_eq!(answer("THROTTLE c 1 1 3600"), "*5 :1 :1 :0 :0 :0");
    let waits = answer("THROTTLE c 1 1 3600");
    assert!(
        waits.starts_with("*5 :0 :1 :0 :0 :3") && waits != "*5 :0 :1 :0 :0 :3600",
        "rounds down: {waits}"
    );
    assert_eq!(answer("THROTTLE d 2 1 3600 3"), "*5 :0 :2 :2 :0 :-1", "more than all never fits");
}

/// Who reads an error wants to know which argument it was, and what to write.
#[test]
fn every_wrong_argument_is_named_with_the_way_out() {
    let folder = TempDir::new("resp-wrong");
    let server = serve(&folder, "");
    let cost = "must be a whole number from 0 to 9007199254740991";
    let throttle = "key max_burst count period [quantity]";
    let check = "policy key [key ...] [COST n] [PEEK]";
    for (line, error) in [
        ("FOO bar", "unknown command `FOO`; COMMAND LIST lists the supported commands".to_owned()),
        ("RL.CHECK", format!("RL.CHECK: too few arguments (0); write `RL.CHECK {check}`")),
        ("RL.CHECK nobody x", "RL.CHECK: unknown policy `nobody`; RL.POLICIES lists the policies".into()),
        (
            "RL.CHECK per-user",
            "RL.CHECK: policy `per-user` counts by user; write `per-user <user>`".into(),
        ),
        (
            "RL.CHECK route alice",
            "RL.CHECK: policy `route` counts by user and path; write `route <user> <path>`".into(),
        ),
        ("RL.CHECK per-user x COST", "RL.CHECK: COST has no value; write for example `COST 5`".into()),
        ("RL.CHECK per-user x COST -1", format!("RL.CHECK: invalid COST `-1`: {cost}")),
        ("RL.CHECK per-user x COST +1", format!("RL.CHECK: invalid COST `+1`: {cost}")),
        ("RL.CHECK per-user x COST 1e3", format!("RL.CHECK: invalid COST `1e3`: {cost}")),
        ("RL.CHECK per-user x COST 9007199254740992", format!("RL.CHECK: invalid COST `9007199254740992`: {cost}")),
        ("RL.CHECK per-user x COST 1 COST 2", "RL.CHECK: COST is given twice; give it once".into()),
        ("RL.CHECK per-user x y", "RL.CHECK: unexpected argument `y`; expected `COST n` or `PEEK`".into()),
        ("RL.REFUND per-user x PEEK", "RL.REFUND: unexpected argument `PEEK`; expected `COST n`".into()),
        ("RL.RESET per-user x y", "RL.RESET: unexpected argument `y`; leave it out".into()),
        (
            "RL.CHECK THROTTLE x",
            "RL.CHECK: policy `THROTTLE` has no configured quota; send the command THROTTLE with an inline quota".into(),
        ),
        ("RL.REQUEST user", "RL.REQUEST: attribute `user` has no value; give one".into()),
        ("RL.REQUEST user a user b", "RL.REQUEST: attribute `user` is given twice; give it once".into()),
        ("RL.REQUEST COST x", format!("RL.REQUEST: invalid COST `x`: {cost}")),
        ("RL.POLICIES all", "RL.POLICIES: too many arguments (1); write `RL.POLICIES`".into()),
        ("CL.THROTTLE k 1 1", format!("CL.THROTTLE: too few arguments (3); write `CL.THROTTLE {throttle}`")),
        ("CL.THROTTLE k -1 1 1", "CL.THROTTLE: invalid max_burst `-1`: must be a whole number from 0 to 9007199254740990".into()),
        (
            "CL.THROTTLE k 9223372036854775807 1 1",
            "CL.THROTTLE: invalid max_burst `9223372036854775807`: must be a whole number from 0 to 9007199254740990".into(),
        ),
        ("CL.THROTTLE k 1 0 1", "CL.THROTTLE: invalid count `0`: must be a whole number from 1 to 9007199254740991".into()),
        ("CL.THROTTLE k 1 1 0", "CL.THROTTLE: invalid period `0`: must be a whole number from 1 to 31622400".into()),
        ("CL.THROTTLE k 1 1 1 -1", format!("CL.THROTTLE: invalid quantity `-1`: {cost}")),
        ("THROTTLE k 0 1 1", "THROTTLE: invalid max_burst `0`: must be a whole number from 1 to 9007199254740991".into()),
        ("SELECT 1", "SELECT: invalid database `1`: the only database is 0".into()),
        ("AUTH x", "AUTH: no password is configured; omit AUTH, or set resp.password".into()),
    ] {
        assert_eq!(ask(&server, line), format!("-ERR {error}\\r\\n"), "{line}");
    }
    let pairs: Vec<_> = (0..33).map(|at| format!("a{at} v")).collect();
    assert_eq!(
        ask(&server, &format!("RL.REQUEST {}", pairs.join(" "))),
        "-ERR RL.REQUEST: there are more than 32 attributes; give those that policies use\\r\\n"
    );
    let numbers = "9007199254740990 9007199254740991 31622400 9007199254740991";
    assert!(
        ask(&server, &format!("CL.THROTTLE huge {numbers}")).starts_with("*5\\r\\n:0\\r\\n:9007199254740991")
    );
    assert!(
        ask(&server, &format!("THROTTLE huge {numbers}")).starts_with("*5\\r\\n:0\\r\\n:9007199254740990")
    );
}
