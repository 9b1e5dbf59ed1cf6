//! Folding: the policies of the configuration with all that was changed since, as one set.
//!
//! What no longer fits, such as a change of a policy that has left the configuration, is left out and said: it must keep
//! nobody from starting.

use std::collections::{BTreeMap, HashMap};

use slidegate::{Error, Policy, PolicySet, Quota};

use super::document::{Document, KeyChange, KeyKind};
use super::key_text::KeyText;
use super::terms::Mode;

/// What follows the name of a policy in that of its candidate.
pub(crate) const CANDIDATE: &str = ".candidate";

/// The policy that this one is the candidate of.
pub(crate) fn candidate_of(name: &str) -> Option<&str> {
    name.strip_suffix(CANDIDATE)
}

/// What the configuration says.
#[derive(Debug, Clone, Default)]
pub(crate) struct Base {
    pub(crate) policies: PolicySet,
    /// Quotas that are tried beside those of policies, by their names.
    pub(crate) candidates: BTreeMap<String, Quota>,
}

impl Base {
    /// The candidate that a policy has after all changes.
    pub(crate) fn candidate(&self, document: &Document, policy: &str) -> Option<Quota> {
        match document.policies.get(policy) {
            Some(terms) => terms.candidate.as_ref().and_then(|counting| counting.quota().ok()),
            None => self.candidates.get(policy).copied(),
        }
    }
}

/// The set in force, and what could not be, in words. `is_address` tells attributes whose text is an address.
///
/// # Errors
/// Policies that are no set. The configuration's own are one.
pub(crate) fn fold(
    base: &Base,
    document: &Document,
    now_ms: u64,
    is_address: impl Fn(&str) -> bool,
) -> Result<(PolicySet, Vec<String>), Error> {
    let mut refused = Vec::new();
    let mut keys: HashMap<&str, Vec<&KeyChange>> = HashMap::new();
    for change in document.living(now_ms) {
        keys.entry(&change.policy).or_default().push(change);
    }
    let missing = document.policies.keys().map(String::as_str).chain(keys.keys().copied());
    for name in missing.filter(|name| base.policies.by_name(name).is_none()) {
        refused.push(format!("policy `{name}` was changed and is no longer configured"));
    }
    let mut all = Vec::with_capacity(base.policies.iter().len());
    for configured in base.policies.iter() {
        let name = configured.name();
        let mut policy = configured.clone();
        if let Some(terms) = document.policies.get(name) {
            match terms.quota.quota() {
                Ok(quota) => policy = policy.with_quota(quota),
                Err(why) => refused.push(format!("policy `{name}`: {why}")),
            }
            policy = match terms.mode {
                Mode::Enforce => policy.enforced(),
                Mode::Shadow => policy.shadow(),
            };
        }
        let candidate = base.candidate(document, name).map(|quota| policy.clone().with_quota(quota).shadow());
        let own = keys.get(name).map_or(&[][..], Vec::as_slice);
        policy = with_keys(policy, own, &is_address, &mut refused);
        if let Some(candidate) = candidate {
            // The same keys are blocked and overridden: they are no part of what is tried.
            let candidate = with_keys(candidate, own, &is_address, &mut Vec::new());
            all.push(policy);
            all.push(candidate.renamed(format!("{name}{CANDIDATE}"))?);
        } else {
            all.push(policy);
        }
    }
    Ok((PolicySet::new(all)?, refused))
}

/// The policy with keys that have another limit, and those that are blocked, which wins.
fn with_keys(
    policy: Policy,
    changes: &[&KeyChange],
    is_address: &impl Fn(&str) -> bool,
    refused: &mut Vec<String>,
) -> Policy {
    let mut blocks_last = changes.to_vec();
    blocks_last.sort_by_key(|change| change.kind == KeyKind::Block);
    blocks_last.into_iter().fold(policy, |policy, change| {
        let key = KeyText::read(&policy, &change.key, is_address);
        match key.and_then(|key| Ok((key, change.kind.quota(policy.quota())?))) {
            Ok((key, quota)) => policy.with_override_instead(key.values(), quota),
            Err(why) => {
                refused.push(format!("policy `{}`: {why}", change.policy));
                policy
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::{Counting, Terms, What};
    use slidegate::{Gate, Request};

    fn base() -> Base {
        let policy = |name| Policy::new(name, Quota::per_minute(5)).unwrap().scope(["user"]);
        let candidates = BTreeMap::from([("q".to_owned(), Quota::per_minute(2))]);
        Base { policies: PolicySet::new([policy("p"), policy("q")]).unwrap(), candidates }
    }

    fn key(kind: KeyKind, until_ms: u64) -> KeyChange {
        KeyChange { policy: "q".into(), key: "alice".into(), kind, until_ms, by: "ops".into() }
    }

    /// What is in force must be what was configured and changed, and after its time what was configured again.
    #[test]
    fn changes_lie_over_the_configuration_until_they_end() {
        let mut document = Document::default();
        let terms = Terms { quota: Counting::of(&Quota::per_hour(9)), mode: Mode::Shadow, candidate: None };
        document.set_policy("p", Some(terms), What::Set, "ops", 0);
        document.set_policy(
            "gone",
            Some(Terms::of(base().policies.by_name("p").unwrap(), None)),
            What::Set,
            "ops",
            0,
        );
        document.set_key(key(KeyKind::Block, 20)).unwrap();
        document.set_key(key(KeyKind::of(&Quota::per_minute(7)), 30)).unwrap();
        let limits = |now_ms| {
            let (policies, refused) = fold(&base(), &document, now_ms, |_| false).unwrap();
            assert_eq!(refused, ["policy `gone` was changed and is no longer configured"]);
            let gate = Gate::new(policies);
            let alice = Request::new().with("user", "alice");
            gate.peek(&alice)
                .iter()
                .map(|one| (one.policy().name().to_owned(), one.limit, one.policy().is_enforced()))
                .collect::<Vec<_>>()
        };
        let expected = |q: u64, candidate: u64| {
            [
                ("p".to_owned(), 9, false),
                ("q".to_owned(), q, true),
                ("q.candidate".to_owned(), candidate, false),
            ]
        };
        assert_eq!(limits(19), expected(0, 0));
        assert_eq!(limits(20), expected(7, 7));
        assert_eq!(limits(30), expected(5, 2));
    }
}
