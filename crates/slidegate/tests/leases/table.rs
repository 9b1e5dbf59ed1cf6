//! Single leases, step by step: log of 100 each second, leases of 50 ms unless said.

use fastrand::Rng;
use slidegate::internal::{
    FixedWindow, Slice, SlidingLog, SlidingWindow, State, TokenBucket, renewed_after_us, usable_us,
};
use slidegate::{Algorithm, Quota};

use crate::store::{Ask, Call, CoreStore, Grant, PlainStore, Store, Wrong};

const SECOND_US: u64 = 1_000_000;
const LEASE_US: u64 = 50_000;

fn quota() -> Quota {
    Quota::per_second(100)
}

fn store() -> CoreStore<SlidingLog> {
    CoreStore::new(quota(), LEASE_US)
}

fn ask(id: u64, want: u64) -> Call {
    Call { ask: Some(Ask { id, want, least: 4 }), ..Call::default() }
}

fn settle(id: u64, used: u64) -> Call {
    Call { settle: Some((id, used)), ..Call::default() }
}

fn check(costs: &[u64]) -> Call {
    Call { costs: costs.to_vec(), ..Call::default() }
}

/// A store with the lease 1 of 40, granted at 0.
fn leased() -> CoreStore<SlidingLog> {
    let mut store = store();
    let grant = store.call(0, &ask(1, 40)).grant;
    assert_eq!(grant, Some(Grant { id: 1, amount: 40, length_us: LEASE_US }));
    store
}

#[test]
fn what_a_lease_used_is_charged_when_it_is_settled() {
    let mut store = leased();
    assert_eq!((store.counts(0), store.room()), ((0, 40), 60));
    store.call(30_000, &settle(1, 30));
    assert_eq!((store.counts(30_000), store.room()), ((30, 0), 70));
    assert_eq!([1_029_999, 1_030_000].map(|at| store.counts(at)), [(30, 0), (0, 0)]);
}

#[test]
fn a_lease_that_is_not_settled_is_charged_in_full_at_its_end() {
    let mut touched = leased();
    assert_eq!([49_999, 50_000].map(|at| touched.counts(at)), [(0, 40), (40, 0)]);
    for mut store in [touched, leased()] {
        assert_eq!([500_000, 1_049_999, 1_050_000].map(|at| store.counts(at)), [(40, 0), (40, 0), (0, 0)]);
    }
}

#[test]
fn a_settlement_of_a_lease_that_is_gone_changes_nothing() {
    for (at, id) in [(31_000, 1), (31_000, 7), (60_000, 1)] {
        let mut store = leased();
        store.call(30_000, &if at < LEASE_US { settle(1, 30) } else { Call::default() });
        let before = store.counts(at);
        store.call(at, &settle(id, 30));
        assert_eq!(store.counts(at), before, "{id} at {at}");
    }
    let mut store = leased();
    store.call(30_000, &settle(7, 30));
    assert_eq!(store.counts(30_000), (0, 40), "of another key");
}

/// At the limit each request is decided by itself, as without leases.
#[test]
fn little_room_is_not_leased() {
    let mut store = store();
    store.call(0, &check(&[93]));
    assert_eq!(store.call(1, &ask(1, 80)).grant, None);
    assert_eq!(store.call(2, &check(&[1; 8])).admitted, [[true; 7].as_slice(), &[false]].concat());
}

#[test]
fn slices_are_what_is_wanted_and_at_most_half_of_the_room() {
    let amount =
        |store: &mut CoreStore<_>, id, want| store.call(0, &ask(id, want)).grant.map(|grant| grant.amount);
    assert_eq!(amount(&mut store(), 1, 10), Some(10));
    let mut store = store();
    let amounts: Vec<_> = (1..=6).map(|id| amount(&mut store, id, 80)).collect();
    assert_eq!(amounts, [Some(50), Some(25), Some(12), Some(6), None, None]);
}

#[test]
fn a_late_reply_shortens_the_slice_and_no_more_is_charged_than_it() {
    let mut store = leased();
    let mut slice = Slice::new(1, 40, usable_us(LEASE_US));
    let left_us = usable_us(LEASE_US) - 45_000;
    assert_eq!(left_us, 5000 - 1050, "the margin is a thousandth and 1 ms");
    assert!(slice.take(1, || 45_000 + left_us - 1));
    assert!(!slice.take(1, || 45_000 + left_us) && !slice.take(1, || 60_000));
    assert_eq!(store.counts(60_000), (40, 0));
}

/// What is returned must not take the place of old charges.
#[test]
fn a_key_is_free_after_a_window_though_an_idle_holder_takes_and_returns_slices() {
    let after_ten_windows = |store: &mut dyn Store| {
        store.call(0, &check(&[60]));
        let mut at_a_window = 0;
        for id in 1..=10 * SECOND_US / LEASE_US {
            let at = id * LEASE_US;
            store.call(at, &ask(id, 20));
            store.call(at + renewed_after_us(LEASE_US), &settle(id, 0));
            if at < SECOND_US + LEASE_US {
                at_a_window = store.room();
            }
        }
        (at_a_window, store.room())
    };
    assert_eq!(after_ten_windows(&mut store()), (100, 100));
    let mut wrong = PlainStore::new(&quota(), LEASE_US, Some(Wrong::OldestReturned));
    assert!(after_ten_windows(&mut wrong).1 < 100, "the mistake would be seen");
}

