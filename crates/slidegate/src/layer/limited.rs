//! What was decided, for handlers: the decisions of a request without what they borrow from it.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::client_addr::Resolved;
use crate::decision::Decision;
use crate::gate::Decisions;
use crate::policy::{Policy, PolicySet};

/// What was decided about a request that was let through, and who its client is.
///
/// The layer puts it into the request's extensions; with the feature `axum` it is an extractor. Cloning it allocates only
/// past one policy.
///
/// ```
/// use slidegate::layer::Limited;
///
/// fn handler(request: http::Request<()>) -> String {
///     let limited = request.extensions().get::<Limited>();
///     match limited.and_then(Limited::strictest) {
///         Some((policy, decision)) => format!("{} more under {}", decision.remaining, policy.name()),
///         None => "no limit".into(),
///     }
/// }
/// assert_eq!(handler(http::Request::new(())), "no limit");
/// ```
#[derive(Debug, Clone, Default)]
pub struct Limited {
    /// Those that were in force. `None` where nothing was asked, as the request was skipped.
    policies: Option<Arc<PolicySet>>,
    answers: SmallVec<[(usize, Decision); 1]>,
    client: Option<Resolved>,
}

impl Limited {
    pub(super) fn new(decisions: &Decisions<'_>, client: Option<Resolved>) -> Self {
        let answers = decisions.iter().map(|one| (one.position(), *one.decision())).collect();
        Self { policies: Some(Arc::clone(decisions.policies())), answers, client }
    }

    /// Every policy that applied and its decision, in the order of the policies, shadow ones included.
    pub fn iter(&self) -> impl Iterator<Item = (&Policy, &Decision)> {
        let answers = self.answers.iter();
        self.policies
            .iter()
            .flat_map(move |set| answers.clone().map(|(policy, decision)| (set.policy(*policy), decision)))
    }

    /// The enforced policy that has least left, and its decision; `None` when none applied.
    #[must_use]
    pub fn strictest(&self) -> Option<(&Policy, &Decision)> {
        let enforced = self.iter().filter(|(policy, _)| policy.is_enforced());
        enforced.reduce(|strictest, one| if one.1.is_stricter_than(strictest.1) { one } else { strictest })
    }

    /// Who the client is, where the layer has been told how to find out.
    #[must_use]
    pub fn client(&self) -> Option<Resolved> {
        self.client
    }
}
