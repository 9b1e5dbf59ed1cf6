//! The RESP port as clients of Redis see it: redis-cli, redis-benchmark, redis-py, ioredis, and bytes that no client sends.
//!
//! redis-py and ioredis are where scripts/test installs them: `target/clients`.

// A test that cannot go on panics.
#![allow(clippy::unwrap_used)]

mod common;

/// The servers of the library's own tests.
#[path = "../../slidegate/tests/redis"]
mod library {
    // What only those tests need stands idle here.
    #[allow(dead_code)]
    pub(crate) mod support;
}

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use common::{Folder, Server, run, text};
use library::support::server::Server as Redis;

/// Far longer than any answer takes: what fails is an answer that never comes.
const PATIENCE: Duration = Duration::from_secs(60);

const POLICIES: &str = "
policies:
  - {name: per-user, scope: [user], quota: 5/1h}
  - {name: route, scope: [user, path], quota: 100/1h}
  - {name: per-ip, scope: [ip], quota: 5/1h}
  - {name: all, when: {user: nobody}, quota: 3/1h}
  - {name: trial, when: {trial: {present: true}}, scope: [user], quota: 1/1h, mode: shadow}
resp:
  listen: 127.0.0.1:0
";

/// A server with those policies and more keys of `resp`.
fn serve(folder: &Folder, resp: &str) -> Server {
    Server::start(&["--config", &folder.file("slidegate.yaml", format!("{POLICIES}{resp}"))])
}

/// Where the server says that its RESP port is.
fn address(server: &Server) -> &str {
    let line = server.greeting.lines().find_map(|line| line.strip_prefix("resp       "));
    line.and_then(|url| url.split_once("://")).expect("it says where its RESP port is").1
}

fn port(server: &Server) -> &str {
    address(server).rsplit_once(':').unwrap().1
}

fn connect(server: &Server) -> TcpStream {
    let stream = TcpStream::connect(address(server)).expect("the RESP port is open");
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Reads exactly these bytes.
fn expect(stream: &mut TcpStream, expected: &[u8]) {
    let mut read = vec![0; expected.len()];
    stream.read_exact(&mut read).expect("the server answers");
    assert_eq!(read.escape_ascii().to_string(), expected.escape_ascii().to_string());
}

/// Sends bytes, then nothing more; everything that is answered until the server closes.
fn exchange(server: &Server, bytes: &[u8]) -> String {
    let mut stream = connect(server);
    stream.write_all(bytes).unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("the server closes");
    answer.escape_ascii().to_string()
}

/// A command as clients send it.
fn command(arguments: &[&[u8]]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", arguments.len()).into_bytes();
    for argument in arguments {
        bytes.extend(format!("${}\r\n", argument.len()).into_bytes());
        bytes.extend(*argument);
        bytes.extend(b"\r\n");
    }
    bytes
}

/// A line, each word an argument, as a command.
fn words(line: &str) -> Vec<u8> {
    command(&line.split(' ').map(str::as_bytes).collect::<Vec<_>>())
}

/// What one command is answered.
fn ask(server: &Server, line: &str) -> String {
    exchange(server, &words(line))
}

fn succeed(output: &Output) -> String {
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}

fn client(program: &str, package: &str) -> Command {
    let found = Command::new(program).arg("--version").output();
    assert!(found.is_ok(), "`{program}` is missing: install {package}");
    Command::new(program)
}

/// redis-cli with these arguments, and what it prints.
fn cli(server: &Server, arguments: &[&str]) -> String {
    let mut cli = client("redis-cli", "redis-tools");
    text(&cli.args(["-p", port(server)]).args(arguments).stdin(Stdio::null()).output().unwrap().stdout)
}

/// Where scripts/test puts clients that Debian does not have as pinned.
fn clients() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/clients").canonicalize().expect(
        "target/clients is missing; scripts/test installs redis-py and ioredis there before the tests run",
    )
}

