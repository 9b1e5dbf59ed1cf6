//! Debounces the state of polled files: a change counts once two consecutive polls have seen it.
//!
//! So a file that is still being written is not read. Files are polled because file system events
//! would need a watch on every part of a path, lost when a link in it is replaced.

use std::time::Duration;

/// Poll interval. A change is active within two polls; Kubernetes volumes take a minute to update.
pub(crate) const POLL_EVERY: Duration = Duration::from_millis(500);

/// The state at the last poll, and whether it has been reported.
#[derive(Debug)]
pub(crate) struct Debounced<S> {
    last: S,
    is_settled: bool,
}

impl<S: PartialEq> Debounced<S> {
    /// Starts with the current state, which counts as reported. Poll it before reading the files,
    /// so a change in between is noticed.
    pub(crate) fn new(state: S) -> Self {
        Self { last: state, is_settled: true }
    }

    /// Whether the state has changed and equals the last poll's. `true` once per change.
    pub(crate) fn is_due(&mut self, state: S) -> bool {
        if state != self.last {
            *self = Self { last: state, is_settled: false };
            return false;
        }
        !std::mem::replace(&mut self.is_settled, true)
    }

    /// Marks the state at the last poll as reported, for files that are read on request.
    pub(crate) fn mark_reported(&mut self) {
        self.is_settled = true;
    }

    /// The state at the last poll.
    pub(crate) fn last(&self) -> &S {
        &self.last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A half-written file must not be reported as invalid.
    #[test]
    fn a_change_is_due_once_when_it_has_settled() {
        let mut state = Debounced::new(1);
        let due: Vec<_> = [1, 1, 2, 3, 3, 3, 1, 2, 2].map(|seen| state.is_due(seen)).into_iter().collect();
        assert_eq!(due, [false, false, false, false, true, false, false, false, true]);
        assert_eq!(*state.last(), 2);
    }

    /// A file that was half written when it was read on request is read again.
    #[test]
    fn what_was_read_on_request_is_due_only_if_it_changes() {
        let mut state = Debounced::new(1);
        assert!(!state.is_due(2));
        state.mark_reported();
        assert_eq!([2, 2, 3, 3, 3].map(|seen| state.is_due(seen)), [false, false, false, true, false]);
    }
}
