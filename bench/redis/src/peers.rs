//! The contenders: slidegate's scripts, called by the library, and the scripts that are usually
//! written instead.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use redis::Script;
use redis::aio::MultiplexedConnection;
use slidegate::store::ServiceStore;
use slidegate::{Algorithm, Policy, PolicySet, Quota, Request, SharedGate};
use slidegate_redis::{RedisGate, RedisOptions, RedisStore};

use crate::Failed;
use crate::server::Server;

/// Long enough that no charge ends during a run.
pub(crate) const WINDOW: Duration = Duration::from_secs(3600);
/// The maximum: the cost of decisions is measured, not their deadline.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

/// Maps serial numbers injectively to all 64 bits: 2^64 divided by the golden ratio.
const ODD: u64 = 0x9e37_79b9_7f4a_7c15;

/// A way to decide.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Contender {
    Slidegate(Algorithm),
    /// The sliding log with as many slots as its limit, if its default is lower.
    ExactLog,
    SortedSet,
    Gcra,
    Incr,
    /// What `INCREX` does, by a script.
    IncrexScript,
    /// The command, of servers that have it.
    Increx,
}

impl Contender {
    pub(crate) const ALL: [Self; 10] = [
        Self::Slidegate(Algorithm::SlidingLog),
        Self::ExactLog,
        Self::SortedSet,
        Self::Slidegate(Algorithm::SlidingWindow),
        Self::Slidegate(Algorithm::FixedWindow),
        Self::Slidegate(Algorithm::TokenBucket),
        Self::Gcra,
        Self::Incr,
        Self::IncrexScript,
        Self::Increx,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Slidegate(algorithm) => algorithm.name(),
            Self::ExactLog => "sliding-log, exact",
            Self::SortedSet => "sorted set",
            Self::Gcra => "GCRA",
            Self::Incr => "INCR, EXPIRE",
            Self::IncrexScript => "INCREX as a script",
            Self::Increx => "INCREX",
        }
    }

    /// The script it is compared with.
    pub(crate) fn rival(self) -> Option<Self> {
        match self {
            Self::Slidegate(Algorithm::SlidingLog) | Self::ExactLog => Some(Self::SortedSet),
            Self::Slidegate(_) => Some(Self::Gcra),
            Self::SortedSet | Self::Gcra | Self::Incr | Self::IncrexScript | Self::Increx => None,
        }
    }

    /// Whether it differs from other contenders at this limit, and the server has its command.
    pub(crate) fn takes_part(self, limit: u64, has_increx: bool) -> bool {
        match self {
            Self::ExactLog => limit > u64::from(Quota::DEFAULT_SLOTS),
            Self::Increx => has_increx,
            _ => true,
        }
    }
}

/// A contender with its connection.
#[derive(Debug)]
pub(crate) enum Peer {
    Slidegate(Box<RedisGate>),
    Rival(Rival),
}

/// Another script or a command, called as a program would call it.
#[derive(Debug)]
pub(crate) struct Rival {
    contender: Contender,
    /// None for a command.
    script: Option<Script>,
    connection: MultiplexedConnection,
    limit: u64,
    serial: AtomicU64,
}

impl Peer {
    pub(crate) async fn new(contender: Contender, server: &Server, limit: u64) -> Result<Self, Failed> {
        let text = match contender {
            Contender::Slidegate(algorithm) => {
                return gate(server, quota(limit)?.with_algorithm(algorithm), Habits::NONE);
            }
            Contender::ExactLog => {
                let slots = u16::try_from(limit).unwrap_or(u16::MAX);
                return gate(server, quota(limit)?.with_slots(slots), Habits::NONE);
            }
            Contender::SortedSet => Some(include_str!("../rivals/sorted_set.lua")),
            Contender::Gcra => Some(include_str!("../rivals/gcra.lua")),
            Contender::Incr => Some(include_str!("../rivals/incr.lua")),
            Contender::IncrexScript => Some(include_str!("../rivals/increx.lua")),
            Contender::Increx => None,
        };
        let connection = server.connect().await?;
        let script = text.map(Script::new);
        let rival = Rival { contender, script, connection, limit, serial: AtomicU64::new(0) };
        Ok(Self::Rival(rival))
    }

    /// Whether one more request of this user is allowed.
    pub(crate) async fn decide(&self, user: u64) -> Result<bool, Failed> {
        match self {
            Self::Slidegate(gate) => Ok(check(gate, user).await),
            Self::Rival(rival) => rival.decide(user).await,
        }
    }

