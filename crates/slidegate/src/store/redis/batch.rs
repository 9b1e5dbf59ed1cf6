//! Batcher: checks of the same keys travel together.
//!
//! While a call for some keys is under way, checks that come for the very same keys wait, and go as one call that decides
//! them in the order they came. A lane is a task of its own, so that a caller who gives up takes nobody's charge along;
//! who has given up before the call is made is left out of it.
//!
//! Lanes lie in shards by the hash of their keys, so that checks of other keys seldom wait for one another's locks, and a
//! lock is held for a bounded number of steps however many checks wait.

use std::collections::hash_map::{Entry, RandomState};
use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasher;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use smallvec::SmallVec;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use super::call::{Answers, Subjects};
use super::{Calls, Ordering};
use crate::store::redis::transport::{Executed, Failure, FailureKind};

/// Most checks in one call: enough to make one key's calls rare, few enough for their answers to be told in a moment.
const MOST_TOGETHER: usize = 1024;
/// Most steps that a call's script takes for its checks, each some 0.3 us: nobody else is served meanwhile.
const MOST_STEPS: usize = 128;
/// Most checks that wait for one call; more are refused at once, as they would not be answered in time.
const MOST_WAITING: usize = 16_384;

/// Parts of the table of lanes: more than there are threads that ask at once.
const SHARDS: usize = 64;

/// The lanes that have a call under way.
#[derive(Debug, Clone, Default)]
pub(crate) struct Batcher(Arc<Shards>);

#[derive(Debug)]
struct Shards {
    shards: [Mutex<Lanes>; SHARDS],
    hasher: RandomState,
}

/// Those who wait for the next call of each lane, in the order they came.
type Lanes = HashMap<Arc<Subjects>, VecDeque<Waiter>>;

impl Default for Shards {
    fn default() -> Self {
        Self { shards: std::array::from_fn(|_| Mutex::default()), hasher: RandomState::new() }
    }
}

/// A check that waits for its lane.
#[derive(Debug)]
struct Waiter {
    cost: u64,
    deadline: Instant,
    answer: oneshot::Sender<Result<Answers, Failure>>,
}

impl Batcher {
    /// Checks these subjects, alone or with others.
    pub(crate) async fn check(
        &self,
        calls: &Arc<Calls>,
        subjects: Subjects,
        cost: u64,
        deadline: Instant,
    ) -> Result<Answers, Failure> {
        let (answer, answered) = oneshot::channel();
        let waiter = Waiter { cost, deadline, answer };
        let subjects = Arc::new(subjects);
        let opened = match self.lanes(&subjects).entry(Arc::clone(&subjects)) {
            Entry::Occupied(mut entry) => {
                let waiting = entry.get_mut();
                if waiting.len() >= MOST_WAITING {
                    let failure = shed();
                    calls.transport.count(&failure);
                    return Err(failure);
                }
                waiting.push_back(waiter);
                None
            }
            Entry::Vacant(entry) => {
                entry.insert(VecDeque::new());
                Some(waiter)
            }
        };
        if let Some(first) = opened {
            let lane = Lane { batcher: self.clone(), subjects: Arc::clone(&subjects) };
            tokio::spawn(lane.drive(Arc::clone(calls), first));
        }
        match timeout_at(deadline, answered).await {
            Ok(Ok(answer)) => answer,
            // The lane's task has ended with the runtime, or the deadline has passed: it may have been charged.
            Ok(Err(_)) | Err(_) => {
                let detail = "did not answer within the deadline".to_owned();
                let node = calls.transport.holder_name(calls.slot(&subjects));
                // Not counted: the call that it waited for is.
                Err(Failure { executed: Executed::Maybe, kind: FailureKind::Timeout, node, detail })
            }
        }
    }

