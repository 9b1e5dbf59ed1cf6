//! Denial cache: while a denial is still true, the server is not called again.
//!
//! Its [table](SetTable) does bounded work, however many denials a client causes.
//!
//! Nothing is cached while invalidations cannot be received, see
//! [`invalidation`](crate::invalidation). A denial's wait counts from when the call was sent,
//! before the server decided, so it is never cached longer than it is true. It applies to the same
//! keys and to costs at least as large. A refund, a reset or another quota invalidates it at once.
//!
//! Holds may be settled to less at any time, and instances do not announce it, because there is a
//! settlement per request. So a denial of a key with holds is cached for at most [`BRIEFLY`], and a
//! settlement by this instance ends those of its keys at once.
//!
//! Peeks at the keys of a check that a block denies are also cached for [`BRIEFLY`], even without
//! invalidations: blocking an abusive client must not make its requests more expensive than
//! denials. They apply to the same cost only.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use slidegate::clock::Timestamp;
use slidegate::internal::{HashSeed, SetTable, Waits, micros};
use slidegate::{Decision, DecisionSource, verb::Verb};
use smallvec::SmallVec;

use crate::call::{Answers, Subjects};

/// Maximum time to cache a denial of a key with holds, or a peek at blocked keys.
const BRIEFLY: Duration = Duration::from_millis(100);
/// Slots for the times of hold changes, a power of two; keys that share a slot end each other's
/// denials. As many as denials, in 512 kB, so that few keys do, whichever holds a client changes.
const RELEASES: usize = SetTable::<KeysHash, Denial>::CAPACITY;

/// Cached denials, by the hash of their keys. A denial of one policy takes about 160 bytes, so a
/// full cache takes about 10 MB.
pub(crate) struct DenialCache {
    denials: SetTable<KeysHash, Denial>,
    /// When a hold of a key with this hash was last changed here: microseconds since the
    /// epoch, plus one; 0 for never.
    releases: Box<[AtomicU64]>,
    /// The key of the hash. Random, so that clients cannot choose the set of a key.
    secret: HashSeed,
    /// Whether invalidations are received.
    subscribed: AtomicBool,
}

struct Denial {
    cost: u64,
    answers: SmallVec<[Decision; 1]>,
    sent: Timestamp,
    /// When the first of the denying keys has capacity again.
    until: Timestamp,
    /// Whether it was used since its set was last full of used denials.
    is_used: bool,
}

/// 128 bits of a keyed hash, which identify the keys.
type KeysHash = u128;

/// The state of the cache when a call was sent. Its reply is cached only if nothing was invalidated
/// since.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DenialTicket {
    keys: KeysHash,
    is_peek: bool,
    generation: u64,
    sent: Timestamp,
}

impl Default for DenialCache {
    fn default() -> Self {
        Self {
            denials: SetTable::default(),
            releases: (0..RELEASES).map(|_| AtomicU64::new(0)).collect(),
            secret: HashSeed::random(),
            subscribed: AtomicBool::new(false),
        }
    }
}

/// Shows neither the hash key nor the denials.
impl fmt::Debug for DenialCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DenialCache").field("subscribed", &self.subscribed).finish_non_exhaustive()
    }
}

impl DenialCache {
    /// Sets whether invalidations are received. Everything is invalidated, because some may have
    /// been missed before.
    pub(crate) fn set_subscribed(&self, subscribed: bool) {
        self.subscribed.store(subscribed, Ordering::SeqCst);
        self.clear();
    }

    /// Whether invalidations are received.
    pub(crate) fn is_subscribed(&self) -> bool {
        self.subscribed.load(Ordering::SeqCst)
    }

