//! Sweeps: one policy under many limits or windows, to find one that denies few enough requests.
//!
//! Every value has its own gate with all policies of the set, because a request denied by one
//! policy is not charged on the others. So each figure equals a replay with that value alone.

use std::str::FromStr;
use std::time::Duration;

use slidegate::{
    Decisions, PolicyDecision, PolicySet, Quota,
    clock::{format_window, parse_window},
};

use crate::batch::EntryBatch;
use crate::decider::{Decider, Options};
use crate::keys::KeyMap;
use crate::share::{Share, percent_beside};
use crate::wording::count_of;

/// Maximum values of a sweep. Each decides every request, which takes up to a microsecond per
/// policy, and has its own usage of every key.
pub const MAX_SWEEP_POINTS: u64 = 500;
/// Approximate number of values if no step is given.
const DEFAULT_POINTS: u64 = 50;

/// What to sweep: `limit=50..500`, `limit=50..500:25`, `per-ip.limit=50..500`, `window=10s..5m`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sweep {
    /// The policy; `None` for the only one of a set.
    policy: Option<String>,
    pub(crate) setting: SweptSetting,
    from: u64,
    to: u64,
    step: u64,
    pub(crate) deny_at_most: Share,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SweptSetting {
    Limit,
    /// In microseconds.
    Window,
}

/// One value of a sweep, and its denials so far.
#[derive(Debug)]
pub(crate) struct SweepPoint {
    /// The limit, or the window in microseconds.
    pub(crate) value: u64,
    decider: Decider,
    pub(crate) counts: SweepCounts,
}

/// Denials under one value.
#[derive(Debug)]
pub(crate) struct SweepCounts {
    /// The position of the swept policy.
    policy: usize,
    /// Requests that the swept policy denied.
    pub(crate) denied: u64,
    /// Keys that it denied, among those counted.
    pub(crate) denied_keys: KeyMap<()>,
    /// Requests that any enforced policy denied.
    pub(crate) denied_in_all: u64,
}

impl FromStr for Sweep {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = || {
            "must be `limit=FROM..TO`, `window=FROM..TO` or `POLICY.limit=FROM..TO`, with `:STEP` if wanted, for \
             example `limit=50..500:25`"
                .to_owned()
        };
        let (name, range) = text.split_once('=').ok_or_else(expected)?;
        let (policy, setting) = match name.rsplit_once('.') {
            Some((policy, setting)) => (Some(policy.to_owned()), setting),
            None => (None, name),
        };
        let setting = match setting {
            "limit" => SweptSetting::Limit,
            "window" => SweptSetting::Window,
            _ => return Err(expected()),
        };
        let (from, rest) = range.split_once("..").ok_or_else(expected)?;
        let (to, step) = match rest.split_once(':') {
            Some((to, step)) => (to, Some(step)),
            None => (rest, None),
        };
        let value = |text: &str| setting.parse(text);
        let (from, to) = (value(from)?, value(to)?);
        if from > to {
            return Err(format!("the range ends before it begins: write `{}`", setting.range(to, from)));
        }
        let step = match step {
            Some(step) => value(step)?,
            None => setting.round_step((to - from) / DEFAULT_POINTS),
        };
        if step == 0 {
            return Err("the step must be at least 1".to_owned());
        }
        // The end is included even if no step falls on it.
        let points = (to - from).div_ceil(step) + 1;
        if points > MAX_SWEEP_POINTS {
            return Err(format!(
                "the range has {points} values: must be at most {MAX_SWEEP_POINTS}; take a larger step, for example `:{}`",
                setting.text(setting.round_step((to - from) / DEFAULT_POINTS))
            ));
        }
        Ok(Self { policy, setting, from, to, step, deny_at_most: Share::ONE_IN_A_THOUSAND })
    }
}

impl SweptSetting {
    fn parse(self, text: &str) -> Result<u64, String> {
        match self {
            Self::Limit => text.parse().map_err(|_| format!("`{text}` is not a whole number")),
            Self::Window => {
                let window = parse_window(text).map_err(|error| error.to_string())?;
                Ok(u64::try_from(window.as_micros()).expect("a window is bounded"))
            }
        }
    }

    pub(crate) fn text(self, value: u64) -> String {
        match self {
            Self::Limit => value.to_string(),
            Self::Window => format_window(Duration::from_micros(value)),
        }
    }

