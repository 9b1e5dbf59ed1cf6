//! Clients that reserve, settle, repeat, extend, cancel and abandon, and record what they did.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::sleep;
use std::time::Duration;

use serde_json::{Value, json};

use super::fleet::{Clock, Fleet, INSTANCES, NoReply};
use super::history::{Change, Outcome, Outcomes, Policy, Reservation, Span, Verb};
use super::{DEADLINE, USERS, millis, user_name};

/// A denied client waits this long; the others wait between two of their calls.
const PAUSE: Duration = Duration::from_millis(5);
/// How often a call is repeated that got no reply.
const REPEATS: usize = 4;

/// What a client did.
#[derive(Debug, Default)]
pub(crate) struct Record {
    pub(crate) history: Vec<Reservation>,
    /// Denied by this instance. In a cluster, a part may be held until it is cancelled, which an
    /// instance that is killed does not do.
    pub(crate) denied: Vec<(usize, Reservation)>,
    /// What was counted, by name.
    pub(crate) counts: BTreeMap<String, u64>,
}

/// A generator of pseudorandom numbers.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// The protocol of a reservation. Only HTTP answers a ticket for several policies for each of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Protocol {
    Http,
    Resp,
}

pub(crate) struct Client<'f> {
    fleet: &'f Fleet<'f>,
    clock: Clock,
    random: Random,
    record: Record,
}

/// An open reservation of a client.
struct Open {
    one: Reservation,
    ticket: String,
    /// What is held under all policies, as far as its client knows.
    amount: u64,
    used: u64,
    /// When its client must stop unless it is extended: a bit before its time.
    stop: u64,
    is_over: bool,
}

impl<'f> Client<'f> {
    pub(crate) fn new(fleet: &'f Fleet<'f>, seed: u64) -> Self {
        Self { fleet, clock: fleet.clock(), random: Random::new(seed), record: Record::default() }
    }

    /// Makes one reservation after the other until it is over.
    pub(crate) fn run(mut self, is_over: &AtomicBool) -> Record {
        while !is_over.load(Relaxed) {
            match self.reserve() {
                Some(open) => self.live(open),
                None => sleep(PAUSE),
            }
        }
        self.record
    }

    fn count(&mut self, what: &str) {
        *self.record.counts.entry(what.to_owned()).or_default() += 1;
        if what == "settle Changed" {
            self.fleet.settled.fetch_add(1, Relaxed);
        }
    }

    fn reserve(&mut self) -> Option<Open> {
        let at = usize::try_from(self.random.below(INSTANCES as u64)).unwrap();
        let user = usize::try_from(self.random.below(USERS as u64)).unwrap();
        let (hold, ttl_ms) = (20 + self.random.below(180), 300 + self.random.below(500));
        let (protocol, policies) = match self.random.below(6) {
            0 => (Protocol::Resp, vec![Policy::Tokens]),
            1 => (Protocol::Resp, vec![Policy::Streams]),
            _ => (Protocol::Http, Policy::ALL.to_vec()),
        };
        let sent = self.clock.now();
        let granted = match protocol {
            Protocol::Http => self.reserve_by_http(at, user, hold, ttl_ms),
            Protocol::Resp => self.reserve_by_resp(at, policies[0], user, hold, ttl_ms),
        };
        let made = Span { sent, replied: self.clock.now() };
        let (changes, uses, ttl) = (Vec::new(), Vec::new(), ttl_ms * 1000);
        let mut one =
            Reservation { user, policies, hold, ttl, made, until: None, is_certain: false, changes, uses };
        match granted {
            Err(NoReply::NotSent) => None,
            Err(NoReply::Lost | NoReply::Queued) => {
                self.count("reservations without a reply");
                self.record.history.push(one);
                None
            }
            Ok(None) => {
                self.count("reservations denied");
                self.record.denied.push((at, one));
                None
            }
            Ok(Some((ticket, until_ms))) => {
                self.count("reservations");
                (one.is_certain, one.until) = (true, Some(until_ms * 1000));
                let stop = sent + one.ttl / 20 * 19;
                Some(Open { one, ticket, amount: hold, used: 0, stop, is_over: false })
            }
        }
    }

