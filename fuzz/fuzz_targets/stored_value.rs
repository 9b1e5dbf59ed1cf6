//! Values in Redis: what other programs and damaged disks leave there is read or rejected.

#![no_main]

use std::time::Duration;

use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use slidegate::{Algorithm, Quota};
use slidegate_redis::fuzzing::{control_document, stored_value};

#[derive(Debug, Arbitrary)]
struct Input<'a> {
    algorithm: u8,
    limit: u64,
    window_us: u64,
    slots: u16,
    cost: u64,
    now_us: u64,
    value: &'a [u8],
}

fuzz_target!(|input: Input<'_>| {
    let algorithm = Algorithm::ALL[usize::from(input.algorithm) % Algorithm::ALL.len()];
    let most = (1 << 53) - 1;
    let longest = u64::try_from(Quota::MAX_WINDOW.as_micros()).unwrap();
    let window = Duration::from_micros(1000 + input.window_us % (longest - 999));
    let quota = Quota::new(input.limit.min(most), window).unwrap().with_algorithm(algorithm);
    let quota = quota.with_slots(input.slots);
    match stored_value(input.value, &quota, input.now_us.min(most), input.cost.min(most)) {
        Ok(inspection) => {
            let text = format!("{inspection:?}");
            assert!(!text.is_empty());
        }
        Err(error) => assert!(!error.is_empty() && !error.contains('\n'), "{error:?}"),
    }
    // A document that is read is written back as it was.
    if let Some(written) = control_document(input.value) {
        assert_eq!(written, input.value);
    }
});
