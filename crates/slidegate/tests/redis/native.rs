//! The native module, on nodes that have it, lose it, or do not let the store use it.

use std::time::Duration;

use slidegate::{Request, SharedGate};
use slidegate_testkit::redis::{RedisServer, Reply};

use crate::callers::{LATER, check_cost, gate, hourly, options, until_used, used};

const COMMAND: &str = "slidegate.check1";

fn has_module(gate: &SharedGate) -> bool {
    gate.store().primary().nodes().iter().all(|node| node.has_module)
}

/// Decisions by the module and by scripts so far.
fn calls(server: &RedisServer) -> (u64, u64) {
    (server.commandstats(COMMAND).calls, server.commandstats("evalsha").calls)
}

/// Charges 1 until the node is known to have the module. Returns how often.
async fn charge_until_known(gate: &SharedGate) -> u64 {
    for charged in 0..1000 {
        if has_module(gate) {
            return charged;
        }
        assert!(check_cost(gate, "alice", 1).await.by_store());
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    panic!("the module is never found");
}

async fn charge(gate: &SharedGate, times: u64) {
    for _ in 0..times {
        let outcome = check_cost(gate, "alice", 1).await;
        assert!(outcome.allowed && outcome.by_store());
    }
}

/// An operator loads a library and unloads it again, and no charge is lost or counted twice.
#[tokio::test]
async fn a_node_decides_by_the_module_until_that_is_unloaded() {
    let server = RedisServer::builder().module(true).args(["--enable-module-command", "yes"]).start();
    let gate = gate([hourly(10_000)], options(&server.url_as_user()).deadline(LATER));
    let mut charged = charge_until_known(&gate).await;
    let before = calls(&server);
    charge(&gate, 20).await;
    assert_eq!(calls(&server), (before.0 + 20, before.1), "the module decides");

    if let Reply::Error(refused) = server.ask(&["MODULE", "UNLOAD", "slidegate"]).unwrap() {
        // Redis 8 would not survive it.
        assert!(server.admin(&["INFO", "server"]).contains("redis_version:8"), "{refused}");
        charge(&gate, 20).await;
        assert_eq!(calls(&server), (before.0 + 40, before.1), "the module still decides");
        return;
    }
    charge(&gate, 20).await;
    assert_eq!(calls(&server).1, before.1 + 20, "the scripts decide");
    assert!(!has_module(&gate));
    charged += 40;
    assert_eq!(until_used(&gate, "alice").await, [charged]);
    assert_eq!(used(&server.url(), "alice").await, charged);
}

/// Users of an earlier release lack the rights, and must notice nothing.
#[tokio::test]
async fn a_user_who_may_not_run_the_command_runs_the_scripts() {
    let server = RedisServer::builder().module(true).start();
    let gate = gate([hourly(10_000)], options(&server.url_as_user()).deadline(LATER));
    let charged = charge_until_known(&gate).await;
    server.admin(&["ACL", "SETUSER", "slidegate", "-slidegate.check1", "-command|info"]);
    charge(&gate, 20).await;
    assert!(!has_module(&gate));
    assert_eq!(until_used(&gate, "alice").await, [charged + 20]);
}

/// Holds are the scripts' business, and the module must not overlook them.
#[tokio::test]
async fn a_key_with_holds_is_decided_by_the_scripts() {
    let server = RedisServer::builder().module(true).start();
    let gate = gate([hourly(10_000)], options(&server.url_as_user()).deadline(LATER));
    charge_until_known(&gate).await;
    let held = Request::new().with("user", "bob").cost(10_000);
    let ticket = gate.reserve(&held).await.into_ticket().unwrap();
    // Another instance does not know that there are holds.
    let other = crate::callers::gate([hourly(10_000)], options(&server.url_as_user()).deadline(LATER));
    charge_until_known(&other).await;
    let before = calls(&server);
    let denied = check_cost(&other, "bob", 1).await;
    assert!(!denied.allowed && denied.by_store(), "what is held counts");
    assert_eq!(calls(&server), (before.0 + 1, before.1 + 1), "the module leaves it to the scripts");
    gate.settle(&ticket, 1).await.unwrap();
    assert!(check_cost(&gate, "bob", 9_999).await.allowed);
    assert!(!check_cost(&gate, "bob", 1).await.allowed);
}