/// It is where every decision of this port begins: the reply's order is documented, and clients take it apart by place.
#[test]
fn a_check_answers_six_fields_in_resp2_and_names_them_in_resp3() {
    let folder = Folder::new("resp-check");
    let server = serve(&folder, "");
    let denied = |answer: &str| {
        // The hour that the first charge began has run on since.
        let fields: Vec<_> = answer.split("\\r\\n").collect();
        assert_eq!((fields[..4].join(" "), fields[6]), ("*6 :0 :5 :1".to_owned(), "+store"), "{answer}");
        let ms = |field: &str| field.strip_prefix(':').unwrap().parse::<u64>().unwrap();
        assert!(
            (3_000_000..=3_600_000).contains(&ms(fields[4])) && ms(fields[4]) == ms(fields[5]),
            "{answer}"
        );
    };
    let first = ask(&server, "RL.CHECK per-user alice COST 4");
    assert_eq!(first, "*6\\r\\n:1\\r\\n:5\\r\\n:1\\r\\n:0\\r\\n:3600000\\r\\n+store\\r\\n");
    denied(&ask(&server, "rl.check per-user alice COST 2 PEEK"));
    denied(&ask(&server, "RL.CHECK per-user alice PEEK COST 2"));
    assert!(
        ask(&server, "RL.CHECK per-user alice COST 6").contains(":0\\r\\n:5\\r\\n:1\\r\\n:-1\\r\\n"),
        "never"
    );
    let named = exchange(&server, &[words("HELLO 3"), words("RL.CHECK per-user bob COST 0")].concat());
    let expected = "%6\\r\\n$7\\r\\nallowed\\r\\n#t\\r\\n$5\\r\\nlimit\\r\\n:5\\r\\n$9\\r\\nremaining\\r\\n:5\\r\\n\
                    $14\\r\\nretry_after_ms\\r\\n:0\\r\\n$14\\r\\nreset_after_ms\\r\\n:0\\r\\n$6\\r\\nsource\\r\\n+store\\r\\n";
    assert!(named.ends_with(expected), "{named}");
    // A policy without a scope takes no key, and its conditions do not matter to who names it.
    assert!(ask(&server, "RL.CHECK all COST 2").starts_with("*6\\r\\n:1\\r\\n:3\\r\\n:1\\r\\n"));
    // One value for each attribute, in the scope's order: these are two keys.
    assert!(ask(&server, "RL.CHECK route a b").starts_with("*6\\r\\n:1\\r\\n:100\\r\\n:99\\r\\n"));
    assert!(ask(&server, "RL.CHECK route b a").starts_with("*6\\r\\n:1\\r\\n:100\\r\\n:99\\r\\n"));
    // Its denials deny nobody, and the wait tells of them.
    assert!(ask(&server, "RL.CHECK trial alice").starts_with("*6\\r\\n:1\\r\\n:1\\r\\n:0\\r\\n:0\\r\\n"));
    let shadow = ask(&server, "RL.CHECK trial alice");
    assert!(shadow.starts_with("*6\\r\\n:1\\r\\n:1\\r\\n:0\\r\\n:3"), "{shadow}");
}

/// What was charged for nothing is given back, and a user who was locked out is let in.
#[test]
fn refund_gives_back_and_reset_forgets() {
    let folder = Folder::new("resp-refund");
    let server = serve(&folder, "");
    ask(&server, "RL.CHECK per-user alice COST 5");
    assert!(
        ask(&server, "RL.REFUND per-user alice COST 2")
            .starts_with("*6\\r\\n:1\\r\\n:5\\r\\n:2\\r\\n:0\\r\\n")
    );
    assert!(ask(&server, "RL.REFUND per-user alice").starts_with("*6\\r\\n:1\\r\\n:5\\r\\n:3\\r\\n"));
    assert_eq!(ask(&server, "RL.RESET per-user alice"), ":1\\r\\n");
    assert_eq!(ask(&server, "RL.RESET per-user alice"), ":0\\r\\n");
    assert!(ask(&server, "RL.CHECK per-user alice COST 5").starts_with("*6\\r\\n:1\\r\\n"));
    // What CL.THROTTLE counts is forgotten by its name.
    assert!(ask(&server, "CL.THROTTLE k 0 1 3600").starts_with("*5\\r\\n:0\\r\\n"));
    assert_eq!(ask(&server, "RL.RESET CL.THROTTLE k"), ":1\\r\\n");
    assert!(ask(&server, "CL.THROTTLE k 0 1 3600").starts_with("*5\\r\\n:0\\r\\n"));
}

