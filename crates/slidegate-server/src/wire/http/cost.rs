//! Costs in bodies: a number, or numbers by name.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use schemars::JsonSchema;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde::{Deserialize, de};

use super::text::Text;
use crate::limits::{MAX_COST, MAX_COST_NAMES};
use crate::wire::problem::Problem;
use crate::wire::request::{check_cost, named_cost};

/// A number, or numbers by name. Each policy counts one of them, their sum, or 1 per request. An unknown name is a
/// 400 if a policy counts a name that is missing.
#[derive(Debug, JsonSchema)]
#[schemars(untagged)]
pub(super) enum Cost<'a> {
    Number(#[schemars(range(max = MAX_COST))] u64),
    #[schemars(
        with = "BTreeMap<String, u64>",
        extend(
            "minProperties" = 1,
            "maxProperties" = MAX_COST_NAMES,
            "additionalProperties" = {"type": "integer", "minimum": 0, "maximum": MAX_COST},
            "propertyNames" = {"pattern": "^[A-Za-z0-9_.-]{1,64}$"},
            "example" = {"input": 900, "output": 4096},
        )
    )]
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
        let read = match self {
            Self::Number(cost) => check_cost(*cost).map(|()| (*cost).into()),
            Self::Named(costs) => {
                let named: Vec<(&str, u64)> = costs.iter().map(|(name, cost)| (&**name, *cost)).collect();
                named_cost(&named)
            }
        };
        read.map_err(|bad| Problem::of(bad, ""))
    }
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