    /// The cached denial or peek for these keys and this cost, with the remaining waits; otherwise
    /// the ticket for the call to send.
    pub(crate) fn answer(
        &self,
        subjects: &Subjects,
        cost: u64,
        now: Timestamp,
    ) -> Result<Answers, DenialTicket> {
        let is_peek = subjects.0.iter().all(|subject| subject.part.verb == Verb::Peek);
        let keys = self.secret.hash_of(&(subjects.of_denial(), is_peek.then_some(cost)));
        let mut set = self.denials.set(lowest_bits(keys));
        let generation = set.generation();
        let denial = set.get_mut(keys);
        let is_true = |denial: &&mut Denial| {
            cost >= denial.cost && now < denial.until && !self.is_released_since(subjects, denial.sent)
        };
        let Some(denial) = denial.filter(is_true) else {
            return Err(DenialTicket { keys, is_peek, generation, sent: now });
        };
        denial.is_used = true;
        let mut answers: Answers = denial.answers.iter().copied().collect();
        let passed = now - denial.sent;
        drop(set);
        let passed_us = micros(passed);
        for (subject, answer) in subjects.0.iter().zip(&mut answers) {
            let Waits { retry_us, reset_us, frees_us } = &mut answer.waits;
            for wait in [reset_us, frees_us] {
                *wait = wait.saturating_sub(passed_us);
            }
            if subject.part(cost).asks() > answer.limit {
                *retry_us = Waits::NEVER;
            } else if *retry_us != Waits::NEVER {
                *retry_us = retry_us.saturating_sub(passed_us);
            }
            answer.at = answer.at + passed;
            answer.source = DecisionSource::CachedDenial;
        }
        Ok(answers)
    }

    /// Caches the reply to this ticket's call, if it is a denial or a peek.
    pub(crate) fn insert(&self, subjects: &Subjects, cost: u64, answers: &Answers, ticket: DenialTicket) {
        let DenialTicket { keys, is_peek, generation, sent } = ticket;
        let denying =
            subjects.0.iter().zip(answers).filter(|(subject, one)| subject.part.enforced && one.is_denied());
        let wait_us = denying.map(|(_, one)| one.waits.retry_us).min();
        let wait = match wait_us.map(Duration::from_micros) {
            _ if is_peek => BRIEFLY,
            // A cost that never fits has no end to cache it until.
            Some(_) if wait_us == Some(Waits::NEVER) => return,
            Some(wait) => {
                let leases =
                    subjects.0.iter().map(|subject| subject.lease_us).filter(|length_us| *length_us > 0);
                let briefly = leases.clone().min().map_or(BRIEFLY, Duration::from_micros);
                let is_held = answers.iter().any(|one| one.held > 0);
                let wait = if is_held { wait.min(briefly) } else { wait };
                // Room gathers meanwhile, for a lease.
                leases.max().map_or(wait, |length_us| wait.max(Duration::from_micros(length_us / 8)))
            }
            None => return,
        };
        if self.is_released_since(subjects, sent) {
            return;
        }
        let until = sent + wait;
        let answers = answers.iter().copied().collect();
        let denial = Denial { cost, answers, sent, until, is_used: false };
        let mut set = self.denials.set(lowest_bits(keys));
        // An invalidation after this was read invalidates the denial with its set.
        if !(is_peek || self.is_subscribed()) || generation != set.generation() {
            return;
        }
        // An ended denial is replaced first, then the unused one that ends first. So a flood of
        // denials that are never used again does not replace those that save calls.
        let replaced = set.insert(keys, denial, |one| (one.until > sent, one.is_used, one.until));
        if replaced.is_some_and(|one| one.until > sent && one.is_used) {
            // All are used. Otherwise the set would not change until they end.
            set.values_mut().for_each(|one| one.is_used = false);
        }
    }

    /// Ends the denials and peeks of a key whose hold was changed, or where a charge was returned
    /// or a penalty charged. A call for the key in flight may have been decided before that.
    pub(crate) fn release(&self, name: &[u8], now: Timestamp) {
        self.release_of(name).fetch_max(now.as_micros() + 1, Ordering::SeqCst);
    }

    /// Whether one of these keys was released at this time or later.
    fn is_released_since(&self, subjects: &Subjects, sent: Timestamp) -> bool {
        let sent_us = sent.as_micros();
        subjects.0.iter().any(|subject| self.release_of(&subject.name).load(Ordering::SeqCst) > sent_us)
    }

    fn release_of(&self, name: &[u8]) -> &AtomicU64 {
        let index = lowest_bits(self.secret.hash_of(&name)) % RELEASES as u64;
        &self.releases[usize::try_from(index).unwrap_or_default()]
    }

    /// Invalidates every denial in one step.
    pub(crate) fn clear(&self) {
        self.denials.clear();
    }
}

#[allow(clippy::cast_possible_truncation)]
fn lowest_bits(hash: u128) -> u64 {
    hash as u64
}

#[cfg(test)]
mod tests {

    use slidegate::{Quota, Verdict};

    use super::*;
    use crate::call::{Subject, check_of_nothing};

    const HOUR_US: u64 = 3_600_000_000;

