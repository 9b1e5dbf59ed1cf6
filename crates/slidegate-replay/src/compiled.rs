//! A set of policies, compiled for batches of entries: which policies apply to each entry, and
//! where their keys are.
//!
//! It finds what `PolicySet::plan` finds, attribute by attribute instead of request by request.
//! Sets that need more than that are not compiled, and their requests are decided in the ordinary
//! way; so are single requests that are not plain checks.

use slidegate::client_addr::Ipv6Prefix;
use slidegate::{Excess, Match, PolicySet};

use crate::batch::EntryBatch;
use crate::identity::{self, Identity};
use crate::store::Usages;

/// Most policies of a compiled set: for each of them, a batch has a list of its entries' keys.
const MAX_POLICIES: usize = 64;

/// A compiled set, with the keys of the entries of one batch.
#[derive(Debug)]
pub(crate) struct CompiledPolicies {
    policies: Vec<CompiledPolicy>,
    ids: Vec<Identity>,
}

#[derive(Debug)]
struct CompiledPolicy {
    is_enforced: bool,
    /// Attributes and what they must be.
    conditions: Vec<(String, Match)>,
    scope: Vec<String>,
    ipv6_prefix: Ipv6Prefix,
    /// The position of each entry's key in the store; `NO_KEY` if the policy does not apply.
    positions: Vec<u32>,
}

impl CompiledPolicies {
    /// Compiles a set; `None` if a policy of it decides otherwise than by its key's usage alone.
    pub(crate) fn new(policies: &PolicySet) -> Option<Self> {
        let is_simple = |policy: &slidegate::Policy| {
            policy.on_excess() == Excess::Refuse
                && policy.block_count() == 0
                && !policy.is_only_when_named()
                && !policy.expects_reservations()
        };
        if policies.iter().len() > MAX_POLICIES || !policies.iter().all(is_simple) {
            return None;
        }
        let compiled = policies.iter().map(|policy| CompiledPolicy {
            is_enforced: policy.is_enforced(),
            conditions: policy.conditions().to_vec(),
            scope: policy.scope_attributes().to_vec(),
            ipv6_prefix: policy.grouping_prefix(),
            positions: Vec::new(),
        });
        Some(Self { policies: compiled.collect(), ids: Vec::new() })
    }

    /// Finds the keys of a batch's plain checks.
    pub(crate) fn find(&mut self, batch: &EntryBatch, usages: &mut Usages) {
        usages.reserve(batch.entries().len());
        for (at, policy) in self.policies.iter_mut().enumerate() {
            let ids = match policy.column_alone(batch) {
                Some(ids) => ids,
                None => {
                    policy.identify(batch, &mut self.ids);
                    &self.ids
                }
            };
            usages.find_all(at, ids, &mut policy.positions);
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.policies.len()
    }

    #[inline]
    pub(crate) fn is_enforced(&self, policy: usize) -> bool {
        self.policies[policy].is_enforced
    }

    #[inline]
    pub(crate) fn position(&self, policy: usize, entry: usize) -> u32 {
        self.policies[policy].positions[entry]
    }
}

impl CompiledPolicy {
    /// The identities of the entries' keys, if they are those of one column as it is.
    fn column_alone<'b>(&self, batch: &'b EntryBatch) -> Option<&'b [Identity]> {
        match &self.scope[..] {
            [only] if self.conditions.is_empty() && batch.is_plain() => {
                batch.identities(batch.column(only).expect("a batch has all attributes of its policies"))
            }
            _ => None,
        }
    }

    /// The identities of the entries' keys; `NONE` where the policy does not apply.
    fn identify(&self, batch: &EntryBatch, ids: &mut Vec<Identity>) {
        ids.clear();
        let column = |name: &String| batch.column(name).expect("a batch has all attributes of its policies");
        let scope: Vec<usize> = self.scope.iter().map(column).collect();
        let value = |column: usize, at| batch.identity(column, at, self.ipv6_prefix);
        let entries = 0..batch.entries().len();
        match scope[..] {
            [only] => ids.extend(entries.map(|at| value(only, at))),
            [one, other] if batch.identities(one).is_some() && batch.identities(other).is_some() => {
                let [ones, others] = [one, other].map(|column| batch.identities(column).unwrap_or_default());
                ids.extend(ones.iter().zip(others).map(|(one, other)| match (*one, *other) {
                    (identity::NONE, _) | (_, identity::NONE) => identity::NONE,
                    (one, other) => identity::of_values([one, other]),
                }));
            }
            _ => ids.extend(entries.map(|at| {
                let has_all = scope.iter().all(|column| value(*column, at) != identity::NONE);
                let values = scope.iter().map(|column| value(*column, at));
                if has_all { identity::of_values(values) } else { identity::NONE }
            })),
        }
        for (name, condition) in &self.conditions {
            let column = column(name);
            for (at, id) in ids.iter_mut().enumerate() {
                if *id != identity::NONE && !condition.holds(batch.value(column, at)) {
                    *id = identity::NONE;
                }
            }
        }
        if batch.is_plain() {
            return;
        }
        for (entry, id) in batch.entries().iter().zip(ids) {
            if !entry.is_plain_check() {
                *id = identity::NONE;
            }
        }
    }
}
