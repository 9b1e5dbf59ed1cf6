//! Checks that a log has the attributes policies need. Figures of a policy whose attributes never occur prove
//! nothing.

use std::collections::BTreeSet;

use slidegate::{Policy, PolicySet};

use crate::attributes::{NAMES, attribute};
use crate::batch::AttributeNames;
use crate::entry::Entry;
use crate::wording::count_of;

/// Entries examined in full; then one per batch.
const EXAMINED_ENTRIES: usize = 4096;
/// Maximum attributes listed in a message.
const MAX_LISTED: usize = 20;

/// The attributes seen so far.
#[derive(Debug)]
pub(crate) struct Evidence {
    names: AttributeNames,
    /// Which of the needed names have occurred, in their order.
    pub(crate) occurred: Vec<bool>,
    /// Names of attributes in the log.
    known: BTreeSet<String>,
    examined: usize,
}

/// Reasons why figures prove nothing, one line each.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Missing {
    /// Policies and mapped fields without any data in the log.
    pub errors: Vec<String>,
    /// Policies that applied to no request.
    pub warnings: Vec<String>,
}

/// The policies to decide, and messages about the others: they count held cost, which logs do not contain.
pub(crate) fn decidable(policies: &PolicySet) -> (PolicySet, Missing) {
    let (left_out, kept): (Vec<&Policy>, Vec<&Policy>) =
        policies.iter().partition(|policy| policy.expects_reservations());
    let error = |policy: &&Policy| {
        format!(
            "policy `{}` is left out: it counts reservations, which are not in a log; accept this with --allow-empty",
            policy.name()
        )
    };
    let missing = Missing { errors: left_out.iter().map(error).collect(), warnings: Vec::new() };
    (PolicySet::new(kept.into_iter().cloned()).expect("a part of a set is a set"), missing)
}

impl Evidence {
    pub(crate) fn new(names: AttributeNames) -> Self {
        let occurred = vec![false; names.len()];
        Self { names, occurred, known: BTreeSet::new(), examined: 0 }
    }

    /// Records an entry's attributes, if it is one of those examined.
    pub(crate) fn examine(&mut self, entry: &Entry<'_>, is_first_of_batch: bool) {
        if self.examined >= EXAMINED_ENTRIES && !is_first_of_batch {
            return;
        }
        self.examined += 1;
        let mut note = |name: &str| {
            if !self.known.contains(name) && self.known.len() < MAX_LISTED {
                self.known.insert(name.to_owned());
            }
        };
        NAMES.into_iter().filter(|name| attribute(entry, name).is_some()).for_each(&mut note);
        entry.extra.iter().for_each(|(name, _)| note(name));
    }

    /// Messages about policies, each given with the requests that it applied to.
    pub(crate) fn of_policies<'p>(
        &self,
        policies: impl IntoIterator<Item = (&'p Policy, u64)>,
        requests: u64,
    ) -> Missing {
        let mut missing = Missing::default();
        for (policy, seen) in policies {
            let name = policy.name();
            if seen > 0 {
                let tiers = policy.options().tiers.iter().map(|tiers| &tiers.attribute);
                let unseen = tiers.filter(|tier| !self.has_occurred(tier));
                missing.warnings.extend(unseen.map(|tier| {
                    format!("policy `{name}` applied its default limit only: attribute `{tier}`, which chooses another, never occurs")
                }));
                continue;
            }
            let attributes = self.missing_of(policy);
            let (list, line) = match &attributes[..] {
                [] => {
                    let line = format!(
                        "policy `{name}` applied to none of {}: its figures say nothing about it",
                        count_of(requests, "request", "requests")
                    );
                    (&mut missing.warnings, line)
                }
                [one] => {
                    let what = format!("attribute `{one}`, which never occurs");
                    (&mut missing.errors, self.line(name, &what))
                }
                several => {
                    let what = format!("attributes {}, which never occur", listed(several));
                    (&mut missing.errors, self.line(name, &what))
                }
            };
            if !list.contains(&line) {
                list.push(line);
            }
        }
        missing
    }

    fn line(&self, policy: &str, what: &str) -> String {
        let known: Vec<&str> = self.known.iter().map(String::as_str).collect();
        let known = if known.is_empty() { "no attributes".to_owned() } else { listed(&known) };
        format!(
            "policy `{policy}` judged nothing: it needs the {what} in the log, which has {known}; map them with --field, \
             or accept this with --allow-empty"
        )
    }

    fn has_occurred(&self, attribute: &str) -> bool {
        self.names.iter().zip(&self.occurred).any(|(known, occurred)| *occurred && known == attribute)
    }

    /// Attributes that have not occurred and without which the policy applies to nothing.
    fn missing_of<'p>(&self, policy: &'p Policy) -> Vec<&'p str> {
        let needed = policy.options().conditions.iter().filter(|(_, condition)| !condition.holds(None));
        let needed = needed.map(|(name, _)| name).chain(policy.scope());
        let mut missing: Vec<&str> = Vec::new();
        for name in needed {
            if !self.has_occurred(name) && !missing.contains(&name.as_str()) {
                missing.push(name);
            }
        }
        missing
    }
}

impl Missing {
    /// Adds messages about mapped fields that never had a value.
    pub(crate) fn fields(mut self, fields: &[String]) -> Self {
        self.errors.extend(fields.iter().map(|field| {
            format!("`{field}`: no line of the log has it; check the name, or accept this with --allow-empty")
        }));
        self
    }

    /// Merges two sets of messages, each line once.
    pub(crate) fn and(mut self, other: Self) -> Self {
        for (own, more) in [(&mut self.errors, other.errors), (&mut self.warnings, other.warnings)] {
            for line in more {
                if !own.contains(&line) {
                    own.push(line);
                }
            }
        }
        self
    }
}

fn listed(names: &[&str]) -> String {
    names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}
