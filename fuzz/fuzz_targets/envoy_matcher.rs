//! Descriptors of Envoy, matched by the config's index and by a naive model.

#![no_main]

use libfuzzer_sys::arbitrary::{Result, Unstructured};
use libfuzzer_sys::fuzz_target;
use slidegate_envoy::fuzzing::{Descriptor, compare_matcher};

const KEYS: [&str; 7] = ["a", "b", "a_x", "a*", "ab", "c", "a_x*"];
const VALUES: [&str; 12] = ["", "x", "y", "x*", "*", "*y", "x*y", "x*z*y", "x_y", "xy", "xzy", "**"];

fuzz_target!(|bytes: &[u8]| {
    let mut input = Unstructured::new(bytes);
    if let (Ok(top), Ok(requests)) = (level(&mut input, 0), requests(&mut input)) {
        compare_matcher(top, &requests);
    }
});

fn level(input: &mut Unstructured<'_>, depth: usize) -> Result<Vec<Descriptor>> {
    let mut level = Vec::new();
    for _ in 0..input.int_in_range(1..=4)? {
        let name = (input.choose(&KEYS)?.to_string(), input.choose(&VALUES)?.to_string());
        let flags = input.arbitrary()?;
        let below = if depth < 3 && input.ratio(1, 3)? { self::level(input, depth + 1)? } else { Vec::new() };
        level.push(Descriptor { name, flags, below });
    }
    Ok(level)
}

fn requests(input: &mut Unstructured<'_>) -> Result<Vec<Vec<(&'static str, &'static str)>>> {
    let mut requests = Vec::new();
    while !input.is_empty() && requests.len() < 30 {
        let entries = 0..input.int_in_range(0..=4)?;
        let entry = |_| Ok((*input.choose(&KEYS)?, *input.choose(&VALUES)?));
        requests.push(entries.map(entry).collect::<Result<_>>()?);
    }
    Ok(requests)
}
