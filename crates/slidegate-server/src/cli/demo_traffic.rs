//! Traffic of `slidegate demo`: decided in this process, by the code that decides real requests.
//!
//! Identical in each run, except for times.

use std::net::IpAddr;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use slidegate::reserve::{HoldOptions, Ticket};
use slidegate::{Request, verb::Verb};
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::caller::Protocol;
use crate::engine::App;
use crate::engine::ticket_change::TicketChange;

/// Interval of the traffic: 25 requests per second.
const EVERY: Duration = Duration::from_millis(40);
/// The incident, in seconds since the start: one client floods, half of it logins.
const INCIDENT_S: Range<u64> = 30..90;
/// Further requests of the flood per interval.
const FLOOD: usize = 3;
/// Users and addresses of the traffic.
const USERS: u64 = 40;
/// Maximum open reservations; older ones are settled.
const MAX_OPEN: usize = 6;

/// Traffic of a limited duration.
#[derive(Debug, Clone, Copy)]
pub(super) struct Demo {
    duration: Duration,
}

impl Demo {
    pub(super) fn new(duration: Duration) -> Self {
        Self { duration }
    }

    /// Waits until the traffic ends.
    pub(super) async fn end(self) {
        tokio::time::sleep(self.duration).await;
    }

    /// The startup line about the demo.
    pub(super) fn origin(self) -> String {
        let minutes = self.duration.as_secs().div_ceil(60);
        format!("demo with synthetic traffic; ends after {minutes} min, or with Ctrl-C")
    }

    /// Decides requests until dropped.
    pub(super) async fn traffic(self, app: Arc<App>) {
        let mut random = Random(0x9e37_79b9_7f4a_7c15);
        let mut open: Vec<Ticket> = Vec::new();
        let started = Instant::now();
        let mut ticks = interval(EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        loop {
            ticks.tick().await;
            request(&app, &mut random, &mut open, false).await;
            let floods = INCIDENT_S.contains(&started.elapsed().as_secs());
            for _ in 0..if floods { FLOOD } else { 0 } {
                request(&app, &mut random, &mut open, true).await;
            }
        }
    }
}

/// Decides one request, sometimes as a reservation.
async fn request(app: &App, random: &mut Random, open: &mut Vec<Ticket>, is_flood: bool) {
    // The minimum of two draws: some users send more requests than others.
    let number = if is_flood { USERS } else { random.below(USERS).min(random.below(USERS)) };
    let (user, plan) = (format!("user-{number}"), if number.is_multiple_of(4) { "team" } else { "free" });
    let (address, one_login_in) = if is_flood { (USERS, 2) } else { (random.below(USERS), 30) };
    let ip = IpAddr::from([198, 51, 100, u8::try_from(address).unwrap_or(0)]);
    let reserves = !is_flood && random.below(6) == 0;
    let path = match random.below(one_login_in) {
        _ if reserves => "/chat",
        0 => "/login",
        _ => "/search",
    };
    let request = Request::new().with("user", &user).with("plan", plan).with("ip", ip).with("path", path);
    let protocol = Protocol::ALL[usize::try_from(random.below(4)).unwrap_or(0)];
    let call = app.call(protocol);
    if !reserves {
        call.apply(Some(Verb::Check), std::slice::from_ref(&request), None).await;
        return;
    }
    let (input, output) = (200 + random.below(4000), 4000);
    let request = request.with_cost([("tokens", input + output), ("input", input), ("output", output)]);
    let options = HoldOptions { ttl: Some(Duration::from_secs(20)), ..HoldOptions::default() };
    let reserved = call.reserve(std::slice::from_ref(&request), options).await;
    open.extend(reserved.ok().and_then(|reserved| reserved.ticket().cloned()));
    // One in twenty is never settled.
    if open.len() > MAX_OPEN {
        let ticket = open.remove(0);
        if random.below(20) > 0 {
            let output = 500 + random.below(3500);
            let cost = [("tokens", input + output), ("input", input), ("output", output)].into();
            let change = TicketChange::Settle { cost, is_final: true };
            // A memory store always replies.
            let _ = call.change(&ticket, change).await;
        }
    }
}

/// xorshift64 (Marsaglia, 2003).
struct Random(u64);

impl Random {
    /// A number below `end`.
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}
