//! Inspections and the note: what people read and write beside decisions, by plain commands.

use std::time::Duration;

use slidegate::store::{ControlDocument, ControlDocumentId, ServiceStore};
use slidegate::{
    Algorithm, Gate, MemoryStore, Policy, PolicySet, Quota, Request,
    clock::{ManualClock, Timestamp},
    verb::Verb,
};
use slidegate_redis::RedisGate;
use slidegate_testkit::redis::RedisServer;

use crate::callers::redis_gate;

const NOW_US: u64 = 1_700_000_000_000_000;

fn policies() -> PolicySet {
    let policies = Algorithm::ALL.map(|algorithm| {
        let quota = Quota::per_minute(100).with_algorithm(algorithm);
        Policy::new(algorithm.name(), quota).unwrap().with_scope(["user"])
    });
    let coarse = Policy::new("coarse", Quota::per_minute(100).with_slots(16)).unwrap().with_scope(["user"]);
    PolicySet::new(policies.into_iter().chain([coarse])).unwrap()
}

/// A gate as the least user may.
fn shared(server: &RedisServer) -> RedisGate {
    let options = crate::callers::options(&server.url_as_user());
    redis_gate(policies(), options).unwrap()
}

/// The stored bytes are read by two readers: a script that decides, and this one. They must see one
/// history, as the memory store does.
#[tokio::test]
async fn what_is_read_is_what_the_scripts_count() {
    let server = RedisServer::builder().with_clock().start();
    server.clock().stand(NOW_US);
    let shared = shared(&server);
    let clock = ManualClock::at(Timestamp::from_micros(NOW_US));
    let gate = Gate::with_memory(policies(), MemoryStore::builder().clock(clock.clone()).build());
    let (mut now, mut most) = (NOW_US, 0);
    for (step, cost) in (0u64..).zip([1, 1, 1, 300, 2, 9, 1, 1, 70_000, 5, 1, 1, 2, 30, 4, 1]) {
        now += 1 + step * step * 900_000 % 9_000_000;
        server.clock().stand(now);
        clock.set(Timestamp::from_micros(now));
        let request = Request::new().with("user", "alice").with_cost(cost);
        let verb = match step % 5 {
            4 => Verb::Refund,
            3 => Verb::Penalize,
            _ => Verb::Check,
        };
        shared.apply_all(verb, std::slice::from_ref(&request)).await;
        gate.apply_all(verb, std::slice::from_ref(&request));
        let look = Request::new().with("user", "alice");
        let found = gate.inspect(&look).unwrap();
        most = found.iter().map(|found| found.charges.len()).fold(most, usize::max);
        assert_eq!(shared.inspect(&look).await.unwrap(), found, "after step {step}");
    }
    assert!(most > 3, "at most {most} charges counted at once");

    // Under another window, as a script that decides then reads it.
    let before = policies();
    let changed = before.iter().map(|policy| {
        let quota = Quota::per_day(50).with_algorithm(policy.quota().algorithm());
        policy.clone().with_quota(quota)
    });
    shared.configure(PolicySet::new(changed.collect::<Vec<_>>()).unwrap()).unwrap();
    let look = Request::new().with("user", "alice").with_cost(3);
    let found = shared.inspect(&look).await.unwrap();
    let peeked = shared.peek(&look).await;
    assert_eq!(found.len(), Algorithm::ALL.len() + 1);
    for (found, peeked) in found.iter().zip(peeked.iter()) {
        assert_eq!(&found.decision, peeked.decision(), "{}", found.policy);
    }
}

/// A value of another program must not be reported as usage.
#[tokio::test]
async fn foreign_values_are_errors_that_name_the_key() {
    let server = RedisServer::start();
    let shared = shared(&server);
    let alice = Request::new().with("user", "alice").under("sliding-log");
    let key = "sg1:sliding-log:alice";
    let long = "\u{14}".repeat(60);
    for (value, said) in [
        ("hello", "is not of layout 1 or 2: its first byte is 104"),
        ("\u{14}short", "is damaged: it has 6 bytes; reset the key"),
        ("\u{1f}", "is damaged: it has 1 bytes; reset the key"),
        (long.as_str(), "is damaged: its ring is cut off; reset the key"),
    ] {
        server.admin(&["SET", key, value]);
        let error = shared.inspect(&alice).await.unwrap_err().to_string();
        assert!(error.contains(&format!("`{key}` {said}")), "{error}");
    }
    for another in ["\u{11}another algorithm's", "\u{22}another"] {
        server.admin(&["SET", key, another]);
        assert_eq!(shared.inspect(&alice).await.unwrap()[0].decision.used(), 0);
    }
    let fixed = Request::new().with("user", "alice").under("fixed-window");
    let key = "sg1:fixed-window:alice";
    for (value, said) in [
        ("\u{21}short", "is damaged: it has 6 bytes; reset the key"),
        ("\u{21}\u{1}\u{0}01234567890", "is damaged: it has 14 bytes; reset the key"),
        ("\u{21}\u{1}\u{0}012345678", "is damaged: it has 12 bytes; reset the key"),
        ("#4012345678x", "is not of layout 1 or 2: its first byte is 35"),
    ] {
        server.admin(&["SET", key, value]);
        let error = shared.inspect(&fixed).await.unwrap_err().to_string();
        assert!(error.contains(&format!("`{key}` {said}")), "{error}");
    }
    let key = "sg1:sliding-log:alice";
    server.admin(&["DEL", key]);
    server.admin(&["RPUSH", key, "x"]);
    let error = shared.inspect(&alice).await.unwrap_err().to_string();
    assert!(error.contains("WRONGTYPE"), "{error}");
}

