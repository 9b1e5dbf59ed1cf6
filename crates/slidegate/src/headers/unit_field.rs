//! Names of fields for each unit of cost.

use super::style::XRateLimit;
use crate::request::CostUnit;

/// Whose fields they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dialect {
    OpenAi,
    Anthropic,
}

/// The content of a field for its unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Number {
    Limit,
    Remaining,
    Reset,
}

/// The field of a number of a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct UnitField {
    pub(super) dialect: Dialect,
    pub(super) unit: CostUnit,
    pub(super) number: Number,
}

pub(super) const NUMBERS: [Number; 3] = [Number::Limit, Number::Remaining, Number::Reset];
/// Fields of both dialects.
#[cfg(feature = "tower")]
pub(super) const UNIT_FIELDS: usize = 18;

impl UnitField {
    /// The fields of both dialects, in the order in which they are written.
    #[cfg(feature = "tower")]
    pub(super) fn all() -> [Self; UNIT_FIELDS] {
        let mut fields = Dialect::OpenAi.fields().chain(Dialect::Anthropic.fields());
        std::array::from_fn(|_| fields.next().expect("UNIT_FIELDS is their number"))
    }

    /// The position in [`all`](Self::all).
    #[cfg(feature = "tower")]
    pub(super) fn index(self) -> usize {
        let first = match self.dialect {
            Dialect::OpenAi => 0,
            Dialect::Anthropic => 6,
        };
        first + self.unit as usize * NUMBERS.len() + self.number as usize
    }

    pub(super) const fn as_str(self) -> &'static str {
        use CostUnit::{InputTokens, OutputTokens, Requests, Tokens};
        use Number::{Limit, Remaining, Reset};
        match (self.dialect, self.unit, self.number) {
            (Dialect::OpenAi, Requests, Limit) => "x-ratelimit-limit-requests",
            (Dialect::OpenAi, Requests, Remaining) => "x-ratelimit-remaining-requests",
            (Dialect::OpenAi, Requests, Reset) => "x-ratelimit-reset-requests",
            (Dialect::OpenAi, _, Limit) => "x-ratelimit-limit-tokens",
            (Dialect::OpenAi, _, Remaining) => "x-ratelimit-remaining-tokens",
            (Dialect::OpenAi, _, Reset) => "x-ratelimit-reset-tokens",
            (Dialect::Anthropic, Requests, Limit) => "anthropic-ratelimit-requests-limit",
            (Dialect::Anthropic, Requests, Remaining) => "anthropic-ratelimit-requests-remaining",
            (Dialect::Anthropic, Requests, Reset) => "anthropic-ratelimit-requests-reset",
            (Dialect::Anthropic, Tokens, Limit) => "anthropic-ratelimit-tokens-limit",
            (Dialect::Anthropic, Tokens, Remaining) => "anthropic-ratelimit-tokens-remaining",
            (Dialect::Anthropic, Tokens, Reset) => "anthropic-ratelimit-tokens-reset",
            (Dialect::Anthropic, InputTokens, Limit) => "anthropic-ratelimit-input-tokens-limit",
            (Dialect::Anthropic, InputTokens, Remaining) => "anthropic-ratelimit-input-tokens-remaining",
            (Dialect::Anthropic, InputTokens, Reset) => "anthropic-ratelimit-input-tokens-reset",
            (Dialect::Anthropic, OutputTokens, Limit) => "anthropic-ratelimit-output-tokens-limit",
            (Dialect::Anthropic, OutputTokens, Remaining) => "anthropic-ratelimit-output-tokens-remaining",
            (Dialect::Anthropic, OutputTokens, Reset) => "anthropic-ratelimit-output-tokens-reset",
        }
    }
}

impl Dialect {
    /// That of a style, if it has fields for each unit.
    pub(super) fn of(style: XRateLimit) -> Option<Self> {
        match style {
            XRateLimit::OpenAi => Some(Self::OpenAi),
            XRateLimit::Anthropic => Some(Self::Anthropic),
            XRateLimit::Off | XRateLimit::EpochSeconds | XRateLimit::DeltaSeconds => None,
        }
    }

    /// The units that have fields, in the order of [`CostUnit`].
    pub(super) fn units(self) -> &'static [CostUnit] {
        match self {
            Self::OpenAi => &[CostUnit::Requests, CostUnit::Tokens],
            Self::Anthropic => {
                &[CostUnit::Requests, CostUnit::Tokens, CostUnit::InputTokens, CostUnit::OutputTokens]
            }
        }
    }

    /// All fields, in the order in which they are written.
    pub(super) fn fields(self) -> impl Iterator<Item = UnitField> {
        self.units()
            .iter()
            .flat_map(move |unit| NUMBERS.map(move |number| UnitField { dialect: self, unit: *unit, number }))
    }
}
