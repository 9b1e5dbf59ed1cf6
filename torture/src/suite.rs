//! The parts of the torture. Each asks keys of its own and is judged alone.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use tokio::time::sleep;

use crate::Failed;
use crate::drivers::{Instance, Setting};
use crate::judge::{Answer, Call, Limit, admitted_over_time, most_admitted, wrong_denials};
use crate::part::{LIMIT, LONG, PartName, SEVERAL, SMALL, STEPPED};
use crate::record::{Chart, Figures, Part, Row, Verdict};
use crate::schedule::{self, History, Planned, Watch, at_once, bursts, callers, count, spread};
use crate::servers::{Servers, can_step};
use crate::target::{Ability, State, Target};

/// The most keys that a target keeps in floods.
const MAX_KEYS: u64 = 1_000;
/// A part is not judged where a thread that only sleeps was late by more.
const STARVED: Duration = Duration::from_millis(40);
/// How often a part that cannot be judged is begun again.
const ATTEMPTS: u32 = 3;

/// A target that is being tortured.
pub(crate) struct Torture<'a> {
    pub(crate) target: &'a Target,
    pub(crate) folder: &'a Path,
    pub(crate) seed: u64,
    pub(crate) watch: &'a Watch,
    /// What targets keep in files.
    pub(crate) kept: tempfile::TempDir,
}

/// What one part found, and the history that a chart is drawn from.
type Found = (Figures, History);

