//! The harness itself: a test that passes because its fault never happened is worse than none.

use std::collections::BTreeSet;
use std::io::{self, BufRead, BufReader};
use std::net::TcpStream;
use std::panic::catch_unwind;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::Duration;

use slidegate_testkit::proxy::{Connections, Mode, Proxy};
use slidegate_testkit::redis::{
    CommandStats, Connection, FakeRedis, FakeReply, RedisCluster, RedisSentinels, RedisServer, Reply, acl,
};
use slidegate_testkit::until_true;

/// Shorter than any answer that is not coming, longer than any that is on its way.
const SOON: Duration = Duration::from_millis(300);

/// For what does come, on a busy machine.
const LATER: Duration = Duration::from_secs(10);

const HOUR_US: i64 = 3_600_000_000;

/// The cluster whose tests leave it in order. One for all, one at a time: starting it takes
/// seconds.
pub(crate) fn cluster() -> MutexGuard<'static, RedisCluster> {
    static CLUSTER: LazyLock<Mutex<RedisCluster>> = LazyLock::new(|| Mutex::new(RedisCluster::of_three()));
    CLUSTER.lock().unwrap_or_else(PoisonError::into_inner)
}

fn text(text: &str) -> Reply {
    Reply::Bytes(text.into())
}

fn is_error(reply: &Reply, code: &str) -> bool {
    matches!(reply, Reply::Error(text) if text.starts_with(code))
}

