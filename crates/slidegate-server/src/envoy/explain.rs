//! Explains a descriptor's limit, level by level, as text and JSON.
//!
//! Uses the lookup of decisions, [`super::EnvoyConfig::lookup`].

use std::fmt;

use serde::Serialize;
use serde_json::{Value, json};
use slidegate::Excess;

use super::matcher::{MatchKind, MatchStep};
use super::{EnvoyConfig, Lookup, Rate};

/// Maximum names listed if none of a level matches.
const MAX_LISTED: usize = 8;

/// A descriptor's limit, and why it applies.
#[derive(Debug)]
pub(crate) struct Explanation {
    domain: String,
    entries: Vec<(String, String)>,
    levels: Vec<LevelExplanation>,
    outcome: LimitOutcome,
    /// Whether another descriptor's limit in the request replaces this one.
    is_replaced: bool,
}

/// The match of one entry.
#[derive(Debug)]
struct LevelExplanation {
    /// Names that did not match, in search order.
    missed: Vec<String>,
    /// The name of the matching node, how it matched, and its file and line.
    found: Option<(String, &'static str, String)>,
    /// The names at this level, if nothing matched.
    known: Vec<String>,
}

#[derive(Debug, Serialize)]
#[serde(tag = "outcome", rename_all = "lowercase")]
enum LimitOutcome {
    #[serde(rename = "no limit")]
    NoLimit {
        why: String,
    },
    Unlimited {
        stat_key: String,
    },
    Limited(LimitFound),
}

/// The limit that applies.
#[derive(Debug, Serialize)]
struct LimitFound {
    requests_per_unit: u32,
    unit: &'static str,
    /// Set if the unit is a calendar window.
    #[serde(skip_serializing_if = "Option::is_none")]
    time_zone: Option<&'static str>,
    algorithm: &'static str,
    /// Special properties of the limit.
    notes: Vec<String>,
    name: String,
    replaces: Vec<String>,
    policy: String,
    key: String,
    stat_key: String,
}

impl EnvoyConfig {
    /// Explains the limit of each descriptor of a request. `carried` is the limit carried by the
    /// request.
    pub(crate) fn explain(
        &self,
        domain: &str,
        descriptors: &[Vec<(&str, &str)>],
        carried: Option<Rate>,
    ) -> Vec<Explanation> {
        let lookups: Vec<_> =
            descriptors.iter().map(|entries| self.lookup(domain, entries, carried)).collect();
        let replaced = super::replaced(&lookups);
        let each = descriptors.iter().zip(lookups).zip(replaced);
        each.map(|((entries, lookup), is_replaced)| {
            explanation(self, (domain, entries, carried), lookup, is_replaced)
        })
        .collect()
    }
}

fn explanation(
    envoy: &EnvoyConfig,
    (domain, entries, carried): (&str, &[(&str, &str)], Option<Rate>),
    lookup: Lookup<'_>,
    is_replaced: bool,
) -> Explanation {
    // A carried limit needs no lookup.
    let known = envoy.domains.get(domain).filter(|_| carried.is_none());
    let steps = known.map(|domain| domain.top.walk(entries).steps).unwrap_or_default();
    let levels = steps.iter().zip(entries).map(|(step, (key, value))| level(step, key, value)).collect();
    let outcome = match lookup {
        Lookup::NoMatch { domain_found: false } => {
            let known = listed(envoy.domains.keys().map(|name| format!("`{name}`")));
            LimitOutcome::NoLimit { why: format!("no file has the domain; there are {known}") }
        }
        Lookup::NoMatch { domain_found: true } => {
            LimitOutcome::NoLimit { why: why_no_limit(&steps, entries) }
        }
        Lookup::Unlimited { stat_key, .. } => {
            LimitOutcome::Unlimited { stat_key: stat_key.into_owned().into_text() }
        }
        Lookup::Limited(hit) => {
            let mut notes = Vec::new();
            let mut note = |applies: bool, text: &str| notes.extend(applies.then(|| text.to_owned()));
            note(carried.is_some(), "the request carries it, so the files do not apply");
            note(hit.rate.requests_per_unit == 0, "denies every request");
            note(hit.rule.shadow_mode, "shadow: reports, but never denies");
            note(
                hit.rule.quota_mode,
                "denies only if all other limits with quota_mode in the request deny too",
            );
            note(
                hit.excess == Excess::Charge,
                "a cost is admitted while anything remains; the overdraft delays later requests",
            );
            note(hit.excess == Excess::Count, "denied hits are charged too");
            let shares = steps.iter().any(|step| step.found.is_some_and(|(node, _)| node.share_threshold));
            note(shares, "all values of the wildcard share one counter");
            let quota = envoy.options.quota(hit.rate, hit.rule.algorithm);
            LimitOutcome::Limited(LimitFound {
                requests_per_unit: hit.rate.requests_per_unit,
                unit: hit.rate.unit.name(),
                time_zone: quota.calendar_window().map(|calendar| calendar.time_zone()),
                algorithm: quota.algorithm().name(),
                notes,
                name: hit.rule.name.clone(),
                replaces: hit.rule.replaces.clone(),
                policy: hit.policy.to_owned(),
                key: hit.key,
                stat_key: hit.stat_key.into_owned().into_text(),
            })
        }
    };
    let entries = entries.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    Explanation { domain: domain.to_owned(), entries, levels, outcome, is_replaced }
}

fn level(step: &MatchStep<'_>, key: &str, value: &str) -> LevelExplanation {
    let wildcards = || step.level.wildcards().map(|name| format!("`{name}`"));
    let mut missed = Vec::new();
    let how = step.found.map(|(_, how)| how);
    if how != Some(MatchKind::Exact) {
        missed.push(format!("`{key}_{value}` does not exist"));
    }
    if !matches!(how, Some(MatchKind::Exact | MatchKind::Wildcard)) && wildcards().next().is_some() {
        missed.push(format!("no wildcard matches, of {}", listed(wildcards())));
    }
    if how.is_none() {
        missed.push(format!("`{key}` for any value does not exist"));
    }
    let found = step.found.map(|(node, how)| {
        let how = match how {
            MatchKind::Exact => "by key and value",
            MatchKind::Wildcard => "by wildcard",
            MatchKind::AnyValue => "by key, for any value",
        };
        (node.name.clone(), how, node.location.clone())
    });
    let known = if found.is_some() {
        Vec::new()
    } else {
        step.level.nodes.iter().map(|node| node.name.clone()).collect()
    };
    LevelExplanation { missed, found, known }
}

/// Why a domain has no limit for the entries.
fn why_no_limit(steps: &[MatchStep<'_>], entries: &[(&str, &str)]) -> String {
    let Some((last, at)) = steps.last().zip(steps.len().checked_sub(1)) else {
        return "the descriptor has no entries".into();
    };
    let (count, reached) = (entries.len(), at + 1);
    match last.found {
        None => format!("nothing in the files matches entry {reached}"),
        Some((node, _)) if count > reached => {
            format!("the request has {count} entries, and below `{}` the files have none", node.name)
        }
        Some((node, _)) if node.below.nodes.is_empty() => {
            format!("`{}` has no rate_limit, so it is allowed", node.name)
        }
        Some((node, _)) => {
            format!("`{}` has no rate_limit of its own, only descriptors below it", node.name)
        }
    }
}

fn listed(names: impl Iterator<Item = String>) -> String {
    let mut names: Vec<_> = names.collect();
    let more = names.len().saturating_sub(MAX_LISTED);
    names.truncate(MAX_LISTED);
    match more {
        _ if names.is_empty() => "none".to_owned(),
        0 => names.join(", "),
        more => format!("{} and {more} more", names.join(", ")),
    }
}

impl Explanation {
    pub(crate) fn json(&self) -> Value {
        let levels = self.levels.iter().zip(&self.entries).map(|(level, (key, value))| {
            let found = level.found.as_ref();
            json!({
                "entry": { "key": key, "value": value },
                "missed": level.missed,
                "found": found.map(|(name, how, place)| json!({ "name": name, "how": how, "at": place })),
            })
        });
        json!({ "domain": self.domain, "levels": levels.collect::<Vec<_>>(), "limit": self.outcome, "replaced": self.is_replaced })
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "domain     {}", self.domain)?;
        for (at, (key, value)) in self.entries.iter().enumerate() {
            write!(f, "entry {:<4} {key}={value}: ", at + 1)?;
            let Some(level) = self.levels.get(at) else {
                writeln!(f, "not searched")?;
                continue;
            };
            match &level.found {
                Some((name, how, place)) => writeln!(f, "`{name}` in {place}, {how}")?,
                None => {
                    let known = listed(level.known.iter().map(|name| format!("`{name}`")));
                    writeln!(f, "nothing; there are {known}")?;
                }
            }
            for missed in &level.missed {
                writeln!(f, "           {missed}")?;
            }
        }
        match &self.outcome {
            LimitOutcome::NoLimit { why } => write!(f, "limit      none: {why}"),
            LimitOutcome::Unlimited { stat_key } => write!(f, "limit      unlimited\nstatistics {stat_key}"),
            LimitOutcome::Limited(limited) => limited.fmt(f),
        }?;
        if self.is_replaced {
            f.write_str("\nreplaced   by another limit of this request, so it does not apply")?;
        }
        Ok(())
    }
}

impl fmt::Display for LimitFound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            requests_per_unit,
            unit,
            time_zone,
            algorithm,
            notes,
            name,
            replaces,
            policy,
            key,
            stat_key,
        } = self;
        let zone = time_zone.map_or_else(String::new, |zone| format!(" in {zone}"));
        writeln!(f, "limit      {requests_per_unit} per {unit}{zone} by {algorithm}")?;
        for note in notes {
            writeln!(f, "           {note}")?;
        }
        if !name.is_empty() {
            writeln!(f, "name       {name}")?;
        }
        if !replaces.is_empty() {
            writeln!(f, "replaces   {}", replaces.join(", "))?;
        }
        write!(f, "policy     {policy}\nkey        {key}\nstatistics {stat_key}")
    }
}