    fn subjects(user: u64) -> Subjects {
        let subject = Subject {
            name: format!("sg1:p:{user}").into_bytes(),
            quota: Quota::per_hour(1),
            part: check_of_nothing(),
            own_cost: None,
            key: 0,
            hold: None,
            lease_us: 0,
        };
        Subjects(SmallVec::from_iter([subject]))
    }

    fn denied(retry_us: u64) -> Answers {
        Answers::from_iter([Decision {
            verdict: Verdict::Deny,
            used: 1,
            remaining: 0,
            waits: Waits { retry_us, reset_us: retry_us, frees_us: retry_us },
            ..Decision::unused(1, Timestamp::EPOCH)
        }])
    }

    fn subscribed() -> DenialCache {
        let cache = DenialCache::default();
        cache.set_subscribed(true);
        cache
    }

    /// Checks as the store does. Returns whether the server, which denies, had to be called.
    fn check(cache: &DenialCache, user: u64, now: Timestamp, retry_us: u64) -> bool {
        let subjects = subjects(user);
        let Err(ticket) = cache.answer(&subjects, 1, now) else { return false };
        cache.insert(&subjects, 1, &denied(retry_us), ticket);
        true
    }

    fn is_cached(cache: &DenialCache, user: u64, now: Timestamp) -> bool {
        cache.answer(&subjects(user), 1, now).is_ok()
    }

    /// The cache is for clients that keep retrying: a flood of others must not evict their denials.
    #[test]
    fn denials_that_are_asked_for_again_outlast_a_flood_of_others() {
        let (cache, now) = (subscribed(), Timestamp::from_secs(1));
        check(&cache, 0, now, HOUR_US);
        for user in 1..4 * RELEASES as u64 {
            // A tenth of them ends later than the one that is asked for, which does not matter.
            check(&cache, user, now, HOUR_US / 2 + HOUR_US * u64::from(user % 10 == 0));
            if user % 1000 == 0 {
                assert!(is_cached(&cache, 0, now), "after {user}");
            }
        }
    }

    /// An ended denial must neither be used nor replace others.
    #[test]
    fn ended_denials_are_replaced_before_those_that_are_true() {
        let (cache, now) = (subscribed(), Timestamp::from_secs(1));
        assert!(size_of::<(KeysHash, Denial)>() * RELEASES <= 10 << 20, "as the cache's comment says");
        let hash_of = |user: u64| cache.secret.hash_of(&(subjects(user).of_denial(), None::<u64>));
        let in_first_set = |user: &u64| lowest_bits(hash_of(*user)).trailing_zeros() >= 13;
        let users: Vec<u64> = (0..).filter(in_first_set).take(9).collect();
        for (at, user) in users[..8].iter().enumerate() {
            assert!(check(&cache, *user, now, if at == 3 { 1_000_000 } else { HOUR_US }));
        }
        let (earlier, later) = (now + Duration::from_micros(999_999), now + Duration::from_secs(1));
        assert!(is_cached(&cache, users[3], earlier));
        assert!(!is_cached(&cache, users[3], later));
        assert!(check(&cache, users[8], later, HOUR_US));
        for (at, user) in users.iter().enumerate() {
            assert_eq!(is_cached(&cache, *user, later), at != 3, "{at}");
        }
    }

    /// A denial that was decided before a refund would deny what the refund admits.
    #[test]
    fn what_was_asked_before_all_was_forgotten_is_not_cached() {
        let (cache, now) = (subscribed(), Timestamp::from_secs(1));
        let subjects = subjects(1);
        let ticket = cache.answer(&subjects, 1, now).unwrap_err();
        cache.clear();
        cache.insert(&subjects, 1, &denied(HOUR_US), ticket);
        assert!(!is_cached(&cache, 1, now));
        // While invalidations are not received, nothing is cached, nor are replies to calls sent
        // then.
        cache.set_subscribed(false);
        check(&cache, 1, now, HOUR_US);
        assert!(!is_cached(&cache, 1, now));
        let ticket = cache.answer(&subjects, 1, now).unwrap_err();
        cache.set_subscribed(true);
        cache.insert(&subjects, 1, &denied(HOUR_US), ticket);
        assert!(!is_cached(&cache, 1, now));
        assert!(check(&cache, 1, now, HOUR_US));
        assert!(is_cached(&cache, 1, now));
    }

    fn denied_by_held(retry_us: u64) -> Answers {
        denied(retry_us).into_iter().map(|one| Decision { used: 0, held: 1, ..one }).collect()
    }

