//! Entry points of the fuzz targets into what is not public. They exist in fuzzed builds only.

use crate::policy::PolicySet;
use crate::request::Request;
#[cfg(feature = "redis")]
pub use crate::store::redis::fuzzing::{
    ReplyFraming, control_document, read_topology, scan_step, script_reply, stored_value,
};
use crate::verb::Verb;

/// The names of the policies that would be charged for a request, in the order of the set.
#[must_use]
pub fn planned(policies: &PolicySet, request: &Request<'_>) -> Vec<String> {
    let plan = policies.plan(std::slice::from_ref(request), Some(Verb::Check));
    let single =
        policies.single_charge(request, Some(Verb::Check), None).map(|charge| charge.name.to_owned());
    let names: Vec<_> = plan.charges.iter().map(|charge| charge.name.to_owned()).collect();
    // The short way to a decision must agree with the long one.
    assert_eq!(single, if let [only] = names.as_slice() { Some(only.clone()) } else { None });
    names
}