/// Two operators at once must not undo each other unseen, and every instance has to hear of what
/// they did.
#[tokio::test]
async fn a_control_document_is_replaced_only_by_who_read_it_and_reaches_the_others() {
    let server = RedisServer::start();
    let (one, other) = (shared(&server), shared(&server));
    let id = |version, revision| ControlDocumentId { epoch: 7, version, revision };
    assert_eq!(
        one.store().primary().control_document(None).await.unwrap().unwrap(),
        ControlDocument::default()
    );
    assert_eq!(one.store().primary().control_document(Some(ControlDocumentId::ABSENT)).await.unwrap(), None);
    let waits = tokio::spawn(async move {
        other.store().primary().control_document_changed().await;
        other
    });
    let mut last = ControlDocumentId::ABSENT;
    // It hears as soon as it has subscribed.
    while !waits.is_finished() {
        let next = id(last.version + 1, 1);
        assert!(
            one.store()
                .primary()
                .replace_control_document(last, &ControlDocument::new(next, format!("after {last}")))
                .await
                .unwrap()
        );
        last = next;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let other = waits.await.unwrap();
    let note =
        other.store().primary().control_document(Some(ControlDocumentId::ABSENT)).await.unwrap().unwrap();
    assert_eq!(note.id, last);
    let version = last.version;
    let next = id(version + 1, 2);
    for stale in [
        ControlDocumentId::ABSENT,
        id(version + 1, 1),
        id(version, 9),
        ControlDocumentId { epoch: 8, ..last },
    ] {
        assert!(
            !other
                .store()
                .primary()
                .replace_control_document(stale, &ControlDocument::new(next, "stale"))
                .await
                .unwrap(),
            "{stale}"
        );
    }
    assert_eq!(one.store().primary().control_document(Some(last)).await.unwrap(), None);
    assert_eq!(server.admin(&["TTL", "sg1:control"]).trim(), "-1");

    let large = "x".repeat(1 << 20);
    let error = one
        .store()
        .primary()
        .replace_control_document(last, &ControlDocument::new(next, large))
        .await
        .unwrap_err()
        .to_string();
    assert!(error.contains("control document: invalid size of "), "{error}");
    assert!(error.ends_with(" bytes: must be at most 1048576"), "{error}");
    let error = one
        .store()
        .primary()
        .replace_control_document(last, &ControlDocument::new(id(1, 0), ""))
        .await
        .unwrap_err()
        .to_string();
    let expected = "control document: invalid version 1, epoch 7 and revision 0: the version must be 1 to \
                    9007199254740991, epoch and revision random numbers other than 0";
    assert!(error.contains(expected), "{error}");

    // A document of a release that wrote the version alone is read and replaced.
    server.admin(&["SET", "sg1:control", "3\nold"]);
    let note = one.store().primary().control_document(Some(last)).await.unwrap().unwrap();
    assert_eq!(
        (note.id, note.text.as_str()),
        (ControlDocumentId { version: 3, ..ControlDocumentId::ABSENT }, "old")
    );
    assert!(
        !one.store()
            .primary()
            .replace_control_document(ControlDocumentId::ABSENT, &ControlDocument::new(next, ""))
            .await
            .unwrap()
    );
    assert!(
        one.store()
            .primary()
            .replace_control_document(note.id, &ControlDocument::new(next, "new"))
            .await
            .unwrap()
    );
    // The same version with other content is another document, as after a failover to a replica
    // that lagged.
    server.admin(&["SET", "sg1:control", &format!("{}\nother", id(next.version, 3))]);
    assert_eq!(one.store().primary().control_document(Some(next)).await.unwrap().unwrap().text, "other");

    server.admin(&["SET", "sg1:control", "{}"]);
    let refused = one
        .store()
        .primary()
        .replace_control_document(ControlDocumentId::ABSENT, &ControlDocument::new(next, ""))
        .await
        .unwrap_err();
    for error in [one.store().primary().control_document(Some(last)).await.unwrap_err(), refused] {
        assert!(error.to_string().contains("is not a control document"), "{error}");
    }
}
