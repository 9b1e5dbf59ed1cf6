//! Folding: applies run-time changes to the configured policies and builds one policy set.
//!
//! A change that no longer applies, for example because its policy was removed from the config, is skipped
//! and reported: it must not prevent a start.

use std::collections::{BTreeMap, HashMap};

use slidegate::{Block, Error, OwnedValue, Policy, PolicySet, Quota, clock::Timestamp};
use slidegate_config::added::Added;
use slidegate_config::escalate::Escalation;
use slidegate_config::names::{self, CANDIDATE};
use slidegate_config::policy::KeysShown;
use slidegate_config::policy::Mode;

use super::document::{Document, KeyChange, KeyKind, KeyTerms};
use super::terms::Terms;
use crate::wire::key_text::{KeyText, OF_MISSING};

/// The configured policies.
#[derive(Debug, Clone, Default)]
pub(crate) struct Base {
    pub(crate) policies: PolicySet,
    /// Candidate quotas, by policy name.
    pub(crate) candidates: BTreeMap<String, Quota>,
    /// When keys are blocked, by policy name.
    pub(crate) escalations: HashMap<String, Escalation>,
}

impl Base {
    /// The candidate of a policy after all changes.
    pub(crate) fn candidate(&self, document: &Document, policy: &str) -> Option<Quota> {
        let is_own = |terms: &&Terms| terms.added.is_none() || self.policies.by_name(policy).is_none();
        match document.policies.get(policy).filter(is_own) {
            Some(terms) => terms.candidate.as_ref().and_then(|counting| counting.quota().ok()),
            None => self.candidates.get(policy).copied(),
        }
    }
}

/// The policies to activate.
#[derive(Debug)]
pub(crate) struct Folded {
    pub(crate) policies: PolicySet,
    /// Changes that could not be applied, with reasons.
    pub(crate) refused: Vec<String>,
    /// The rejected changes that make a policy invalid.
    pub(crate) invalid: Vec<String>,
    /// Policies added at run time, and their redaction of keys.
    pub(crate) keys_shown: HashMap<String, KeysShown>,
    /// When keys are blocked, by policy name.
    pub(crate) escalations: HashMap<String, Escalation>,
}

/// Applies changes to the configured policies. `addresses` are the attributes with IP addresses.
///
/// # Errors
/// The policies are not a valid set. The configured ones alone always are.
pub(crate) fn fold(
    base: &Base,
    document: &Document,
    now_ms: u64,
    addresses: &[String],
) -> Result<Folded, Error> {
    let mut folded = Folded {
        policies: PolicySet::default(),
        refused: Vec::new(),
        invalid: Vec::new(),
        keys_shown: HashMap::new(),
        escalations: base.escalations.clone(),
    };
    let mut policies: Vec<Policy> = base.policies.iter().cloned().collect();
    policies.extend(folded.added(base, document, addresses));
    let mut keys: HashMap<&str, Vec<&KeyChange>> = HashMap::new();
    for change in document.living(now_ms) {
        keys.entry(&change.policy).or_default().push(change);
    }
    let missing = document.policies.keys().map(String::as_str).chain(keys.keys().copied());
    let is_missing = |name: &&str| base.policies.by_name(name).is_none() && document.added(name).is_none();
    for name in missing.filter(is_missing) {
        folded.refused.push(format!("policy `{name}` was changed and is no longer configured"));
    }
    let is_address = |attribute: &str| addresses.iter().any(|known| known == attribute);
    let mut all = Vec::with_capacity(policies.len());
    for configured in policies {
        let keys = keys.get(configured.name()).cloned().unwrap_or_default();
        let (policy, candidate) = folded.changed(base, document, configured, keys, &is_address);
        let name = format!("{}{CANDIDATE}", policy.name());
        all.push(policy);
        all.extend(candidate.map(|candidate| candidate.with_name(name)).transpose()?);
    }
    folded.refused.extend(folded.invalid.iter().cloned());
    Ok(Folded { policies: PolicySet::new(all)?, ..folded })
}

impl Folded {
    /// The policies added at run time.
    fn added(&mut self, base: &Base, document: &Document, addresses: &[String]) -> Vec<Policy> {
        let room = PolicySet::MAX_POLICIES.saturating_sub(2 * base.policies.iter().len());
        let mut policies = Vec::new();
        for (name, keys) in
            document.policies.iter().filter_map(|(name, terms)| Some((name, terms.added.as_ref()?)))
        {
            if base.policies.by_name(name).is_some() {
                self.refused.push(format!(
                    "policy `{name}` was added at run time, and the configuration has one of this name, which is in force; \
                     `slidegate policy unset {name}` takes the added one away"
                ));
                continue;
            }
            match Added::read(name, keys, addresses) {
                Ok(_) if 2 * self.keys_shown.len() >= room => self.refused.push(format!(
                    "policy `{name}` was added at run time, and there are too many without it"
                )),
                Ok(added) => {
                    self.keys_shown.insert(name.clone(), added.keys_shown);
                    self.escalations.extend(added.escalation.map(|escalation| (name.clone(), escalation)));
                    policies.push(added.policy);
                }
                Err(why) => self
                    .refused
                    .push(format!("policy `{name}` was added at run time and cannot be read here: {why}")),
            }
        }
        policies
    }