    fn range(self, from: u64, to: u64) -> String {
        format!("{}..{}", self.text(from), self.text(to))
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Limit => "limit",
            Self::Window => "window",
        }
    }

    /// The next round number from `step` up: 1, 2 or 5 with zeros; whole seconds and minutes for
    /// windows.
    fn round_step(self, step: u64) -> u64 {
        if self == Self::Window {
            const SECONDS: [u64; 14] = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600, 21_600, 86_400];
            let rounds = SECONDS.map(|seconds| seconds * 1_000_000);
            if step > 100_000
                && let Some(round) = rounds.into_iter().find(|round| *round >= step)
            {
                return round;
            }
        }
        let mut decade = 1u64;
        loop {
            for digit in [1, 2, 5] {
                if digit * decade >= step.max(1) {
                    return digit * decade;
                }
            }
            decade = decade.saturating_mul(10);
        }
    }

    /// The limit, or the window in seconds.
    #[allow(clippy::cast_precision_loss)] // for a chart
    pub(crate) fn number(self, value: u64) -> f64 {
        match self {
            Self::Limit => value as f64,
            Self::Window => value as f64 / 1e6,
        }
    }

    /// The value in a quota.
    pub(crate) fn of(self, quota: &Quota) -> u64 {
        match self {
            Self::Limit => quota.limit(),
            Self::Window => u64::try_from(quota.window().as_micros()).expect("a window is bounded"),
        }
    }

    fn quota(self, quota: &Quota, value: u64) -> Result<Quota, String> {
        if self == Self::Limit && quota.calendar_window().is_some() {
            return Ok(quota.with_limit(value));
        }
        let (limit, window) = match self {
            Self::Limit => (value, quota.window()),
            Self::Window => (quota.limit(), Duration::from_micros(value)),
        };
        let new = Quota::new(limit, window).map_err(|error| error.to_string())?;
        let new = new.with_algorithm(quota.algorithm()).with_slots(quota.slots());
        Ok(if quota.burst() == quota.limit() { new } else { new.with_burst(quota.burst()) })
    }
}

impl Sweep {
    /// Recommends a value that denies at most this share of the policy's requests. Default: 0.1 %.
    #[must_use]
    pub fn with_deny_at_most(self, deny_at_most: Share) -> Self {
        Self { deny_at_most, ..self }
    }

    /// The strictest value that denies few enough requests (the smallest limit, or the longest
    /// window), and why.
    pub(crate) fn recommend(
        &self,
        policies: &PolicySet,
        policy: &str,
        (seen, keys): (u64, u64),
        points: &[SweepPoint],
    ) -> (Option<String>, String) {
        let setting = self.setting;
        // From the strictest to the least strict.
        let mut order: Vec<usize> = (0..points.len()).collect();
        if setting == SweptSetting::Window {
            order.reverse();
        }
        let at_most = self.deny_at_most;
        let fits = |at: &usize| !at_most.is_exceeded_by(points[*at].counts.denied, seen);
        let name = setting.name();
        let words = |at: usize| points[at].in_words((seen, keys), at_most);
        let Some(rank) = order.iter().position(fits) else {
            let last = order[order.len() - 1];
            let (value, way) = match setting {
                SweptSetting::Limit => (points[last].value, "higher limits"),
                SweptSetting::Window => (points[last].value, "shorter windows"),
            };
            let reason = format!(
                "no {name} that was tried denies at most {at_most}: `{policy}` with {name} {} still denies {}; sweep {way}",
                setting.text(value),
                words(last)
            );
            return (None, reason);
        };
        let at = order[rank];
        let value = points[at].value;
        let best = match setting {
            SweptSetting::Limit => "smallest limit",
            SweptSetting::Window => "longest window",
        };
        let mut reason = format!(
            "{} is the {best} tried with which `{policy}` denies at most {at_most}: it denies {}",
            setting.text(value),
            words(at)
        );
        let Some(stricter) = rank.checked_sub(1).map(|rank| order[rank]) else {
            let stricter = match setting {
                SweptSetting::Limit => "lower limits",
                SweptSetting::Window => "longer windows",
            };
            reason.push_str(&format!("; {stricter} were not tried, and one may be enough: sweep those too"));
            return (Some(setting.text(value)), reason);
        };
        let other = points[stricter].value;
        reason.push_str(&format!("; {} would deny {}", setting.text(other), words(stricter)));
        let (from, to) = (value.min(other), value.max(other));
        if setting == SweptSetting::Limit && to - from > 1 {
            let prefix = if policies.iter().len() > 1 { format!("{policy}.") } else { String::new() };
            let step = if to - from < MAX_SWEEP_POINTS { ":1" } else { "" };
            reason.push_str(&format!(
                "; `--sweep {prefix}{name}={}{step}` tries those between",
                setting.range(from, to)
            ));
        }
        (Some(setting.text(value)), reason)
    }

