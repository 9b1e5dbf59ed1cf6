//! Requests that lack an attribute of a policy's scope.

use super::Policy;
use crate::request::Request;

/// What a policy does with a request that its conditions hold for and that lacks an attribute of its
/// scope.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum OnMissing {
    /// Does not apply, as policies for other requests do not.
    #[default]
    Skip,
    /// Counts all such requests under one key, whose missing value is written `*`. What else the scope has
    /// stays in the key.
    OneKey,
    /// Denies it, as it denies a blocked key: nothing is charged, and the wait does not end.
    Deny,
}

impl OnMissing {
    /// The one of this name, as configurations write it: `skip`, `one-key` or `deny`.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "skip" => Some(Self::Skip),
            "one-key" => Some(Self::OneKey),
            "deny" => Some(Self::Deny),
            _ => None,
        }
    }
}

impl Policy {
    /// Sets what happens to a request that lacks an attribute of the scope. Default:
    /// [`OnMissing::Skip`], as policies of one set are often for different requests.
    ///
    /// ```
    /// use slidegate::{Gate, OnMissing, Policy, PolicySet, Quota, Request};
    ///
    /// let per_user = Policy::new("per-user", Quota::per_minute(1))?.with_scope(["user"]);
    /// let nobody = Request::new();
    ///
    /// let gate = Gate::new(PolicySet::new([per_user.clone()])?);
    /// assert!(gate.check(&nobody).is_empty(), "the policy is skipped");
    /// assert_eq!(gate.policies().skipped(&nobody).count(), 1);
    ///
    /// let gate = Gate::new(PolicySet::new([per_user.clone().with_on_missing(OnMissing::OneKey)])?);
    /// assert!(gate.check(&nobody).is_allowed() && gate.check(&nobody).is_denied());
    ///
    /// let gate = Gate::new(PolicySet::new([per_user.with_on_missing(OnMissing::Deny)])?);
    /// assert!(gate.check(&nobody).is_denied());
    /// # Ok::<(), slidegate::Error>(())
    /// ```
    #[must_use]
    pub fn with_on_missing(mut self, then: OnMissing) -> Self {
        self.on_missing = Some(then);
        self
    }

    /// What happens to a request that lacks an attribute of the scope, if the policy says so.
    #[must_use]
    pub fn on_missing(&self) -> Option<OnMissing> {
        self.on_missing
    }

    /// The same, or the default.
    pub(super) fn when_missing(&self) -> OnMissing {
        self.on_missing.unwrap_or_default()
    }

    /// Whether it would apply to a request that names no policy if that had all attributes of the scope.
    pub(super) fn skips(&self, request: &Request<'_>) -> bool {
        self.when_missing() == OnMissing::Skip && !self.has_scope(request) && self.is_meant_for(request)
    }
}
