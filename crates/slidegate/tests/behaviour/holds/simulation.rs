//! An hour of a gateway to a language model, on a virtual clock: what is streamed in any window,
//! against the limit, under each way to charge it.

use std::collections::BinaryHeap;

use super::*;

const LIMIT: u64 = 100_000;
const WINDOW_MS: u64 = 60_000;
const HOUR_MS: u64 = 3_600_000;
/// Tokens per second of one stream.
const RATE: u64 = 50;
/// Longest answer.
const MOST: u64 = 16_000;

/// How a gateway charges what it streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// Asks whether anything is left, and charges when the stream has ended.
    LookThenCharge,
    /// Holds the true length, and settles when the stream has ended.
    Hold,
    /// The same, settled every second.
    HoldInParts,
}

/// A small generator, so that each run is the same.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }

    /// Long-tailed: most answers are short, a few are very long. The mean is some 1,200.
    fn length(&mut self) -> u64 {
        let doublings = (0..9).take_while(|_| self.below(2) == 0).count();
        let base = 300 << doublings;
        (base + self.below(base)).min(MOST)
    }
}

/// A stream that is going on.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Event {
    /// Negated: the heap is ordered by the largest.
    at: std::cmp::Reverse<u64>,
    stream: usize,
}

struct Stream {
    ticket: Option<Ticket>,
    began: u64,
    length: u64,
}

impl Stream {
    fn flowed(&self, now: u64) -> u64 {
        ((now - self.began) * RATE / 1000).min(self.length)
    }

    fn ends(&self) -> u64 {
        self.began + (self.length * 1000).div_ceil(RATE)
    }
}

/// The most that flowed in a window, and all that flowed.
fn simulate(way: Way, demand: u64) -> (u64, u64) {
    let bench = Bench::under(Quota::new(LIMIT, Duration::from_millis(WINDOW_MS)).unwrap());
    let mut random = Random(0x9E37_79B9_7F4A_7C15);
    let mut streams: Vec<Stream> = Vec::new();
    let mut events = BinaryHeap::new();
    // So many requests arrive that their answers are `demand` times the limit.
    let every = WINDOW_MS * 1200 / (LIMIT * demand);
    let (mut next, mut flowed_in) = (0, vec![0u64; usize::try_from(HOUR_MS + 400_000).unwrap() / 1000]);
    while next < HOUR_MS || !events.is_empty() {
        let due = events.peek().map_or(u64::MAX, |event: &Event| event.at.0);
        if next < HOUR_MS && next <= due {
            bench.at(Duration::from_millis(next));
            let (length, arrival) = (random.length(), next);
            next += 1 + random.below(2 * every);
            let ticket = match way {
                Way::LookThenCharge => {
                    let request = Request::new();
                    if bench.gate.peek(&request).is_denied() {
                        continue;
                    }
                    None
                }
                Way::Hold | Way::HoldInParts => match bench.try_reserve(length, secs(600)) {
                    Ok(ticket) => Some(ticket),
                    Err(_) => continue,
                },
            };
            let stream = Stream { ticket, began: arrival, length };
            let first = if way == Way::HoldInParts { arrival + 1000 } else { stream.ends() };
            events.push(Event { at: std::cmp::Reverse(first.min(stream.ends())), stream: streams.len() });
            for second in arrival / 1000..=stream.ends() / 1000 {
                let flowed = |at: u64| stream.flowed(at.clamp(arrival, stream.ends()));
                flowed_in[usize::try_from(second).unwrap()] +=
                    flowed((second + 1) * 1000) - flowed(second * 1000);
            }
            streams.push(stream);
            continue;
        }
        let Some(Event { at, stream: number }) = events.pop() else { break };
        let now = at.0;
        bench.at(Duration::from_millis(now));
        let stream = &mut streams[number];
        let (flowed, ends) = (stream.flowed(now), stream.ends());
        match &mut stream.ticket {
            None => {
                let request = Request::new().with_cost(flowed);
                bench.gate.penalize(&request);
            }
            Some(ticket) if now >= ends => {
                bench.gate.settle(ticket, flowed).unwrap();
            }
            Some(ticket) => {
                *ticket = bench.gate.settle_so_far(ticket, flowed).unwrap().into_ticket();
                let at = std::cmp::Reverse((now + 1000).min(ends));
                events.push(Event { at, stream: number });
            }
        }
    }
    // Whole seconds only: a window of 60 of them lies within one of 60 s.
    let window = (WINDOW_MS / 1000) as usize;
    let most = flowed_in.windows(window).map(|window| window.iter().sum()).max().unwrap();
    (most, flowed_in.iter().sum())
}

/// The reason why holds exist: who looks first and charges afterwards lets through what runs
/// meanwhile, and who holds does not.
#[test]
fn looking_before_and_charging_after_exceeds_the_limit_and_holding_never_does() {
    let (most, _) = simulate(Way::LookThenCharge, 2);
    assert!(most > LIMIT * 12 / 10, "{most} of {LIMIT}");
    for demand in [1, 2, 5] {
        let (most, whole) = simulate(Way::Hold, demand);
        assert!(most <= LIMIT, "held: {most} of {LIMIT}");
        let (most, parts) = simulate(Way::HoldInParts, demand);
        assert!(most <= LIMIT, "in parts: {most} of {LIMIT}");
        // Holding for less time leaves more for others.
        assert!(demand == 1 || parts > whole, "{parts} in parts, {whole} at the end");
    }
}