    /// The shard that has the lane of these subjects.
    fn lanes(&self, subjects: &Subjects) -> MutexGuard<'_, Lanes> {
        let Shards { shards, hasher } = &*self.0;
        let hash = usize::try_from(hasher.hash_one(subjects) % SHARDS as u64).unwrap_or_default();
        shards[hash].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A lane that has a call under way. However its task ends, the lane ends with it, and the next check opens another.
struct Lane {
    batcher: Batcher,
    subjects: Arc<Subjects>,
}

impl Drop for Lane {
    fn drop(&mut self) {
        let mut lanes = self.batcher.lanes(&self.subjects);
        // Another one may have been opened since this one ended.
        let is_this = |(opened, _): (&Arc<Subjects>, &VecDeque<Waiter>)| Arc::ptr_eq(opened, &self.subjects);
        if lanes.get_key_value(&self.subjects).is_some_and(is_this) {
            lanes.remove(&self.subjects);
        }
    }
}

impl Lane {
    /// Makes the lane's calls, one after the other, until nobody waits.
    async fn drive(self, calls: Arc<Calls>, first: Waiter) {
        let mut batch = vec![first];
        while !batch.is_empty() {
            calls.counts.together.fetch_add(batch.len() as u64 - 1, Ordering::Relaxed);
            let costs: SmallVec<[u64; 8]> = batch.iter().map(|waiter| waiter.cost).collect();
            // They came in order, so the first has the least time.
            let deadline = batch[0].deadline;
            let is_crowded = batch.len() > 1;
            match calls.call(&self.subjects, &costs, deadline).await {
                Ok(answers) => {
                    for (waiter, answer) in batch.into_iter().zip(answers) {
                        // Whoever has gone meanwhile was charged as one who hears it.
                        let _ = waiter.answer.send(Ok(answer));
                    }
                }
                Err(failure) => self.fail(batch, &failure, deadline),
            }
            if is_crowded {
                // Whoever was answered may ask again at once: who is let go first, goes along.
                tokio::task::yield_now().await;
            }
            let Some(next) = self.next() else { return };
            batch = next;
        }
    }

    /// Tells the failure. If the first has run out of time and surely nothing was done, those with more time go again,
    /// before those who came later. The call may have ended a little before its `deadline`: whoever has no more time than
    /// that is told now, or the same call would be made over and over until then.
    fn fail(&self, batch: Vec<Waiter>, failure: &Failure, deadline: Instant) {
        let not_done = failure.executed == Executed::No
            && matches!(failure.kind, FailureKind::Timeout | FailureKind::Late);
        let (again, ended): (Vec<_>, Vec<_>) =
            batch.into_iter().partition(|waiter| not_done && waiter.deadline > deadline);
        for waiter in ended {
            let _ = waiter.answer.send(Err(failure.clone()));
        }
        if let Some(waiting) = self.batcher.lanes(&self.subjects).get_mut(&self.subjects) {
            again.into_iter().rev().for_each(|waiter| waiting.push_front(waiter));
        }
    }

