//! What checks, reservations and settlements cost Redis with this many holds open on their key,
//! compared with a check on a key that has none.

use std::collections::VecDeque;
use std::sync::Arc;

use slidegate::reserve::Ticket;
use slidegate::{Policy, PolicySet, Quota, Request, SharedGate};
use slidegate_redis::{RedisGate, RedisOptions, RedisStore};
use tokio::task::JoinSet;

use crate::Failed;
use crate::figures::{float, median, ratio};
use crate::options::Options;
use crate::peers::{DEADLINE, WINDOW};
use crate::server::{Meter, Server};

/// Keys of each row.
const KEYS: usize = 40;
/// Calls on each key in a round and of each kind. So many are open in addition when the last is made.
const EACH: usize = 9;
/// What is open meanwhile; with [`EACH`] the last one is the most that a key may have.
const OPEN: [usize; 3] = [0, 100, 1015];
/// Above what a run charges and holds, so the log is exact and nothing is denied.
const LIMIT: u16 = 16_384;
/// Calls in flight.
const TASKS: usize = 64;

/// Keys with as many holds open.
pub(crate) struct Row {
    open: usize,
    /// What is open, by key, in the order that it was reserved; settled from the front.
    tickets: Vec<VecDeque<Ticket>>,
    pub(crate) rounds: Vec<[Cost; 4]>,
}

/// Microseconds of a call, and script calls.
#[derive(Clone, Copy)]
pub(crate) struct Cost {
    script_us: f64,
    pub(crate) cpu_us: f64,
    calls: f64,
}

/// What is measured.
pub(crate) const CALLS: [&str; 4] = ["check", "reserve", "settle the newest", "settle the oldest"];

pub(crate) async fn run(server: &Server, options: &Options) -> Result<(), Failed> {
    let gate = gate(server)?;
    let mut meter = server.meter().await?;
    meter.forget_keys().await?;
    let mut rows = Vec::new();
    for open in OPEN {
        rows.push(Row::new(open, &gate, &mut meter).await?);
    }
    for _ in 0..options.rounds {
        for row in &mut rows {
            let round = row.round(&gate, &mut meter).await?;
            row.rounds.push(round);
        }
    }
    report(&rows);
    Ok(())
}

/// A gate whose calls are neither batched nor answered by cached denials.
pub(crate) fn gate(server: &Server) -> Result<Arc<RedisGate>, Failed> {
    let quota = Quota::new(LIMIT.into(), WINDOW)?.with_slots(LIMIT);
    let policies = PolicySet::new([Policy::new("bench", quota)?.with_scope(["user"])])?;
    let redis = RedisOptions::new(&server.url())?.with_deadline(DEADLINE);
    let redis = redis.without_batching().without_denial_cache();
    Ok(Arc::new(SharedGate::new(policies, RedisStore::new(redis)?)?))
}

impl Row {
    /// Opens the holds, and makes each call once, so that scripts are loaded.
    pub(crate) async fn new(open: usize, gate: &Arc<RedisGate>, meter: &mut Meter) -> Result<Self, Failed> {
        let mut row = Self { open, tickets: vec![VecDeque::new(); KEYS], rounds: Vec::new() };
        for _ in 0..open {
            row.open_more(gate, 1).await?;
        }
        row.round(gate, meter).await?;
        Ok(row)
    }

    fn user(&self, key: usize) -> String {
        format!("user-{:07}", self.open * KEYS + key)
    }

    /// Reserves on each key so often.
    async fn reserve(&self, gate: &Arc<RedisGate>, each: usize) -> Result<Vec<Ticket>, Failed> {
        let users = (0..KEYS * each).map(|at| self.user(at % KEYS));
        in_flight(users, gate, |gate, user| async move {
            let request = Request::new().with("user", user.as_str());
            let reserved = gate.reserve_for(&request, WINDOW).await?;
            reserved.into_ticket().ok_or_else(|| "a reservation was denied".into())
        })
        .await
    }

