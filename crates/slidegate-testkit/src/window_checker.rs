//! Checks a sliding window from outside: whether one window admitted more than its limit.
//!
//! A client knows only when it sent a request and when it received the reply; the decision was made
//! in between. So a cost counts within a window only if that whole interval lies in it. Every
//! violation found is certain; an excess of a few requests at a window's edges may be missed.

use std::time::Duration;

/// An admitted request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Admission {
    /// When it was sent, since a common start.
    pub sent: Duration,
    /// When its reply had arrived.
    pub replied: Duration,
    /// Its cost.
    pub cost: u64,
}

/// The greatest cost certainly admitted within one window. Sorts the admissions. O(n log n + n m),
/// where m is the number of admissions in one window.
pub fn greatest_in_one_window(admissions: &mut [Admission], window: Duration) -> u64 {
    admissions.sort_unstable_by_key(|one| one.sent);
    let from_each = admissions.iter().enumerate().map(|(at, first)| {
        // A charge stops counting exactly one window after it was made.
        let end = first.sent + window;
        let later = admissions[at..].iter().take_while(|one| one.sent < end);
        later.filter(|one| one.replied < end).map(|one| one.cost).sum()
    });
    from_each.max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admissions(of: &[(u64, u64, u64)]) -> Vec<Admission> {
        let ms = Duration::from_millis;
        of.iter()
            .map(|&(sent, replied, cost)| Admission { sent: ms(sent), replied: ms(replied), cost })
            .collect()
    }

    fn greatest(of: &[(u64, u64, u64)]) -> u64 {
        greatest_in_one_window(&mut admissions(of), Duration::from_millis(100))
    }

    /// A checker that sees no excess would pass any limiter.
    #[test]
    fn two_windows_full_at_a_boundary_are_found() {
        let boundary: Vec<_> = (0..10)
            .map(|at| (90 + at, 90 + at, 1))
            .chain((0..10).map(|at| (100 + at, 101 + at, 1)))
            .collect();
        assert_eq!(greatest(&boundary), 20);
        assert_eq!(greatest(&[(0, 1, 3), (99, 99, 4)]), 7);
    }

    /// A checker with false alarms would fail an exact limiter.
    #[test]
    fn what_may_have_been_decided_outside_of_the_window_does_not_count() {
        assert_eq!(greatest(&[(0, 1, 3), (100, 101, 4)]), 4);
        assert_eq!(greatest(&[(0, 1, 3), (50, 100, 4)]), 4);
        assert_eq!(greatest(&[(0, 500, 9), (50, 60, 4)]), 4);
        assert_eq!(greatest(&[]), 0);
    }
}