/// Whether an error says that nothing came in time.
fn is_silence(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

/// A port that is still served keeps the next test from it, and the machine from its memory.
#[test]
fn a_server_answers_on_port_and_socket_and_is_gone_when_dropped() {
    let server = RedisServer::start();
    assert_eq!(server.connect().call(&["PING"]).unwrap(), text("PONG"));
    assert_eq!(server.admin(&["SET", "colour", "green"]), "OK");
    assert_eq!(server.connect().call(&["GET", "colour"]).unwrap(), text("green"));

    let (port, dir) = (server.port(), server.dir().to_owned());
    drop(server);
    assert!(TcpStream::connect(("127.0.0.1", port)).is_err());
    assert!(!dir.exists());
}

/// Most servers that are left behind are left behind by tests that fail.
#[test]
fn a_server_is_gone_when_its_test_panics() {
    let (send, port) = mpsc::channel();
    let test = catch_unwind(move || {
        let server = RedisServer::start();
        send.send(server.port()).unwrap();
        // Frozen, the hardest to end.
        server.pause();
        server.ask_within(SOON, &["PING"]).unwrap();
    });
    assert!(test.is_err());
    assert!(TcpStream::connect(("127.0.0.1", port.recv().unwrap())).is_err());
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

/// What the store's URL is given to has to be able to read it.
#[tokio::test]
async fn a_client_library_connects_by_the_urls() {
    let server = RedisServer::start();
    for url in [server.url(), server.url_as_user(), format!("unix://{}", server.socket().display())] {
        let client = redis::Client::open(url).unwrap();
        let mut connection = client.get_multiplexed_async_connection().await.unwrap();
        let pong: String = redis::cmd("PING").query_async(&mut connection).await.unwrap();
        assert_eq!(pong, "PONG");
    }
}

/// A frozen server does what it was sent when it wakes: the very thing that charges for requests
/// long denied.
#[test]
fn a_paused_server_is_silent_and_executes_on_waking_what_it_was_sent() {
    let server = RedisServer::start();
    server.pause();
    assert!(!server.is_awake());
    let mut hopeful = Connection::tcp(server.port(), SOON).unwrap();
    assert!(is_silence(&hopeful.call(&["INCR", "calls"]).unwrap_err()));
    assert!(is_silence(&server.ask_within(SOON, &["PING"]).unwrap_err()));
    server.resume();
    until_true("the late command is done", || server.admin(&["GET", "calls"]) == "1");
}

/// Limits that survive a crash by accident hide what happens when they do not.
#[test]
fn a_restarted_server_is_empty_and_on_the_same_port() {
    let server = RedisServer::start();
    let port = server.port();
    server.admin(&["SET", "colour", "green"]);
    server.kill();
    assert!(TcpStream::connect(("127.0.0.1", port)).is_err());
    server.restart();
    assert_eq!(server.port(), port);
    assert_eq!(server.connect().call(&["GET", "colour"]).unwrap(), Reply::Nil);
}

/// What the server has done is the only witness of what was charged.
#[test]
fn a_server_counts_commands_and_bytes() {
    let server = RedisServer::start();
    assert_eq!(server.commandstats("set"), CommandStats::default());
    for _ in 0..3 {
        server.admin(&["EVAL", "redis.call('SET', KEYS[1], ARGV[1])", "1", "sg1:a", "12"]);
    }
    server.admin(&["SCRIPT", "LOAD", "return 1"]);
    assert_eq!(server.commandstats("set").calls, 3);
    assert_eq!(server.commandstats("script|load").calls, 1);
    assert!(server.commandstats("eval").usec > 0);
    assert!((20..200).contains(&server.memory_usage("sg1:a").unwrap()));
    assert_eq!(server.memory_usage("sg1:b"), None);
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

/// Limits live by the server's clock, which somebody will correct one day.
#[test]
fn the_clock_moves_what_time_and_scripts_say() {
    let server = RedisServer::builder().with_clock().start();
    let seconds = || server.admin(&["TIME"]).lines().next().unwrap().parse::<i64>().unwrap();
    let script = || server.admin(&["EVAL", "return redis.call('TIME')[1]", "0"]).parse::<i64>().unwrap();
    let start = seconds();
    for hours in [1, -2, 0] {
        server.clock().set(hours * HOUR_US);
        for now in [seconds(), script()] {
            assert!((0..60).contains(&(now - start - hours * 3600)), "{now} is not {hours} h after {start}");
        }
    }

    // A step of less than a second, either way, on top of some hours.
    let micros = || {
        let time = server.admin(&["TIME"]);
        let (seconds, micros) = time.split_once('\n').unwrap();
        seconds.parse::<i64>().unwrap() * 1_000_000 + micros.parse::<i64>().unwrap()
    };
    for base in [HOUR_US, -HOUR_US] {
        server.clock().set(base);
        let before = micros();
        server.clock().set(base - 500_000);
        let stepped = micros() - before + 500_000;
        assert!((0..400_000).contains(&stepped), "half a second back is {stepped} us off");
    }
}

/// A clock that moved with its process alone would show nothing: others must keep the true time.
#[test]
fn the_clock_of_one_server_leaves_others_alone() {
    let (moved, other) = (RedisServer::builder().with_clock().start(), RedisServer::start());
    moved.clock().set(HOUR_US);
    moved.restart();
    let [ahead, true_time] = [&moved, &other].map(|server| {
        let time = server.admin(&["TIME"]);
        time.lines().next().unwrap().parse::<i64>().unwrap()
    });
    assert!((3500..3700).contains(&(ahead - true_time)));
}

/// Each master has to be met, and each has to send strangers on.
#[test]
fn a_cluster_serves_a_key_on_each_master_and_redirects() {
    let cluster = cluster();
    let mut served_by = BTreeSet::new();
    for name in ["a", "b", "c", "d", "e", "f"] {
        let key = format!("sg1:{{{name}}}");
        let slot = cluster.slot_of(&key);
        let master = cluster.master_of(slot);
        assert_eq!(master.admin(&["SET", &key, name]), "OK");
        served_by.insert(master.port());
        for other in cluster.nodes().iter().filter(|node| node.port() != master.port()) {
            let sent_on = other.ask(&["GET", &key]).unwrap();
            assert_eq!(sent_on, Reply::Error(format!("MOVED {slot} {}", master.address())));
        }
    }
    assert_eq!(served_by.len(), 3);
    let hosts = cluster.nodes().iter().map(RedisServer::address).collect::<Vec<_>>().join(",");
    assert_eq!(cluster.url(), format!("redis+cluster://{hosts}"));
    assert_eq!(cluster.url_as_user(), format!("redis+cluster://slidegate:loopback-only@{hosts}"));
}

/// A failover without a crash: anyone who is connected must be sent on, with everything still
/// there.
#[test]
fn a_failover_moves_the_master_and_keeps_the_data() {
    let cluster = cluster();
    let slot = cluster.slot_of("sg1:{kept}");
    let old = cluster.master_of(slot);
    old.admin(&["SET", "sg1:{kept}", "yes"]);
    let new = cluster.failover(slot);
    assert_ne!(new.port(), old.port());
    assert_eq!(cluster.master_of(slot).port(), new.port());
    assert_eq!(new.admin(&["GET", "sg1:{kept}"]), "yes");
    assert!(is_error(&old.ask(&["GET", "sg1:{kept}"]).unwrap(), "MOVED "));
}

/// Keys that are absent are the common ones for a limiter, and are asked for elsewhere all the
/// while.
#[test]
fn a_slot_on_its_way_asks_for_absent_keys_and_ends_at_its_new_master() {
    let cluster = cluster();
    let slot = cluster.slot_of("{on-its-way}");
    let from = cluster.master_of(slot);
    let to = [0, 6000, 12_000].map(|slot| cluster.master_of(slot)).into_iter();
    let to = to.filter(|node| node.port() != from.port()).last().unwrap();
    from.admin(&["SET", "1{on-its-way}", "1"]);
    from.admin(&["SET", "2{on-its-way}", "2"]);

    let migration = cluster.migrate_begin(slot, to);
    assert_eq!((migration.from.port(), migration.to.port()), (from.port(), to.port()));
    let ask = format!("ASK {slot} {}", to.address());
    assert_eq!(from.admin(&["GET", "1{on-its-way}"]), "1");
    assert_eq!(from.ask(&["GET", "3{on-its-way}"]).unwrap(), Reply::Error(ask.clone()));
    migration.move_key("1{on-its-way}");
    assert_eq!(from.ask(&["GET", "1{on-its-way}"]).unwrap(), Reply::Error(ask));
    assert!(is_error(&from.ask(&["MGET", "1{on-its-way}", "2{on-its-way}"]).unwrap(), "TRYAGAIN "));

    migration.end();
    assert_eq!(cluster.master_of(slot).port(), to.port());
    assert_eq!(to.admin(&["MGET", "1{on-its-way}", "2{on-its-way}"]), "1\n2");
}

/// A master that only sleeps is replaced as a dead one is, and must not be believed when it wakes.
#[test]
fn a_frozen_cluster_master_is_replaced_and_the_cluster_has_one_owner_after_it_wakes() {
    let cluster = RedisCluster::of_three();
    let old = cluster.master_of(0);
    old.pause();
    let new = cluster.until_moved(0, old);
    assert_ne!(new.port(), old.port());
    old.resume();
    until_true("the old master follows the new", || cluster.replica_of(0).port() == old.port());
    assert_eq!(cluster.master_of(0).port(), new.port());
}

/// Clients ask sentinels where the master is; the tests have to know it better.
#[test]
fn sentinels_replace_a_master_that_was_killed() {
    let sentinels = RedisSentinels::start();
    let old = sentinels.master();
    assert_eq!(old.admin(&["SET", "colour", "green"]), "OK");
    old.until_followed_by(1);
    old.kill();
    let new = sentinels.until_moved(old);
    assert_ne!(new.port(), old.port());
    assert_eq!(sentinels.master().port(), new.port());
    assert_eq!(new.admin(&["GET", "colour"]), "green");

    let hosts = sentinels.sentinels().iter().map(RedisServer::address).collect::<Vec<_>>().join(",");
    assert_eq!(sentinels.url(), format!("redis+sentinel://{hosts}/limits"));
    assert_eq!(sentinels.url_as_user(), format!("redis+sentinel://slidegate:loopback-only@{hosts}/limits"));
}

/// To its clients a frozen master is one that takes its time.
#[test]
fn sentinels_replace_a_master_that_is_frozen() {
    let sentinels = RedisSentinels::start();
    let old = sentinels.master();
    old.pause();
    let new = sentinels.until_moved(old);
    assert_ne!(new.port(), old.port());
    assert_eq!(sentinels.master().port(), new.port());
}

/// The client library asks more of the user here than elsewhere: whether the node it was sent to is
/// the master.
#[tokio::test]
async fn a_client_library_finds_the_master_by_its_sentinels_as_the_user() {
    use redis::sentinel::{Sentinel, SentinelNodeConnectionInfo};
    let sentinels = RedisSentinels::start();
    let urls = sentinels.sentinels().iter().map(RedisServer::url).collect();
    let login = redis::RedisConnectionInfo::default().set_username(acl::USER).set_password(acl::PASSWORD);
    let login = SentinelNodeConnectionInfo::default().set_redis_connection_info(login);
    let client = Sentinel::build(urls).unwrap().async_master_for("limits", Some(&login)).await.unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    let () = redis::cmd("SET").arg("sg1:a").arg("1").query_async(&mut connection).await.unwrap();
    assert_eq!(sentinels.master().admin(&["GET", "sg1:a"]), "1");
}

/// What goes through a proxy that does nothing must not be changed, and must be counted.
#[test]
fn a_passing_proxy_carries_both_ways_and_counts() {
    let server = RedisServer::start();
    let proxy = Proxy::before(server.port());
    assert_eq!(proxy.url(), format!("redis://127.0.0.1:{}", proxy.port()));
    let mut client = Connection::tcp(proxy.port(), LATER).unwrap();
    let long = "x".repeat(1_000_000);
    assert_eq!(client.call(&["SET", "sg1:a", &long]).unwrap(), text("OK"));
    assert_eq!(client.call(&["GET", "sg1:a"]).unwrap(), text(&long));
    assert_eq!(proxy.connections(), Connections { accepted: 1, open: 1 });
    drop(client);
    until_true("the connection is closed", || proxy.connections() == Connections { accepted: 1, open: 0 });
}

/// A delayed request is not done yet; a delayed reply is, and nobody knows.
#[test]
fn a_delaying_proxy_holds_back_each_way_by_its_own_time() {
    let server = RedisServer::start();
    let proxy = Proxy::before(server.port());
    let calls = || server.admin(&["GET", "calls"]);
    let hour = Duration::from_secs(3600);

    proxy.set(Mode::Delay { request: hour, reply: Duration::ZERO });
    assert!(is_silence(&Connection::tcp(proxy.port(), SOON).unwrap().call(&["INCR", "calls"]).unwrap_err()));
    assert_eq!(calls(), "");

    proxy.set(Mode::Delay { request: Duration::ZERO, reply: hour });
    assert!(is_silence(&Connection::tcp(proxy.port(), SOON).unwrap().call(&["INCR", "calls"]).unwrap_err()));
    assert_eq!(calls(), "1");

    let each = Duration::from_millis(150);
    proxy.set(Mode::Delay { request: each, reply: each });
    let start = tokio::time::Instant::now();
    assert_eq!(
        Connection::tcp(proxy.port(), LATER).unwrap().call(&["INCR", "calls"]).unwrap(),
        Reply::Integer(2)
    );
    assert!(start.elapsed() >= 2 * each);
}

/// Cut off on its way there, a call was not made; cut off on its way back, it was.
#[test]
fn a_cutting_proxy_cuts_requests_undone_and_replies_done() {
    let server = RedisServer::start();
    let proxy = Proxy::before(server.port());
    let mut count = 0..;
    for (mode, done) in [
        (Mode::CutRequestAfter(0), "0"),
        (Mode::CutRequestAfter(10), "0"),
        (Mode::CutReplyAfter(0), "1"),
        (Mode::CutReplyAfter(2), "1"),
    ] {
        let key = format!("calls{}", count.next().unwrap());
        server.admin(&["SET", &key, "0"]);
        proxy.set(Mode::Pass);
        let mut client = Connection::tcp(proxy.port(), LATER).unwrap();
        assert_eq!(client.call(&["PING"]).unwrap(), text("PONG"));
        // What the connection carried before is not counted.
        proxy.set(mode);
        let error = client.call(&["INCR", &key]).unwrap_err();
        assert!(!is_silence(&error), "{mode:?}: {error}");
        until_true("the cut connection is closed", || proxy.connections().open == 0);
        assert_eq!(server.admin(&["GET", &key]), done, "{mode:?}");
    }
}

/// The worst of networks: nothing comes, and nothing says that nothing will.
#[test]
fn a_black_hole_swallows_and_a_refusing_proxy_refuses_until_they_pass_again() {
    let server = RedisServer::start();
    let proxy = Proxy::before(server.port());
    let mut early = Connection::tcp(proxy.port(), LATER).unwrap();
    assert_eq!(early.call(&["PING"]).unwrap(), text("PONG"));
    let mut early = early.within(SOON);

    proxy.set(Mode::BlackHole);
    let mut late = Connection::tcp(proxy.port(), SOON).unwrap();
    for client in [&mut early, &mut late] {
        assert!(is_silence(&client.call(&["INCR", "calls"]).unwrap_err()));
    }
    assert_eq!(server.admin(&["GET", "calls"]), "");

    proxy.set(Mode::Refuse);
    assert_eq!(proxy.connections().open, 0);
    assert!(!is_silence(&early.call(&["PING"]).unwrap_err()));
    let refused = Connection::tcp(proxy.port(), LATER).map(|_| ()).unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);

    proxy.set(Mode::Pass);
    assert_eq!(Connection::tcp(proxy.port(), LATER).unwrap().call(&["PING"]).unwrap(), text("PONG"));
}

/// A reply that no server gives must arrive as it was written, or the test of it tests something
/// else.
#[test]
fn a_fake_sends_the_bytes_of_its_script_and_records_what_it_received() {
    let mut calls = 0;
    let fake = FakeRedis::start(move |command| {
        calls += 1;
        match command[0].as_slice() {
            b"COUNT" => FakeReply::Send(format!(":{calls}\r\n").into_bytes()),
            b"BYE" => FakeReply::SendAndClose(b"$100\r\nshort".to_vec()),
            b"HUSH" => "".into(),
            _ => "?!\r\n".into(),
        }
    });
    let mut client = Connection::tcp(fake.port(), LATER).unwrap();
    assert_eq!(client.call(&["COUNT"]).unwrap(), Reply::Integer(1));
    assert_eq!(client.call(&["COUNT", "\r\n$4"]).unwrap(), Reply::Integer(2));
    assert_eq!(client.call(&["WHAT"]).unwrap_err().kind(), io::ErrorKind::InvalidData);
    assert_eq!(client.call(&["BYE"]).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    assert!(is_silence(&Connection::tcp(fake.port(), SOON).unwrap().call(&["HUSH"]).unwrap_err()));
    let heard = fake.heard();
    assert_eq!(heard.len(), 5);
    assert_eq!(heard[1], [b"COUNT".to_vec(), b"\r\n$4".to_vec()]);
}

/// Hostile replies are for commands; a client that was not even greeted never sends one.
#[tokio::test]
async fn a_greeting_fake_lets_a_client_library_in() {
    let fake = FakeRedis::greeting(|_| "$3\r\nlie\r\n".into());
    for url in [fake.url(), format!("{}/?protocol=resp3", fake.url())] {
        let client = redis::Client::open(url).unwrap();
        let mut connection = client.get_multiplexed_async_connection().await.unwrap();
        let lie: String = redis::cmd("TRUTH").query_async(&mut connection).await.unwrap();
        assert_eq!(lie, "lie");
    }
}
