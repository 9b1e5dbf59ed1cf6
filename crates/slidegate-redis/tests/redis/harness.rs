//! The harness itself: a test that passes because its fault never happened is worse than none.

use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use slidegate_testkit::redis::{RedisCluster, RedisServer, Reply, acl};
use slidegate_testkit::until_true;

/// The cluster whose tests leave it in order. One for all, one at a time: starting it takes
/// seconds.
pub(crate) fn cluster() -> MutexGuard<'static, RedisCluster> {
    static CLUSTER: LazyLock<Mutex<RedisCluster>> = LazyLock::new(|| Mutex::new(RedisCluster::of_three()));
    let cluster = CLUSTER.lock().unwrap_or_else(PoisonError::into_inner);
    for node in cluster.nodes().iter().filter(|node| node.admin(&["ROLE"]).starts_with("master")) {
        node.admin(&["FLUSHALL"]);
    }
    cluster
}

fn text(text: &str) -> Reply {
    Reply::Bytes(text.into())
}

/// Nothing is dropped when tests are killed, or in a `static`.
#[test]
fn a_server_is_gone_when_its_test_is_killed() {
    let tests = std::env::current_exe().unwrap();
    let arguments = ["--exact", "harness::a_test_that_never_ends", "--ignored", "--nocapture"];
    let mut tests = Command::new(tests).args(arguments).stdout(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(tests.stdout.take().unwrap()).lines().map_while(Result::ok);
    let (port, dir) = said
        .find_map(|line| {
            let (port, dir) = line.split_once("serving: ")?.1.split_once(' ')?;
            Some((port.parse::<u16>().unwrap(), PathBuf::from(dir)))
        })
        .unwrap();
    assert!(TcpStream::connect(("127.0.0.1", port)).is_ok());
    tests.kill().unwrap();
    tests.wait().unwrap();
    until_true("the guard ends the server", || TcpStream::connect(("127.0.0.1", port)).is_err());
    until_true("the guard clears up", || !dir.exists());
}

/// What the test above kills.
#[test]
#[ignore = "runs forever, for another test to kill it"]
fn a_test_that_never_ends() {
    let server = RedisServer::start();
    println!("serving: {} {}", server.port(), server.dir().display());
    loop {
        std::thread::park();
    }
}

/// The documentation tells operators to create this very user.
#[test]
fn the_users_rights_reach_its_keys_and_no_other_command_or_key() {
    let server = RedisServer::start();
    let mut user = server.connect();
    assert_eq!(user.call(&["AUTH", acl::USER, acl::PASSWORD]).unwrap(), text("OK"));

    let load =
        ["SCRIPT", "LOAD", "redis.call('SET', KEYS[1], 'x', 'PX', '9000') return redis.call('GET', KEYS[1])"];
    let digest = user.call(&load).unwrap().to_string();
    assert_eq!(user.call(&["EVALSHA", &digest, "1", "sg1:{a}"]).unwrap(), text("x"));
    for forbidden in [
        &["FLUSHALL"][..],
        &["CONFIG", "GET", "*"],
        &["KEYS", "*"],
        &["EVAL", "return 1", "0"],
        &["GET", "other"],
        &["EVALSHA", &digest, "1", "other"],
        &["PUBLISH", "news", "none"],
    ] {
        let reply = user.call(forbidden).unwrap();
        assert!(
            reply.to_string().contains("NOPERM") || reply.to_string().contains("permission"),
            "{reply:?}"
        );
    }

    // Only what an administrator types can be quoted: the same words, given to a server that runs.
    let words = acl::MINIMUM.split_whitespace();
    let command: Vec<_> = ["ACL", "SETUSER", "typed", "on", ">secret"].into_iter().chain(words).collect();
    assert_eq!(server.admin(&command), "OK");
}
