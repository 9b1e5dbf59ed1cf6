//! Rollouts: instances are replaced one after the other, on one Redis, under load.
//!
//! The old instances are of the binary in `SLIDEGATE_OLD_BINARY`, which `scripts/release` sets to that
//! of `scripts/old-build`. Without it, old and new are of the same build.

use std::collections::HashMap;
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::sync::RwLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

use serde_json::json;
use slidegate_testkit::http::{Response, try_send};
use slidegate_testkit::redis::RedisServer;
use slidegate_testkit::service::{Server, slidegate};
use slidegate_testkit::{TempDir, ports, until_true};

const USERS: u32 = 8;
const LIMIT: u64 = 150;
const CLIENTS: u32 = 2;

/// Sends a check to an instance. An error: the connection was refused or cut.
fn check(address: &str, user: u32) -> Result<Response, String> {
    let body = json!({ "attributes": { "user": format!("user-{user}") } }).to_string();
    try_send("POST", &format!("http://{address}/v1/check"), "", &body).map_err(|error| error.to_string())
}

/// Whether the decision allows. It must be the shared store's.
fn is_allowed(answer: &Response) -> bool {
    let decision = answer.json();
    assert!(matches!(answer.status, 200 | 429), "{}", answer.body);
    assert!(decision["source"] == "store" || decision["source"] == "cached", "{}", answer.body);
    decision["allowed"] == true
}

/// Users of a service notice a deploy by failed requests, and its owner by exceeded limits.
#[test]
fn rolling_all_instances_refuses_no_request_and_admits_exactly_the_limit() {
    let redis = RedisServer::start();
    let folder = TempDir::new("rollout");
    let policy = format!("policies: [{{name: per-user, scope: [user], quota: {LIMIT}/1h}}]");
    let config = folder
        .file("slidegate.yaml", format!("store: {{redis: '{}', deadline: 30s}}\n{policy}\n", redis.url()));
    let start = |command: Command, address: &str| {
        Server::start_as(command, address, &["--config", &config, "--drain-delay", "1h"], Stdio::inherit())
    };
    let old = || std::env::var_os("SLIDEGATE_OLD_BINARY").map_or_else(slidegate, Command::new);
    let addresses = [0, 1].map(|_| format!("127.0.0.1:{}", ports::free()));
    let mut instances = addresses.each_ref().map(|address| start(old(), address));
    // What a load balancer does: it sends requests to those that it has seen ready. The lock is held
    // during a request, so that an instance that is taken out has answered all that it was sent.
    let ready = RwLock::new(vec![true; addresses.len()]);
    let is_over = AtomicBool::new(false);
    let admitted = thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| {
                let (ready, is_over, addresses) = (&ready, &is_over, &addresses);
                scope.spawn(move || {
                    let mut admitted = HashMap::<u32, u64>::new();
                    for turn in client.. {
                        if is_over.load(Relaxed) {
                            break;
                        }
                        let ready = ready.read().unwrap();
                        let at = (0..addresses.len()).map(|at| (at + turn as usize) % addresses.len());
                        let at = at.into_iter().find(|at| ready[*at]).expect("one is always ready");
                        let user = turn / CLIENTS % USERS;
                        let answer = check(&addresses[at], user).expect("no request is refused");
                        *admitted.entry(user).or_default() += u64::from(is_allowed(&answer));
                    }
                    admitted
                })
            })
            .collect();
        for (at, address) in addresses.iter().enumerate() {
            let old = &mut instances[at];
            old.signal("TERM");
            until_true("the balancer sees that it is not ready", || old.get("/readyz").status == 503);
            ready.write().unwrap()[at] = false;
            // The delay is over.
            old.signal("TERM");
            assert!(old.wait().success());
            assert!(TcpStream::connect(address).is_err(), "it has gone");
            instances[at] = start(slidegate(), address);
            until_true("the new one is ready", || instances[at].get("/readyz").status == 200);
            ready.write().unwrap()[at] = true;
        }
        is_over.store(true, Relaxed);
        clients.into_iter().map(|client| client.join().expect("no request is refused")).fold(
            HashMap::<u32, u64>::new(),
            |mut all, one| {
                one.into_iter().for_each(|(user, admitted)| *all.entry(user).or_default() += admitted);
                all
            },
        )
    });
    assert!(admitted.values().sum::<u64>() > 0, "there was a load");
    for user in 0..USERS {
        let mut total = admitted.get(&user).copied().unwrap_or_default();
        assert!(total <= LIMIT, "user-{user}: {total}");
        while is_allowed(&check(&addresses[user as usize % 2], user).unwrap()) {
            total += 1;
        }
        assert_eq!(total, LIMIT, "user-{user}");
    }
}
