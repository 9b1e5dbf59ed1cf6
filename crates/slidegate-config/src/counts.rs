//! The keys `counts` and `unit`: which cost of a request a policy counts, and its unit.

use std::collections::BTreeMap;

use lined_config::{Form, Section};
use schemars::JsonSchema;
use serde::Deserialize;
use slidegate::{Amount, Counts};

use crate::values::{NAME, Parsed, Text, form_of};

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
pub(crate) enum CountsValue {
    What(Parsed<Counts>),
    Weights(Weights),
}

/// Weights of costs by name.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(extend(
    "propertyNames" = {"format": "name"},
    "maxProperties" = Counts::MAX_WEIGHTS,
    "x-example" = "input: 0.2, cached: 0.02, output: 1"
))]
pub(crate) struct Weights(BTreeMap<String, Parsed<Amount>>);

impl Weights {
    /// The weights. Reports those that are too large.
    pub(crate) fn read(&self, section: &Section<'_>) -> Counts {
        let Self(weights) = self;
        let counts = section.child("counts");
        if weights.is_empty() && counts.entries().is_empty() {
            section.invalid("counts", "has no weights; write for example `counts: {input: 0.2, output: 1}`");
        }
        for (name, weight) in weights.iter().filter(|(_, weight)| ***weight > Counts::MAX_WEIGHT.into()) {
            let most = Counts::MAX_WEIGHT;
            counts
                .report(name, format_args!("invalid weight `{}` of `{name}`: must be 0 to {most}", weight.0));
        }
        if weights.is_empty() {
            return Counts::Cost;
        }
        let weights = weights.iter();
        Counts::Weighted(
            weights.map(|(name, weight)| (name.clone(), weight.0.min(Counts::MAX_WEIGHT.into()))).collect(),
        )
    }
}

/// The unit of a cost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Unit(pub(crate) String);

impl Text for Unit {
    const FORM: Form = form_of::<Self>(
        "unit",
        "`requests`, `tokens`, `input-tokens`, `output-tokens`, or another word of 1 to 64 of the characters A-Z a-z 0-9 _ . -, for example `usd`",
    )
    .pattern(NAME.pattern);

    fn parse(text: &str) -> Result<Self, String> {
        NAME.check(text).map(Self)
    }
}

impl Text for Counts {
    const FORM: Form = form_of::<Self>(
        "counts",
        "`cost`, `requests`, or the name of a cost, 1 to 64 of the characters A-Z a-z 0-9 _ . -, for example `output`",
    )
    .pattern(NAME.pattern);

    fn parse(text: &str) -> Result<Self, String> {
        match text {
            "cost" => Ok(Self::Cost),
            "requests" => Ok(Self::Requests),
            name => NAME.check(name).map(Self::Named),
        }
    }
}
