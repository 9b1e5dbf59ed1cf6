//! Requests that lack an attribute of a policy's scope.

use super::Policy;
use crate::charge::OnMissing;
use crate::request::Request;

impl Policy {
    /// Sets what happens to a request that lacks an attribute of the scope. Default:
    /// [`OnMissing::Skip`], because policies of a set often cover different requests.
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

    /// What happens to a request that lacks an attribute of the scope, if set.
    #[must_use]
    pub fn on_missing(&self) -> Option<OnMissing> {
        self.on_missing
    }

    /// The setting, or its default.
    pub(super) fn when_missing(&self) -> OnMissing {
        self.on_missing.unwrap_or_default()
    }

    /// Whether the policy skips a request only because it lacks an attribute of the scope.
    pub(super) fn skips(&self, request: &Request<'_>) -> bool {
        self.when_missing() == OnMissing::Skip && !self.has_scope(request) && self.is_meant_for(request)
    }
}
