//! Reports that no request causes directly: keys near their limit, keys blocked by escalation, and
//! expired reservations.

use slidegate::Policy;

use super::event_parts::{ClosedPeriod, Expired};
use super::events::Event;
use super::notifications::Crossing;
use super::observer::Observer;
use super::per_thread::thread;
use super::policy_counters::HoldOutcome;

impl Observer {
    /// Reports a crossed threshold: as an event, in the log and to the webhook.
    pub(crate) fn record_crossing(&self, crossing: &Crossing, policy: &Policy) {
        let registry = self.registry.load();
        let Some(known) = registry.by_name(&crossing.policy) else { return };
        if self.options.metrics {
            known.record_notification(thread());
        }
        let event = self.events.of_crossing(crossing, policy, known.keys_shown);
        self.send_to_webhook(&event);
        if self.options.events {
            self.events.record_crossing(event, crossing);
        }
    }

    /// The event of a total.
    pub(crate) fn closed(&self, period: &ClosedPeriod<'_>) -> Event {
        let known = self.registry.load();
        let keys_shown = known.by_name(period.policy.name()).map(|known| known.keys_shown);
        self.events.of_closed(period, keys_shown.unwrap_or_default())
    }

    /// Counts a reported total. Records, publishes and logs it within its policy's rate.
    pub(crate) fn record_closed(&self, event: Event) {
        if let Some(known) = self.registry.load().by_name(&event.policy).filter(|_| self.options.metrics) {
            known.record_notification(thread());
        }
        if self.options.events {
            self.events.record_closed(event);
        }
    }

    /// Reports the block that this denial earned: as an event and to the webhook.
    pub(crate) fn record_block(&self, denial: &Event, until_ms: u64, by: &str) {
        let event = denial.escalated(until_ms, by);
        self.send_to_webhook(&event);
        if self.options.events {
            self.events.keep(event);
        }
    }

    fn send_to_webhook(&self, event: &Event) {
        if let Some(webhook) = &self.notifications.webhook {
            webhook.send(&event.policy, event.message());
        }
    }

    /// Counts and reports an expired reservation.
    pub(crate) fn record_expired(&self, expired: &Expired, policy: &Policy) {
        self.record_hold(&expired.policy, HoldOutcome::Expired);
        self.record_charge_of_hold(&expired.policy, Some(&*expired.key), expired.cost, expired.until);
        let keys_shown = self.registry.load().by_name(&expired.policy).map(|known| known.keys_shown);
        if let Some(keys_shown) = keys_shown.filter(|_| self.options.events) {
            self.events.record_expired(expired, policy, keys_shown);
        }
    }
}
