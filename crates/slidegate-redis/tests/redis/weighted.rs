//! Weighted costs that instances share: fractions of a unit add up exactly in the server.

use slidegate::reserve::HoldStatus;
use slidegate::{Algorithm, Counts, Policy, PolicySet, Quota, Request};
use slidegate_testkit::redis::RedisServer;

use crate::callers::{gate, options};

/// A thousand costs of a tenth, a cent and a millionth are a hundred, ten and a thousandth: not nearly, and on whatever
/// instance they were charged, up to the largest limit that weights may have.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fractions_of_several_instances_add_up() {
    let server = RedisServer::start();
    for algorithm in Algorithm::ALL {
        let quota = Quota::per_day(Counts::MAX_WEIGHTED_LIMIT).with_algorithm(algorithm);
        let weights = [("tenths", "0.1"), ("cents", "0.01"), ("millionths", "0.000001"), ("most", "1000000")];
        let weights = weights.map(|(name, weight)| (name.to_owned(), weight.parse().unwrap()));
        let policy =
            Policy::new(algorithm.name(), quota).unwrap().with_counts(Counts::Weighted(weights.into()));
        let gates = [0, 1].map(|_| {
            gate([policy.clone()], options(&server.url()).without_denial_cache().without_batching())
        });
        let request = |costs: &[(&'static str, u64)]| Request::new().with_cost(costs);
        // Almost all of the limit, so that doubles have no bits to spare.
        let most = request(&[("most", 7_999)]);
        assert!(gates[0].check(&most).await.is_allowed(), "{algorithm}");
        for step in 0..1_000 {
            let one = request(&[("tenths", 1), ("cents", 1), ("millionths", 1)]);
            assert!(gates[step % 2].check(&one).await.is_allowed(), "{algorithm} {step}");
        }
        let nothing = request(&[("tenths", 0)]);
        let decisions = gates[1].peek(&nothing).await;
        let used = decisions.strictest().unwrap();
        assert_eq!(used.decision().source().name(), "store", "{:?}", used.store_failure());
        if algorithm != Algorithm::TokenBucket {
            assert_eq!(used.decision().amounts().used.to_string(), "7999000110.001", "{algorithm}");
            assert_eq!(used.decision().amounts().remaining.to_string(), "999889.999", "{algorithm}");
        }
        let over = request(&[("millionths", 999_889_999_001)]);
        let fits = request(&[("millionths", 999_889_999_000)]);
        if algorithm != Algorithm::TokenBucket {
            assert!(gates[0].check(&over).await.is_denied(), "{algorithm}");
            assert!(gates[1].check(&fits).await.is_allowed(), "{algorithm}");
        }
        let cent = request(&[("cents", 1)]);
        let held = gates[0].reserve(&cent).await;
        assert_eq!(held.decisions().is_allowed(), algorithm == Algorithm::TokenBucket, "{algorithm}");
        let refund = request(&[("tenths", 3)]);
        let refunded = gates[1].refund(&refund).await;
        assert_eq!(refunded.strictest().unwrap().decision().amounts().cost.to_string(), "0.3", "{algorithm}");
        let cents = request(&[("cents", 30)]);
        let held = gates[0].reserve(&cents).await;
        let ticket = held.into_ticket().unwrap();
        let settled = gates[1].settle(&ticket, &[("cents", 1), ("millionths", 7)][..]).await.unwrap();
        assert_eq!(
            settled.iter().next().unwrap().last().unwrap().cost.to_string(),
            "0.010007",
            "{algorithm}"
        );
    }
}

/// After a deployment that adds weights, or takes them back, five units must not be five millionths, nor four million
/// millionths four million units.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn usage_in_units_and_in_millionths_is_kept_apart() {
    let server = RedisServer::start();
    let policy = |counts| Policy::new("spend", Quota::per_day(5)).unwrap().with_counts(counts);
    let weighted = || policy(Counts::Weighted(vec![("output".to_owned(), 1.into())]));
    let units = gate([policy(Counts::Cost)], options(&server.url()));
    let millionths = gate([weighted()], options(&server.url()));
    let cost = |cost| Request::new().with_cost([("output", cost)]);
    assert!(units.check(&Request::new().with_cost(5)).await.is_allowed());
    assert!(millionths.check(&cost(4)).await.is_allowed());
    for (gate, used) in [(&units, 5), (&millionths, 4)] {
        let asked = cost(1);
        let decisions = gate.peek(&asked).await;
        assert_eq!((decisions.strictest().unwrap().decision().used(), decisions.error()), (used, None));
    }
    units.configure(PolicySet::new([weighted()]).unwrap()).unwrap();
    let asked = cost(1);
    assert_eq!(units.peek(&asked).await.strictest().unwrap().decision().used(), 4);
    let forgotten = units.reset_policy("spend").await.unwrap();
    assert_eq!(forgotten, 2, "the usage of a policy is all usage under its name");
}

/// During such a deployment an instance may be asked to settle what another one reserved in the other unit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reservation_is_not_settled_in_another_unit() {
    let server = RedisServer::start();
    let policy = |counts| Policy::new("spend", Quota::per_day(5)).unwrap().with_counts(counts);
    let units = gate([policy(Counts::Cost)], options(&server.url()));
    let weights = Counts::Weighted(vec![("output".to_owned(), 1.into())]);
    let millionths = gate([policy(weights)], options(&server.url()));
    let request = Request::new().with_cost([("output", 4)]);
    let cost = &[("output", 1)][..];
    for (one, other) in [(&units, &millionths), (&millionths, &units)] {
        let ticket = one.reserve(&request).await.into_ticket().unwrap();
        let refused = other.settle(&ticket, cost).await.unwrap();
        assert_eq!((refused.status(), refused.iter().len()), (HoldStatus::Unknown, 0));
        assert_eq!(one.peek(&request).await.strictest().unwrap().decision().held(), 4);
        assert_eq!(one.settle(&ticket, cost).await.unwrap().status(), HoldStatus::Changed);
        assert_eq!(one.peek(&request).await.strictest().unwrap().decision().used(), 1);
    }
}