    /// Reserves on each key so often, and keeps that open.
    async fn open_more(&mut self, gate: &Arc<RedisGate>, each: usize) -> Result<(), Failed> {
        for _ in 0..each {
            for (at, ticket) in self.reserve(gate, 1).await?.into_iter().enumerate() {
                self.tickets[at].push_back(ticket);
            }
        }
        Ok(())
    }

    pub(crate) async fn round(
        &mut self,
        gate: &Arc<RedisGate>,
        meter: &mut Meter,
    ) -> Result<[Cost; 4], Failed> {
        let before = meter.read().await?;
        let users = (0..KEYS * EACH).map(|at| self.user(at % KEYS));
        let checked = in_flight(users, gate, |gate, user| async move {
            let request = Request::new().with("user", user.as_str());
            Ok(gate.check(&request).await.is_allowed())
        });
        if checked.await?.contains(&false) {
            return Err("a check was denied".into());
        }
        let checked = meter.read().await?;
        let tickets = self.reserve(gate, EACH).await?;
        let reserved = meter.read().await?;
        in_flight(tickets, gate, |gate, ticket| async move { Ok(gate.settle(&ticket, 1).await?) }).await?;
        let settled = meter.read().await?;
        // What was open for longest, which other holds have been settled beside. Nothing is open in
        // the first row: there it settles the newest again.
        let oldest = if self.open == 0 {
            self.reserve(gate, EACH).await?
        } else {
            self.tickets.iter_mut().flat_map(|of_key| of_key.drain(..EACH)).collect()
        };
        let before_oldest = meter.read().await?;
        in_flight(oldest, gate, |gate, ticket| async move { Ok(gate.settle(&ticket, 1).await?) }).await?;
        let settled_oldest = meter.read().await?;
        if self.open > 0 {
            self.open_more(gate, EACH).await?;
        }
        if gate.store().stats().fallbacks > 0 {
            return Err(gate.store().stats().last_failure.unwrap_or_default().into());
        }
        let cost = |work: crate::server::Work| {
            let each = |total: f64| total / float((KEYS * EACH) as u64);
            Cost {
                script_us: each(work.script_us),
                cpu_us: each(work.cpu_us),
                calls: each(float(work.calls)),
            }
        };
        Ok([
            cost(checked - before),
            cost(reserved - checked),
            cost(settled - reserved),
            cost(settled_oldest - before_oldest),
        ])
    }
}

/// Makes these calls, [`TASKS`] at a time. Returns their results in the order of the calls.
async fn in_flight<A, R, F>(
    of: impl IntoIterator<Item = A>,
    gate: &Arc<RedisGate>,
    call: impl Fn(Arc<RedisGate>, A) -> F,
) -> Result<Vec<R>, Failed>
where
    F: Future<Output = Result<R, Failed>> + Send + 'static,
    R: Send + 'static,
{
    let (mut set, mut results) = (JoinSet::new(), Vec::new());
    for (at, one) in of.into_iter().enumerate() {
        if set.len() == TASKS {
            results.extend(set.join_next().await.transpose()?);
        }
        let called = call(Arc::clone(gate), one);
        set.spawn(async move { (at, called.await) });
    }
    while let Some(result) = set.join_next().await {
        results.push(result?);
    }
    results.sort_by_key(|(at, _)| *at);
    results.into_iter().map(|(_, result)| result).collect()
}

fn report(rows: &[Row]) {
    println!("\n## holds\n");
    println!("| open | call | script us | CPU us | calls each | x check, script | x check, CPU |");
    println!("|--:|---|--:|--:|--:|--:|--:|");
    let base = &rows[0];
    for row in rows {
        for (at, call) in CALLS.into_iter().enumerate() {
            let all = |of: fn(&Cost) -> f64| row.rounds.iter().map(move |round| of(&round[at]));
            let against =
                |of: fn(&Cost) -> f64| ratio(all(of), base.rounds.iter().map(|round| of(&round[0])));
            println!(
                "| {} | {call} | {:.2} | {:.2} | {:.2} | {:.2} | {:.2} |",
                row.open,
                median(all(|cost| cost.script_us)),
                median(all(|cost| cost.cpu_us)),
                median(all(|cost| cost.calls)),
                against(|cost| cost.script_us),
                against(|cost| cost.cpu_us),
            );
        }
    }
}
