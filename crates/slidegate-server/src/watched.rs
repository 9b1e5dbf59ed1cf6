//! What lies in files and changes while the service runs: it is read once two looks in a row have found the same.
//!
//! So a file that is still being written is not read. Looking costs a few calls of the system; being told would need a
//! watch on every part of a path, which is lost when a link in it is put in the place of another.

use std::time::Duration;

/// Between two looks. A change is in force within two of them; a volume of Kubernetes takes a minute.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(500);

/// What the last look found, and whether it was dealt with.
#[derive(Debug)]
pub(crate) struct Watched<S> {
    seen: S,
    is_settled: bool,
}

impl<S: PartialEq> Watched<S> {
    /// Begins with what is there, which counts as dealt with. To be looked at before it is read: what changes meanwhile
    /// is then seen.
    pub(crate) fn start(seen: S) -> Self {
        Self { seen, is_settled: true }
    }

    /// Whether what a look has found is another than what was dealt with, and quiet: told once for each change.
    pub(crate) fn is_due(&mut self, seen: S) -> bool {
        if seen != self.seen {
            *self = Self { seen, is_settled: false };
            return false;
        }
        !std::mem::replace(&mut self.is_settled, true)
    }

    /// What the last look found.
    pub(crate) fn seen(&self) -> &S {
        &self.seen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Half a file is a mistake that nobody made.
    #[test]
    fn a_change_is_due_once_when_it_is_quiet() {
        let mut watched = Watched::start(1);
        let due: Vec<_> = [1, 1, 2, 3, 3, 3, 1, 2, 2].map(|seen| watched.is_due(seen)).into_iter().collect();
        assert_eq!(due, [false, false, false, false, true, false, false, false, true]);
        assert_eq!(*watched.seen(), 2);
    }
}
