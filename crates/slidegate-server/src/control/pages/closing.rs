//! Closed periods: the total of each key when its calendar window ends, reported by one of the instances.
//!
//! The store keeps totals until they are acknowledged, which follows the delivery. So what an instance did not report
//! before it was killed is reported by another one, and a message that was sent twice has one id. A claim in the
//! store, renewed at every step, decides which instance reports. One that was stopped until its claim ended leaves the
//! rest to the instance that has it then. After the last step the claim lasts until all totals have expired.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use slidegate::store::{ClosedTotal, ServiceStore};
use slidegate::{Calendar, Error, Policy, PolicySet, Quota, clock::Timestamp};
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use super::key_usage;
use crate::clock::now_ms;
use crate::engine::App;
use crate::log_limit::log_limited;
use crate::record::{ClosedPeriod, NotDelivered};

/// Interval between looks at the calendar.
const INTERVAL: Duration = Duration::from_secs(5);
/// How long the claim of an instance lasts that does not renew it: longer than a step.
const CLAIM: Duration = Duration::from_secs(30);
/// How long the claim of an instance lasts that could not report everything.
const RETRY: Duration = Duration::from_secs(60);
/// Keys examined per step.
const KEYS: u64 = 1000;
/// Totals that are reported at once.
const AT_ONCE: usize = 16;
/// A total that has not been received so long before it expires is dropped, so that it is counted.
const GIVES_UP: Duration = Duration::from_secs(300);

/// Reports closed periods until the process ends.
pub(crate) async fn run(app: Arc<App>) {
    // The last border up to which everything is reported, by policy.
    let mut reported: HashMap<String, u64> = HashMap::new();
    while let Some(shared) = app.shared() {
        let policies = app.policies();
        for policy in policies.iter().filter(|policy| policy.options().notify_closed) {
            let now_us = now_ms().saturating_mul(1000);
            let begins = policies.calendars_of(policy.name()).map(|calendar| calendar.period(now_us).begin);
            let Some(border) = begins.max().filter(|border| reported.get(policy.name()) != Some(border))
            else {
                continue;
            };
            let closing = Closing { app: &app, store: shared.store(), policies: &policies, policy };
            match closing.report_up_to(border).await {
                Ok(true) => drop(reported.insert(policy.name().to_owned(), border)),
                Ok(false) => {}
                Err(error) => {
                    log_limited!(WARN, None, %error, "closed periods are not reported; trying again");
                }
            }
        }
        sleep(INTERVAL).await;
    }
}

/// The periods of one policy.
struct Closing<'a> {
    app: &'a App,
    store: &'a dyn ServiceStore,
    policies: &'a PolicySet,
    policy: &'a Policy,
}

