//! Scripts: what is sent to a server.

use std::collections::BTreeSet;
use std::time::Duration;

use slidegate::{Algorithm, Policy, Quota, Request};
use slidegate_testkit::redis::{FakeRedis, RedisServer};

use crate::callers::{check, gate, options};

/// A server that knows no script and does not keep any.
fn forgetful() -> FakeRedis {
    FakeRedis::greeting(|command| match command[0].as_slice() {
        b"TIME" => "*2\r\n$10\r\n1700000000\r\n$1\r\n0\r\n".into(),
        b"EVALSHA" => "-NOSCRIPT No matching script.\r\n".into(),
        // The secret of tickets; a configured one takes its place.
        b"GET" => "$25\r\n1234567890123456789012345\r\n".into(),
        _ => "+OK\r\n".into(),
    })
}

/// Every script that was sent to be loaded.
fn loaded(fake: &FakeRedis) -> BTreeSet<String> {
    let loads = fake.heard().into_iter().filter(|command| command[0] == b"SCRIPT");
    loads.map(|command| String::from_utf8(command[2].clone()).unwrap()).collect()
}

/// Comments are two fifths of the text, which every server keeps.
#[tokio::test]
async fn every_script_is_sent_without_comments_and_compiles() {
    let fake = forgetful();
    let policy = |name: &str, algorithm| {
        Policy::new(name, Quota::per_hour(9).with_algorithm(algorithm)).unwrap().with_scope(["user"])
    };
    let mut calls: Vec<Vec<Policy>> = vec![Algorithm::ALL.map(|one| policy(one.name(), one)).into()];
    for algorithm in Algorithm::ALL {
        calls.push(vec![policy("a", algorithm)]);
        calls.push(vec![policy("a", algorithm), policy("b", algorithm)]);
    }
    for policies in calls {
        check(&gate(policies, options(&fake.url())), "alice").await;
    }
    let server = RedisServer::start();
    let in_flight = Quota::in_flight(9, Duration::from_secs(60)).unwrap();
    let one = |algorithm: Algorithm| vec![policy(algorithm.name(), algorithm)];
    let mut held: Vec<Vec<Policy>> = Algorithm::ALL.map(one).into();
    held.push(vec![Policy::new("in-flight", in_flight).unwrap().with_scope(["user"])]);
    held.push(vec![policy("a", Algorithm::SlidingLog), policy("b", Algorithm::SlidingLog)]);
    let request = Request::new().with("user", "alice");
    for policies in held {
        let of = |url: &str| gate(policies.clone(), options(url).with_key_secret("secret"));
        let ticket = of(&server.url()).reserve(&request).await.into_ticket().unwrap();
        let forgetful = of(&fake.url());
        assert!(forgetful.reserve(&request).await.decisions().is_allowed(), "by the fallback");
        assert!(forgetful.settle(&ticket, 1).await.is_err());
    }
    let sent = loaded(&fake);

    assert_eq!(sent.len(), 2 * Algorithm::ALL.len() + 3);
    for text in &sent {
        let code = text.strip_prefix("#!lua\n").unwrap();
        assert!(code.lines().all(|line| !line.is_empty() && !line.starts_with("--")), "{code}");
        // One that does not compile is an error of a caller who happens to need it.
        server.admin(&["EVAL", "return assert(loadstring(ARGV[1])) and 1", "0", code]);
    }
}
