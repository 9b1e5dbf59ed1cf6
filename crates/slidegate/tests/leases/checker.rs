//! What judges a run: it knows only times and costs.

use std::collections::VecDeque;

use crate::demand::Arrival;

/// The most cost in any window.
pub(crate) fn most_in_a_window(admitted: impl Iterator<Item = (u64, u64)>, window_us: u64) -> u64 {
    let mut sorted: Vec<_> = admitted.collect();
    sorted.sort_unstable();
    let (mut window, mut sum, mut most) = (VecDeque::new(), 0, 0);
    for (at, cost) in sorted {
        while window.front().is_some_and(|(first, _)| first + window_us <= at) {
            sum -= window.pop_front().map_or(0, |(_, cost): (u64, u64)| cost);
        }
        window.push_back((at, cost));
        sum += cost;
        most = most.max(sum);
    }
    most
}

/// What an exact log admits if each request asks it in no time.
pub(crate) fn ideal(demand: &[Arrival], limit: u64, window_us: u64) -> u64 {
    let (mut log, mut used, mut admitted) = (VecDeque::new(), 0, 0);
    for arrival in demand {
        while log.front().is_some_and(|(first, _)| first + window_us <= arrival.at) {
            used -= log.pop_front().map_or(0, |(_, cost): (u64, u64)| cost);
        }
        if used + arrival.cost <= limit {
            log.push_back((arrival.at, arrival.cost));
            used += arrival.cost;
            admitted += arrival.cost;
        }
    }
    admitted
}

/// Instances that count for themselves, and hear from the others each `every_us`: what they admit.
pub(crate) fn gossip(
    demand: &[Arrival],
    (limit, window_us): (u64, u64),
    instances: usize,
    every_us: u64,
) -> Vec<(u64, u64)> {
    let mut admitted: Vec<(u64, usize, u64)> = Vec::new();
    let mut counting = 0;
    let mut own = vec![0; instances];
    let (mut heard, mut heard_at) = (0, 0);
    for arrival in demand {
        while admitted.get(counting).is_some_and(|first| first.0 + window_us <= arrival.at) {
            counting += 1;
        }
        if arrival.at / every_us > heard_at {
            heard_at = arrival.at / every_us;
            heard = admitted[counting..].iter().map(|one| one.2).sum();
            own.fill(0);
        }
        if heard + own[arrival.who] + arrival.cost <= limit {
            own[arrival.who] += arrival.cost;
            admitted.push((arrival.at, arrival.who, arrival.cost));
        }
    }
    admitted.into_iter().map(|(at, _, cost)| (at, cost)).collect()
}

#[test]
fn a_window_is_open_at_its_begin() {
    let uses = [(0, 3), (10, 1), (9, 2)];
    assert_eq!(most_in_a_window(uses.into_iter(), 10), 5);
    assert_eq!(most_in_a_window(uses.into_iter(), 11), 6);
}
