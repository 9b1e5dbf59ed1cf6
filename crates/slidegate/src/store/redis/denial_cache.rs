//! The cache of denials: while a denial is still true, the server is not asked again.
//!
//! Denials lie in many small sets, each under a lock of its own: looking one up, adding one to a full cache and
//! forgetting all of them take the same few steps however many there are, so nobody can slow others down by causing many.
//!
//! Nothing is cached while nobody could tell that it has ended, see [`invalidation`](super::invalidation). A denial's wait counts from
//! when the call was sent, which is before the server decided, so it is never kept for longer than it is true. It holds
//! for the same keys and for costs at least as large, and ends at once with a refund, a reset or another quota.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use smallvec::SmallVec;
use tokio::time::Instant;

use super::call::{Answers, Subjects};
use crate::decision::{Decision, DecisionSource, Waits};
use crate::key::HashSeed;

/// Most denials of one set. They are compared one by one, and all of them lie in a few cache lines.
const WAYS: usize = 8;
/// Sets, a power of two: with [`WAYS`] 65,536 denials. One takes some 160 bytes under a single policy, so all of them
/// some 10 MB.
const SETS: usize = 8192;

/// Denials by the keys they are about.
pub(crate) struct DenialCache {
    sets: Box<[Mutex<Set>]>,
    /// What keys are hashed with. Random, so that no client can choose the set of a key.
    secret: HashSeed,
    /// Whether news of what ends them arrive.
    hears: AtomicBool,
    /// How often all were forgotten. Sets with an older number hold nothing that is still true.
    forgotten: AtomicU64,
    /// Denials that were compared or moved.
    #[cfg(test)]
    steps: AtomicU64,
}

/// Denials whose keys have the same hash in its lowest bits.
#[derive(Default)]
struct Set {
    /// [`DenialCache::forgotten`] when these were cached.
    forgotten: u64,
    /// At most [`WAYS`].
    denials: Vec<Denial>,
}

struct Denial {
    keys: KeysHash,
    cost: u64,
    answers: SmallVec<[Decision; 1]>,
    sent: Instant,
    /// When the first of the denying keys has room again.
    until: Instant,
    /// Whether it has answered a check since the set was last full of denials that had.
    is_used: bool,
}

/// What keys are known by: 128 bits of a keyed hash, which no two of them share.
type KeysHash = u128;

/// What was known when a call was sent: what it replies is cached only if nothing has been forgotten since.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ticket {
    keys: KeysHash,
    forgotten: u64,
    sent: Instant,
}

impl Default for DenialCache {
    fn default() -> Self {
        Self {
            sets: (0..SETS).map(|_| Mutex::default()).collect(),
            secret: HashSeed::random(),
            hears: AtomicBool::new(false),
            forgotten: AtomicU64::new(0),
            #[cfg(test)]
            steps: AtomicU64::new(0),
        }
    }
}

/// Neither the secret nor tens of thousands of denials.
impl fmt::Debug for DenialCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DenialCache").field("hears", &self.hears).finish_non_exhaustive()
    }
}

impl DenialCache {
    /// Invalidations arrive from now on, or no more. What was missed meanwhile nobody knows: all is forgotten.
    pub(crate) fn hears(&self, hears: bool) {
        self.hears.store(hears, Ordering::SeqCst);
        self.forget_all();
    }

