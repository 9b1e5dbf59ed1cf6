//! Entry points of the fuzz targets into what is not public. They exist in fuzzed builds only.

use crate::charge::Charge;
use crate::policy::PolicySet;
use crate::request::Request;
use crate::verb::Verb;

/// Runs a function on the charges of a request.
pub fn with_charges<R>(
    policies: &PolicySet,
    request: &Request<'_>,
    verb: Verb,
    run: impl FnOnce(&[Charge<'_>]) -> R,
) -> R {
    run(&policies.plan(std::slice::from_ref(request), Some(verb)).charges)
}

/// The names of the policies that would be charged for a request, in the order of the set.
#[must_use]
pub fn planned(policies: &PolicySet, request: &Request<'_>) -> Vec<String> {
    let names = |charges: &[Charge<'_>]| charges.iter().map(|one| one.policy_name().to_owned()).collect();
    with_charges(policies, request, Verb::Check, names)
}