impl Torture<'_> {
    /// All parts of the suite.
    pub(crate) async fn run(&self, is_quick: bool) -> Result<Row, Failed> {
        let servers = Servers::start(self.target.state, false).await?;
        let servers = servers.as_ref();
        let shared = [self.start(PartName::Bursts, servers).await?];
        let (version, can) = (shared[0].version.clone(), shared[0].can.clone());
        // What quiet parts need is started before them: what starts is not quiet.
        let mut several = Vec::new();
        if !is_quick && self.has_no(PartName::Several, &can).is_none() {
            for limits in SEVERAL {
                several.extend(self.start_with(PartName::Several, limits.to_vec(), servers).await.ok());
            }
        }
        let part = async |name: PartName| {
            let started = match name {
                PartName::Several => &several[..],
                name if name.is_quick() => &shared,
                _ => &[],
            };
            let (verdict, chart) = self.part(name, &can, servers, started).await;
            (Part { name, verdict }, chart)
        };
        let names = PartName::ALL.into_iter().filter(|name| !is_quick || name.is_quick());
        let (quiet, loud): (Vec<_>, Vec<_>) = names.partition(|name| name.is_quiet());
        let mut found = join_all(quiet.into_iter().map(&part)).await;
        for name in loud {
            found.push(part(name).await);
        }
        let chart = found.iter_mut().find_map(|(_, chart)| chart.take());
        let parts = found.into_iter().map(|(part, _)| part).collect();
        Ok(Row { target: self.target.clone(), version, can: can.clone(), parts, chart })
    }

    fn has_no(&self, name: PartName, can: &[Ability]) -> Option<&'static str> {
        if let Some((ability, because)) = name.needs()
            && !can.contains(&ability)
        {
            return Some(because);
        }
        match name {
            PartName::Instances | PartName::Step | PartName::Emptied
                if self.target.state == State::Memory =>
            {
                Some("its state is in its own memory")
            }
            PartName::Flood | PartName::Drain if self.target.state != State::Memory => {
                Some("the number of keys has no bound")
            }
            PartName::Step if !can_step() => Some("libfaketime is not installed"),
            _ => None,
        }
    }

    async fn start(&self, name: PartName, servers: Option<&Servers>) -> Result<Arc<Instance>, Failed> {
        self.start_with(name, name.limits(), servers).await
    }

    async fn start_with(
        &self,
        name: PartName,
        limits: Vec<Limit>,
        servers: Option<&Servers>,
    ) -> Result<Arc<Instance>, Failed> {
        let max_keys = matches!(name, PartName::Flood | PartName::Drain).then_some(MAX_KEYS);
        let folder = self.kept.path().join(format!("{}-{}", name.word(), limits[0].cost));
        std::fs::create_dir_all(&folder)?;
        let setting = Setting { limits, max_keys, redis: servers.map(Servers::url), folder };
        Ok(Arc::new(Instance::start(self.target, self.folder, &setting).await?))
    }

    /// One part, again where it could not be judged.
    async fn part(
        &self,
        name: PartName,
        can: &[Ability],
        servers: Option<&Servers>,
        started: &[Arc<Instance>],
    ) -> (Verdict, Option<Chart>) {
        if let Some(because) = self.has_no(name, can) {
            return (Verdict::NotApplicable(because.to_owned()), None);
        }
        let mut because = String::new();
        for attempt in 0..ATTEMPTS {
            let begun = Instant::now();
            let prefix = format!("{}{attempt}", name.word());
            let (figures, history) = match self.try_part(name, &prefix, servers, started).await {
                Ok(found) => found,
                Err(error) => return (Verdict::Failed(error.to_string()), None),
            };
            if figures.failed == figures.calls {
                return (Verdict::Failed(figures.error.unwrap_or_default()), None);
            }
            let late = self.watch.worst(begun);
            if late > STARVED {
                because =
                    format!("the machine was busy: a thread that sleeps was {} ms late", late.as_millis());
                continue;
            }
            let took = median_answer(&history);
            if took > name.limits()[0].window / 5 {
                because = format!("half of the answers took {} ms or longer", took.as_millis());
                continue;
            }
            let step_ms = 20;
            let chart =
                history.into_values().next().filter(|_| name == PartName::Bursts).map(|calls| Chart {
                    step_ms,
                    limit: LIMIT.cost,
                    admitted: admitted_over_time(&calls, LIMIT, Duration::from_millis(step_ms)),
                });
            return (Verdict::Judged(figures), chart);
        }
        (Verdict::NotJudged(because), None)
    }

    async fn try_part(
        &self,
        name: PartName,
        prefix: &str,
        servers: Option<&Servers>,
        started: &[Arc<Instance>],
    ) -> Result<Found, Failed> {
        let limits = name.limits();
        let key = |of: &str| format!("{prefix}-{of}");
        let mut random = fastrand::Rng::with_seed(self.seed);
        let own = match started.first() {
            Some(instance) => Arc::clone(instance),
            None => self.start(name, servers).await?,
        };
        let alone = std::slice::from_ref(&own);
        let mut figures = Figures::default();
        let ms = Duration::from_millis;
        let history = match name {
            PartName::Bursts => {
                let plan = ["a", "b"]
                    .iter()
                    .flat_map(|of| bursts(&mut random, &key(of), LIMIT, 4 * LIMIT.window, 1))
                    .collect();
                schedule::run(alone, plan).await
            }
            PartName::Costs => {
                let plan = ["a", "b"]
                    .iter()
                    .flat_map(|of| bursts(&mut random, &key(of), LIMIT, 4 * LIMIT.window, 10))
                    .collect();
                schedule::run(alone, plan).await
            }
            PartName::Border => schedule::run(alone, border(&key("aligned"), &key("first"))).await,
            PartName::Denied => {
                let (of, window) = (key("a"), LIMIT.window);
                let plan = at_once(&of, Duration::ZERO, LIMIT.cost)
                    .chain(spread(&of, ms(20), window, 2 * LIMIT.cost))
                    .chain(at_once(&of, window + window / 10, LIMIT.cost));
                schedule::run(alone, plan.collect()).await
            }
            PartName::Waits => {
                let (history, too_long, too_short) = waits(&own, prefix, &mut random).await;
                figures.too_long_ms = Some(too_long.as_secs_f64() * 1e3);
                figures.too_short_ms = Some(too_short.as_secs_f64() * 1e3);
                history
            }
            PartName::Instant => {
                let keys: Vec<String> = (0..5).map(|of| key(&of.to_string())).collect();
                let plan =
                    keys.iter().zip(0..).flat_map(|(of, at)| at_once(of, ms(100) * at, 2 * LIMIT.cost));
                schedule::run(alone, plan.collect()).await
            }
            PartName::Callers => {
                let calls = callers(alone, 64, &key("a"), 2 * LIMIT.window, ms(2)).await;
                History::from([(key("a"), calls)])
            }
            PartName::Several => {
                let other = match started.get(1) {
                    Some(instance) => Arc::clone(instance),
                    None => self.start_with(name, SEVERAL[1].to_vec(), servers).await?,
                };
                let (of, first) = (key("a"), key("first"));
                let plan = |of| spread(of, Duration::ZERO, 4 * LIMIT.window, 12 * LIMIT.cost).collect();
                let others = [other];
                let (mut history, of_first) =
                    tokio::join!(schedule::run(alone, plan(&of)), schedule::run(&others, plan(&first)));
                figures = judged(figures, &of_first, &SEVERAL[1]);
                let found = judged(figures, &history, &limits);
                history.extend(of_first);
                return Ok((found, history));
            }
            PartName::Flood => {
                let victims: Vec<String> = (0..20).map(|of| key(&format!("victim{of}"))).collect();
                let used = || victims.iter().flat_map(|of| at_once(of, Duration::ZERO, LONG.cost)).collect();
                let flood = (0..10 * MAX_KEYS).map(|of| once(key(&of.to_string()))).collect();
                in_turn(&own, vec![used(), flood, used()]).await
            }
            PartName::Drain => {
                let keys: Vec<String> = (0..2 * MAX_KEYS).map(|of| key(&of.to_string())).collect();
                let used = || keys.iter().flat_map(|of| at_once(of, Duration::ZERO, SMALL.cost)).collect();
                in_turn(&own, vec![used(), used()]).await
            }
            PartName::Restart | PartName::Kill => {
                let of = key("a");
                let used = || vec![at_once(&of, Duration::ZERO, LONG.cost).collect()];
                let start = Instant::now();
                let mut history = in_turn(&own, used()).await;
                if let Some(own) = Arc::into_inner(own) {
                    own.end(name == PartName::Kill).await;
                }
                let again = self.start(name, servers).await?;
                let shift = start.elapsed();
                add(&mut history, in_turn(&again, used()).await, shift);
                return Ok((judged(figures, &history, &limits), history));
            }
            PartName::Instances => {
                let others = [self.start(name, servers).await?, self.start(name, servers).await?];
                let instances = [own.clone(), others[0].clone(), others[1].clone()];
                let (crowded, burst) = (key("crowded"), key("bursts"));
                let plan = bursts(&mut random, &burst, LIMIT, 2 * LIMIT.window, 1);
                let (calls, mut history) = tokio::join!(
                    callers(&instances, 16, &crowded, 2 * LIMIT.window, ms(5)),
                    schedule::run(&instances, plan)
                );
                history.insert(crowded, calls);
                history
            }
            PartName::Step => {
                let servers = Servers::start(self.target.state, true).await?;
                let own = self.start(name, servers.as_ref()).await?;
                step(&own, servers.as_ref().ok_or("it has no store")?, &key("forwards"), &key("back")).await?
            }
            PartName::Emptied => {
                let (history, away) = emptied(&own, servers.ok_or("it has no store")?, prefix).await?;
                figures.away = Some(away);
                history
            }
        };
        Ok((judged(figures, &history, &limits), history))
    }
}

