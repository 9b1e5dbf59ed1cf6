//! The native module, on nodes that have it, lose it, or do not let the store use it.

use std::time::Duration;

use slidegate::Request;
use slidegate::reserve::{Extension, HoldStatus};
use slidegate::store::ServiceStore;
use slidegate_redis::RedisGate;
use slidegate_testkit::redis::{RedisServer, Reply};

use crate::callers::{LATER, check_cost, daily, gate, named, options, until_used, used};

const COMMAND: &str = "slidegate.check1";

fn has_module(gate: &RedisGate) -> bool {
    gate.store().primary().nodes().iter().all(|node| node.has_module)
}

/// Decisions by the module and by scripts so far.
fn calls(server: &RedisServer) -> (u64, u64) {
    (server.commandstats(COMMAND).calls, server.commandstats("evalsha").calls)
}

/// Charges 1 until the node is known to have the module. Returns how often.
async fn charge_until_known(gate: &RedisGate) -> u64 {
    for charged in 0..1000 {
        if has_module(gate) {
            return charged;
        }
        assert!(check_cost(gate, "alice", 1).await.by_store());
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    panic!("the module is never found");
}

async fn charge(gate: &RedisGate, times: u64) {
    for _ in 0..times {
        let outcome = check_cost(gate, "alice", 1).await;
        assert!(outcome.allowed && outcome.by_store());
    }
}

/// An operator loads a library and unloads it again, and no charge is lost or counted twice.
#[tokio::test]
async fn a_node_decides_by_the_module_until_that_is_unloaded() {
    let server = RedisServer::builder().module(true).args(["--enable-module-command", "yes"]).start();
    let gate = gate([daily(10_000)], options(&server.url_as_user()).with_deadline(LATER));
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

/// What operators see of a node is right before its first decision, which the module makes as well.
#[tokio::test]
async fn a_node_that_is_pinged_is_known_to_have_the_module() {
    let server = RedisServer::builder().module(true).start();
    let gate = gate([daily(10_000)], options(&server.url_as_user()).with_deadline(LATER));
    gate.store().primary().ping().await.unwrap();
    for _ in 0..1000 {
        if has_module(&gate) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    charge(&gate, 1).await;
    assert_eq!(calls(&server), (1, 0));
}

/// Users of an earlier release lack the rights, and must notice nothing.
#[tokio::test]
async fn a_user_who_may_not_run_the_command_runs_the_scripts() {
    let server = RedisServer::builder().module(true).start();
    let gate = gate([daily(10_000)], options(&server.url_as_user()).with_deadline(LATER));
    let charged = charge_until_known(&gate).await;
    server.admin(&["ACL", "SETUSER", "slidegate", "-slidegate.check1", "-command|info"]);
    charge(&gate, 20).await;
    assert!(!has_module(&gate));
    assert_eq!(until_used(&gate, "alice").await, [charged + 20]);
}

/// Calls of the module's commands and of scripts so far: checks of one key, other decisions, changes
/// of holds, scripts.
fn all_calls(server: &RedisServer) -> [u64; 4] {
    ["slidegate.check1", "slidegate.decide", "slidegate.change", "evalsha"]
        .map(|command| server.commandstats(command).calls)
}

/// What was called between.
fn since(server: &RedisServer, before: [u64; 4]) -> [u64; 4] {
    let now = all_calls(server);
    std::array::from_fn(|at| now[at] - before[at])
}

/// Several policies, refunds, penalties and peeks must not wake the scripts where there is a module.
#[tokio::test]
async fn the_module_decides_whatever_scripts_decide() {
    let server = RedisServer::builder().module(true).start();
    let policies = [daily(10_000), named("both", 100)];
    let gate = gate(policies, options(&server.url_as_user()).with_deadline(LATER).without_denial_cache());
    let request = |cost| Request::new().with("user", "carol").with_cost(cost);
    // Asked for in the background.
    for _ in 0..1000 {
        gate.check(&request(0)).await;
        if has_module(&gate) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let before = all_calls(&server);
    assert!(gate.check(&request(60)).await.is_allowed());
    assert!(gate.check(&request(60)).await.is_denied());
    assert!(gate.peek(&request(40)).await.is_allowed());
    gate.refund(&request(20)).await;
    gate.penalize(&request(50)).await;
    let nothing = request(0);
    let decisions = gate.peek(&nothing).await;
    let used: Vec<_> = decisions.iter().map(|one| one.decision().used()).collect();
    assert_eq!(used, [90, 90]);
    assert!(gate.check_once(&request(5), "once").await.is_allowed());
    assert!(gate.check_once(&request(5), "once").await.is_allowed());
    assert_eq!(gate.peek(&request(0)).await.strictest().unwrap().decision().used(), 95);
    assert_eq!(since(&server, before), [0, 9, 0, 0]);
}

/// A reservation, its parts and its settlement are decided by the module, and a plain check sees
/// them.
#[tokio::test]
async fn holds_are_made_and_changed_by_the_module() {
    let server = RedisServer::builder().module(true).start();
    let gate = gate([daily(10_000)], options(&server.url_as_user()).with_deadline(LATER));
    charge_until_known(&gate).await;
    let before = all_calls(&server);
    let held = Request::new().with("user", "bob").with_cost(10_000);
    let ticket = gate.reserve(&held).await.into_ticket().unwrap();
    assert_eq!(since(&server, before), [0, 1, 0, 0]);
    // Another instance does not know that there are holds.
    let other = crate::callers::gate([daily(10_000)], options(&server.url_as_user()).with_deadline(LATER));
    charge_until_known(&other).await;
    let before = all_calls(&server);
    let denied = check_cost(&other, "bob", 1).await;
    assert!(!denied.allowed && denied.by_store(), "what is held counts");
    assert_eq!(since(&server, before), [1, 1, 0, 0]);
    assert_eq!(gate.settle_so_far(&ticket, 1).await.unwrap().status(), HoldStatus::Changed);
    assert_eq!(gate.extend(&ticket, Extension::new()).await.unwrap().status(), HoldStatus::Changed);
    assert_eq!(gate.settle(&ticket, 1).await.unwrap().status(), HoldStatus::Changed);
    assert_eq!(gate.settle(&ticket, 5).await.unwrap().status(), HoldStatus::AlreadySettled);
    assert_eq!(since(&server, before), [1, 1, 4, 0]);
    assert!(check_cost(&gate, "bob", 9_999).await.allowed);
    assert!(!check_cost(&gate, "bob", 1).await.allowed);
}

/// While the module of a fleet is upgraded, or a user lacks the rights of the newer commands, nodes
/// decide checks of one key by the module and the rest by scripts.
#[tokio::test]
async fn a_user_of_the_first_commands_runs_the_scripts_for_the_others() {
    let server = RedisServer::builder().module(true).start();
    server.admin(&["ACL", "SETUSER", "slidegate", "-slidegate.decide", "-slidegate.change"]);
    let gate = gate([daily(10_000)], options(&server.url_as_user()).with_deadline(LATER));
    charge_until_known(&gate).await;
    let before = all_calls(&server);
    charge(&gate, 5).await;
    let request = Request::new().with("user", "bob").with_cost(7);
    let ticket = gate.reserve(&request).await.into_ticket().unwrap();
    assert_eq!(gate.settle(&ticket, 3).await.unwrap().status(), HoldStatus::Changed);
    let used = gate.peek(&request).await.strictest().unwrap().decision().used();
    assert_eq!(used, 3);
    let [checks, .., scripts] = since(&server, before);
    assert_eq!(checks, 5);
    assert!(scripts >= 3, "{scripts}");
    assert!(has_module(&gate));
}
