//! The active policies: those of the config and of other files, with run-time changes.
//!
//! A reload or a change replaces one of these parts; all parts together form one policy set. Usage is kept by
//! policy name. If a set cannot be activated, the old one stays active.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::{Map, Value};
use slidegate::{Algorithm, Error, Policy, PolicySet, Quota};
use slidegate_config::added::Added;
use slidegate_config::names::INLINE_POLICIES;
use slidegate_config::policy::KeysShown;

use super::document::{Document, KeyKind};
use super::fold::{Base, Folded, fold};
use super::refusal::{Cause, Refusal};
use crate::clock::now_ms;
use crate::engine::App;

/// The active policies and the parts they are built from.
#[derive(Debug)]
pub(crate) struct ActivePolicies {
    app: Arc<App>,
    /// Whether every set includes [`INLINE_POLICIES`], because the RESP port is open.
    has_inline: bool,
    /// Names of the policies that were configured at the start.
    configured: HashSet<String>,
    parts: Mutex<PolicyParts>,
}

#[derive(Debug, Clone, Default)]
struct PolicyParts {
    base: Base,
    /// Policies from elsewhere, such as files of envoyproxy/ratelimit.
    external: Vec<Policy>,
    document: Arc<Document>,
    /// Changes that could not be activated, each with its reason.
    refused: Vec<String>,
    /// Active policies added at run time, and their redaction of keys.
    keys_shown: HashMap<String, KeysShown>,
    /// When the next change of a key expires, in milliseconds since the epoch.
    next_expiry: Option<u64>,
}

impl ActivePolicies {
    /// `base`: the configured policies, from which [`initial`] built the first set.
    pub(super) fn new(app: Arc<App>, base: Base, has_inline: bool) -> Self {
        let configured = base.policies.iter().map(|policy| policy.name().to_owned()).collect();
        let parts = Mutex::new(PolicyParts { base, ..PolicyParts::default() });
        Self { app, has_inline, configured, parts }
    }

    /// Replaces the configured policies. Run-time changes are kept; those that no longer apply are
    /// logged.
    ///
    /// # Errors
    /// A limit is more than a shared store can count; the old policies stay active.
    pub(crate) fn set_base(&self, base: Base) -> Result<(), Error> {
        for refused in self.update(|parts| parts.base = base)? {
            tracing::warn!("not in force: {refused}");
        }
        Ok(())
    }

    /// Replaces the policies of other files, except those that were configured at the start.
    ///
    /// # Errors
    /// The policies are not a valid set, or a limit is more than a shared store can count; the old
    /// policies stay active.
    pub(crate) fn set_external(&self, policies: &PolicySet) -> Result<(), Error> {
        let external = policies.iter().filter(|policy| !self.configured.contains(policy.name()));
        self.update(|parts| parts.external = external.cloned().collect())?;
        Ok(())
    }

    /// Replaces the run-time changes. Returns those that could not be activated, each with its
    /// reason.
    pub(crate) fn set_document(&self, document: Arc<Document>) -> Vec<String> {
        let refused = self.update(|parts| parts.document = document);
        refused.unwrap_or_else(|error| vec![error.to_string()])
    }

    /// Removes expired changes of keys.
    pub(crate) fn expire(&self) {
        if let Err(error) = self.update(|_| {}) {
            tracing::error!(%error, "expired changes could not be removed and stay active");
        }
    }

    /// When the next change of a key expires, in milliseconds since the epoch.
    pub(crate) fn next_expiry(&self) -> Option<u64> {
        self.parts().next_expiry
    }

    /// Run-time changes that are not active, each with its reason.
    pub(crate) fn refused(&self) -> Vec<String> {
        self.parts().refused.clone()
    }

    /// The configured policies, without run-time changes.
    pub(crate) fn base(&self) -> Base {
        self.parts().base.clone()
    }

    /// Whether an active policy was added at run time.
    pub(crate) fn is_added(&self, policy: &str) -> bool {
        self.parts().keys_shown.contains_key(policy)
    }