fn once(key: String) -> Planned {
    Planned { at: Duration::ZERO, key, cost: 1 }
}

/// The limit just before and just after a border: of windows aligned with the wall clock, and of one that begins with
/// the first call of a key.
fn border(aligned: &str, first: &str) -> Vec<Planned> {
    let (window, ms) = (LIMIT.window, Duration::from_millis);
    let border = schedule::until_border(window, ms(100));
    let begun = ms(5);
    let plan = spread(aligned, border - ms(40), border - ms(10), LIMIT.cost)
        .chain(spread(aligned, border + ms(10), border + ms(40), LIMIT.cost))
        .chain(at_once(first, begun, 1))
        .chain(spread(first, begun + window * 9 / 10, begun + window * 97 / 100, LIMIT.cost - 1))
        .chain(spread(first, begun + window * 103 / 100, begun + window * 110 / 100, LIMIT.cost));
    plan.collect()
}

/// Fills keys until they are denied, and asks again: some after the wait that the denial promised, some all the time before.
/// Also the most by which a promised wait was too long and too short.
async fn waits(
    instance: &Arc<Instance>,
    prefix: &str,
    random: &mut fastrand::Rng,
) -> (History, Duration, Duration) {
    let mut trials = tokio::task::JoinSet::new();
    for trial in 0..6 {
        let (instance, key) = (Arc::clone(instance), format!("{prefix}-{trial}"));
        let mut random = random.fork();
        trials.spawn(async move {
            let (calls, too_long, too_short) = wait(&instance, &key, &mut random, trial % 2 == 0).await;
            (key, calls, too_long, too_short)
        });
    }
    let (mut history, mut most_long, mut most_short) = (History::new(), Duration::ZERO, Duration::ZERO);
    while let Some(Ok((key, calls, too_long, too_short))) = trials.join_next().await {
        history.insert(key, calls);
        (most_long, most_short) = (most_long.max(too_long), most_short.max(too_short));
    }
    (history, most_long, most_short)
}