    /// Another instance that settles says nothing, and a client that is denied must find out soon.
    #[test]
    fn a_denial_of_a_key_with_holds_is_cached_for_a_tenth_of_a_second() {
        let (cache, now) = (subscribed(), Timestamp::from_secs(1));
        for (user, wait_us, lasts_us) in [(1, HOUR_US, 100_000), (2, 40_000, 40_000)] {
            let subjects = subjects(user);
            let ticket = cache.answer(&subjects, 1, now).unwrap_err();
            cache.insert(&subjects, 1, &denied_by_held(wait_us), ticket);
            assert!(is_cached(&cache, user, now + Duration::from_micros(lasts_us - 1)));
            assert!(!is_cached(&cache, user, now + Duration::from_micros(lasts_us)));
        }
    }

    /// Its own settlements end a denial at once, those of other keys do not, and one that is on its
    /// way meanwhile is not cached.
    #[test]
    fn what_is_settled_or_cancelled_here_ends_denials_of_its_key_that_were_asked_before() {
        let (cache, now) = (subscribed(), Timestamp::from_secs(1));
        let at = |ms| now + Duration::from_millis(ms);
        let slot = |user: u64| std::ptr::from_ref(cache.release_of(&subjects(user).0[0].name));
        let other = (2..).find(|user| slot(*user) != slot(1)).unwrap();
        for user in [1, other] {
            let subjects = subjects(user);
            let ticket = cache.answer(&subjects, 1, at(0)).unwrap_err();
            cache.insert(&subjects, 1, &denied_by_held(HOUR_US), ticket);
        }
        cache.release(&subjects(1).0[0].name, at(10));
        assert_eq!((is_cached(&cache, 1, at(20)), is_cached(&cache, other, at(20))), (false, true));
        for (asked, released, is_kept) in [(30, 40, false), (50, 50, false), (61, 60, true)] {
            let subjects = subjects(1);
            let ticket = cache.answer(&subjects, 1, at(asked)).unwrap_err();
            cache.release(&subjects.0[0].name, at(released));
            cache.insert(&subjects, 1, &denied_by_held(HOUR_US), ticket);
            assert_eq!(is_cached(&cache, 1, at(asked + 1)), is_kept, "{asked} {released}");
        }
        // A key without holds may have got back what was charged at once.
        check(&cache, 3, at(70), HOUR_US);
        cache.release(&subjects(3).0[0].name, at(80));
        assert!(!is_cached(&cache, 3, at(90)));
    }

    /// What others hold by leases may come back before its end, and a flood must not ask for each unit that expires.
    #[test]
    fn a_denial_of_a_leased_key_lasts_an_eighth_of_a_lease_at_least_and_a_lease_if_others_hold() {
        let held = |retry_us| {
            let mut answers = denied_by_held(retry_us);
            answers[0].waits.retry_us = retry_us;
            answers
        };
        for (answers, lasts_us) in
            [(denied(1), 6_250), (denied(HOUR_US), HOUR_US), (held(1), 6_250), (held(HOUR_US), 50_000)]
        {
            let (cache, now) = (subscribed(), Timestamp::from_secs(1));
            let mut subjects = subjects(1);
            subjects.0[0].lease_us = 50_000;
            let ticket = cache.answer(&subjects, 1, now).unwrap_err();
            cache.insert(&subjects, 1, &answers, ticket);
            let is_cached = |us| cache.answer(&subjects, 1, now + Duration::from_micros(us)).is_ok();
            assert_eq!((is_cached(lasts_us - 1), is_cached(lasts_us)), (true, false), "{lasts_us}");
        }
    }

    /// Each reservation has an id of its own; what is denied is the same.
    #[test]
    fn a_reservation_is_answered_by_the_denial_of_another_one_and_not_by_that_of_a_check() {
        let (cache, now) = (subscribed(), Timestamp::from_secs(1));
        let reserving = |id| {
            let mut subjects = subjects(1);
            let unsettled = slidegate::reserve::Unsettled::Charge;
            subjects.0[0].hold = Some(slidegate::internal::NewHold { id, ttl_us: 1000, unsettled });
            subjects
        };
        let ticket = cache.answer(&reserving(1), 1, now).unwrap_err();
        cache.insert(&reserving(1), 1, &denied_by_held(HOUR_US), ticket);
        assert!(cache.answer(&reserving(2), 1, now).is_ok());
        assert!(!is_cached(&cache, 1, now), "a check may be allowed where there are too many holds");
    }
}