    /// A policy and its candidate with their changes and these of keys.
    fn changed(
        &mut self,
        base: &Base,
        document: &Document,
        configured: Policy,
        mut keys: Vec<&KeyChange>,
        is_address: &impl Fn(&str) -> bool,
    ) -> (Policy, Option<Policy>) {
        let Self { refused, invalid, .. } = self;
        let name = configured.name();
        let mut policy = configured.clone();
        // Changes of an added policy do not apply to a configured one of the same name.
        let is_own = |terms: &&Terms| terms.added.is_none() || base.policies.by_name(name).is_none();
        let terms = document.policies.get(name).filter(is_own);
        if let Some(terms) = terms {
            match terms.quota.quota() {
                Ok(quota) => policy = policy.with_quota(quota),
                Err(why) => refused.push(format!("policy `{name}`: {why}")),
            }
            policy = match terms.mode {
                Mode::Enforce => policy.with_enforced(true),
                Mode::Shadow => policy.with_enforced(false),
            };
        }
        let candidate = base.candidate(document, name);
        let candidate =
            candidate.map(|quota| policy.clone().with_quota(quota).with_enforced(false).with_notify([]));
        let candidate = candidate.map(|one| one.with_notify_closed(false));
        policy = with_keys(policy, &keys, is_address, refused);
        if (terms.is_some() || !keys.is_empty()) && !is_valid(&policy, invalid) {
            keys.retain(|change| change.kind == KeyKind::Block);
            policy = with_keys(configured, &keys, is_address, refused);
        }
        // The candidate gets the same blocks and overrides: they are not under trial.
        let candidate = candidate.map(|one| with_keys(one, &keys, is_address, &mut Vec::new()));
        (policy, candidate.filter(|one| is_valid(one, invalid)))
    }
}

/// Whether a set may include this policy; if not, adds the reason to `invalid`.
fn is_valid(policy: &Policy, invalid: &mut Vec<String>) -> bool {
    PolicySet::new([policy.clone()]).inspect_err(|why| invalid.push(why.to_string())).is_ok()
}