    /// The next checks that still want an answer. With none, the lane has ended before another check can come.
    fn next(&self) -> Option<Vec<Waiter>> {
        let now = crate::time::instant();
        // Under one key, checks of the same cost that follow one another are one step.
        let is_alone = self.subjects.alone().is_some();
        loop {
            let (mut batch, mut gone) = (Vec::new(), Vec::new());
            let (mut steps, mut last) = (0, None);
            let mut lanes = self.batcher.lanes(&self.subjects);
            let waiting = lanes.get_mut(&self.subjects)?;
            while batch.len() + gone.len() < MOST_TOGETHER
                && let Some(waiter) = waiting.front()
            {
                if waiter.answer.is_closed() || waiter.deadline <= now {
                    gone.extend(waiting.pop_front());
                    continue;
                }
                let before = last.replace(waiter.cost);
                steps += usize::from(!is_alone || before != last);
                if steps > MOST_STEPS {
                    break;
                }
                batch.extend(waiting.pop_front());
            }
            let is_over = batch.is_empty() && waiting.is_empty();
            if is_over {
                lanes.remove(&self.subjects);
            }
            // Those who have gone are dropped without the lock; if they were all that was looked at, others may wait.
            drop(lanes);
            if is_over {
                return None;
            }
            if !batch.is_empty() {
                return Some(batch);
            }
        }
    }
}

fn shed() -> Failure {
    let detail = format!("{MOST_WAITING} checks of the same keys wait already");
    Failure::without_node(Executed::No, FailureKind::Overloaded, detail)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::charge::Part;
    use crate::quota::Quota;
    use crate::store::redis::call::Subject;

    fn lane(batcher: &Batcher, user: u64) -> Lane {
        let subject = Subject {
            name: format!("sg1:p:{user}").into_bytes(),
            quota: Quota::per_minute(1),
            part: Part::check_of_nothing(),
            own_cost: None,
            key: 0,
        };
        let subjects = Arc::new(Subjects(SmallVec::from_iter([subject])));
        Lane { batcher: batcher.clone(), subjects }
    }

    /// Lets one check wait for each of these costs; what they are answered on is returned.
    fn wait(
        lane: &Lane,
        costs: impl Iterator<Item = u64>,
    ) -> Vec<oneshot::Receiver<Result<Answers, Failure>>> {
        let deadline = crate::time::instant() + std::time::Duration::from_secs(3600);
        let mut lanes = lane.batcher.lanes(&lane.subjects);
        let waiting = lanes.entry(Arc::clone(&lane.subjects)).or_default();
        let of = |cost| {
            let (answer, answered) = oneshot::channel();
            waiting.push_back(Waiter { cost, deadline, answer });
            answered
        };
        costs.map(of).collect()
    }

    fn left(lane: &Lane) -> Option<usize> {
        lane.batcher.lanes(&lane.subjects).get(&lane.subjects).map(VecDeque::len)
    }

    /// A crowd at one key must not hold up checks of other keys: a call takes its own checks and touches no others.
    #[test]
    fn a_call_takes_a_bounded_number_of_checks_from_the_front() {
        let crowd = lane(&Batcher::default(), 1);
        let answered = wait(&crowd, (0..MOST_WAITING as u64).map(|at| at / 4));
        let batch = crowd.next().unwrap();
        assert_eq!(batch.len(), 4 * MOST_STEPS, "as many steps as a script may take");
        assert!(batch.iter().map(|waiter| waiter.cost).eq((0..4 * MOST_STEPS as u64).map(|at| at / 4)));
        assert_eq!(left(&crowd), Some(MOST_WAITING - batch.len()));
        // Those who have given up are passed over, and the first who has not is next.
        let mut answered = answered.into_iter().skip(batch.len());
        answered.by_ref().take(3 * MOST_TOGETHER + 1).for_each(drop);
        let next = crowd.next().unwrap();
        assert_eq!(next[0].cost, (4 * MOST_STEPS + 3 * MOST_TOGETHER + 1) as u64 / 4);
        drop(answered);
        assert!(crowd.next().is_none());
        assert_eq!(left(&crowd), None, "the lane ends with those who wait");
    }

    /// All checks of a service go through here: one that holds a lock must not stop those of other keys.
    #[test]
    fn lanes_of_other_keys_do_not_wait_for_one_another() {
        let batcher = Batcher::default();
        let stopped = lane(&batcher, 0);
        let shard_of = |lane: &Lane| batcher.0.hasher.hash_one(&lane.subjects) % SHARDS as u64;
        let other = (1..).map(|user| lane(&batcher, user)).find(|one| shard_of(one) != shard_of(&stopped));
        let other = other.unwrap();
        let lock = batcher.lanes(&stopped.subjects);
        let _answered = wait(&other, 1..3);
        assert_eq!(other.next().map(|batch| batch.len()), Some(2));
        drop(lock);
    }

    /// A call may end a little before its deadline. To make it again until then would burn a core for nothing.
    #[test]
    fn checks_with_no_more_time_than_their_call_do_not_go_again() {
        let crowd = lane(&Batcher::default(), 1);
        let answered = wait(&crowd, 0..3);
        let batch = crowd.next().unwrap();
        let deadline = batch.iter().map(|waiter| waiter.deadline).max().unwrap();
        crowd.fail(batch, &Failure::without_node(Executed::No, FailureKind::Timeout, "late"), deadline);
        assert!(crowd.next().is_none());
        assert!(answered.into_iter().all(|mut answer| answer.try_recv().unwrap().is_err()));
    }

    /// Checks that ran out of their call's time go again before those who came later, in their order.
    #[test]
    fn checks_that_go_again_keep_their_place() {
        let crowd = lane(&Batcher::default(), 1);
        let _first = wait(&crowd, 0..3);
        let batch = crowd.next().unwrap();
        let _later = wait(&crowd, 3..5);
        // The call was for somebody whose time is over; theirs is not.
        let late = Failure::without_node(Executed::No, FailureKind::Timeout, "late");
        crowd.fail(batch, &late, crate::time::instant());
        let costs: Vec<_> = crowd.next().unwrap().iter().map(|waiter| waiter.cost).collect();
        assert_eq!(costs, [0, 1, 2, 3, 4]);
    }
}
