//! Coalescer: checks of the same keys travel together.
//!
//! While a call for some keys is under way, checks that come for the very same keys wait, and go as one call that decides
//! them in the order they came. A lane is a task of its own, so that a caller who gives up takes nobody's charge along;
//! who has given up before the call is made is left out of it.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, PoisonError};

use smallvec::SmallVec;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use super::call::{Answers, Subjects};
use super::failure::{Executed, Failure, FailureKind};
use super::{Calls, Ordering};
use crate::verb::Verb;

/// Most checks in one call: enough to make one key's calls rare, few enough for their answers to be told in a moment.
const MOST_TOGETHER: usize = 1024;
/// Most steps that a call's script takes for its checks, each some 0.3 us: nobody else is served meanwhile.
const MOST_STEPS: usize = 128;
/// Most checks that wait for one call; more are refused at once, as they would not be answered in time.
const MOST_WAITING: usize = 16_384;

/// The lanes that have a call under way.
#[derive(Debug, Clone, Default)]
pub(crate) struct Coalescer(Arc<Mutex<HashMap<Arc<Subjects>, Vec<Waiter>>>>);

/// A check that waits for its lane.
#[derive(Debug)]
struct Waiter {
    cost: u64,
    deadline: Instant,
    answer: oneshot::Sender<Result<Answers, Failure>>,
}

impl Coalescer {
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
        match self.lanes().entry(Arc::clone(&subjects)) {
            Entry::Occupied(mut entry) => {
                let waiting = entry.get_mut();
                if waiting.len() >= MOST_WAITING {
                    let failure = shed();
                    calls.wire.count(&failure);
                    return Err(failure);
                }
                waiting.push(waiter);
            }
            Entry::Vacant(entry) => {
                entry.insert(Vec::new());
                let lane = Lane { coalescer: self.clone(), subjects: Arc::clone(&subjects) };
                tokio::spawn(lane.drive(Arc::clone(calls), waiter));
            }
        }
        match timeout_at(deadline, answered).await {
            Ok(Ok(answer)) => answer,
            // The lane's task has ended with the runtime, or the deadline has passed: it may have been charged.
            Ok(Err(_)) | Err(_) => {
                let detail = "did not answer within the deadline".to_owned();
                let node = calls.wire.holder_name(calls.slot(&subjects));
                // Not counted: the call that it waited for is.
                Err(Failure { executed: Executed::Maybe, kind: FailureKind::Timeout, node, detail })
            }
        }
    }

    fn lanes(&self) -> std::sync::MutexGuard<'_, HashMap<Arc<Subjects>, Vec<Waiter>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A lane that has a call under way. However its task ends, the lane ends with it, and the next check opens another.
struct Lane {
    coalescer: Coalescer,
    subjects: Arc<Subjects>,
}

impl Drop for Lane {
    fn drop(&mut self) {
        let mut lanes = self.coalescer.lanes();
        // Another one may have been opened since this one ended.
        let is_this = |(opened, _): (&Arc<Subjects>, &Vec<Waiter>)| Arc::ptr_eq(opened, &self.subjects);
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
            match calls.call(&self.subjects, Verb::Check, &costs, deadline).await {
                Ok(answers) => {
                    for (waiter, answer) in batch.into_iter().zip(answers) {
                        // Whoever has gone meanwhile was charged as one who hears it.
                        let _ = waiter.answer.send(Ok(answer));
                    }
                }
                Err(failure) => self.fail(batch, &failure),
            }
            if is_crowded {
                // Whoever was answered may ask again at once: who is let go first, goes along.
                tokio::task::yield_now().await;
            }
            let Some(next) = self.next() else { return };
            batch = next;
        }
    }

    /// Tells the failure. If only the first has surely run out of time, the others go again, before those who came later.
    fn fail(&self, batch: Vec<Waiter>, failure: &Failure) {
        let not_done = failure.executed == Executed::No
            && matches!(failure.kind, FailureKind::Timeout | FailureKind::Late);
        let now = crate::time::instant();
        let (again, ended): (Vec<_>, Vec<_>) =
            batch.into_iter().partition(|waiter| not_done && waiter.deadline > now);
        for waiter in ended {
            let _ = waiter.answer.send(Err(failure.clone()));
        }
        if let Some(waiting) = self.coalescer.lanes().get_mut(&self.subjects) {
            waiting.splice(0..0, again);
        }
    }

    /// The next checks that still want an answer. With none, the lane has ended before another check can come.
    fn next(&self) -> Option<Vec<Waiter>> {
        let now = crate::time::instant();
        let mut lanes = self.coalescer.lanes();
        let waiting = lanes.get_mut(&self.subjects)?;
        waiting.retain(|waiter| !waiter.answer.is_closed() && waiter.deadline > now);
        if waiting.is_empty() {
            lanes.remove(&self.subjects);
            return None;
        }
        // Under one key, checks of the same cost that follow one another are one step.
        let is_alone = self.subjects.alone(Verb::Check).is_some();
        let (mut steps, mut last) = (0, None);
        let fits = |waiter: &&Waiter| {
            let before = last.replace(waiter.cost);
            steps += usize::from(!is_alone || before != last);
            steps <= MOST_STEPS
        };
        let count = waiting.iter().take(MOST_TOGETHER).take_while(fits).count();
        Some(waiting.drain(..count).collect())
    }
}

fn shed() -> Failure {
    let detail = format!("{MOST_WAITING} checks of the same keys wait already");
    Failure::of_none(Executed::No, FailureKind::Overloaded, detail)
}
