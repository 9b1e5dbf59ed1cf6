//! Values of the keys of a policy.

use crate::values::{Text, form_of};
use lined_config::Form;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use slidegate::{Excess, Fold, OnMissing, OnStoreError, Policy, reserve::Unsettled};

/// Whether a policy denies requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Deny requests over the limit.
    Enforce,
    /// Report what would be denied, and deny nothing.
    Shadow,
}

/// How a policy's keys are shown in the log, events, top keys and pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum KeysShown {
    /// In full.
    #[default]
    Plain,
    /// The first one or two characters of each value, and a mark that tells keys apart.
    Masked,
    /// A hash.
    Hashed,
}

impl Mode {
    /// The mode of a policy.
    #[must_use]
    pub fn of(policy: &Policy) -> Self {
        if policy.options().enforced { Self::Enforce } else { Self::Shadow }
    }
}

#[derive(Deserialize, JsonSchema)]
#[serde(remote = "Excess", rename_all = "lowercase")]
pub(super) enum ExcessChoice {
    /// Deny it and charge nothing.
    Refuse,
    /// Admit it while anything remains, and charge all of it.
    Charge,
    /// Deny it and still charge it.
    Count,
}

#[derive(Deserialize, JsonSchema)]
#[serde(remote = "Unsettled", rename_all = "lowercase")]
enum UnsettledChoice {
    /// Charge it in full.
    Charge,
    /// Drop it.
    Forget,
}

#[derive(Deserialize, JsonSchema)]
#[serde(remote = "OnMissing", rename_all = "kebab-case")]
enum OnMissingChoice {
    /// Do not limit it by this policy.
    Skip,
    /// Count all such requests as one.
    OneKey,
    /// Deny it.
    Deny,
}

#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
pub(super) struct OnMissingValue(#[serde(with = "OnMissingChoice")] pub(super) OnMissing);

#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct UnsettledValue(#[serde(with = "UnsettledChoice")] pub(super) Unsettled);

#[derive(Deserialize, JsonSchema)]
#[serde(remote = "OnStoreError", rename_all = "lowercase")]
pub(super) enum OnStoreErrorChoice {
    /// Count in this process's memory.
    Local,
    /// Admit everything.
    Allow,
    /// Deny everything.
    Deny,
}

impl Text for Fold {
    const FORM: Form = form_of::<Self>("fold", "`case` or `slash`").pattern("^(case|slash)$");

    fn parse(text: &str) -> Result<Self, String> {
        Self::from_name(text).ok_or_else(String::new)
    }
}

/// What of a key is reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Notice {
    /// That it reaches this share of its limit, in percent.
    Share(u8),
    /// Its total when a calendar window ends.
    Closed,
}

impl Text for Notice {
    const FORM: Form = form_of::<Self>("notice", "1% to 100%, for example `80%`, or `closed`")
        .pattern("^([0-9]{1,3}%|closed)$");

    fn parse(text: &str) -> Result<Self, String> {
        if text == "closed" {
            return Ok(Self::Closed);
        }
        let number = text.strip_suffix('%').filter(|digits| digits.bytes().all(|one| one.is_ascii_digit()));
        let percent = number.and_then(|digits| digits.parse().ok()).filter(|one| (1..=100).contains(one));
        percent.map(Self::Share).ok_or_else(String::new)
    }
}