async fn wait(
    instance: &Instance,
    key: &str,
    random: &mut fastrand::Rng,
    is_early: bool,
) -> (Vec<Call>, Duration, Duration) {
    let (start, window) = (Instant::now(), LIMIT.window);
    let mut calls = Vec::new();
    // Rests of a burst are denied before much of the window has passed.
    let pause = window.mul_f64(0.3) / 100;
    let (mut promised, mut was_denied, mut too_long, mut too_short) =
        (None, None, Duration::ZERO, Duration::ZERO);
    while start.elapsed() < 4 * window {
        let (sent, answered, answer) = instance.ask(key, 1).await;
        let (sent, answered) = (sent - start, answered - start);
        calls.push(Call { sent, answered, cost: 1, answer: answer.clone() });
        match (answer, promised) {
            (Answer::Denied(Some(wait)), None) => {
                promised = Some((sent + wait, answered + wait));
                if !is_early {
                    sleep(
                        (start + answered + wait + Duration::from_millis(2))
                            .saturating_duration_since(Instant::now()),
                    )
                    .await;
                    continue;
                }
            }
            (Answer::Denied(_), Some(_)) => was_denied = Some(sent),
            (Answer::Admitted, Some((not_before, latest))) => {
                too_long = if is_early { not_before.saturating_sub(answered) } else { Duration::ZERO };
                too_short = was_denied.map_or(Duration::ZERO, |denied| denied.saturating_sub(latest));
                break;
            }
            _ => {}
        }
        sleep(if promised.is_some() { window / 200 } else { pause.mul_f64(2.0 * random.f64()) }).await;
    }
    (calls, too_long, too_short)
}

/// Runs plans one after the other.
async fn in_turn(instance: &Arc<Instance>, plans: Vec<Vec<Planned>>) -> History {
    let (start, mut history) = (Instant::now(), History::new());
    for plan in plans {
        let shift = start.elapsed();
        add(&mut history, schedule::run(std::slice::from_ref(instance), plan).await, shift);
    }
    history
}

/// Adds what was made `shift` after the start of `history`.
fn add(history: &mut History, later: History, shift: Duration) {
    for (key, calls) in later {
        let shifted = calls.into_iter().map(|call| Call {
            sent: call.sent + shift,
            answered: call.answered + shift,
            ..call
        });
        history.entry(key).or_default().extend(shifted);
    }
}