    /// The denial that is still true of these keys and this cost, with the waits that are left; otherwise the ticket for
    /// the call that is about to be sent.
    pub(crate) fn answer(&self, subjects: &Subjects, cost: u64, now: Instant) -> Result<Answers, Ticket> {
        let keys = self.secret.hash_of(subjects);
        let mut set = self.set(keys);
        let forgotten = set.forgotten;
        let denial = set.denials.iter_mut().find(|denial| denial.keys == keys);
        let Some(denial) = denial.filter(|denial| cost >= denial.cost && now < denial.until) else {
            return Err(Ticket { keys, forgotten, sent: now });
        };
        denial.is_used = true;
        let mut answers: Answers = denial.answers.iter().copied().collect();
        let passed = now.saturating_duration_since(denial.sent);
        drop(set);
        let passed_us = u64::try_from(passed.as_micros()).unwrap_or(u64::MAX);
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

    /// Caches a denial of the call that this ticket was for.
    pub(crate) fn remember(&self, subjects: &Subjects, cost: u64, answers: &Answers, ticket: Ticket) {
        let Ticket { keys, forgotten, sent } = ticket;
        let denying =
            subjects.0.iter().zip(answers).filter(|(subject, one)| subject.part.enforced && one.is_denied());
        let Some(wait_us) = denying.map(|(_, one)| one.waits.retry_us).min() else { return };
        // What never fits costs nothing to decide again, and nothing would end it.
        if wait_us == Waits::NEVER {
            return;
        }
        let until = sent + Duration::from_micros(wait_us);
        let answers = answers.iter().copied().collect();
        let denial = Denial { keys, cost, answers, sent, until, is_used: false };
        let mut set = self.set(keys);
        // What is forgotten after this was read makes the set as old as the denial.
        if self.hears.load(Ordering::SeqCst) && forgotten == set.forgotten {
            set.place(denial);
        }
    }

    /// Forgets every denial, in one step: sets are emptied when they are next looked at.
    pub(crate) fn forget_all(&self) {
        self.forgotten.fetch_add(1, Ordering::SeqCst);
    }

    /// The set of these keys, without what was forgotten.
    fn set(&self, keys: KeysHash) -> MutexGuard<'_, Set> {
        let mut set = self.sets[place_of(keys)].lock().unwrap_or_else(PoisonError::into_inner);
        // Read under the lock, so a set never goes back to an older number.
        let forgotten = self.forgotten.load(Ordering::SeqCst);
        if set.forgotten != forgotten {
            set.forgotten = forgotten;
            set.denials.clear();
        }
        #[cfg(test)]
        self.steps.fetch_add(set.denials.len() as u64, Ordering::Relaxed);
        set
    }
}

/// The place of the set of these keys.
fn place_of(keys: KeysHash) -> usize {
    #[allow(clippy::cast_possible_truncation)] // the lowest bits are what is wanted
    let lowest = keys as usize;
    lowest & (SETS - 1)
}

