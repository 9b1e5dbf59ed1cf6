//! The cost of one call of each script in Redis, and the size of a full key.

use std::sync::Arc;

use crate::Failed;
use crate::drive::{Until, Users, drive};
use crate::figures::{float, median, ratio};
use crate::options::Options;
use crate::peers::{Contender, Peer};
use crate::server::{Meter, Server};

/// Decisions of a cell in a round, or as many as fill one key.
const DECISIONS: u64 = 10_000;
/// Calls in flight: the server never waits for the client.
const TASKS: u64 = 64;
/// Minimum share of a full key's requests that must be denied: a bucket drains a little meanwhile.
const LEAST_DENIED: f64 = 0.99;

/// A contender at one limit.
struct Entrant {
    contender: Contender,
    peer: Arc<Peer>,
    rounds: Vec<Round>,
}

/// The results of one round.
struct Round {
    allowed: Cost,
    denied: Cost,
    bytes: f64,
}

/// Microseconds per decision.
#[derive(Clone, Copy)]
struct Cost {
    script_us: f64,
    cpu_us: f64,
}

pub(crate) async fn run(server: &Server, options: &Options) -> Result<(), Failed> {
    let mut meter = server.meter().await?;
    let has_increx = meter.has_command("INCREX").await?;
    let mut tables = Vec::new();
    for &limit in &options.limits {
        let mut entrants = Vec::new();
        for contender in Contender::ALL.into_iter().filter(|one| one.takes_part(limit, has_increx)) {
            let peer = Arc::new(Peer::new(contender, server, limit).await?);
            meter.forget_keys().await?;
            // Connects, and loads the script.
            drive(&peer, TASKS, Until::Decisions(TASKS), Users::OneAfterAnother(limit)).await?;
            entrants.push(Entrant { contender, peer, rounds: Vec::new() });
        }
        tables.push((limit, entrants));
    }
    for _ in 0..options.rounds {
        for (limit, entrants) in &mut tables {
            for entrant in entrants {
                let round = Round::of(&entrant.peer, *limit, &mut meter).await?;
                entrant.rounds.push(round);
            }
        }
    }
    println!("\n## scripts");
    for (limit, entrants) in &tables {
        report(*limit, entrants);
    }
    Ok(())
}

impl Round {
    /// Fills fresh keys one after another, then checks the first one, which is full.
    async fn of(peer: &Arc<Peer>, limit: u64, meter: &mut Meter) -> Result<Self, Failed> {
        meter.forget_keys().await?;
        let fills = DECISIONS.div_ceil(limit) * limit;
        let (allowed, share) = Cost::of(peer, fills, Users::OneAfterAnother(limit), meter).await?;
        if share < 1.0 {
            return Err(format!("limit {limit}: a fresh key denied, {share} are allowed").into());
        }
        let bytes = float(meter.bytes_of_a_key().await?);
        let (denied, share) = Cost::of(peer, DECISIONS, Users::InTurn(1), meter).await?;
        if share > 1.0 - LEAST_DENIED {
            return Err(format!("limit {limit}: a full key allowed {share}").into());
        }
        Ok(Self { allowed, denied, bytes })
    }
}

impl Cost {
    /// The cost of these decisions, and the share that was allowed.
    async fn of(
        peer: &Arc<Peer>,
        decisions: u64,
        users: Users,
        meter: &mut Meter,
    ) -> Result<(Self, f64), Failed> {
        let before = meter.read().await?;
        let progress = drive(peer, TASKS, Until::Decisions(decisions), users).await?;
        let work = meter.read().await? - before;
        if work.calls != decisions {
            return Err(format!("{decisions} decisions took {} calls", work.calls).into());
        }
        let cost =
            Self { script_us: work.script_us / float(decisions), cpu_us: work.cpu_us / float(decisions) };
        Ok((cost, float(progress.allowed) / float(decisions)))
    }
}

fn report(limit: u64, entrants: &[Entrant]) {
    println!("\n### limit {limit}\n");
    println!(
        "| {:<18} | {:>10} | {:>6} | {:>7} | {:>10} | {:>6} | {:>7} | {:>9} | {:>13} | {:>12} | {:>7} |",
        "script",
        "allowed us",
        "best",
        "CPU us",
        "denied us",
        "best",
        "CPU us",
        "bytes/key",
        "x allowed",
        "x denied",
        "x bytes"
    );
    println!("|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|");
    for entrant in entrants {
        let rival = entrant.contender.rival();
        let rival = entrants.iter().find(|other| Some(other.contender) == rival);
        let against = |of: fn(&Round) -> f64| {
            rival.map_or_else(String::new, |rival| {
                format!("{:.3}", ratio(entrant.rounds.iter().map(of), rival.rounds.iter().map(of)))
            })
        };
        let middle = |of: fn(&Round) -> f64| median(entrant.rounds.iter().map(of));
        let best = |of: fn(&Round) -> f64| entrant.rounds.iter().map(of).fold(f64::INFINITY, f64::min);
        println!(
            "| {:<18} | {:>10.2} | {:>6.2} | {:>7.2} | {:>10.2} | {:>6.2} | {:>7.2} | {:>9.0} | {:>13} | {:>12} | {:>7} |",
            entrant.contender.name(),
            middle(|round| round.allowed.script_us),
            best(|round| round.allowed.script_us),
            middle(|round| round.allowed.cpu_us),
            middle(|round| round.denied.script_us),
            best(|round| round.denied.script_us),
            middle(|round| round.denied.cpu_us),
            middle(|round| round.bytes),
            against(|round| round.allowed.script_us),
            against(|round| round.denied.script_us),
            against(|round| round.bytes),
        );
    }
}
