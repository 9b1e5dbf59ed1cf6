//! Quotas as users write them, in files, JSON and arguments.

use std::time::Duration;

use lined_config::{Form, Section};
use schemars::JsonSchema;
use serde::Deserialize;
use slidegate::internal::Setting;
use slidegate::{Algorithm, Calendar, Quota};

use crate::foreign;
use crate::values::{Lease, Parsed, Span, Text, TimeZone, Window, form_of};

/// A mistake, with its key.
type Mistake = (&'static str, String);

/// A quota, or its differences from another one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("x-example" = "quota: 200/1m"))]
pub struct QuotaSpec {
    /// `limit` and `window` in one value.
    pub quota: Option<Parsed<Quota>>,
    /// Maximum cost per window.
    pub limit: Option<u64>,
    /// A duration, or a calendar window.
    pub window: Option<Window>,
    /// The time zone of a calendar window. Default: UTC.
    pub time_zone: Option<Parsed<TimeZone>>,
    /// The day on which a calendar window of months begins.
    #[schemars(range(min = 1, max = 31))]
    pub anchor: Option<u8>,
    /// The day on which the window `week` begins. Default: `monday`.
    pub week_starts: Option<WeekDay>,
    /// How cost is counted: an exact log, two counters, one counter, or a bucket. Default: `sliding-log`.
    #[schemars(extend("enum" = Algorithm::ALL.map(Algorithm::name)))]
    pub algorithm: Option<Parsed<Algorithm>>,
    /// What a token bucket admits at once. Default: the limit.
    #[schemars(range(min = 1))]
    pub burst: Option<u64>,
    /// Maximum entries in a key's log. If the limit is above it, a charge may count up to `window / slots` too long.
    /// Only for `sliding-log`. Default: 1024.
    #[schemars(range(min = 1, max = 65534))]
    pub slots: Option<u16>,
    /// Maximum cost in flight at once, instead of `limit` and `window`. Only `/v1/reserve` and `RL.RESERVE` take it;
    /// other requests only ask. Overrides and candidates have a limit only.
    pub in_flight: Option<u64>,
    /// Lease of a reservation with `in_flight`; extensions renew it. Default: 30s.
    pub lease: Option<Lease>,
}

impl QuotaSpec {
    /// The default lease: several heartbeats of a typical client.
    const DEFAULT_LEASE: Duration = Duration::from_secs(30);

    /// The spec of a quota written as one text.
    #[must_use]
    pub fn text(quota: Quota) -> Self {
        Self { quota: Some(Parsed(quota)), ..Self::default() }
    }

    /// The spec of a quota.
    #[must_use]
    pub fn of(quota: &Quota) -> Self {
        if quota.algorithm() == Algorithm::InFlight {
            let (in_flight, lease) = (Some(quota.limit()), Some(Span(quota.window())));
            return Self { in_flight, lease, ..Self::default() };
        }
        let setting = quota.algorithm().setting();
        Self {
            quota: None,
            limit: Some(quota.limit()),
            window: Self::text(*quota).window(),
            algorithm: Some(Parsed(quota.algorithm())),
            burst: Some(quota.burst()).filter(|burst| setting == Setting::Burst && *burst != quota.limit()),
            slots: Some(quota.slots())
                .filter(|slots| setting == Setting::Slots && *slots != Quota::DEFAULT_SLOTS),
            ..Self::default()
        }
    }

    /// Whether no key is given.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    fn limit(&self) -> Option<u64> {
        self.quota.map(|quota| quota.limit()).or(self.limit)
    }

    fn window(&self) -> Option<Window> {
        let of =
            |quota: &Quota| quota.calendar_window().map_or(Window::Length(quota.window()), Window::Calendar);
        self.quota.as_deref().map(of).or(self.window)
    }

    fn algorithm(&self) -> Algorithm {
        let is_calendar = matches!(self.window(), Some(Window::Calendar(_)));
        let usual = if is_calendar { Algorithm::FixedWindow } else { Algorithm::default() };
        self.algorithm.map_or(usual, |algorithm| algorithm.0)
    }

    /// The calendar with its zone, anchor and first day of the week. Adds what is invalid to `mistakes`.
    fn calendar(&self, mut calendar: Calendar, mistakes: &mut Vec<Mistake>) -> Calendar {
        type Changed = Result<Calendar, slidegate::Error>;
        let mut set = |calendar: &mut Calendar, key, changed: Changed| match changed {
            Ok(changed) => *calendar = changed,
            Err(error) => mistakes.push((key, error.to_string())),
        };
        if let Some(Parsed(TimeZone(zone))) = self.time_zone {
            let changed = calendar.with_time_zone(zone);
            set(&mut calendar, "time_zone", changed);
        }
        if let Some(day) = self.anchor {
            let changed = calendar.with_anchor(day);
            set(&mut calendar, "anchor", changed);
        }
        if let Some(day) = self.week_starts {
            let changed = calendar.with_week_start(day.name());
            set(&mut calendar, "week_starts", changed);
        }
        calendar
    }

    /// The keys of a rate, and whether each is given. The last three are those of a calendar.
    fn rate_keys(&self) -> [(&'static str, bool); 9] {
        [
            ("quota", self.quota.is_some()),
            ("limit", self.limit.is_some()),
            ("window", self.window.is_some()),
            ("algorithm", self.algorithm.is_some()),
            ("burst", self.burst.is_some()),
            ("slots", self.slots.is_some()),
            ("time_zone", self.time_zone.is_some()),
            ("anchor", self.anchor.is_some()),
            ("week_starts", self.week_starts.is_some()),
        ]
    }

    /// This spec, completed by `base`. `burst` and `slots` are only taken from the same algorithm. Over
    /// a base with `in_flight`, `limit` replaces it.
    #[must_use]
    pub fn over(self, base: &Self) -> Self {
        let mut spec = self;
        if base.in_flight.is_some() {
            let limit = if spec.in_flight.is_none() { spec.limit.take() } else { None };
            spec.in_flight = spec.in_flight.or(limit).or(base.in_flight);
            spec.lease = spec.lease.or(base.lease);
            return spec;
        }
        if spec.in_flight.is_some() {
            return spec;
        }
        let is_calendar = matches!(spec.window(), Some(Window::Calendar(_)));
        if spec.quota.is_none() {
            spec.limit = spec.limit.or(base.limit());
            if spec.window.is_none() {
                spec.window = base.window();
                spec.time_zone = spec.time_zone.or(base.time_zone);
                spec.anchor = spec.anchor.or(base.anchor);
                spec.week_starts = spec.week_starts.or(base.week_starts);
            }
        } else if is_calendar {
            // A month in a quota's text is one of the same place.
            spec.time_zone = spec.time_zone.or(base.time_zone);
            spec.anchor = spec.anchor.or(base.anchor);
        }
        // A calendar has its own algorithm.
        if is_calendar && spec.algorithm.is_none() {
            return spec;
        }
        if spec.algorithm.is_none() || spec.algorithm() == base.algorithm() {
            spec.algorithm = base.algorithm;
            spec.burst = spec.burst.or(base.burst);
            spec.slots = spec.slots.or(base.slots);
        }
        spec
    }

    /// The quota. Reports mistakes, unless they follow from invalid keys.
    pub(crate) fn build(&self, section: &Section<'_>) -> Option<Quota> {
        let keys = self.rate_keys().map(|(key, _)| key);
        if section.has_rejected(&keys) || section.has_rejected(&["in_flight", "lease"]) {
            return None;
        }
        let report = |mistakes: Vec<Mistake>| {
            mistakes.iter().for_each(|(key, message)| section.report(key, message));
        };
        self.quota().map_err(report).ok()
    }

    /// The quota of this spec.
    ///
    /// # Errors
    /// Every mistake, with its key.
    pub fn quota(&self) -> Result<Quota, Vec<(&'static str, String)>> {
        if self.in_flight.is_some() || self.lease.is_some() {
            return self.in_flight_quota();
        }
        let (window, algorithm) = (self.window(), self.algorithm());
        let mut mistakes = self.conflicts(window, algorithm);
        let quota = self.limit().zip(window).map(|(limit, window)| match window {
            Window::Length(length) => {
                Quota::new(limit, length).map_err(|error| mistakes.push(("window", error.to_string())))
            }
            Window::Calendar(calendar) => Ok(Quota::calendar(limit, self.calendar(calendar, &mut mistakes))),
        });
        match quota {
            Some(Ok(quota)) if mistakes.is_empty() => {
                let quota = quota.with_algorithm(algorithm);
                let quota = self.burst.map_or(quota, |burst| quota.with_burst(burst));
                Ok(self.slots.map_or(quota, |slots| quota.with_slots(slots)))
            }
            _ => Err(mistakes),
        }
    }

    /// Missing keys of a rate, and keys that exclude each other.
    fn conflicts(&self, window: Option<Window>, algorithm: Algorithm) -> Vec<Mistake> {
        let mut mistakes = Vec::new();
        let mut mistake = |key: &'static str, message: String| mistakes.push((key, message));
        if self.quota.is_some() && (self.limit.is_some() || self.window.is_some()) {
            let message =
                "invalid quota: conflicts with limit or window; keep `quota`, or keep `limit` and `window`";
            mistake("quota", message.to_owned());
        }
        for (key, is_missing, example) in
            [("limit", self.limit().is_none(), "limit: 100"), ("window", window.is_none(), "window: 60s")]
        {
            if is_missing {
                mistake(key, format!("missing {key}: write it, for example `{example}`"));
            }
        }
        for (key, value, setting) in
            [("burst", self.burst, Setting::Burst), ("slots", self.slots.map(u64::from), Setting::Slots)]
        {
            if value == Some(0) {
                let message = "must be at least 1; to deny everything write `limit: 0`";
                mistake(key, format!("invalid {key} `0`: {message}"));
            }
            let readers = Algorithm::ALL.into_iter().find(|one| one.setting() == setting);
            if let Some((value, reader)) = value.zip(readers).filter(|_| algorithm.setting() != setting) {
                let message = format!(
                    "invalid {key} `{value}`: the algorithm is {algorithm} and only {reader} has {key}; leave it out or \
                     write `algorithm: {reader}`"
                );
                mistake(key, message);
            }
        }
        match window {
            Some(Window::Length(_)) => {
                for (key, _) in self.rate_keys()[6..].iter().filter(|(_, is_given)| *is_given) {
                    let fix =
                        "only calendar windows have one; write for example `window: month`, or leave it out";
                    mistake(key, format!("invalid {key}: {fix}"));
                }
            }
            Some(Window::Calendar(_)) if algorithm.setting() != Setting::Calendar => {
                let message = format!(
                    "invalid algorithm `{algorithm}`: calendar windows are counted by fixed-window; leave it out, or write the \
                     length of the window, for example `window: 30d`"
                );
                mistake("algorithm", message);
            }
            _ => {}
        }
        mistakes
    }

    /// The quota of a spec with `in_flight` or `lease`.
    fn in_flight_quota(&self) -> Result<Quota, Vec<Mistake>> {
        let Some(most) = self.in_flight else {
            let message = "invalid lease: only limits on what is in flight have one here, and instances lease \
                           a rate as its policy says; leave it out";
            return Err(vec![("lease", message.to_owned())]);
        };
        let conflict = |(key, _): (&'static str, bool)| {
            let message = format!(
                "invalid {key}: conflicts with in_flight, which limits what runs at once and has no window; keep \
                 `in_flight`, or write a policy of its own for the rate"
            );
            (key, message)
        };
        let given = self.rate_keys().into_iter().filter(|(_, is_given)| *is_given);
        let mut mistakes: Vec<_> = given.map(conflict).collect();
        let lease = self.lease.map_or(Self::DEFAULT_LEASE, |lease| lease.0);
        match Quota::in_flight(most, lease) {
            Ok(quota) if mistakes.is_empty() => return Ok(quota),
            Ok(_) => {}
            Err(error) => mistakes.push(("lease", error.to_string())),
        }
        Err(mistakes)
    }
}

/// A day of the week.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
#[allow(missing_docs)] // their names say it
pub enum WeekDay {
    Monday,
    Tuesday,
    Wednesday,
    Thursday,
    Friday,
    Saturday,
    Sunday,
}

impl WeekDay {
    fn name(self) -> &'static str {
        ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"][self as usize]
    }
}

impl Text for Quota {
    const FORM: Form = form_of::<Self>("quota", "a limit and a window, for example `100/1m`")
        .pattern(r"^\s*\d[\d_]*\s*(/|\s[Pp][Ee][Rr]\s)\s*((\d+\s*)?[A-Za-z]+\s*)+$");

    fn parse(text: &str) -> Result<Self, String> {
        text.parse().map_err(|error: slidegate::Error| error.to_string())
    }
}

impl Text for Algorithm {
    const FORM: Form = form_of::<Self>("algorithm", Self::NAMES);

    fn parse(text: &str) -> Result<Self, String> {
        text.parse().map_err(|_| match foreign::algorithm(text) {
            Some(ours) => format!("must be {}; did you mean `{ours}`?", Self::FORM.expected),
            None => String::new(),
        })
    }
}