/// Adds overridden and blocked keys to a policy.
fn with_keys(
    policy: Policy,
    changes: &[&KeyChange],
    is_address: &impl Fn(&str) -> bool,
    refused: &mut Vec<String>,
) -> Policy {
    changes.iter().fold(policy, |policy, change| {
        let key = KeyText::read(&policy, &change.key, is_address);
        let read = key.and_then(|key| {
            // A key of requests without the attribute is rejected, because other releases read it
            // differently.
            let values = key.values().ok_or_else(|| OF_MISSING.to_owned())?.into_iter().map(OwnedValue::from);
            Ok((values.collect::<Vec<_>>(), change.kind.terms(policy.quota())?))
        });
        match read {
            Ok((_, KeyTerms::Quota(_) | KeyTerms::Unlimited)) if names::is_inline(policy.name()) => {
                refused.push(names::no_override(policy.name()));
                policy
            }
            Ok((key, terms)) => {
                let key = || key.iter().map(OwnedValue::value);
                match terms {
                    KeyTerms::Quota(quota) => policy.without_override(key()).with_override(key(), quota),
                    KeyTerms::Unlimited => policy.without_override(key()).with_unlimited(key()),
                    KeyTerms::Blocked => {
                        let end = Timestamp::from_micros(change.until_ms.saturating_mul(1000));
                        policy.with_block(key(), Block::until(end).by(change.by.as_str()))
                    }
                }
            }
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
    use crate::control::changes::{Counting, What};
    use slidegate::{Gate, MemoryStore, Reason, Request, clock::ManualClock};

    fn base() -> Base {
        let policy = |name| Policy::new(name, Quota::per_minute(5)).unwrap().with_scope(["user"]);
        let candidates = BTreeMap::from([("q".to_owned(), Quota::per_minute(2))]);
        let policies = PolicySet::new([policy("p"), policy("q")]).unwrap();
        Base { policies, candidates, ..Base::default() }
    }

    fn key(kind: KeyKind, until_ms: u64) -> KeyChange {
        KeyChange {
            policy: "q".into(),
            key: "alice".into(),
            kind,
            until_ms,
            by: "ops".into(),
            at_ms: 0,
            level: None,
        }
    }

    /// The active policies are the configured ones with changes, and the configured ones again after expiry.
    #[test]
    fn changes_lie_over_the_configuration_until_they_end() {
        let mut document = Document::default();
        let terms = Terms {
            quota: Counting::of(&Quota::per_hour(9)),
            mode: Mode::Shadow,
            candidate: None,
            added: None,
        };
        document.set_policy("p", Some(terms), What::Set, "ops", 0);
        document.set_policy(
            "gone",
            Some(Terms::of(base().policies.by_name("p").unwrap(), None)),
            What::Set,
            "ops",
            0,
        );
        document.set_key(key(KeyKind::Block, 20), 0).unwrap();
        document.set_key(key(KeyKind::of(&Quota::per_minute(7)), 30), 0).unwrap();
        let limits = |now_ms| {
            let Folded { policies, refused, .. } = fold(&base(), &document, now_ms, &[]).unwrap();
            assert_eq!(refused, ["policy `gone` was changed and is no longer configured"]);
            let clock = ManualClock::at(Timestamp::from_micros(now_ms * 1000));
            let gate = Gate::with_memory(policies, MemoryStore::builder().clock(clock).build());
            let alice = Request::new().with("user", "alice");
            gate.peek(&alice)
                .iter()
                .map(|one| {
                    let block = one.block().map(|block| (block.ends_at(), block.blocked_by()));
                    assert!(
                        block
                            .is_none_or(|block| block == (Some(Timestamp::from_micros(20_000)), Some("ops")))
                    );
                    (
                        one.policy().name().to_owned(),
                        one.decision().limit(),
                        one.policy().options().enforced,
                        one.decision().reason(),
                    )
                })
                .collect::<Vec<_>>()
        };
        let expected = |q: u64, candidate: u64, reason: Option<Reason>| {
            [
                ("p".to_owned(), 9, false, None),
                ("q".to_owned(), q, true, reason),
                ("q.candidate".to_owned(), candidate, false, reason),
            ]
        };
        assert_eq!(limits(19), expected(7, 7, Some(Reason::Blocked)));
        assert_eq!(limits(20), expected(7, 7, None));
        assert_eq!(limits(30), expected(5, 2, None));
    }

    /// A limit that fits another instance's config but not this one must not block all other changes.
    #[test]
    fn a_change_that_fits_no_policy_here_is_left_out_alone() {
        let weights = slidegate::Counts::Weighted(vec![("tokens".to_owned(), 1.into())]);
        let weighted = base()
            .policies
            .iter()
            .map(|policy| policy.clone().with_counts(weights.clone()))
            .collect::<Vec<_>>();
        let base = Base { policies: PolicySet::new(weighted).unwrap(), ..Base::default() };
        let large = Counting::of(&Quota::per_minute(9_000_000_000));
        let terms = |quota, candidate| Terms { quota, mode: Mode::Enforce, candidate, added: None };
        let mut document = Document::default();
        document.set_policy("p", Some(terms(large.clone(), None)), What::Set, "ops", 0);
        document.set_policy(
            "q",
            Some(terms(Counting::of(&Quota::per_minute(6)), Some(large))),
            What::Set,
            "ops",
            0,
        );
        document.set_key(key(KeyKind::Block, 20), 0).unwrap();
        let Folded { policies, refused, .. } = fold(&base, &document, 0, &[]).unwrap();
        let why = "a policy that weighs costs counts millionths; must be at most 8000000000";
        assert_eq!(
            refused,
            ["p", "q"].map(|name| format!("policy `{name}`: invalid limit `9000000000`: {why}"))
        );
        let limits: Vec<_> = policies
            .iter()
            .map(|one| (one.name(), one.quota().limit(), one.options().block_count()))
            .collect();
        assert_eq!(limits, [("p", 5, 0), ("q", 6, 1)]);
    }

    /// An added policy is active until the file defines one of that name, with its redaction of
    /// keys.
    #[test]
    fn added_policies_follow_those_of_the_configuration_which_come_first() {
        let mut document = Document::default();
        let keys = |keys: serde_json::Value| keys.as_object().cloned().unwrap();
        let mut add = |name: &str, added: serde_json::Map<_, _>| {
            let terms = Terms {
                quota: Counting::of(&Quota::per_minute(3)),
                mode: Mode::Enforce,
                candidate: Some(Counting::of(&Quota::per_minute(1))),
                added: Some(added),
            };
            document.set_policy(name, Some(terms), What::Set, "ops", 0);
        };
        add("new", keys(serde_json::json!({ "scope": ["ip"], "quota": "9/1h", "keys_shown": "masked" })));
        add("odd", keys(serde_json::json!({ "scope": ["ip"], "quota": "9/1h", "colour": "red" })));
        add("p", keys(serde_json::json!({ "scope": ["ip"], "quota": "9/1h" })));
        let folded = fold(&base(), &document, 0, &["ip".to_owned()]).unwrap();
        assert_eq!(folded.refused.len(), 2);
        let unknown = "policy `odd` was added at run time and cannot be read here: policy `odd`: unknown key `colour`: must be";
        assert!(folded.refused[0].starts_with(unknown), "{:?}", folded.refused);
        assert_eq!(
            folded.refused[1],
            "policy `p` was added at run time, and the configuration has one of this name, which is in force; \
             `slidegate policy unset p` takes the added one away"
        );
        let named: Vec<_> = folded.policies.iter().map(|one| (one.name(), one.quota().limit())).collect();
        assert_eq!(named, [("p", 5), ("q", 5), ("q.candidate", 2), ("new", 3), ("new.candidate", 1)]);
        assert_eq!(folded.keys_shown, HashMap::from([("new".to_owned(), KeysShown::Masked)]));
        assert_eq!(folded.policies.by_name("new").unwrap().scope(), ["ip"]);
    }
}
