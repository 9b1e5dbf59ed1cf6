//! Blocks: keys whose requests are denied, whatever their quota has left.
//!
//! A block is not a quota of zero: the decision keeps the key's own limit and usage, and the wait
//! is the rest of the block. `gate/blocks.rs` applies blocks to the store's decisions.

use crate::decision::Waits;
use crate::time::Timestamp;

/// A key that is blocked under a policy: until when, and by whom.
///
/// ```
/// use slidegate::{Block, Gate, Policy, PolicySet, Quota, Reason, Request};
///
/// let per_user = Policy::new("per-user", Quota::per_minute(5))?
///     .with_scope(["user"])
///     .with_block(["mallory"], Block::forever().by("ops"));
/// let gate = Gate::new(PolicySet::new([per_user])?);
/// let request = Request::new().with("user", "mallory");
/// let decisions = gate.check(&request);
/// let denied = decisions.strictest().unwrap();
/// assert_eq!((denied.decision().reason(), denied.decision().limit(), denied.decision().used()), (Some(Reason::Blocked), 5, 0));
/// assert_eq!(denied.block().unwrap().blocked_by(), Some("ops"));
/// # Ok::<(), slidegate::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    /// `None`: permanent.
    until: Option<Timestamp>,
    by: Option<Box<str>>,
}

impl Block {
    /// A block that ends at this time, by the wall clock of this machine.
    #[must_use]
    pub fn until(end: Timestamp) -> Self {
        Self { until: Some(end), by: None }
    }

    /// A block that ends when it is taken out of the policy.
    #[must_use]
    pub fn forever() -> Self {
        Self::PERMANENT
    }

    pub(crate) const PERMANENT: Self = Self { until: None, by: None };

    /// Sets the name of the block's author. It is for operators: header fields and problem bodies,
    /// which reach end users, do not contain it.
    #[must_use]
    pub fn by(self, name: impl Into<Box<str>>) -> Self {
        Self { by: Some(name.into()), ..self }
    }

    /// When it ends; `None` if it does not end by itself.
    #[must_use]
    pub fn ends_at(&self) -> Option<Timestamp> {
        self.until
    }

    /// Its author, if known.
    #[must_use]
    pub fn blocked_by(&self) -> Option<&str> {
        self.by.as_deref()
    }

    /// How long it lasts from now on: [`Waits::NEVER`] if it does not end; `None` if it is over.
    pub(crate) fn rest_us(&self, now: Timestamp) -> Option<u64> {
        match self.until {
            None => Some(Waits::NEVER),
            Some(end) => Some(end.as_micros().saturating_sub(now.as_micros())).filter(|rest_us| *rest_us > 0),
        }
    }
}
