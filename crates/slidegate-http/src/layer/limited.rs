//! The decisions of a request for its handler, without borrowing from the request.

use std::sync::Arc;

use slidegate::{Decision, Decisions, Policy, PolicySet};
use smallvec::SmallVec;

use crate::client_addr::Resolved;

/// The decisions for an allowed request, and its client's address.
///
/// The layer puts it into the request's extensions. With the feature `axum` it is an extractor.
/// Cloning allocates only if more than one policy applied.
///
/// ```
/// use slidegate_http::layer::Limited;
///
/// fn handler(request: http::Request<()>) -> String {
///     let limited = request.extensions().get::<Limited>();
///     match limited.and_then(Limited::strictest) {
///         Some(one) => format!("{} more under {}", one.decision().remaining(), one.policy().name()),
///         None => "no limit".into(),
///     }
/// }
/// assert_eq!(handler(http::Request::new(())), "no limit");
/// ```
#[derive(Debug, Clone, Default)]
pub struct Limited {
    /// The policies in force. `None` if the request bypassed the limit.
    policies: Option<Arc<PolicySet>>,
    decisions: SmallVec<[(usize, Decision); 1]>,
    client: Option<Resolved>,
}

impl Limited {
    pub(super) fn new(decisions: &Decisions<'_>, client: Option<Resolved>) -> Self {
        let policies = Some(Arc::clone(decisions.policies()));
        let decisions = decisions.iter().map(|one| (one.position(), *one.decision())).collect();
        Self { policies, decisions, client }
    }

    /// Every policy that applied with its decision, in the order of the policies, including shadow
    /// policies.
    pub fn iter(&self) -> impl Iterator<Item = LimitedDecision<'_>> {
        let decisions = self.decisions.iter();
        self.policies.iter().flat_map(move |set| {
            decisions.clone().map(|(at, decision)| LimitedDecision { policy: set.policy(*at), decision })
        })
    }

    /// The strictest decision of an enforced policy, with its policy; `None` if none applied.
    #[must_use]
    pub fn strictest(&self) -> Option<LimitedDecision<'_>> {
        let enforced = self.iter().filter(|one| one.policy.options().enforced);
        enforced.reduce(
            |strictest, one| {
                if one.decision().is_stricter_than(strictest.decision()) { one } else { strictest }
            },
        )
    }

    /// The client's address, if the layer has a rule for it.
    #[must_use]
    pub fn client(&self) -> Option<Resolved> {
        self.client
    }
}

/// One policy's decision on an allowed request; derefs to [`Decision`].
#[derive(Debug, Clone, Copy)]
pub struct LimitedDecision<'l> {
    policy: &'l Policy,
    decision: &'l Decision,
}

impl<'l> LimitedDecision<'l> {
    /// The policy that decided.
    #[must_use]
    pub fn policy(&self) -> &'l Policy {
        self.policy
    }

    /// What it decided.
    #[must_use]
    pub fn decision(&self) -> &'l Decision {
        self.decision
    }
}
