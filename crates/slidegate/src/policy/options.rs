//! What a policy does besides its quota.

use std::time::Duration;

use super::matcher::Match;
use super::overrides::Override;
use super::tiers::Tiers;
use crate::amount::Amount;
use crate::block::Block;
use crate::charge::{Excess, OnMissing, OnStoreError};
use crate::cost::Counts;
use crate::fold::Fold;
use crate::hold::Unsettled;
use crate::request::OwnedValue;

/// What a policy does besides its quota. [`Policy`](crate::Policy)'s `with_` methods set it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct PolicyOptions {
    /// Whether its denials deny the request; if not, the policy is a shadow.
    pub enforced: bool,
    /// The conditions with their attributes. All must hold.
    pub conditions: Vec<(String, Match)>,
    /// Whether the policy applies only to requests that name it.
    pub only_when_named: bool,
    /// What happens to a request that lacks an attribute of the scope, if set.
    pub on_missing: Option<OnMissing>,
    /// The folded attributes and their folds.
    pub folds: Vec<(String, Fold)>,
    /// The quotas by the value of an attribute.
    pub tiers: Option<Tiers>,
    /// The attribute with the day of the month on which windows begin.
    pub anchor_attribute: Option<String>,
    /// The part of a request's cost that the policy counts.
    pub counts: Counts,
    /// The name of the unit of cost, if set.
    pub unit: Option<Box<str>>,
    /// What happens to a cost that exceeds what remains.
    pub excess: Excess,
    /// How long a request that a proxy asks about waits for its turn instead of being denied at once.
    pub wait: Option<Duration>,
    /// What happens if a shared store does not reply in time.
    pub on_store_error: OnStoreError,
    /// The amount held for a reservation without a cost, until one is learned.
    pub estimate: Option<Amount>,
    /// Whether the estimate is learned.
    pub learns_estimate: bool,
    /// What happens to holds that expire unsettled; not for [`Quota::in_flight`](crate::Quota::in_flight).
    pub unsettled: Unsettled,
    /// The shares of a key's limit, in percent, whose crossing is reported, in ascending order.
    pub notify: Box<[u8]>,
    /// Whether the total of each key is reported when its calendar window ends.
    pub notify_closed: bool,
    pub(super) overrides: Vec<Override>,
    pub(super) blocks: Vec<(Vec<OwnedValue>, Block)>,
}

impl Default for PolicyOptions {
    fn default() -> Self {
        Self {
            enforced: true,
            conditions: Vec::new(),
            only_when_named: false,
            on_missing: None,
            folds: Vec::new(),
            tiers: None,
            anchor_attribute: None,
            counts: Counts::default(),
            unit: None,
            excess: Excess::default(),
            wait: None,
            on_store_error: OnStoreError::default(),
            estimate: None,
            learns_estimate: false,
            unsettled: Unsettled::default(),
            notify: Box::default(),
            notify_closed: false,
            overrides: Vec::new(),
            blocks: Vec::new(),
        }
    }
}

impl PolicyOptions {
    pub(super) fn when_missing(&self) -> OnMissing {
        self.on_missing.unwrap_or_default()
    }

    /// Number of overrides.
    #[must_use]
    pub fn override_count(&self) -> usize {
        self.overrides.len()
    }

    /// Number of blocks, including expired ones.
    #[must_use]
    pub fn block_count(&self) -> usize {
        self.blocks.len()
    }
}