/// Steps the clock of the store forwards after a key has used its limit, and back after another has.
async fn step(
    instance: &Arc<Instance>,
    servers: &Servers,
    forwards: &str,
    back: &str,
) -> Result<History, Failed> {
    let (start, mut history) = (Instant::now(), History::new());
    let by = 0.6 * STEPPED.window.as_secs_f64();
    let used = |key: &str| vec![at_once(key, Duration::ZERO, STEPPED.cost).collect()];
    for (key, step, pause) in
        [(forwards, by, Duration::from_millis(50)), (back, 0.0, STEPPED.window + Duration::from_millis(50))]
    {
        add(&mut history, in_turn(instance, used(key)).await, start.elapsed());
        let shifted = Instant::now();
        servers.step(step)?;
        sleep(pause.saturating_sub(shifted.elapsed())).await;
        let shift = start.elapsed();
        add(&mut history, in_turn(instance, used(key)).await, shift);
    }
    Ok(history)
}

/// Ends the store after a key has used its limit, and starts it with nothing. Also how calls were answered meanwhile.
async fn emptied(
    instance: &Arc<Instance>,
    servers: &Servers,
    prefix: &str,
) -> Result<(History, [u64; 3]), Failed> {
    let (start, key, other) = (Instant::now(), format!("{prefix}-a"), format!("{prefix}-probe"));
    let used = || vec![at_once(&key, Duration::ZERO, LONG.cost).collect()];
    let mut history = in_turn(instance, used()).await;
    servers.kill().await;
    let shift = start.elapsed();
    let away =
        in_turn(instance, vec![spread(&key, Duration::ZERO, Duration::from_millis(500), 20).collect()]).await;
    let calls = away.values().next().map(Vec::as_slice).unwrap_or_default();
    let answers = [
        count(calls, |answer| *answer == Answer::Admitted),
        count(calls, |answer| matches!(answer, Answer::Denied(_))),
        count(calls, |answer| matches!(answer, Answer::Failed(_))),
    ];
    add(&mut history, away, shift);
    servers.start_empty().await?;
    let back = Instant::now();
    while matches!(instance.ask(&other, 1).await.2, Answer::Failed(_))
        && back.elapsed() < Duration::from_secs(3)
    {
        sleep(Duration::from_millis(20)).await;
    }
    // Those that decide without the store while it is away need not notice at once that it is back.
    sleep(Duration::from_secs(1)).await;
    let shift = start.elapsed();
    add(&mut history, in_turn(instance, used()).await, shift);
    Ok((history, answers))
}

fn judged(mut figures: Figures, history: &History, limits: &[Limit]) -> Figures {
    // The limit of which most was admitted.
    if figures.limit == 0 {
        figures.limit = limits[0].cost;
    }
    for calls in history.values() {
        figures.calls += calls.len() as u64;
        figures.admitted += count(calls, |answer| *answer == Answer::Admitted);
        figures.denied += count(calls, |answer| matches!(answer, Answer::Denied(_)));
        figures.failed += count(calls, |answer| matches!(answer, Answer::Failed(_)));
        figures.wrong_denials += wrong_denials(calls, limits);
        for one in limits {
            let most = most_admitted(calls, *one);
            // As shares of their limits.
            if most * figures.limit >= figures.most * one.cost {
                (figures.most, figures.limit) = (most, one.cost);
            }
        }
        let error = calls.iter().find_map(|call| match &call.answer {
            Answer::Failed(error) => Some(error.clone()),
            _ => None,
        });
        figures.error = figures.error.or(error);
    }
    figures
}

fn median_answer(history: &History) -> Duration {
    let mut took: Vec<Duration> = history.values().flatten().map(|call| call.answered - call.sent).collect();
    let middle = took.len() / 2;
    if took.is_empty() { Duration::ZERO } else { *took.select_nth_unstable(middle).1 }
}
