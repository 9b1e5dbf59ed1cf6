//! Batches: concurrent checks of the same keys share one script call.
//!
//! While a call for some keys is in flight, later checks of exactly these keys wait and go together
//! as the next call, which decides them in order of arrival. A separate task makes the calls, so a
//! caller who gives up does not cancel the others' call. A check whose caller gives up before its
//! call is sent is left out, and so is one that [leases](crate::leases) admit, which the call before has brought.
//!
//! Queues are sharded by the hash of their keys, so checks of different keys rarely share a lock. A
//! lock is held for a bounded number of steps, however many checks wait.

use std::collections::hash_map::{Entry, RandomState};
use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasher;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use redis_once::{Executed, Failure, FailureKind, LastFailure};
use smallvec::SmallVec;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use crate::call::{Answers, Subjects};
use crate::calls::Calls;

/// The maximum number of checks in one call: large enough that a hot key needs few calls, small
/// enough that the replies are distributed within a millisecond.
const MAX_BATCH: usize = 1024;
/// The maximum number of steps of one call's script, each about 0.3 us: Redis serves nobody else
/// meanwhile.
const MAX_STEPS: usize = 128;
/// The maximum number of checks that wait for one call. More are rejected at once: they would not
/// be decided in time.
const MAX_WAITING: usize = 16_384;

/// Number of shards: more than threads that check at once.
const SHARDS: usize = 64;

/// Decides requests whose keys are in one slot, and has the queues of all keys that have a call in
/// flight.
#[derive(Debug, Clone)]
pub(crate) struct Batcher {
    pub(super) calls: Arc<Calls>,
    queues: Arc<Shards>,
    /// Whether checks share calls.
    is_on: bool,
}

#[derive(Debug)]
struct Shards {
    shards: [Mutex<Queues>; SHARDS],
    hasher: RandomState,
}

type Queues = HashMap<Arc<Subjects>, Queue>;

/// The checks that wait for the next call for some keys, in the order they came.
#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<Waiter>,
    /// Why the call in flight was repeated, or the one before it failed.
    last_failure: Arc<LastFailure>,
}

impl Default for Shards {
    fn default() -> Self {
        Self { shards: std::array::from_fn(|_| Mutex::default()), hasher: RandomState::new() }
    }
}

/// A check that waits for its call.
#[derive(Debug)]
struct Waiter {
    cost: u64,
    deadline: Instant,
    reply: oneshot::Sender<Result<Answers, Failure>>,
}

impl Batcher {
    pub(super) fn new(calls: Arc<Calls>, is_on: bool) -> Self {
        Self { calls, queues: Arc::default(), is_on }
    }

    /// Decides one request whose keys are in one slot: a check alone or in a batch, anything else by
    /// a call of its own.
    ///
    /// # Errors
    /// The failure of the call. At the caller's own deadline it is the last failure that the calls
    /// for these keys have met, or a timeout if they have met none.
    pub(super) async fn decide(
        &self,
        subjects: &Subjects,
        cost: u64,
        deadline: Instant,
    ) -> Result<Answers, Failure> {
        if !self.is_on || !subjects.may_be_batched() {
            return self.calls.decide_alone(subjects, cost, deadline).await;
        }
        let (reply, replied) = oneshot::channel();
        let waiter = Waiter { cost, deadline, reply };
        let subjects = Arc::new(subjects.clone());
        let (last_failure, first) = match self.queues(&subjects).entry(Arc::clone(&subjects)) {
            Entry::Occupied(mut entry) => {
                let queue = entry.get_mut();
                if queue.waiting.len() >= MAX_WAITING {
                    let failure = overloaded();
                    self.calls.client.count(&failure);
                    return Err(failure);
                }
                queue.waiting.push_back(waiter);
                (Arc::clone(&queue.last_failure), None)
            }
            Entry::Vacant(entry) => (Arc::clone(&entry.insert(Queue::default()).last_failure), Some(waiter)),
        };
        if let Some(first) = first {
            let worker = Worker {
                batcher: self.clone(),
                subjects: Arc::clone(&subjects),
                last_failure: Arc::clone(&last_failure),
            };
            tokio::spawn(worker.run(first));
        }
        match timeout_at(deadline, replied).await {
            Ok(Ok(reply)) => reply,
            // The deadline has passed, or the worker ended with its runtime: the check may have
            // been charged. Not counted: the call itself is.
            Ok(Err(_)) | Err(_) => Err(match last_failure.get() {
                Some(failure) => Failure { executed: Executed::Maybe, ..failure },
                None => {
                    let detail = "did not answer within the deadline".to_owned();
                    let node = self.calls.client.holder_name(self.calls.slot(&subjects));
                    Failure { executed: Executed::Maybe, kind: FailureKind::Timeout, node, detail }
                }
            }),
        }
    }