    fn reserve_by_http(
        &self,
        at: usize,
        user: usize,
        hold: u64,
        ttl_ms: u64,
    ) -> Result<Option<(String, u64)>, NoReply> {
        let body = json!({
            "attributes": { "user": user_name(user) }, "cost": hold, "ttl": format!("{ttl_ms}ms"),
        });
        let (status, reply) = self.fleet.post(at, "/v1/reserve", &body)?;
        let is_decided = matches!(reply["source"].as_str(), Some("store" | "cached"));
        match status {
            200 => {
                let ticket = reply["ticket"].as_str().expect("a reservation has a ticket");
                Ok(Some((ticket.to_owned(), reply["until_ms"].as_u64().expect("an end"))))
            }
            429 if is_decided => Ok(None),
            429 | 503 => Err(NoReply::Lost),
            _ => panic!("{status} {reply}"),
        }
    }

    fn reserve_by_resp(
        &self,
        at: usize,
        policy: Policy,
        user: usize,
        hold: u64,
        ttl_ms: u64,
    ) -> Result<Option<(String, u64)>, NoReply> {
        let (user, hold, ttl) = (user_name(user), hold.to_string(), ttl_ms.to_string());
        let command = ["RL.RESERVE", policy.name(), &user, "COST", &hold, "TTL", &ttl];
        // What is in flight counts requests.
        let reply = self.fleet.command(at, &command)?;
        let is_decided = matches!(&*reply[5], "store" | "cached");
        match &*reply[0] {
            "1" => Ok(Some((reply[9].clone(), reply[8].parse().expect("an end")))),
            _ if is_decided => Ok(None),
            _ => Err(NoReply::Lost),
        }
    }

    /// What a client does with a reservation until it forgets it.
    fn live(&mut self, mut open: Open) {
        for _ in 0..self.random.below(5) {
            sleep(Duration::from_micros(self.random.below(open.one.ttl / 4)));
            self.spend(&mut open);
            let verb = match self.random.below(6) {
                0..=2 => Verb::Settle { total: open.used, is_final: false },
                3 => Verb::Extend { hold: None },
                4 => Verb::Extend { hold: Some(open.amount + 1 + self.random.below(100)) },
                _ => continue,
            };
            self.change(&mut open, verb);
            if open.is_over {
                break;
            }
        }
        let verb = match self.random.below(8) {
            0 if open.used == 0 => Some(Verb::Cancel),
            0 | 1 => None,
            _ => Some(Verb::Settle { total: open.used, is_final: true }),
        };
        match verb {
            Some(Verb::Settle { .. }) if !open.is_over => {
                self.spend(&mut open);
                let total = open.used;
                self.change(&mut open, Verb::Settle { total, is_final: true });
            }
            Some(verb) if !open.is_over => self.change(&mut open, verb),
            _ => self.count("reservations abandoned"),
        }
        self.record.history.push(open.one);
    }

    /// Uses some of what is held, unless its time is nearly over.
    fn spend(&mut self, open: &mut Open) {
        let left = open.amount - open.used;
        let now = self.clock.now();
        if now < open.stop && left > 0 && open.one.policies.contains(&Policy::Tokens) {
            let some = 1 + self.random.below(left);
            open.one.uses.push((now, some));
            open.used += some;
        }
    }

    /// Changes a reservation, at any instance; again while there is no reply, and sometimes though
    /// there was one.
    fn change(&mut self, open: &mut Open, verb: Verb) {
        let mut has_reply = false;
        for _ in 0..REPEATS {
            let at = usize::try_from(self.random.below(INSTANCES as u64)).unwrap();
            let sent = self.clock.now();
            let reply = self.send_change(at, open, verb);
            let span = Span { sent, replied: self.clock.now() };
            match reply {
                Err(NoReply::NotSent) => {
                    sleep(PAUSE);
                    continue;
                }
                Err(NoReply::Lost) => {
                    self.count("changes without a reply");
                    open.one.changes.push(Change { verb, span, outcomes: Vec::new() });
                    continue;
                }
                Err(NoReply::Queued) => {
                    self.count("changes queued");
                    let span =
                        Span { replied: span.replied + open.one.ttl + millis(DEADLINE) * 1000, ..span };
                    open.one.changes.push(Change { verb, span, outcomes: Vec::new() });
                    open.is_over = true;
                    return;
                }
                Ok((outcomes, ticket)) => {
                    self.note(open, verb, span, &outcomes);
                    open.one.changes.push(Change { verb, span, outcomes });
                    // While it is open, an older ticket works as well. One that knows of no
                    // extension would charge again, once the extension was charged at its end.
                    let is_longer = matches!(verb, Verb::Extend { hold: Some(_) });
                    if let Some(ticket) = ticket.filter(|_| is_longer || self.random.below(4) > 0) {
                        open.ticket = ticket;
                    }
                }
            }
            if has_reply || self.random.below(4) > 0 {
                return;
            }
            has_reply = true;
            self.count("changes repeated");
        }
    }