/// All or none holds at this door as well.
#[test]
fn a_request_is_decided_under_every_policy_that_applies() {
    let folder = Folder::new("resp-request");
    let server = serve(&folder, "");
    let one = |name: &str, limit: u32, remaining: u32| {
        format!(
            "*8\\r\\n:1\\r\\n:{limit}\\r\\n:{remaining}\\r\\n:0\\r\\n:3600000\\r\\n+store\\r\\n${}\\r\\n{name}\\r\\n:1\\r\\n",
            name.len()
        )
    };
    assert_eq!(
        ask(&server, "RL.REQUEST user alice path /x COST 4"),
        format!(
            "*8\\r\\n:1\\r\\n:5\\r\\n:1\\r\\n:0\\r\\n:3600000\\r\\n+store\\r\\n$8\\r\\nper-user\\r\\n*2\\r\\n{}{}",
            one("per-user", 5, 1),
            one("route", 100, 96)
        )
    );
    let denied = ask(&server, "RL.REQUEST user alice path /x COST 2");
    assert!(denied.starts_with("*8\\r\\n:0\\r\\n:5\\r\\n:1\\r\\n"), "{denied}");
    assert!(ask(&server, "RL.CHECK route alice /x PEEK").starts_with("*6\\r\\n:1\\r\\n:100\\r\\n:96\\r\\n"));
    assert_eq!(
        ask(&server, "RL.REQUEST colour red"),
        "*8\\r\\n:1\\r\\n$-1\\r\\n$-1\\r\\n$-1\\r\\n$-1\\r\\n$-1\\r\\n$-1\\r\\n*0\\r\\n"
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
    let folder = Folder::new("resp-bytes");
    let server = serve(&folder, "");
    let keys: [&[u8]; 8] = [b"", b"\0", b"\r\n", b"\xff\xfe", b"\xff\xff", b"COST", b"PEEK", &[b'x'; 8192]];
    for key in keys {
        let remaining = exchange(&server, &command(&[b"RL.CHECK", b"per-user", key, b"COST", b"4"]));
        assert!(
            remaining.starts_with("*6\\r\\n:1\\r\\n:5\\r\\n:1\\r\\n"),
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
        ask(&server, "RL.CHECK per-ip 2001:db8::1 COST 4").starts_with("*6\\r\\n:1\\r\\n:5\\r\\n:1\\r\\n")
    );
    assert!(ask(&server, "RL.CHECK per-ip 2001:DB8:0::2").starts_with("*6\\r\\n:1\\r\\n:5\\r\\n:0\\r\\n"));
}

/// The figures of redis-cell's own documentation, and those of its code where a figure has a fraction.
#[test]
fn cl_throttle_answers_in_the_order_and_rounding_of_redis_cell() {
    let folder = Folder::new("resp-cell");
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
    let folder = Folder::new("resp-crab");
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
    let folder = Folder::new("resp-wrong");
    let server = serve(&folder, "");
    let cost = "give a whole number from 0 to 9007199254740991";
    let throttle = "key max_burst count period [quantity]";
    let check = "policy key [key ...] [COST n] [PEEK]";
    for (line, error) in [
        ("FOO bar", "unknown command `FOO`; COMMAND LIST says which there are".to_owned()),
        ("RL.CHECK", format!("RL.CHECK: too few arguments (0); write `RL.CHECK {check}`")),
        ("RL.CHECK nobody x", "RL.CHECK: policy `nobody` is unknown; RL.POLICIES says which there are".into()),
        (
            "RL.CHECK per-user",
            "RL.CHECK: policy `per-user` counts by user; write `per-user <user>`".into(),
        ),
        (
            "RL.CHECK route alice",
            "RL.CHECK: policy `route` counts by user and path; write `route <user> <path>`".into(),
        ),
        ("RL.CHECK per-user x COST", "RL.CHECK: COST has no number; write for example `COST 5`".into()),
        ("RL.CHECK per-user x COST -1", format!("RL.CHECK: COST is `-1`; {cost}")),
        ("RL.CHECK per-user x COST +1", format!("RL.CHECK: COST is `+1`; {cost}")),
        ("RL.CHECK per-user x COST 1e3", format!("RL.CHECK: COST is `1e3`; {cost}")),
        ("RL.CHECK per-user x COST 9007199254740992", format!("RL.CHECK: COST is `9007199254740992`; {cost}")),
        ("RL.CHECK per-user x COST 1 COST 2", "RL.CHECK: COST stands twice; give it once".into()),
        ("RL.CHECK per-user x y", "RL.CHECK: `y` is not `COST n` or `PEEK`, which may stand here".into()),
        ("RL.REFUND per-user x PEEK", "RL.REFUND: `PEEK` is not `COST n`, which may stand here".into()),
        ("RL.RESET per-user x y", "RL.RESET: `y` is one argument too many; leave it out".into()),
        (
            "RL.CHECK THROTTLE x",
            "RL.CHECK: policy `THROTTLE` has no quota of its own; send THROTTLE with one instead".into(),
        ),
        (
            "RL.CHECK per-ip here",
            "RL.CHECK: attribute `ip` is no IP address: `here`; write for example `192.0.2.7` or `2001:db8::7`".into(),
        ),
        ("RL.REQUEST user", "RL.REQUEST: attribute `user` has no value; give one".into()),
        ("RL.REQUEST user a user b", "RL.REQUEST: attribute `user` stands twice; give it once".into()),
        ("RL.REQUEST COST x", format!("RL.REQUEST: COST is `x`; {cost}")),
        ("RL.POLICIES all", "RL.POLICIES: too many arguments (1); write `RL.POLICIES`".into()),
        ("CL.THROTTLE k 1 1", format!("CL.THROTTLE: too few arguments (3); write `CL.THROTTLE {throttle}`")),
        ("CL.THROTTLE k -1 1 1", "CL.THROTTLE: max_burst is `-1`; give a whole number from 0 to 9007199254740990".into()),
        (
            "CL.THROTTLE k 9223372036854775807 1 1",
            "CL.THROTTLE: max_burst is `9223372036854775807`; give a whole number from 0 to 9007199254740990".into(),
        ),
        ("CL.THROTTLE k 1 0 1", "CL.THROTTLE: count is `0`; give a whole number from 1 to 9007199254740991".into()),
        ("CL.THROTTLE k 1 1 0", "CL.THROTTLE: period is `0`; give a whole number from 1 to 31622400".into()),
        ("CL.THROTTLE k 1 1 1 -1", format!("CL.THROTTLE: quantity is `-1`; {cost}")),
        ("THROTTLE k 0 1 1", "THROTTLE: max_burst is `0`; give a whole number from 1 to 9007199254740991".into()),
        ("SELECT 1", "SELECT: there is no database `1`; there is one, 0".into()),
        ("AUTH x", "AUTH: no password is set; leave AUTH out, or set resp.password".into()),
    ] {
        assert_eq!(ask(&server, line), format!("-ERR {error}\\r\\n"), "{line}");
    }
    let long = "x".repeat(8193);
    assert_eq!(
        ask(&server, &format!("RL.CHECK per-user {long}")),
        "-ERR RL.CHECK: attribute `user` has 8193 bytes; give at most 8192\\r\\n"
    );
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

/// What follows is never a command again, and the next client must find the server as it was.
#[test]
fn a_malformed_frame_is_answered_and_ends_the_connection_only() {
    let folder = Folder::new("resp-malformed");
    let server = serve(&folder, "");
    let count = "the number of arguments is no number from 0 to 80";
    let bulk = "an argument is no bulk string; send for example `$4` and `PING`";
    let length = "the length of an argument is no number from 0 to 65536";
    for (bytes, error) in [
        (b"*1\r\n".repeat(10_000), bulk),
        (b"*1000000000\r\n".to_vec(), count),
        (b"*-1\r\n".to_vec(), count),
        (b"*99999999999999999999999999".to_vec(), count),
        (b"*2\r\n$4\r\nPING\r\n$1000000000\r\n".to_vec(), length),
        (b"*2\r\n$4\r\nPING\r\n$-1\r\n".to_vec(), length),
        (b"*1\r\n:1\r\n".to_vec(), bulk),
        (b"*1\r\n%1\r\n".to_vec(), bulk),
        (b"*1\r\n$4\r\nPINGPING\r\n".to_vec(), "an argument does not end where its length says"),
        (
            b"*2\r\n$40000\r\n"
                .to_vec()
                .into_iter()
                .chain([b'a'; 40_000])
                .chain(*b"\r\n$40000\r\n")
                .collect(),
            "the command is longer than 65536 bytes; send less",
        ),
        (vec![b'a'; 100_000], "the line is longer than 4096 bytes; send an array of bulk strings"),
        (b"ECHO \"a\r\n".to_vec(), "the quotes of the line do not come in pairs, each pair a whole argument"),
    ] {
        let answer = exchange(&server, &[&words("PING")[..], &bytes, &words("PING")].concat());
        let shown = bytes[..bytes.len().min(40)].escape_ascii();
        assert_eq!(answer, format!("+PONG\\r\\n-ERR Protocol error: {error}\\r\\n"), "{shown}");
    }
    let http = exchange(&server, b"POST / HTTP/1.1\r\nHost: x\r\n\r\nRL.RESET per-user alice\r\n");
    assert_eq!(http, "-ERR this is no HTTP port; the address of the HTTP interface is another\\r\\n");
    assert_eq!(ask(&server, "PING"), "+PONG\\r\\n");
}

/// Anyone may send anything: 3000 streams of bytes that are nearly commands, always the same ones.
#[test]
fn no_bytes_end_the_server() {
    let folder = Folder::new("resp-fuzz");
    let server = serve(&folder, "");
    let pieces: [&[u8]; 20] = [
        b"*3\r\n",
        b"*1\r\n",
        b"$8\r\nRL.CHECK\r\n",
        b"$8\r\nper-user\r\n",
        b"$5\r\nalice\r\n",
        b"$4\r\nPING\r\n",
        b"\r\n",
        b"\n",
        b"\r",
        b"*",
        b"$",
        b"-1",
        b"99999",
        b"\0\xff",
        b"PING\r\n",
        b"HELLO 3\r\n",
        b"COMMAND DOCS\r\n",
        b"\"",
        b"RESET\r\n",
        b"RL.REQUEST user alice path x\r\n",
    ];
    // xorshift64*, from one seed.
    let mut state = 0x2026_1121_u64;
    let mut next = move |below: u64| {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        (state.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) % below
    };
    for _ in 0..3000 {
        let count = 1 + next(30);
        let mut bytes: Vec<u8> = Vec::new();
        for _ in 0..count {
            bytes.extend_from_slice(pieces[usize::try_from(next(20)).unwrap()]);
        }
        let flip = usize::try_from(next(bytes.len() as u64)).unwrap();
        bytes[flip] ^= 1 << next(8);
        let mut stream = connect(&server);
        // A server that has refused the beginning may close before it has read the end.
        let _ = stream.write_all(&bytes).and_then(|()| stream.shutdown(std::net::Shutdown::Write));
        let mut answer = Vec::new();
        if let Err(error) = stream.read_to_end(&mut answer) {
            assert_eq!(
                error.kind(),
                ErrorKind::ConnectionReset,
                "the connection ends: {}",
                bytes.escape_ascii()
            );
        }
    }
    assert_eq!(ask(&server, "PING"), "+PONG\\r\\n");
}

/// Answers come in the order of the commands, however they arrive.
#[test]
fn a_pipeline_is_answered_in_order_whole_or_byte_by_byte() {
    let folder = Folder::new("resp-pipeline");
    let server = serve(&folder, "");
    let lines = [
        "ECHO a",
        "RL.CHECK per-user alice",
        "NOPE",
        "RL.CHECK per-user alice COST 2",
        "RL.RESET per-user alice",
        "RL.CHECK per-user alice",
        "HELLO",
        "CL.THROTTLE k 15 30 60",
        "QUIT",
        "PING",
    ];
    let pipeline: Vec<u8> = lines.iter().flat_map(|line| words(line)).collect();
    let check = |remaining: u32| {
        format!("*6\\r\\n:1\\r\\n:5\\r\\n:{remaining}\\r\\n:0\\r\\n:3600000\\r\\n+store\\r\\n")
    };
    let order = |answer: &str| {
        let expected = [
            "$1\\r\\na\\r\\n",
            &check(4),
            "-ERR unknown",
            &check(2),
            ":1\\r\\n",
            &check(4),
            "*14\\r\\n",
            "*5\\r\\n:0\\r\\n:16",
            "+OK\\r\\n",
        ];
        let mut rest = answer;
        for part in expected {
            rest =
                rest.split_once(part).unwrap_or_else(|| panic!("{part} is missing in {rest} of {answer}")).1;
        }
        assert_eq!(rest, "", "nothing follows the last");
    };
    let forget = [words("RL.RESET per-user alice"), words("RL.RESET CL.THROTTLE k")].concat();
    order(&exchange(&server, &pipeline));
    exchange(&server, &forget);
    let mut stream = connect(&server);
    stream.set_nodelay(true).unwrap();
    for byte in &pipeline {
        // It has quit before the last command.
        let _ = stream.write_all(&[*byte]);
    }
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    order(&answer.escape_ascii().to_string());
    // Many more commands than the first buffer holds.
    let many: Vec<u8> = (0..20_000).flat_map(|number| words(&format!("ECHO {number:05}"))).collect();
    let mut stream = connect(&server);
    let mut reader = stream.try_clone().unwrap();
    let writer = std::thread::spawn(move || stream.write_all(&many).unwrap());
    for number in 0..20_000 {
        expect(&mut reader, format!("$5\r\n{number:05}\r\n").as_bytes());
    }
    writer.join().unwrap();
}

/// `telnet` and `nc` are the clients that are always there.
#[test]
fn a_line_is_a_command() {
    let folder = Folder::new("resp-line");
    let server = serve(&folder, "");
    let lines = b"\r\nPING\r\necho \"a \\x41\"\nRL.CHECK per-user 'alice b'\r\nRL.CHECK per-user \"alice b\" COST 4\r\nQUIT\r\n";
    let answer = exchange(&server, lines);
    assert!(answer.starts_with("+PONG\\r\\n$3\\r\\na A\\r\\n*6\\r\\n:1\\r\\n:5\\r\\n:4\\r\\n"), "{answer}");
    assert!(answer.contains("*6\\r\\n:1\\r\\n:5\\r\\n:0\\r\\n") && answer.ends_with("+OK\\r\\n"), "{answer}");
}

/// A client that asks and does not listen must cost a bounded piece of memory, for a bounded time.
#[test]
fn who_does_not_take_its_answers_is_cut_off_and_nobody_else_waits() {
    let folder = Folder::new("resp-slow");
    let server = serve(&folder, "");
    let slow = connect(&server);
    slow.set_nonblocking(true).unwrap();
    let asked = words("COMMAND DOCS").repeat(500);
    // The server stops reading when nobody takes its answers: then the system's buffers are full on both sides.
    let mut full = 0;
    while full < 50 {
        match (&slow).write(&asked) {
            Ok(_) => full = 0,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                full += 1;
                assert_eq!(ask(&server, "PING"), "+PONG\\r\\n", "others are answered meanwhile");
            }
            Err(error) => panic!("{error}"),
        }
    }
    slow.set_nonblocking(false).unwrap();
    library::support::until_true("the slow reader is gone", || {
        exchange(&server, &words("INFO clients")).contains("connected_clients:1\\r\\n")
    });
}

/// Connections are bounded in number and in silence; bytes that never become a command are silence.
#[test]
fn connections_are_bounded_in_number_and_in_silence() {
    let folder = Folder::new("resp-bounds");
    let server = serve(&folder, "  max_connections: 2\n  idle_timeout: 1s\n");
    let (mut silent, mut dribbling) = (connect(&server), connect(&server));
    for stream in [&mut silent, &mut dribbling] {
        stream.write_all(&words("PING")).unwrap();
        expect(stream, b"+PONG\r\n");
    }
    let refused = exchange_or_reset(&server);
    assert!(refused.is_empty() || refused == "-ERR max number of clients reached\\r\\n", "{refused}");
    // Never a whole command, and a byte again and again.
    dribbling.set_nonblocking(true).unwrap();
    let mut gone = false;
    library::support::until_true("the connection is cut off", || {
        let _ = dribbling.write(b"a");
        gone = gone
            || !matches!(dribbling.read(&mut [0; 64]), Err(error) if error.kind() == ErrorKind::WouldBlock);
        gone
    });
    assert_eq!(silent.read(&mut [0; 64]).unwrap(), 0, "the silent one as well");
    library::support::until_true("there is a place again", || exchange_or_reset(&server) == "+PONG\\r\\n");
}

/// What is answered to a PING by a server that may refuse the connection before it has read it.
fn exchange_or_reset(server: &Server) -> String {
    let mut stream = connect(server);
    let mut answer = Vec::new();
    let _ = stream.write_all(&words("PING")).and_then(|()| stream.shutdown(std::net::Shutdown::Write));
    let _ = stream.read_to_end(&mut answer);
    answer.escape_ascii().to_string()
}

/// Without it, whoever reaches the port resets limits.
#[test]
fn nothing_is_decided_before_the_password() {
    let folder = Folder::new("resp-auth");
    let server = serve(&folder, "  password: open sesame\n");
    let no_auth = "-NOAUTH Authentication required: send AUTH and the password first\\r\\n";
    let wrong = "-WRONGPASS invalid username-password pair or user is disabled.\\r\\n";
    for line in ["PING", "RL.CHECK per-user alice", "RL.POLICIES", "INFO", "COMMAND", "CLIENT ID"] {
        assert_eq!(ask(&server, line), no_auth, "{line}");
    }
    for password in ["", "open", "open sesamf", "open sesame "] {
        let after = [command(&[b"AUTH", password.as_bytes()]), words("PING")].concat();
        assert_eq!(exchange(&server, &after), format!("{wrong}{no_auth}"), "{password}");
    }
    assert_eq!(exchange(&server, &command(&[b"AUTH", b"root", b"open sesame"])), wrong);
    let right = command(&[b"AUTH", b"open sesame"]);
    let right_by_name = command(&[b"AUTH", b"default", b"open sesame"]);
    for auth in [right, right_by_name] {
        let all = [auth, words("PING"), words("RESET"), words("PING"), words("QUIT")].concat();
        assert_eq!(exchange(&server, &all), format!("+OK\\r\\n+PONG\\r\\n+RESET\\r\\n{no_auth}+OK\\r\\n"));
    }
    let greeting = exchange(&server, &words("HELLO 3"));
    assert_eq!(
        greeting,
        "-NOAUTH HELLO needs the password: send for example `HELLO 3 AUTH default PASSWORD`\\r\\n"
    );
    let hello: [&[u8]; 7] = [b"HELLO", b"3", b"AUTH", b"default", b"open sesame", b"SETNAME", b"me"];
    let greeted = exchange(&server, &[command(&hello), words("CLIENT GETNAME")].concat());
    assert!(greeted.starts_with("%7\\r\\n$6\\r\\nserver\\r\\n$9\\r\\nslidegate\\r\\n"), "{greeted}");
    assert!(greeted.ends_with("*0\\r\\n$2\\r\\nme\\r\\n"), "{greeted}");
    assert_eq!(cli(&server, &["--no-auth-warning", "-a", "open sesame", "PING"]), "PONG\n");
}

/// A password belongs in no configuration that is kept with the code.
#[test]
fn the_password_may_come_from_a_file_or_the_environment() {
    let folder = Folder::new("resp-password");
    let path = folder.file("password", "from a file\n");
    let server = serve(&folder, &format!("  password_file: {path}\n"));
    assert_eq!(exchange(&server, &command(&[b"AUTH", b"from a file"])), "+OK\\r\\n");
    drop(server);
    let server =
        Server::start_with(&["--resp", "127.0.0.1:0"], &[("SLIDEGATE_RESP_PASSWORD", "from outside")]);
    assert_eq!(exchange(&server, &command(&[b"AUTH", b"from outside"])), "+OK\\r\\n");
    assert!(ask(&server, "PING").starts_with("-NOAUTH"));
}

/// What the password and the keys are must not stand in the clear on a network.
#[test]
fn redis_cli_asks_over_tls() {
    let folder = Folder::new("resp-tls");
    let (certificate, key) = (folder.file("cert.pem", ""), folder.file("key.pem", ""));
    let openssl = client("openssl", "openssl")
        .args([
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
            "-days",
            "2",
        ])
        .args([
            "-subj",
            "/CN=localhost",
            "-addext",
            "subjectAltName=IP:127.0.0.1",
            "-out",
            &certificate,
            "-keyout",
            &key,
        ])
        .output();
    succeed(&openssl.unwrap());
    let server = serve(&folder, &format!("  cert_file: {certificate}\n  key_file: {key}\n"));
    assert!(server.greeting.contains("resp       rediss://127.0.0.1:"), "{}", server.greeting);
    let tls = ["--tls", "--cacert", &certificate];
    assert_eq!(cli(&server, &[&tls[..], &["PING"]].concat()), "PONG\n");
    let checked = cli(&server, &[&tls[..], &["RL.CHECK", "per-user", "alice"]].concat());
    assert_eq!(checked, "1\n5\n4\n0\n3600000\nstore\n");
    // In the clear there is no answer, and the server goes on.
    let plain = exchange_or_reset(&server);
    assert!(!plain.contains("PONG"), "{plain}");
    assert_eq!(cli(&server, &[&tls[..], &["PING"]].concat()), "PONG\n");
}

/// The client at everyone's hand, in both versions of the protocol.
#[test]
fn redis_cli_and_redis_benchmark_are_served() {
    let folder = Folder::new("resp-cli");
    let server = serve(&folder, "");
    assert_eq!(cli(&server, &["RL.CHECK", "per-user", "alice"]), "1\n5\n4\n0\n3600000\nstore\n");
    let named = cli(&server, &["-3", "RL.CHECK", "per-user", "bob"]);
    assert!(
        named.starts_with("allowed true\nlimit 5\nremaining 4\n") || named.contains("remaining"),
        "{named}"
    );
    assert_eq!(cli(&server, &["CL.THROTTLE", "user123", "15", "30", "60"]), "0\n16\n15\n-1\n2\n");
    assert_eq!(cli(&server, &["COMMAND", "COUNT"]), "17\n");
    assert!(cli(&server, &["COMMAND", "DOCS", "rl.check"]).contains("Decides and charges under one policy"));
    assert!(cli(&server, &["INFO", "replication"]).contains("role:master"));
    let benchmark = client("redis-benchmark", "redis-tools")
        .args(["-p", port(&server), "-n", "2000", "-c", "10", "-P", "16", "-r", "1000", "-q"])
        .args(["RL.CHECK", "per-user", "key:__rand_int__"])
        .output()
        .unwrap();
    let told = succeed(&benchmark);
    assert!(
        told.contains("requests per second") && !text(&benchmark.stderr).contains("Error from server"),
        "{told}"
    );
}

/// The client of most Python programs, as they use it.
#[test]
fn redis_py_is_served() {
    let folder = Folder::new("resp-python");
    let server = serve(&folder, "  password: sesame\n");
    let script = "
import redis, sys
port = int(sys.argv[1])
for protocol in (2, 3):
    client = redis.Redis(port=port, password='sesame', protocol=protocol, client_name='tests', health_check_interval=1)
    assert client.ping()
    key = f'alice{protocol}'
    answer = client.execute_command('RL.CHECK', 'per-user', key)
    if protocol == 2:
        assert answer == [1, 5, 4, 0, 3600000, b'store'] or answer == [1, 5, 4, 0, 3600000, 'store'], answer
    else:
        answer = {k.decode(): v for k, v in answer.items()}
        assert answer['allowed'] is True and answer['remaining'] == 4, answer
    with client.pipeline(transaction=False) as pipeline:
        for _ in range(6):
            pipeline.execute_command('CL.THROTTLE', key, 3, 1, 3600)
        answers = pipeline.execute()
    assert [answer[0] for answer in answers] == [0, 0, 0, 0, 1, 1], answers
    assert client.client_getname() in ('tests', b'tests')
    assert client.client_id() > 0
    assert client.info('replication')['role'] == 'master'
    assert client.echo(b'\\0\\xff') == b'\\0\\xff'
    try:
        client.execute_command('RL.CHECK', 'nobody', 'x')
        raise SystemExit('an unknown policy passed')
    except redis.ResponseError as error:
        assert 'nobody' in str(error), error
    client.close()
try:
    redis.Redis(port=port, password='wrong').ping()
    raise SystemExit('a wrong password passed')
except redis.AuthenticationError:
    pass
print('served')
";
    let output = client("python3", "python3")
        .args(["-c", script, port(&server)])
        .env("PYTHONPATH", clients().join("python"))
        .output()
        .unwrap();
    assert_eq!(succeed(&output), "served\n", "{}", text(&output.stderr));
}

/// The client of most programs on Node.js, as they use it.
#[test]
fn ioredis_is_served() {
    let folder = Folder::new("resp-node");
    let server = serve(&folder, "  password: sesame\n");
    let script = "
const { Redis } = require('ioredis');
const assert = require('assert');
(async () => {
  const client = new Redis({ port: Number(process.argv[1]), password: 'sesame', connectionName: 'tests', db: 0, maxRetriesPerRequest: 2 });
  await new Promise((done, fail) => { client.once('ready', done); client.once('error', fail); });
  // It speaks RESP3 and hands maps on as pairs in one list.
  const pairs = await client.call('RL.CHECK', 'per-user', 'alice');
  assert.deepStrictEqual(pairs.filter((_, at) => at % 2), [1, 5, 4, 0, 3600000, 'store']);
  assert.strictEqual(pairs[4], 'remaining');
  const pipeline = client.pipeline();
  for (let at = 0; at < 6; at++) pipeline.call('CL.THROTTLE', 'alice', 3, 1, 3600);
  const answers = await pipeline.exec();
  assert.deepStrictEqual(answers.map(([error, answer]) => [error, answer[0]]), [0, 0, 0, 0, 1, 1].map(n => [null, n]));
  assert.strictEqual(await client.client('GETNAME'), 'tests');
  await assert.rejects(client.call('RL.CHECK', 'nobody', 'x'), /nobody/);
  await client.quit();
  console.log('served');
})().catch(error => { console.error(error); process.exit(1); });
";
    let output = client("node", "nodejs")
        .args(["-e", script, port(&server)])
        .env("NODE_PATH", clients().join("node_modules"))
        .output()
        .unwrap();
    assert_eq!(succeed(&output), "served\n", "{}", text(&output.stderr));
}

/// With a shared store a pipeline waits for one round trip and not for each of its commands, and stays in order.
#[test]
fn a_pipeline_over_a_shared_store_is_answered_in_order() {
    let redis = Redis::start();
    let folder = Folder::new("resp-shared");
    let path = folder.file("slidegate.yaml", POLICIES);
    let server = Server::start(&["--config", &path, "--redis", &redis.url()]);
    let mut lines: Vec<String> = Vec::new();
    for number in 0..300 {
        lines.push(format!("RL.CHECK per-user key{number} COST {}", number % 5));
        lines.push(format!("ECHO {number}"));
    }
    lines.push("RL.CHECK per-user key1 COST 4".into());
    lines.push("RL.REFUND per-user key1 COST 2".into());
    lines.push("RL.CHECK per-user key1 COST 5 PEEK".into());
    lines.push("RL.RESET per-user key1".into());
    lines.push("RL.CHECK per-user key1 COST 5".into());
    lines.push("THROTTLE key1 10 100 60".into());
    let answer = exchange(&server, &lines.iter().flat_map(|line| words(line)).collect::<Vec<_>>());
    let mut rest = answer.as_str();
    let mut next = |expected: &str| {
        let (_, after) =
            rest.split_once(expected).unwrap_or_else(|| panic!("{expected} is missing in {rest}"));
        rest = after;
    };
    for number in 0..300 {
        next(&format!("*6\\r\\n:1\\r\\n:5\\r\\n:{}\\r\\n", 5 - number % 5));
        next("+store\\r\\n");
        next(&format!("\\r\\n{number}\\r\\n"));
    }
    next("*6\\r\\n:1\\r\\n:5\\r\\n:0\\r\\n");
    next("*6\\r\\n:1\\r\\n:5\\r\\n:2\\r\\n");
    next("*6\\r\\n:0\\r\\n:5\\r\\n:2\\r\\n");
    next(":1\\r\\n*6\\r\\n:1\\r\\n:5\\r\\n:0\\r\\n");
    next("*5\\r\\n:1\\r\\n:10\\r\\n:9\\r\\n:5\\r\\n:0\\r\\n");
    redis.kill();
    let local = ask(&server, "RL.CHECK per-user other");
    assert!(local.ends_with("+local\\r\\n"), "an answer without the store says so: {local}");
}

/// A deploy sends SIGTERM: what has come is answered, and nobody's idle connection holds it up.
#[test]
fn on_sigterm_what_has_come_is_answered_and_idle_connections_are_closed() {
    let folder = Folder::new("resp-stop");
    let mut server = serve(&folder, "");
    let (mut idle, mut busy) = (connect(&server), connect(&server));
    for stream in [&mut idle, &mut busy] {
        stream.write_all(&words("PING")).unwrap();
        expect(stream, b"+PONG\r\n");
    }
    let ask = words("RL.CHECK per-user alice");
    // The beginning of a command; the answer to the one before it says that it was read.
    busy.write_all(&[&words("PING")[..], &ask[..10]].concat()).unwrap();
    expect(&mut busy, b"+PONG\r\n");
    server.signal("TERM");
    assert_eq!(idle.read(&mut [0; 64]).unwrap(), 0, "the idle one is closed");
    assert!(server.is_running(), "it waits for the command that has begun");
    busy.write_all(&ask[10..]).unwrap();
    expect(&mut busy, b"*6\r\n:1\r\n:5\r\n:4\r\n:0\r\n:3600000\r\n+store\r\n");
    assert_eq!(busy.read(&mut [0; 64]).unwrap(), 0, "and closed after its answer");
    assert!(server.wait().success());
}

/// A port that nobody asked for is one that nobody guards.
#[test]
fn the_port_is_off_unless_it_is_asked_for() {
    let server = Server::start(&[]);
    assert!(!server.greeting.contains("resp"), "{}", server.greeting);
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let output = run(&["serve", "--listen", "127.0.0.1:0", "--resp", &address]);
    assert_eq!(output.status.code(), Some(2));
    let error = format!(
        "cannot listen to {address}: Address already in use (os error 98); choose another address with --resp\n"
    );
    assert_eq!(text(&output.stderr), error);
}
