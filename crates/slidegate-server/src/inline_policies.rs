//! The policies of RESP commands that bring their own quota, such as `CL.THROTTLE`.
//!
//! They belong to every policy set while the RESP port is open. No configured policy may have their names.

use slidegate::{Algorithm, Error, Policy, PolicySet, Quota};

/// Policies of commands that bring their quota, each with the attribute it counts by. Their requests name them; to no other
/// request do they apply, and no other policy may have their name.
pub(crate) const INLINE_POLICIES: [(&str, &str); 2] = [("CL.THROTTLE", "key"), ("THROTTLE", "key")];

/// Whether a policy of this name is one of [`INLINE_POLICIES`].
pub(crate) fn is_inline(name: &str) -> bool {
    INLINE_POLICIES.iter().any(|(inline, _)| *inline == name)
}

/// The policies that were configured.
pub(crate) fn listed(policies: &PolicySet) -> impl Iterator<Item = &Policy> {
    policies.iter().filter(|policy| !is_inline(policy.name()))
}

/// These policies and those of [`INLINE_POLICIES`].
pub(crate) fn with_inline(policies: &PolicySet) -> Result<PolicySet, Error> {
    let inline = INLINE_POLICIES.into_iter().map(|(name, attribute)| {
        // It is never the one that decides: whoever names the policy brings another.
        let quota = Quota::per_second(1).with_algorithm(Algorithm::TokenBucket);
        Ok(Policy::new(name, quota)?.scope([attribute]).only_when_named())
    });
    PolicySet::new(policies.iter().cloned().chain(inline.collect::<Result<Vec<_>, Error>>()?))
}