    /// Whether the native module decides, as far as the store knows.
    pub(crate) fn has_module(&self) -> bool {
        match self {
            Self::Slidegate(gate) => gate.store().primary().nodes().iter().all(|node| node.has_module),
            Self::Rival(_) => false,
        }
    }

    /// Fails if a decision did not come from Redis, because the figures would be wrong.
    pub(crate) fn was_served(&self) -> Result<(), Failed> {
        match self {
            Self::Slidegate(gate) if gate.store().stats().fallbacks > 0 => {
                Err(gate.store().stats().last_failure.unwrap_or_default().into())
            }
            _ => Ok(()),
        }
    }
}

impl Rival {
    async fn decide(&self, user: u64) -> Result<bool, Failed> {
        // As long as slidegate's key names.
        let key = format!("log:bench:user-{user:07}");
        let (window_us, window_ms) = (WINDOW.as_micros(), WINDOW.as_millis());
        let mut connection = self.connection.clone();
        let Some(script) = &self.script else {
            let mut increx = redis::cmd("INCREX");
            increx.arg(key).arg("BYINT").arg(1).arg("LBOUND").arg(0).arg("UBOUND").arg(self.limit);
            increx.arg("PX").arg(window_ms.to_string()).arg("ENX");
            let [_, added]: [i64; 2] = increx.query_async(&mut connection).await?;
            return Ok(added == 1);
        };
        let mut call = script.key(key);
        match self.contender {
            Contender::SortedSet => {
                // Sixteen digits distinguish the requests of several instances; common members are
                // longer.
                let serial = self.serial.fetch_add(1, Ordering::Relaxed);
                let member = format!("{:016x}", serial.wrapping_mul(ODD));
                call.arg(window_us.to_string()).arg(self.limit).arg(member).arg(window_ms.to_string())
            }
            Contender::Gcra => call.arg((window_us / u128::from(self.limit)).to_string()).arg(self.limit),
            Contender::IncrexScript => {
                let [_, added]: [i64; 2] = call
                    .arg(1)
                    .arg(self.limit)
                    .arg(window_ms.to_string())
                    .invoke_async(&mut connection)
                    .await?;
                return Ok(added == 1);
            }
            _ => call.arg(window_ms.to_string()).arg(self.limit),
        };
        let reply: Vec<i64> = call.invoke_async(&mut connection).await?;
        Ok(reply.first() == Some(&1))
    }
}

/// How a gate saves calls to Redis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Habits {
    /// Whether checks of the same keys are batched.
    pub(crate) coalesces: bool,
    /// Whether denials are cached.
    pub(crate) remembers: bool,
}

impl Habits {
    /// One call per decision.
    pub(crate) const NONE: Self = Self { coalesces: false, remembers: false };

    pub(crate) fn name(self) -> &'static str {
        match (self.coalesces, self.remembers) {
            (false, false) => "one call each",
            (true, false) => "batching",
            (false, true) => "denial cache",
            (true, true) => "batching, denial cache",
        }
    }
}

pub(crate) fn quota(limit: u64) -> Result<Quota, Failed> {
    Ok(Quota::new(limit, WINDOW)?)
}

/// A gate with one policy by user.
pub(crate) fn gate(server: &Server, quota: Quota, habits: Habits) -> Result<Peer, Failed> {
    gate_of(server, &[quota], habits)
}

/// A gate with a policy for each of these quotas, all of which apply to each request.
pub(crate) fn gate_of(server: &Server, quotas: &[Quota], habits: Habits) -> Result<Peer, Failed> {
    let policy = |(at, quota): (usize, &Quota)| {
        let name = if at == 0 { "bench".to_owned() } else { format!("bench-{at}") };
        Ok::<_, Failed>(Policy::new(name, *quota)?.with_scope(["user"]))
    };
    let policies = PolicySet::new(quotas.iter().enumerate().map(policy).collect::<Result<Vec<_>, _>>()?)?;
    let mut options = RedisOptions::new(&server.url())?.with_deadline(DEADLINE);
    if !habits.coalesces {
        options = options.without_batching();
    }
    if !habits.remembers {
        options = options.without_denial_cache();
    }
    Ok(Peer::Slidegate(Box::new(SharedGate::new(policies, RedisStore::new(options)?)?)))
}

async fn check(gate: &RedisGate, user: u64) -> bool {
    let name = format!("user-{user:07}");
    let request = Request::new().with("user", name.as_str());
    gate.check(&request).await.is_allowed()
}
