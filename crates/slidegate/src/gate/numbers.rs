//! The numbers that identify a gate's policies in its store.

use std::collections::HashMap;

use crate::policy::PolicySet;

/// A policy's name, its scope, and whether it counts millionths.
type Known = (String, Vec<String>, bool);

/// The numbers that policies' usage is stored under. A number is never reused for another policy.
#[derive(Debug, Default)]
pub(super) struct Numbers(HashMap<Known, u32>);

impl Numbers {
    /// Usage belongs to a policy's name, scope and unit: another scope has other keys, and
    /// millionths are not units.
    pub(super) fn number(&mut self, policies: &mut PolicySet) {
        policies.number(|policy| {
            let next = u32::try_from(self.0.len()).expect("names of policies are fewer than 2^32");
            assert!(next < 1 << 24, "a store has at most 2^24 policies");
            let known =
                (policy.name().to_owned(), policy.scope().to_vec(), policy.options().counts.is_weighted());
            *self.0.entry(known).or_insert(next)
        });
    }

    /// Every number that a policy of this name has had.
    pub(super) fn of(&self, policy: &str) -> Vec<u32> {
        self.0.iter().filter(|((name, ..), _)| name == policy).map(|(_, number)| *number).collect()
    }

    pub(super) fn get(&self, name: &str, scope: &[String], in_millionths: bool) -> Option<u32> {
        self.0.get(&(name.to_owned(), scope.to_vec(), in_millionths)).copied()
    }
}