    fn values(&self) -> Vec<u64> {
        let mut values: Vec<u64> = (0..)
            .map_while(|n: u64| n.checked_mul(self.step)?.checked_add(self.from))
            .take_while(|value| *value <= self.to)
            .collect();
        if values.last() != Some(&self.to) {
            values.push(self.to);
        }
        values
    }

    /// The position of the policy to sweep.
    ///
    /// # Errors
    /// One line: the set has no such policy, or several but none is named.
    pub fn position(&self, policies: &PolicySet) -> Result<usize, String> {
        let names: Vec<&str> = policies.iter().map(slidegate::Policy::name).collect();
        let setting = self.setting.name();
        match &self.policy {
            Some(name) => names.iter().position(|known| known == name).ok_or_else(|| {
                format!("invalid --sweep: unknown policy `{name}`: must be one of `{}`", names.join("`, `"))
            }),
            None if names.len() == 1 => Ok(0),
            None => Err(format!(
                "invalid --sweep: there are {} policies: name one, for example `{}.{setting}={}`",
                names.len(),
                names.first().unwrap_or(&"per-ip"),
                self.setting.range(self.from, self.to)
            )),
        }
    }

    /// One gate per value.
    ///
    /// # Errors
    /// As [`position`](Self::position); or a window is not 1 ms to 366 days, or that of the policy
    /// has no length.
    pub(crate) fn points(&self, policies: &PolicySet, options: Options) -> Result<Vec<SweepPoint>, String> {
        let position = self.position(policies)?;
        let swept = policies.iter().nth(position).expect("a position of the set");
        if swept.expects_reservations() {
            return Err(format!(
                "invalid --sweep: policy `{}` counts reservations, which a replay leaves out: sweep another policy",
                swept.name()
            ));
        }
        if self.setting == SweptSetting::Window && swept.quota().calendar_window().is_some() {
            return Err(format!(
                "invalid --sweep: policy `{}` has the calendar window `{}`, which has no length: sweep its `limit`",
                swept.name(),
                swept.quota().window_text()
            ));
        }
        let point = |value| {
            let swept = |(at, policy): (usize, &slidegate::Policy)| {
                if at != position {
                    return Ok(policy.clone());
                }
                Ok::<_, String>(policy.clone().with_quota(self.setting.quota(policy.quota(), value)?))
            };
            // Other shadow policies are dropped: they decide nothing.
            let kept =
                policies.iter().enumerate().filter(|(at, one)| *at == position || one.options().enforced);
            let kept = kept.filter(|(_, one)| !one.expects_reservations());
            let set = kept.map(swept).collect::<Result<Vec<_>, _>>()?;
            let name = policies.iter().nth(position).map(slidegate::Policy::name);
            let set = PolicySet::new(set).map_err(|error| error.to_string())?;
            let policy = set.iter().position(|one| Some(one.name()) == name).unwrap_or(0);
            Ok(SweepPoint {
                value,
                decider: Decider::new(set, options),
                counts: SweepCounts { policy, denied: 0, denied_keys: KeyMap::default(), denied_in_all: 0 },
            })
        };
        self.values().into_iter().map(point).collect()
    }
}

impl SweepPoint {
    /// Describes its denials.
    fn in_words(&self, (seen, keys): (u64, u64), at_most: Share) -> String {
        let share = percent_beside(self.counts.denied, seen, at_most);
        format!(
            "{} of {} ({share}), of {} of {}",
            self.counts.denied,
            count_of(seen, "request", "requests"),
            self.counts.denied_keys.len(),
            count_of(keys, "key", "keys")
        )
    }

    /// Decides the entries of a batch in their order.
    pub(crate) fn decide(&mut self, batch: &EntryBatch) {
        let Self { decider, counts, .. } = self;
        batch.for_each(|entry, request| counts.count(&decider.decide(entry.time_us, request)));
    }

    /// Keys that the store evicted while they still counted.
    pub(crate) fn dropped(&self) -> u64 {
        self.decider.gate().store().stats().dropped
    }
}

impl SweepCounts {
    fn count(&mut self, decisions: &Decisions<'_>) {
        self.denied_in_all += u64::from(decisions.is_denied());
        let swept = self.policy;
        let is_denial = |one: &PolicyDecision<'_>| one.position() == swept && one.decision().is_denied();
        for decision in decisions.iter().filter(is_denial) {
            self.denied += 1;
            self.denied_keys.at(self.denied_keys.hash(&decision.key()));
        }
    }
}