    /// What a client learns from a reply.
    fn note(&mut self, open: &mut Open, verb: Verb, span: Span, outcomes: &[(Policy, Outcome)]) {
        for (_, outcome) in outcomes {
            self.count(&format!("{} {outcome:?}", name(verb)));
        }
        let all = |wanted| outcomes.iter().all(|(_, outcome)| *outcome == wanted);
        if all(Outcome::Changed) {
            open.stop = span.sent + open.one.ttl / 20 * 19;
            if let Verb::Extend { hold: Some(hold) } = verb {
                open.amount = hold;
            }
        } else if !outcomes.iter().any(|(_, outcome)| *outcome == Outcome::Denied) {
            open.is_over = true;
        }
    }

    fn send_change(&self, at: usize, open: &Open, verb: Verb) -> Result<(Outcomes, Option<String>), NoReply> {
        let ticket = open.ticket.as_str();
        if open.one.policies.len() == 1 {
            let number = match verb {
                Verb::Settle { total, .. } => total,
                Verb::Extend { hold } => hold.unwrap_or(0),
                Verb::Cancel => 0,
            };
            let number = number.to_string();
            let command = match verb {
                Verb::Settle { is_final: true, .. } => vec!["RL.SETTLE", ticket, "COST", &number],
                Verb::Settle { .. } => vec!["RL.SETTLE", ticket, "COST", &number, "MORE"],
                Verb::Extend { hold: Some(_) } => vec!["RL.EXTEND", ticket, "HOLD", &number],
                Verb::Extend { hold: None } => vec!["RL.EXTEND", ticket],
                Verb::Cancel => vec!["RL.CANCEL", ticket],
            };
            let reply = self.fleet.command(at, &command)?;
            if reply[0] == "queued" {
                return Err(NoReply::Queued);
            }
            let outcome = Outcome::from_name(&reply[0]);
            let ticket = Some(reply[8].clone()).filter(|ticket| !ticket.is_empty());
            return Ok((vec![(open.one.policies[0], outcome)], ticket));
        }
        let (path, body) = match verb {
            Verb::Settle { total, is_final } => {
                ("/v1/settle", json!({ "ticket": ticket, "cost": total, "final": is_final }))
            }
            Verb::Extend { hold: Some(hold) } => ("/v1/extend", json!({ "ticket": ticket, "hold": hold })),
            Verb::Extend { hold: None } => ("/v1/extend", json!({ "ticket": ticket })),
            Verb::Cancel => ("/v1/cancel", json!({ "ticket": ticket })),
        };
        let (status, reply) = self.fleet.post(at, path, &body)?;
        match status {
            200 | 429 => {}
            202 => return Err(NoReply::Queued),
            503 => return Err(NoReply::Lost),
            _ => panic!("{status} {reply}"),
        }
        let outcome = |one: &Value| {
            let policy = Policy::ALL.into_iter().find(|policy| one["policy"] == policy.name());
            let status = one["status"].as_str().expect("each policy has a status");
            (policy.expect("a policy of the test"), Outcome::from_name(status))
        };
        let outcomes = reply["policies"].as_array().expect("policies").iter().map(outcome).collect();
        Ok((outcomes, reply["ticket"].as_str().map(str::to_owned)))
    }
}

fn name(verb: Verb) -> &'static str {
    match verb {
        Verb::Settle { is_final: true, .. } => "settle",
        Verb::Settle { .. } => "settle in part",
        Verb::Extend { .. } => "extend",
        Verb::Cancel => "cancel",
    }
}