    /// The shard that has the queue of these subjects.
    fn queues(&self, subjects: &Subjects) -> MutexGuard<'_, Queues> {
        let Shards { shards, hasher } = &*self.queues;
        let hash = usize::try_from(hasher.hash_one(subjects) % SHARDS as u64).unwrap_or_default();
        shards[hash].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Makes the calls of one queue. When it ends, however it ends, the queue is removed, and the next
/// check starts another worker.
struct Worker {
    batcher: Batcher,
    subjects: Arc<Subjects>,
    last_failure: Arc<LastFailure>,
}

impl Drop for Worker {
    fn drop(&mut self) {
        let mut queues = self.batcher.queues(&self.subjects);
        // Another worker may have started since this one removed its queue.
        let is_own = |(key, _): (&Arc<Subjects>, &Queue)| Arc::ptr_eq(key, &self.subjects);
        if queues.get_key_value(&self.subjects).is_some_and(is_own) {
            queues.remove(&self.subjects);
        }
    }
}

impl Worker {
    /// Makes calls, one after the other, until no check waits.
    async fn run(self, first: Waiter) {
        let calls = &self.batcher.calls;
        let mut batch = vec![first];
        while !batch.is_empty() {
            calls.counts.batched.fetch_add(batch.len() as u64 - 1, Ordering::Relaxed);
            let costs: SmallVec<[u64; 8]> = batch.iter().map(|waiter| waiter.cost).collect();
            // They came in order, so the first has the earliest deadline.
            let deadline = batch[0].deadline;
            let is_shared = batch.len() > 1;
            let decided = calls.call(&self.subjects, &costs, None, deadline, &self.last_failure).await;
            self.last_failure.set(decided.as_ref().err().cloned());
            match decided {
                Ok(answers) => {
                    for (waiter, answer) in batch.into_iter().zip(answers) {
                        // A caller who has given up meanwhile was charged nevertheless.
                        let _ = waiter.reply.send(Ok(answer));
                    }
                }
                Err(failure) => self.fail(batch, &failure, deadline),
            }
            if is_shared {
                // The callers may check again at once: let them join the next batch.
                tokio::task::yield_now().await;
            }
            loop {
                let Some(next) = self.next() else { return };
                batch = next.into_iter().filter_map(|waiter| self.admit(waiter)).collect();
                if !batch.is_empty() {
                    break;
                }
            }
        }
    }

    /// Admits a check from leases that the last call has brought. Returns it if they have too little.
    fn admit(&self, waiter: Waiter) -> Option<Waiter> {
        let Some(answers) = self.batcher.calls.leases.admit_waiting(&self.subjects, waiter.cost) else {
            return Some(waiter);
        };
        let _ = waiter.reply.send(Ok(answers));
        None
    }

    /// Reports a failed call. If it ran out of time and was certainly not executed, checks with a
    /// later deadline are queued again, before those that came later.
    ///
    /// A call may end a little before its `deadline`. Checks with exactly that deadline fail now:
    /// otherwise the same call would be repeated over and over until then.
    fn fail(&self, batch: Vec<Waiter>, failure: &Failure, deadline: Instant) {
        let not_executed = failure.executed == Executed::No
            && matches!(failure.kind, FailureKind::Timeout | FailureKind::Late);
        let (again, ended): (Vec<_>, Vec<_>) =
            batch.into_iter().partition(|waiter| not_executed && waiter.deadline > deadline);
        for waiter in ended {
            let _ = waiter.reply.send(Err(failure.clone()));
        }
        if let Some(queue) = self.batcher.queues(&self.subjects).get_mut(&*self.subjects) {
            again.into_iter().rev().for_each(|waiter| queue.waiting.push_front(waiter));
        }
    }

