//! Reserved names: policies that the service creates itself.
//!
//! Candidates are named after their policy. The policies of RESP commands that bring their own
//! quota, such as `CL.THROTTLE`, belong to every policy set while the RESP port is open.

use slidegate::{Policy, PolicySet};

/// The suffix of a candidate's name, after the name of its policy.
pub const CANDIDATE: &str = ".candidate";

/// The policy whose candidate has this name.
#[must_use]
pub fn candidate_of(name: &str) -> Option<&str> {
    name.strip_suffix(CANDIDATE)
}

/// The policies of commands with an inline quota, each with the attribute it counts by. They apply
/// only to requests that name them.
pub const INLINE_POLICIES: [(&str, &str); 2] = [("CL.THROTTLE", "key"), ("THROTTLE", "key")];

/// Whether a policy of this name is one of [`INLINE_POLICIES`].
#[must_use]
pub fn is_inline(name: &str) -> bool {
    INLINE_POLICIES.iter().any(|(inline, _)| *inline == name)
}

/// Why a key of one of [`INLINE_POLICIES`] has no override.
#[must_use]
pub fn no_override(policy: &str) -> String {
    format!(
        "each command of policy `{policy}` brings its own quota, so an override would bind nothing; block the key, or \
         send another quota with the command"
    )
}

/// The policies without [`INLINE_POLICIES`].
pub fn listed(policies: &PolicySet) -> impl Iterator<Item = &Policy> {
    policies.iter().filter(|policy| !is_inline(policy.name()))
}
