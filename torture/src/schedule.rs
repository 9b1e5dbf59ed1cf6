//! When which key is asked: the same for every target, from a seed.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::sleep_until;

use crate::drivers::Instance;
use crate::judge::{Answer, Call, Limit};

/// The most calls that are open at a time.
const OPEN_CALLS: usize = 256;

/// A call that is to be made `at` a time after the start.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Planned {
    pub(crate) at: Duration,
    pub(crate) key: String,
    pub(crate) cost: u64,
}

/// The calls of each key.
pub(crate) type History = BTreeMap<String, Vec<Call>>;

/// Makes the planned calls, each at its time or as soon after it as calls may be open. They go to the instances in turn.
pub(crate) async fn run(instances: &[Arc<Instance>], mut plan: Vec<Planned>) -> History {
    plan.sort_by_key(|planned| planned.at);
    let open = Arc::new(Semaphore::new(OPEN_CALLS));
    let start = Instant::now();
    let mut calls = JoinSet::new();
    for (planned, instance) in plan.into_iter().zip(instances.iter().cycle()) {
        if start.elapsed() < planned.at {
            sleep_until((start + planned.at).into()).await;
        }
        let permit = Arc::clone(&open).acquire_owned().await;
        let instance = Arc::clone(instance);
        calls.spawn(async move {
            let _permit = permit;
            let (sent, answered, answer) = instance.ask(&planned.key, planned.cost).await;
            let call = Call { sent: sent - start, answered: answered - start, cost: planned.cost, answer };
            (planned.key, call)
        });
    }
    let mut history = History::new();
    while let Some(call) = calls.join_next().await {
        if let Ok((key, call)) = call {
            history.entry(key).or_default().push(call);
        }
    }
    history
}

/// `callers` for each instance that ask for `key`, each again `pause` after its answer, for `time`.
pub(crate) async fn callers(
    instances: &[Arc<Instance>],
    callers: usize,
    key: &str,
    time: Duration,
    pause: Duration,
) -> Vec<Call> {
    let start = Instant::now();
    let made: Arc<Mutex<Vec<Call>>> = Arc::default();
    let mut running = JoinSet::new();
    for instance in instances.iter().cycle().take(callers * instances.len()) {
        let (instance, key, made) = (Arc::clone(instance), key.to_owned(), Arc::clone(&made));
        running.spawn(async move {
            while start.elapsed() < time {
                let (sent, answered, answer) = instance.ask(&key, 1).await;
                let call = Call { sent: sent - start, answered: answered - start, cost: 1, answer };
                made.lock().unwrap_or_else(PoisonError::into_inner).push(call);
                tokio::time::sleep(pause).await;
            }
        });
    }
    while running.join_next().await.is_some() {}
    let mut made = made.lock().unwrap_or_else(PoisonError::into_inner);
    std::mem::take(&mut made)
}

/// `count` calls at one time.
pub(crate) fn at_once(key: &str, at: Duration, count: u64) -> impl Iterator<Item = Planned> + use<'_> {
    (0..count).map(move |_| Planned { at, key: key.to_owned(), cost: 1 })
}

/// `count` calls at equal distances from `from` to `to`.
pub(crate) fn spread(
    key: &str,
    from: Duration,
    to: Duration,
    count: u64,
) -> impl Iterator<Item = Planned> + use<'_> {
    let count_u32 = u32::try_from(count).unwrap_or(u32::MAX);
    (0..count_u32).map(move |at| Planned {
        at: from + (to - from) * at / count_u32,
        key: key.to_owned(),
        cost: 1,
    })
}

/// Bursts of several times the rate of `limit` at random times, with random pauses, and costs of 1 to `most_cost`.
pub(crate) fn bursts(
    random: &mut fastrand::Rng,
    key: &str,
    limit: Limit,
    time: Duration,
    most_cost: u64,
) -> Vec<Planned> {
    let mut plan = Vec::new();
    let mut now = Duration::ZERO;
    let window = limit.window.as_secs_f64();
    while now < time {
        let end = now + Duration::from_secs_f64(window * (0.05 + 0.35 * random.f64()));
        let cost = |random: &mut fastrand::Rng| if most_cost == 1 { 1 } else { random.u64(1..=most_cost) };
        // Eight times the rate.
        let mean = window * (1 + most_cost) as f64 / 2.0 / (8.0 * limit.cost as f64);
        while now < end {
            plan.push(Planned { at: now, key: key.to_owned(), cost: cost(random) });
            now += Duration::from_secs_f64(mean * 2.0 * random.f64());
        }
        now += Duration::from_secs_f64(window * 0.7 * random.f64());
    }
    plan
}

/// The time until the wall clock reaches the next multiple of `window`, at least `after` from now.
pub(crate) fn until_border(window: Duration, after: Duration) -> Duration {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let windows = (now + after).as_nanos().div_ceil(window.as_nanos());
    let border = windows * window.as_nanos();
    Duration::from_nanos(u64::try_from(border - now.as_nanos()).unwrap_or(u64::MAX))
}

/// Notes when a thread that only sleeps was late: how starved the machine is.
pub(crate) struct Watch {
    late: Arc<Mutex<Vec<(Instant, Duration)>>>,
}

const TICK: Duration = Duration::from_millis(1);
/// Less is usual.
const NOTED: Duration = Duration::from_millis(5);

impl Watch {
    /// Starts the thread. It ends with the program.
    pub(crate) fn new() -> Self {
        let late = Arc::<Mutex<Vec<(Instant, Duration)>>>::default();
        let noted = Arc::clone(&late);
        std::thread::spawn(move || {
            loop {
                let before = Instant::now();
                std::thread::sleep(TICK);
                let by = before.elapsed().saturating_sub(TICK);
                if by > NOTED {
                    noted.lock().unwrap_or_else(PoisonError::into_inner).push((Instant::now(), by));
                }
            }
        });
        Self { late }
    }

    /// The longest since then.
    pub(crate) fn worst(&self, since: Instant) -> Duration {
        let late = self.late.lock().unwrap_or_else(PoisonError::into_inner);
        late.iter().filter(|(at, _)| *at >= since).map(|(_, by)| *by).max().unwrap_or_default()
    }
}

/// The numbers of answers.
pub(crate) fn count(calls: &[Call], is: impl Fn(&Answer) -> bool) -> u64 {
    calls.iter().filter(|call| is(&call.answer)).count() as u64
}
