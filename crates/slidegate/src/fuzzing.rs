//! Entry points of the fuzz targets into what is not public. They exist in fuzzed builds only.

use crate::policy::PolicySet;
use crate::request::Request;
pub use crate::store::redis::fuzzing::{
    ReplyFraming, control_document, read_topology, scan_step, script_reply, stored_value,
};
use crate::verb::Verb;

/// The names of the policies that would be charged for a request, in the order of the set.
#[must_use]
pub fn planned(policies: &PolicySet, request: &Request<'_>) -> Vec<String> {
    let plan = policies.plan(std::slice::from_ref(request), Some(Verb::Check));
    plan.charges.iter().map(|charge| charge.policy_name().to_owned()).collect()
}