    /// The next batch, of checks whose callers still wait. If there is none, the queue is removed
    /// before another check can join it.
    fn next(&self) -> Option<Vec<Waiter>> {
        let now = slidegate::internal::instant();
        // For one key, checks of the same cost that follow one another are one step.
        let is_alone = self.subjects.alone().is_some();
        loop {
            let (mut batch, mut gone) = (Vec::new(), Vec::new());
            let (mut steps, mut last) = (0, None);
            let mut queues = self.batcher.queues(&self.subjects);
            let waiting = &mut queues.get_mut(&*self.subjects)?.waiting;
            while batch.len() + gone.len() < MAX_BATCH
                && let Some(waiter) = waiting.front()
            {
                if waiter.reply.is_closed() || waiter.deadline <= now {
                    gone.extend(waiting.pop_front());
                    continue;
                }
                let before = last.replace(waiter.cost);
                steps += usize::from(!is_alone || before != last);
                if steps > MAX_STEPS {
                    break;
                }
                batch.extend(waiting.pop_front());
            }
            let is_over = batch.is_empty() && waiting.is_empty();
            if is_over {
                queues.remove(&self.subjects);
            }
            // `gone` is dropped without the lock. If it used up the bound, others may wait behind
            // it.
            drop(queues);
            if is_over {
                return None;
            }
            if !batch.is_empty() {
                return Some(batch);
            }
        }
    }
}

fn overloaded() -> Failure {
    let detail = format!("too many concurrent checks of the same keys: at most {MAX_WAITING} may wait");
    Failure::without_node(Executed::No, FailureKind::Overloaded, detail)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use slidegate::Quota;
    use slidegate::internal::instant;

    use super::*;
    use crate::call::{Subject, check_of_nothing};
    use crate::{RedisOptions, RedisStore};

    /// A store without a server.
    fn store() -> RedisStore {
        RedisStore::new(RedisOptions::new("redis://127.0.0.1:1").unwrap()).unwrap()
    }

    fn worker(RedisStore { batcher, .. }: &RedisStore, user: u64) -> Worker {
        let subject = Subject {
            name: format!("sg1:p:{user}").into_bytes(),
            quota: Quota::per_minute(1),
            part: check_of_nothing(),
            own_cost: None,
            key: 0,
            hold: None,
            lease_us: 0,
        };
        let subjects = Arc::new(Subjects(SmallVec::from_iter([subject])));
        Worker { batcher: batcher.clone(), subjects, last_failure: Arc::default() }
    }

    /// Queues one check for each of these costs, and returns what each is replied on.
    fn wait(
        worker: &Worker,
        costs: impl Iterator<Item = u64>,
    ) -> Vec<oneshot::Receiver<Result<Answers, Failure>>> {
        let deadline = instant() + Duration::from_secs(3600);
        let mut queues = worker.batcher.queues(&worker.subjects);
        let own = || Queue { last_failure: Arc::clone(&worker.last_failure), ..Queue::default() };
        let queue = queues.entry(Arc::clone(&worker.subjects)).or_insert_with(own);
        let enqueue = |cost| {
            let (reply, replied) = oneshot::channel();
            queue.waiting.push_back(Waiter { cost, deadline, reply });
            replied
        };
        costs.map(enqueue).collect()
    }

    fn waiting(worker: &Worker) -> Option<usize> {
        worker.batcher.queues(&worker.subjects).get(&*worker.subjects).map(|queue| queue.waiting.len())
    }

    /// A hot key must not hold up checks of other keys: a call takes its own checks and no others.
    #[test]
    fn a_call_takes_a_bounded_number_of_checks_from_the_front() {
        let hot = worker(&store(), 1);
        let replied = wait(&hot, (0..MAX_WAITING as u64).map(|at| at / 4));
        let batch = hot.next().unwrap();
        assert_eq!(batch.len(), 4 * MAX_STEPS, "as many steps as a script may take");
        assert!(batch.iter().map(|waiter| waiter.cost).eq((0..4 * MAX_STEPS as u64).map(|at| at / 4)));
        assert_eq!(waiting(&hot), Some(MAX_WAITING - batch.len()));
        // Checks whose callers have given up are skipped, and the first other one is next.
        let mut replied = replied.into_iter().skip(batch.len());
        replied.by_ref().take(3 * MAX_BATCH + 1).for_each(drop);
        let next = hot.next().unwrap();
        assert_eq!(next[0].cost, (4 * MAX_STEPS + 3 * MAX_BATCH + 1) as u64 / 4);
        drop(replied);
        assert!(hot.next().is_none());
        assert_eq!(waiting(&hot), None, "the queue ends with its checks");
    }

    /// All checks of a service go through here: one that holds a lock must not stop other keys.
    #[test]
    fn queues_of_other_keys_do_not_wait_for_one_another() {
        let store = store();
        let stopped = worker(&store, 0);
        let shard_of =
            |worker: &Worker| store.batcher.queues.hasher.hash_one(&worker.subjects) % SHARDS as u64;
        let other = (1..).map(|user| worker(&store, user)).find(|one| shard_of(one) != shard_of(&stopped));
        let other = other.unwrap();
        let lock = store.batcher.queues(&stopped.subjects);
        let _replied = wait(&other, 1..3);
        assert_eq!(other.next().map(|batch| batch.len()), Some(2));
        drop(lock);
    }

    /// A call may end a little before its deadline. To repeat it until then would burn a core.
    #[test]
    fn checks_with_no_more_time_than_their_call_are_not_repeated() {
        let hot = worker(&store(), 1);
        let replied = wait(&hot, 0..3);
        let batch = hot.next().unwrap();
        let deadline = batch.iter().map(|waiter| waiter.deadline).max().unwrap();
        hot.fail(batch, &Failure::without_node(Executed::No, FailureKind::Timeout, "late"), deadline);
        assert!(hot.next().is_none());
        assert!(replied.into_iter().all(|mut reply| reply.try_recv().unwrap().is_err()));
    }

    /// Checks whose call ran out of time are repeated before those that came later, in order.
    #[test]
    fn repeated_checks_keep_their_order() {
        let hot = worker(&store(), 1);
        let _first = wait(&hot, 0..3);
        let batch = hot.next().unwrap();
        let _later = wait(&hot, 3..5);
        // The call was made for a check whose deadline has passed; theirs has not.
        let late = Failure::without_node(Executed::No, FailureKind::Timeout, "late");
        hot.fail(batch, &late, instant());
        let costs: Vec<_> = hot.next().unwrap().iter().map(|waiter| waiter.cost).collect();
        assert_eq!(costs, [0, 1, 2, 3, 4]);
    }

    /// An operator must read what the server said, also where a check gives up before its call.
    #[tokio::test(start_paused = true)]
    async fn a_check_that_gives_up_reports_the_last_failure_of_its_calls() {
        let hot = worker(&store(), 1);
        // A call is in flight that never ends.
        let _in_flight = wait(&hot, 0..1);
        let give_up = async || {
            let deadline = instant() + Duration::from_millis(50);
            hot.batcher.decide(&hot.subjects, 1, deadline).await.unwrap_err()
        };
        assert_eq!(give_up().await.kind, FailureKind::Timeout);
        let read_only = "READONLY You can't write against a read only replica.";
        hot.last_failure.set(Some(Failure::without_node(Executed::No, FailureKind::ReadOnly, read_only)));
        let Failure { executed, kind, detail, .. } = give_up().await;
        // A later attempt may have been executed.
        assert_eq!((executed, kind, detail.as_str()), (Executed::Maybe, FailureKind::ReadOnly, read_only));
        hot.last_failure.set(None);
        assert_eq!(give_up().await.kind, FailureKind::Timeout);
    }
}