impl Set {
    /// Adds a denial. A full set loses one that has ended; else, of those that have answered no check, the one that ends
    /// first: a flood of denials that nobody asks for again does not displace those that save calls.
    fn place(&mut self, denial: Denial) {
        if let Some(same) = self.denials.iter_mut().find(|one| one.keys == denial.keys) {
            *same = denial;
            return;
        }
        if self.denials.len() < WAYS {
            self.denials.push(denial);
            return;
        }
        let now = denial.sent;
        let worth = |one: &Denial| (one.until > now, one.is_used, one.until);
        let least = self.denials.iter_mut().min_by_key(|one| worth(one)).expect("a full set has denials");
        let are_all_used = least.until > now && least.is_used;
        *least = denial;
        if are_all_used {
            // They have to show again that they are asked for, or the set would stay as it is for as long as they last.
            self.denials.iter_mut().for_each(|one| one.is_used = false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::charge::Part;
    use crate::decision::Verdict;
    use crate::quota::Quota;
    use crate::store::redis::call::Subject;
    use crate::time::Timestamp;

    const HOUR_US: u64 = 3_600_000_000;

    fn subjects(user: u64) -> Subjects {
        let subject = Subject {
            name: format!("sg1:p:{user}").into_bytes(),
            quota: Quota::per_hour(1),
            part: Part::check_of_nothing(),
            own_cost: None,
            key: 0,
        };
        Subjects(SmallVec::from_iter([subject]))
    }

    fn denied(retry_us: u64) -> Answers {
        Answers::from_iter([Decision {
            verdict: Verdict::Deny,
            limit: 1,
            used: 1,
            remaining: 0,
            cost: 0,
            at: Timestamp::EPOCH,
            is_blocked: false,
            source: DecisionSource::Store,
            waits: Waits { retry_us, reset_us: retry_us, frees_us: retry_us },
        }])
    }

    fn listening() -> DenialCache {
        let cache = DenialCache::default();
        cache.hears(true);
        cache
    }

    /// Asks as the store does, and is denied if it has to ask the server. Whether it had to.
    fn check(cache: &DenialCache, user: u64, now: Instant, retry_us: u64) -> bool {
        let subjects = subjects(user);
        let Err(ticket) = cache.answer(&subjects, 1, now) else { return false };
        cache.remember(&subjects, 1, &denied(retry_us), ticket);
        true
    }

    fn is_cached(cache: &DenialCache, user: u64, now: Instant) -> bool {
        cache.answer(&subjects(user), 1, now).is_ok()
    }

    fn held(cache: &DenialCache) -> usize {
        cache.sets.iter().map(|set| set.lock().unwrap().denials.len()).sum()
    }

    /// Another client's checks must not wait while an attacker fills the cache: each step looks at one set.
    #[test]
    fn a_denial_costs_a_full_cache_as_little_as_an_empty_one() {
        let (cache, now) = (listening(), crate::time::instant());
        let most = (SETS * WAYS) as u64;
        for user in 0..2 * most {
            check(&cache, user, now, HOUR_US);
        }
        assert!(held(&cache) > SETS * WAYS * 9 / 10, "{} of {most}", held(&cache));
        for user in 2 * most..2 * most + 10_000 {
            let before = cache.steps.load(Ordering::Relaxed);
            assert!(check(&cache, user, now, HOUR_US));
            let steps = cache.steps.load(Ordering::Relaxed) - before;
            assert!(steps <= 2 * WAYS as u64, "{steps}");
        }
        assert!(held(&cache) <= SETS * WAYS);
        // What the constants promise: a set has room for as many as it may hold and for no more.
        let room: usize = cache.sets.iter().map(|set| set.lock().unwrap().denials.capacity()).sum();
        assert!(room * size_of::<Denial>() <= 10 << 20, "{room} of {} bytes", size_of::<Denial>());
        let before = cache.steps.load(Ordering::Relaxed);
        cache.forget_all();
        assert_eq!(cache.steps.load(Ordering::Relaxed), before, "forgetting goes through nothing");
        assert!((0..2 * most).step_by(97).all(|user| !is_cached(&cache, user, now)));
    }

    /// A thread that was stopped in the middle of its check must hold up those of its own set and nobody else.
    #[test]
    fn checks_of_other_keys_do_not_wait_for_one_another() {
        let (cache, now) = (listening(), crate::time::instant());
        let place = |user| place_of(cache.secret.hash_of(&subjects(user)));
        let other = (2..).find(|user| place(*user) != place(1)).unwrap();
        let stopped = cache.sets[place(1)].lock().unwrap();
        assert!(check(&cache, other, now, HOUR_US));
        assert!(is_cached(&cache, other, now));
        cache.forget_all();
        assert!(!is_cached(&cache, other, now));
        drop(stopped);
    }

    /// The cache is there for clients that go on asking: a flood of others must not displace those.
    #[test]
    fn denials_that_are_asked_for_again_outlast_a_flood_of_others() {
        let (cache, now) = (listening(), crate::time::instant());
        check(&cache, 0, now, HOUR_US);
        for user in 1..4 * (SETS * WAYS) as u64 {
            // A tenth of them ends later than the one that is asked for, which does not matter.
            check(&cache, user, now, HOUR_US / 2 + HOUR_US * u64::from(user % 10 == 0));
            if user % 1000 == 0 {
                assert!(is_cached(&cache, 0, now), "after {user}");
            }
        }
    }

    /// What has ended makes room first, and nothing is kept past its end.
    #[test]
    fn ended_denials_are_replaced_before_those_that_are_true() {
        let (cache, now) = (listening(), crate::time::instant());
        let mut same = (0..).filter(|user| place_of(cache.secret.hash_of(&subjects(*user))) == 0);
        let users: Vec<u64> = same.by_ref().take(WAYS + 1).collect();
        for (at, user) in users[..WAYS].iter().enumerate() {
            assert!(check(&cache, *user, now, if at == 3 { 1_000_000 } else { HOUR_US }));
        }
        let later = now + Duration::from_secs(1);
        assert!(is_cached(&cache, users[3], later - Duration::from_micros(1)));
        assert!(!is_cached(&cache, users[3], later));
        assert!(check(&cache, users[WAYS], later, HOUR_US));
        for (at, user) in users.iter().enumerate() {
            assert_eq!(is_cached(&cache, *user, later), at != 3, "{at}");
        }
    }

    /// A denial that was decided before a refund would deny what the refund has made room for.
    #[test]
    fn what_was_asked_before_all_was_forgotten_is_not_cached() {
        let (cache, now) = (listening(), crate::time::instant());
        let subjects = subjects(1);
        let ticket = cache.answer(&subjects, 1, now).unwrap_err();
        cache.forget_all();
        cache.remember(&subjects, 1, &denied(HOUR_US), ticket);
        assert!(!is_cached(&cache, 1, now));
        // While nothing is heard, nothing is kept; nor is what was asked for then.
        cache.hears(false);
        check(&cache, 1, now, HOUR_US);
        assert!(!is_cached(&cache, 1, now));
        let ticket = cache.answer(&subjects, 1, now).unwrap_err();
        cache.hears(true);
        cache.remember(&subjects, 1, &denied(HOUR_US), ticket);
        assert!(!is_cached(&cache, 1, now));
        assert!(check(&cache, 1, now, HOUR_US));
        assert!(is_cached(&cache, 1, now));
    }
}
