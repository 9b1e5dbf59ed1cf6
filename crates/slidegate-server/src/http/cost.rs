//! Costs in bodies: a number, or numbers by name.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserializer, MapAccess, Visitor};
use serde::{Deserialize, de};
use slidegate::Policy;

use super::text::Text;
use crate::limits::{MAX_COST, MAX_COST_NAMES};
use crate::problem::Problem;

/// `5`, or `{"input": 900, "output": 4096}`.
#[derive(Debug)]
pub(super) enum Cost<'a> {
    Number(u64),
    Named(Vec<(Cow<'a, str>, u64)>),
}

impl Cost<'_> {
    /// What it is in all.
    #[cfg(fuzzing)]
    pub(super) fn total(&self) -> u64 {
        match self {
            Self::Number(cost) => *cost,
            Self::Named(costs) => costs.iter().fold(0, |sum, (_, cost)| sum.saturating_add(*cost)),
        }
    }

    /// The cost for the library.
    pub(super) fn read(&self) -> Result<slidegate::Cost<'_>, Problem> {
        let costs = match self {
            Self::Number(cost) => {
                is_small(*cost)?;
                return Ok((*cost).into());
            }
            Self::Named(costs) => costs,
        };
        if costs.is_empty() || costs.len() > MAX_COST_NAMES {
            let detail = format!(
                "the cost has {} names; give 1 to {MAX_COST_NAMES} that policies count, or a number",
                costs.len()
            );
            return Err(Problem::field("cost", detail));
        }
        for (at, (name, _)) in costs.iter().enumerate() {
            if !is_name(name) {
                let detail = format!(
                    "invalid name of a cost `{}`: must be 1 to 64 of the characters A-Z a-z 0-9 _ . -",
                    name.chars().take(64).collect::<String>().escape_debug()
                );
                return Err(Problem::field("cost", detail));
            }
            if costs[..at].iter().any(|(before, _)| before == name) {
                let detail = format!("cost `{name}` is given more than once; give it once");
                return Err(Problem::field(format!("cost.{name}"), detail));
            }
        }
        is_small(costs.iter().fold(0, |sum, (_, cost)| sum.saturating_add(*cost)))?;
        let named: Vec<(&str, u64)> = costs.iter().map(|(name, cost)| (&**name, *cost)).collect();
        Ok(named.as_slice().into())
    }
}

/// Whether policies can count a cost of this name.
fn is_name(name: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-');
    (1..=Policy::MAX_NAME).contains(&name.len()) && name.bytes().all(is_allowed)
}

fn is_small(cost: u64) -> Result<(), Problem> {
    if cost <= MAX_COST {
        return Ok(());
    }
    let detail = format!("cost {cost} is too large; give a whole number from 0 to {MAX_COST}");
    Err(Problem::field("cost", detail))
}

impl<'de: 'a, 'a> Deserialize<'de> for Cost<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NumberOrNames;

        impl<'de> Visitor<'de> for NumberOrNames {
            type Value = Cost<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a whole number from 0 to {MAX_COST}, or such numbers by name")
            }

            fn visit_u64<E: de::Error>(self, cost: u64) -> Result<Cost<'de>, E> {
                Ok(Cost::Number(cost))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Cost<'de>, A::Error> {
                let mut costs = Vec::new();
                while let Some((Text(name), cost)) = map.next_entry()? {
                    // Keep one too many, so that the request is rejected with the right error.
                    if costs.len() <= MAX_COST_NAMES {
                        costs.push((name, cost));
                    }
                }
                Ok(Cost::Named(costs))
            }
        }

        deserializer.deserialize_any(NumberOrNames)
    }
}