    /// Parses a policy to be added, and checks that the store can count it.
    ///
    /// # Errors
    /// One line that names the policy, the value and the fix.
    pub(crate) fn read_added(&self, name: &str, keys: &Map<String, Value>) -> Result<Added, String> {
        let added = Added::read(name, keys, &self.app.attributes.addresses)?;
        self.app.store().can_count(&added.policy)?;
        Ok(added)
    }

    /// Checks that a document makes no policy invalid that is valid now.
    ///
    /// # Errors
    /// The invalid policy, and why.
    pub(crate) fn check(&self, document: &Document) -> Result<(), Refusal> {
        let parts = self.parts();
        let next = PolicyParts { document: Arc::new(document.clone()), ..parts.clone() };
        let folded = tokio::task::block_in_place(|| self.folded(&next, now_ms()));
        let invalid = folded.map_or_else(|why| vec![why.to_string()], |folded| folded.invalid);
        let new = invalid.into_iter().find(|one| !parts.refused.contains(one));
        new.map_or(Ok(()), |why| Err(Refusal::new(Cause::Conflict, why)))
    }

    /// Changes the parts and activates the resulting policies. Returns run-time changes that do not
    /// apply.
    fn update(&self, change: impl FnOnce(&mut PolicyParts)) -> Result<Vec<String>, Error> {
        let mut parts = self.parts();
        let now_ms = now_ms();
        let mut next = PolicyParts { next_expiry: None, ..parts.clone() };
        change(&mut next);
        let folded = self.folded(&next, now_ms)?;
        (next.refused, next.keys_shown) = (folded.refused, folded.keys_shown);
        next.next_expiry = next.document.living(now_ms).map(|change| change.until_ms).min();
        self.app.activate(folded.policies, &next.keys_shown, &parts.keys_shown)?;
        let escalations = &self.app.observer().escalations;
        escalations.follow(&folded.escalations);
        if escalations.is_used() {
            // Denials of a blocked key do not count, so it has none when the block ends.
            let blocks = next.document.living(now_ms).filter(|change| change.kind == KeyKind::Block);
            blocks.for_each(|change| escalations.forget(&change.policy, &change.key));
        }
        *parts = next;
        Ok(parts.refused.clone())
    }

    fn folded(&self, parts: &PolicyParts, now_ms: u64) -> Result<Folded, Error> {
        let PolicyParts { base, external, document, .. } = parts;
        let external = external.iter().filter(|policy| base.policies.by_name(policy.name()).is_none());
        let mut policies = PolicySet::new(base.policies.iter().chain(external).cloned())?;
        if self.has_inline {
            // Before the changes, which may also apply to these policies' keys.
            policies = with_inline(&policies)?;
        }
        fold(&Base { policies, ..base.clone() }, document, now_ms, &self.app.attributes.addresses)
    }

    fn parts(&self) -> MutexGuard<'_, PolicyParts> {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The first set, from the config alone.
///
/// # Errors
/// The policies and their candidates are too many.
pub(crate) fn initial(base: &Base, addresses: &[String], has_inline: bool) -> Result<PolicySet, Error> {
    let policies = if has_inline { with_inline(&base.policies)? } else { base.policies.clone() };
    let Folded { policies, .. } =
        fold(&Base { policies, ..base.clone() }, &Document::default(), 0, addresses)?;
    Ok(policies)
}

/// Adds [`INLINE_POLICIES`] to these policies.
fn with_inline(policies: &PolicySet) -> Result<PolicySet, Error> {
    let inline = INLINE_POLICIES.into_iter().map(|(name, attribute)| {
        // Not used to decide: every request under these policies has an inline quota.
        let quota = Quota::per_second(1).with_algorithm(Algorithm::TokenBucket);
        Ok(Policy::new(name, quota)?.with_scope([attribute]).with_only_when_named())
    });
    PolicySet::new(policies.iter().cloned().chain(inline.collect::<Result<Vec<_>, Error>>()?))
}