impl Closing<'_> {
    /// Reports all windows that ended by a border, unless another instance does. Returns whether everything is
    /// reported.
    async fn report_up_to(&self, border: u64) -> Result<bool, Error> {
        let (store, name) = (self.store, self.policy.name());
        // Policy names contain no zero byte.
        let claim = format!("closed\0{name}\0{border}").into_bytes();
        if !store.claim(&claim, CLAIM).await? {
            return Ok(false);
        }
        // Totals that were not received: in all, and in a row.
        let (mut from, mut left, mut row) = (None, 0, 0);
        loop {
            let mut step = store.closed_step(name, from.as_ref(), KEYS).await?;
            if !step.unsettled.is_empty() {
                self.limits(step.unsettled.iter()).await?;
                step = store.closed_step(name, from.as_ref(), KEYS).await?;
            }
            if step.until.as_micros() < border {
                // The server's clock is behind this one.
                return Ok(false);
            }
            // Holds of keys that a peek does not find wait for a request.
            if step.until + GIVES_UP > Timestamp::from_micros(border) + kept(self.policy.quota()) {
                step.unsettled.iter().for_each(|_| self.dropped());
            } else {
                left += step.unsettled.len();
            }
            let known = |total: ClosedTotal| self.calendar(&total).map(|calendar| (total, calendar));
            let totals: Vec<_> = step.totals.into_iter().filter_map(known).collect();
            for totals in totals.chunks(AT_ONCE) {
                if !store.extend_claim(&claim, CLAIM).await? {
                    return Ok(false);
                }
                let not_received = self.report(totals, step.until).await?;
                left += not_received;
                row = if not_received < totals.len() { 0 } else { row + not_received };
                if row >= AT_ONCE {
                    store.extend_claim(&claim, RETRY).await?;
                    return Ok(false);
                }
            }
            if !store.extend_claim(&claim, CLAIM).await? {
                return Ok(false);
            }
            from = step.next;
            if from.is_none() {
                break;
            }
        }
        store.extend_claim(&claim, if left == 0 { kept(self.policy.quota()) } else { RETRY }).await?;
        Ok(left == 0)
    }

    /// Reports and acknowledges totals. Returns how many the receiver did not take.
    async fn report(&self, totals: &[(ClosedTotal, Calendar)], now: Timestamp) -> Result<usize, Error> {
        let webhook = &self.app.observer().notifications.webhook;
        let limits = self.limits(totals.iter().map(|(total, _)| &total.key)).await?;
        let deliveries = totals.iter().map(async |(total, calendar)| {
            if now + GIVES_UP > total.ended + kept(&Quota::calendar(0, *calendar)) {
                self.dropped();
                return Some(None);
            }
            let event = self.app.observer().closed(&self.period(total, *calendar, &limits));
            let is_received = match webhook.clone() {
                None => true,
                Some(webhook) => {
                    let (_, body) = event.message();
                    let what = [&*total.name, b"\0", &total.ended.as_micros().to_le_bytes()].concat();
                    spawn_blocking(move || webhook.deliver(&what, body)).await.unwrap_or(false)
                }
            };
            is_received.then_some(Some(event))
        });
        let delivered = join_all(deliveries).await;
        let (done, events): (Vec<_>, Vec<_>) = totals
            .iter()
            .zip(delivered)
            .filter_map(|((total, _), event)| Some((total.clone(), event?)))
            .unzip();
        events.into_iter().flatten().for_each(|event| self.app.observer().record_closed(event));
        self.store.acknowledge_closed(&done).await?;
        Ok(totals.len() - done.len())
    }

    /// The calendar of a total. `None` if it has been counted under another configuration of the policy: another
    /// instance may have that one, or will have this one.
    fn calendar(&self, total: &ClosedTotal) -> Option<Calendar> {
        let is_own = total.in_millionths == self.policy.options().counts.is_weighted();
        let mut calendars = self.policies.calendars_of(self.policy.name()).filter(|_| is_own);
        calendars.find(|calendar| calendar.code() == total.calendar)
    }

    fn period<'a>(
        &'a self,
        total: &'a ClosedTotal,
        calendar: Calendar,
        limits: &HashMap<String, (u64, Option<&'a str>)>,
    ) -> ClosedPeriod<'a> {
        let policy = self.policy;
        let (limit, plan) = limits.get(&total.key).copied().unwrap_or((policy.quota().limit(), None));
        let used = policy.options().counts.amount(total.used);
        ClosedPeriod { policy, key: &total.key, calendar, ended: total.ended, limit, plan, used }
    }

    fn dropped(&self) {
        self.app.observer().notifications.dropped(NotDelivered::Undelivered);
    }

    /// Peeks at keys. Returns their limits and tiers.
    async fn limits(
        &self,
        keys: impl Iterator<Item = &String>,
    ) -> Result<HashMap<String, (u64, Option<&str>)>, Error> {
        let keys: Vec<_> = keys.map(|key| (self.policy.name().to_owned(), key.clone())).collect();
        let mut limits = HashMap::new();
        for keys in keys.chunks(key_usage::MAX_KEYS) {
            let peeked = key_usage::peek(self.app, keys).await;
            for ((_, key), (decision, quota)) in peeked {
                if !decision.is_counted() {
                    return Err(Error::store("the store did not reply to a peek"));
                }
                limits.insert(key, (decision.amounts().limit.ceil(), self.policy.tier_with(&quota)));
            }
        }
        Ok(limits)
    }
}

/// How long a store keeps totals under a quota.
fn kept(quota: &Quota) -> Duration {
    Duration::from_micros(quota.keeping_totals(true).keeps_totals_us().unwrap_or_default())
}
