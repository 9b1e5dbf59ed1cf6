//! Faults, one after the other until the time is over, and run-time changes in between.

use std::collections::BTreeMap;
use std::fmt;
use std::net::TcpStream;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::fleet::{Fleet, Usage};

/// How long after a fault the next one follows.
const PAUSE: Duration = Duration::from_millis(700);
/// How long Redis stands still: longer than a deadline, and than the breaker takes to open.
const STOPPED: Duration = Duration::from_millis(1500);
/// Sockets of a hostile client at each port.
const SILENT: usize = 100;
/// Keys whose limit is changed at run time.
const KEYS: u64 = 4;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    RedisStopped,
    RedisKilled,
    ConnectionsCut,
    InstanceEnded,
    InstanceKilled,
    Reloaded,
    SilentClients,
}

const FAULTS: [Fault; 7] = [
    Fault::RedisStopped,
    Fault::ConnectionsCut,
    Fault::InstanceEnded,
    Fault::RedisKilled,
    Fault::SilentClients,
    Fault::InstanceKilled,
    Fault::Reloaded,
];

/// What was done, and what must hold after it.
#[derive(Debug)]
pub(crate) struct Faults {
    counts: BTreeMap<Fault, u64>,
    /// By key: the last limit that was acknowledged, and the last that was asked for.
    limits: BTreeMap<String, (u64, u64)>,
    /// Of the first instance, after half of the time.
    pub(crate) usage: Usage,
}

impl Faults {
    /// Injects faults for this long.
    #[allow(clippy::disallowed_methods)] // Faults last for real time.
    pub(crate) fn inject(fleet: &Fleet, time: Duration) -> Self {
        let started = Instant::now();
        let mut faults = Self { counts: BTreeMap::new(), limits: BTreeMap::new(), usage: fleet.usage() };
        let mut is_warm = false;
        for turn in 0.. {
            let fault = FAULTS[turn % FAULTS.len()];
            faults.change(fleet, turn as u64);
            fault.inject(fleet);
            *faults.counts.entry(fault).or_default() += 1;
            sleep(PAUSE);
            if !is_warm && started.elapsed() >= time / 2 {
                (is_warm, faults.usage) = (true, fleet.usage());
            }
            if started.elapsed() >= time {
                break;
            }
        }
        faults
    }

    /// Changes the limit of a key, at the instance that is never restarted.
    fn change(&mut self, fleet: &Fleet, turn: u64) {
        let (key, limit) = (format!("fixed-{}", turn % KEYS), 1000 + turn);
        let path = format!("/v1/keys/fixed/{key}/override");
        let body = json!({ "quota": format!("{limit}/1h"), "for": "1h" }).to_string();
        let reply = fleet.send(0, "POST", &path, &body);
        let known = self.limits.entry(key).or_default();
        known.1 = limit;
        match reply {
            Ok(reply) if reply.status == 200 => known.0 = limit,
            Ok(reply) => assert_eq!(reply.status, 503, "{}", reply.body),
            Err(_) => {}
        }
    }

    /// Asserts that every acknowledged change is in force on both instances.
    pub(crate) fn assert_kept(&self, fleet: &Fleet) {
        for fault in FAULTS {
            assert!(self.counts.contains_key(&fault), "{fault:?} was never injected: more time is needed");
        }
        for (key, (acknowledged, asked)) in &self.limits {
            assert!(*acknowledged > 0, "{key} was never changed");
            for at in 0..fleet.ports.len() {
                let body = json!({ "attributes": { "fixed": key } }).to_string();
                slidegate_testkit::until_true("the change is in force", || {
                    let reply = fleet.send(at, "POST", "/v1/peek", &body).expect("it is served");
                    let limit = reply.json()["limit"].as_u64().expect("there is a limit");
                    (*acknowledged..=*asked).contains(&limit)
                });
            }
        }
    }
}

impl Fault {
    fn inject(self, fleet: &Fleet) {
        match self {
            Self::RedisStopped => {
                fleet.redis.pause();
                sleep(STOPPED);
                fleet.redis.resume();
            }
            Self::RedisKilled => {
                fleet.redis.kill();
                sleep(PAUSE);
                fleet.redis.restart();
            }
            Self::ConnectionsCut => {
                // Redis may be busy with what came while it stood still.
                let _ = fleet.redis.ask(&["CLIENT", "KILL", "TYPE", "normal"]);
            }
            Self::InstanceEnded => fleet.restart("TERM"),
            Self::InstanceKilled => fleet.restart("KILL"),
            Self::Reloaded => fleet.reload(),
            Self::SilentClients => {
                let ports = fleet.ports.iter().flat_map(|ports| [ports.http, ports.resp, ports.grpc]);
                let connect = |port| (0..SILENT).map(move |_| TcpStream::connect(("127.0.0.1", port)));
                let silent: Vec<_> = ports.flat_map(connect).collect();
                sleep(PAUSE);
                drop(silent);
            }
        }
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts: Vec<_> = self.counts.iter().map(|(fault, count)| format!("{fault:?} {count}")).collect();
        f.write_str(&counts.join(", "))
    }
}
