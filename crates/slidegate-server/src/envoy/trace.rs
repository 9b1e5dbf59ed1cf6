//! Why a descriptor has the limit it has: every level said in words, and as JSON.
//!
//! It goes the way that a decision goes, [`super::Envoy::lookup`], and tells what it sees there.

use std::fmt;

use serde::Serialize;
use serde_json::{Value, json};
use slidegate::Excess;

use super::matcher::{How, Step};
use super::{Envoy, Lookup, Rate};

/// Most names of a level that are listed where none of them fits.
const MAX_LISTED: usize = 8;

/// What became of one descriptor.
#[derive(Debug)]
pub(crate) struct Told {
    domain: String,
    entries: Vec<(String, String)>,
    levels: Vec<LevelTold>,
    outcome: Outcome,
}

/// What was found for one entry.
#[derive(Debug)]
struct LevelTold {
    /// What was looked for and not found, in order.
    missed: Vec<String>,
    /// The name of what was found, how, and where it stands.
    found: Option<(String, &'static str, String)>,
    /// If nothing was found: what there is.
    known: Vec<String>,
}

#[derive(Debug, Serialize)]
#[serde(tag = "outcome", rename_all = "lowercase")]
enum Outcome {
    #[serde(rename = "no limit")]
    NoLimit {
        why: String,
    },
    Unlimited {
        stat_key: String,
    },
    Limited(Limited),
}

/// The limit that applies.
#[derive(Debug, Serialize)]
struct Limited {
    requests_per_unit: u32,
    unit: &'static str,
    algorithm: &'static str,
    /// What is special about it.
    notes: Vec<String>,
    name: String,
    replaces: Vec<String>,
    policy: String,
    key: String,
    stat_key: String,
}

/// Says what applies to a descriptor and why. `own` is the limit that it brings along.
pub(crate) fn tell(envoy: &Envoy, domain: &str, entries: &[(&str, &str)], own: Option<Rate>) -> Told {
    // Nothing is looked for where the request says the limit.
    let known = envoy.domain(domain).filter(|_| own.is_none());
    let steps = known.map(|domain| domain.top.walk(entries).steps).unwrap_or_default();
    let levels = steps.iter().zip(entries).map(|(step, (key, value))| level(step, key, value)).collect();
    let outcome = match envoy.lookup(domain, entries, own) {
        Lookup::NoMatch { domain_found: false } => {
            let known = listed(envoy.domains.keys().map(|name| format!("`{name}`")));
            Outcome::NoLimit { why: format!("no file has the domain; there are {known}") }
        }
        Lookup::NoMatch { domain_found: true } => Outcome::NoLimit { why: why_none(&steps, entries) },
        Lookup::Unlimited { stat_key, .. } => {
            Outcome::Unlimited { stat_key: stat_key.into_owned().into_text() }
        }
        Lookup::Limited(hit) => {
            let mut notes = Vec::new();
            let mut note = |holds: bool, told: &str| notes.extend(holds.then(|| told.to_owned()));
            note(own.is_some(), "it came with the request, so the files are not asked");
            note(hit.rate.requests_per_unit == 0, "nothing passes");
            note(hit.rule.shadow_mode, "shadow: reports and never denies");
            note(
                hit.rule.quota_mode,
                "denies only together with all other limits of quota_mode in the request",
            );
            note(
                hit.excess == Excess::Charge,
                "a cost is admitted while anything remains, and what exceeds the limit is waited out",
            );
            note(hit.excess == Excess::Count, "hits count whether they are refused or not");
            let shares = steps.iter().any(|step| step.found.is_some_and(|(node, _)| node.shares));
            note(shares, "all values of the wildcard count together");
            let algorithm = hit.rule.algorithm.unwrap_or(envoy.reading.algorithm);
            Outcome::Limited(Limited {
                requests_per_unit: hit.rate.requests_per_unit,
                unit: hit.rate.unit.name(),
                algorithm: algorithm.name(),
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
    Told { domain: domain.to_owned(), entries, levels, outcome }
}

fn level(step: &Step<'_>, key: &str, value: &str) -> LevelTold {
    let wildcards = || step.level.wildcards().map(|name| format!("`{name}`"));
    let mut missed = Vec::new();
    let how = step.found.map(|(_, how)| how);
    if how != Some(How::Exact) {
        missed.push(format!("`{key}_{value}` is not there"));
    }
    if !matches!(how, Some(How::Exact | How::Wildcard)) && wildcards().next().is_some() {
        missed.push(format!("no wildcard fits, of {}", listed(wildcards())));
    }
    if how.is_none() {
        missed.push(format!("`{key}` for any value is not there"));
    }
    let found = step.found.map(|(node, how)| {
        let how = match how {
            How::Exact => "by key and value",
            How::Wildcard => "by wildcard",
            How::AnyValue => "by key, for any value",
        };
        (node.name.clone(), how, node.place.clone())
    });
    let known = if found.is_some() {
        Vec::new()
    } else {
        step.level.nodes.iter().map(|node| node.name.clone()).collect()
    };
    LevelTold { missed, found, known }
}

/// Why a known domain has no limit for the entries.
fn why_none(steps: &[Step<'_>], entries: &[(&str, &str)]) -> String {
    let Some((last, at)) = steps.last().zip(steps.len().checked_sub(1)) else {
        return "the descriptor has no entries".into();
    };
    let (asked, reached) = (entries.len(), at + 1);
    match last.found {
        None => format!("nothing in the files fits entry {reached}"),
        Some((node, _)) if asked > reached => {
            format!("the request has {asked} entries, and below `{}` the files have none", node.name)
        }
        Some((node, _)) if node.below.nodes.is_empty() => {
            format!("`{}` has no rate_limit, so it passes", node.name)
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

impl Told {
    pub(crate) fn json(&self) -> Value {
        let levels = self.levels.iter().zip(&self.entries).map(|(level, (key, value))| {
            let found = level.found.as_ref();
            json!({
                "entry": { "key": key, "value": value },
                "missed": level.missed,
                "found": found.map(|(name, how, place)| json!({ "name": name, "how": how, "at": place })),
            })
        });
        json!({ "domain": self.domain, "levels": levels.collect::<Vec<_>>(), "limit": self.outcome })
    }
}

impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "domain     {}", self.domain)?;
        for (at, (key, value)) in self.entries.iter().enumerate() {
            write!(f, "entry {:<4} {key}={value}: ", at + 1)?;
            let Some(level) = self.levels.get(at) else {
                writeln!(f, "not looked for")?;
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
            Outcome::NoLimit { why } => write!(f, "limit      none: {why}"),
            Outcome::Unlimited { stat_key } => write!(f, "limit      unlimited\nstatistics {stat_key}"),
            Outcome::Limited(limited) => limited.fmt(f),
        }
    }
}

impl fmt::Display for Limited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { requests_per_unit, unit, algorithm, notes, name, replaces, policy, key, stat_key } = self;
        writeln!(f, "limit      {requests_per_unit} per {unit} by {algorithm}")?;
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