#[test]
fn a_lower_limit_waits_for_open_leases_and_a_higher_one_applies_at_once() {
    let mut store = leased();
    store.quota = Quota::per_second(10);
    assert_eq!(store.call(1, &check(&[1])).admitted, [false]);
    // 9 were used: with them one more fits, and nothing is leased.
    let call = Call { settle: Some((1, 9)), ..check(&[1, 1]) };
    assert_eq!(store.call(10_000, &call).admitted, [true, false]);
    assert_eq!(store.call(10_000, &ask(2, 10)).grant, None);
    store.quota = quota();
    assert_eq!(store.call(10_001, &check(&[90, 1])).admitted, [true, false]);
}

#[test]
fn a_cost_above_what_is_left_is_decided_on_the_whole_room_by_the_call_that_settles() {
    let mut store = store();
    store.call(0, &check(&[47]));
    assert!(store.call(0, &ask(1, 9)).grant.is_some());
    let mut slice = Slice::new(1, 9, usable_us(LEASE_US));
    assert!(slice.take(4, || 1000) && !slice.take(8, || 1000));
    let call = Call { settle: Some((1, slice.end())), ..check(&[8]) };
    assert_eq!(store.call(1000, &call).admitted, [true]);
    assert_eq!((store.counts(1000), store.room()), ((59, 0), 41));
}

#[test]
fn a_lease_does_not_cross_the_border_of_a_fixed_window() {
    let mut store = CoreStore::<FixedWindow>::new(quota().with_algorithm(Algorithm::FixedWindow), LEASE_US);
    let grant = store.call(980_000, &ask(1, 40)).grant;
    assert_eq!(grant.map(|grant| grant.length_us), Some(19_999));
    assert_eq!([999_998, 999_999, SECOND_US].map(|at| store.counts(at)), [(0, 40), (40, 0), (0, 0)]);
}

/// Leases admit only what the algorithm alone admits at the time of each request.
fn assert_admits_what_the_algorithm_admits<S: State>(algorithm: Algorithm, histories: u64) {
    let quota = Quota::per_second(20).with_algorithm(algorithm);
    for seed in 0..histories {
        let mut rng = Rng::with_seed(seed);
        let (mut store, mut alone) =
            (CoreStore::<S>::new(quota, LEASE_US), CoreStore::<S>::new(quota, LEASE_US));
        let mut slices: Vec<Slice> = Vec::new();
        let mut now = 10 * SECOND_US + rng.u64(..SECOND_US);
        let mut admitted = |now, cost| {
            assert_eq!(alone.call(now, &check(&[cost])).admitted, [true], "{algorithm}, seed {seed}");
        };
        for id in 1..=30 {
            now += rng.u64(..60_000);
            let at = rng.usize(..=slices.len());
            match rng.u8(..4) {
                0 => {
                    if let Some(grant) = store.call(now, &ask(id, rng.u64(1..12))).grant {
                        slices.push(Slice::new(id, grant.amount, now + grant.length_us));
                    }
                }
                1 if at < slices.len() => {
                    let slice = slices.swap_remove(at);
                    store.call(now, &settle(slice.id, slice.end()));
                }
                2 if at < slices.len() => {
                    let cost = rng.u64(1..4);
                    if slices[at].take(cost, || now) {
                        admitted(now, cost);
                    }
                }
                _ => {
                    let cost = rng.u64(1..4);
                    if store.call(now, &check(&[cost])).admitted[0] {
                        admitted(now, cost);
                    }
                }
            }
        }
    }
}

#[test]
fn each_algorithm_admits_what_leases_admit() {
    let histories = 10_000;
    assert_admits_what_the_algorithm_admits::<SlidingLog>(Algorithm::SlidingLog, histories);
    assert_admits_what_the_algorithm_admits::<SlidingWindow>(Algorithm::SlidingWindow, histories);
    assert_admits_what_the_algorithm_admits::<FixedWindow>(Algorithm::FixedWindow, histories);
    assert_admits_what_the_algorithm_admits::<TokenBucket>(Algorithm::TokenBucket, histories);
}

/// The store's clock may step: a holder is not affected, and no hold lasts longer than a lease.
#[test]
fn steps_of_the_store_s_clock_make_no_lease_longer() {
    let hour = 3600 * SECOND_US;
    let mut store = store();
    store.call(hour, &ask(1, 40));
    assert_eq!(store.counts(1).1, 40);
    assert_eq!([LEASE_US, LEASE_US + 1].map(|at| store.counts(at)), [(0, 40), (40, 0)]);
    // A step ahead ends it, charged in full: what the holder admits afterwards is not counted again.
    let mut ahead = leased();
    assert_eq!(ahead.counts(70 * SECOND_US), (0, 0));
    ahead.call(70 * SECOND_US, &settle(1, 30));
    assert_eq!(ahead.counts(70 * SECOND_US), (0, 0));
}

/// The plain store that the mistakes are made in is right without them.
#[test]
fn the_plain_store_answers_as_that_of_the_library() {
    for seed in 0..300 {
        let mut rng = Rng::with_seed(seed);
        let (mut core, mut plain) = (store(), PlainStore::new(&quota(), LEASE_US, None));
        let mut now = SECOND_US;
        for id in 1..=100 {
            now += rng.u64(..40_000);
            let settle = rng.bool().then(|| (rng.u64(1..=id), rng.u64(..4)));
            let ask = rng.bool().then(|| Ask { id, want: rng.u64(1..60), least: 4 });
            let call = Call { settle, costs: (0..rng.usize(..4)).map(|_| rng.u64(1..9)).collect(), ask };
            assert_eq!(core.call(now, &call), plain.call(now, &call), "seed {seed}, {call:?}");
        }
    }
}
