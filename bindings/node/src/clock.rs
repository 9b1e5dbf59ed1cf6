//! Time that tests advance by hand.

use std::time::Duration;

use napi_derive::napi;

/// The library's clock for tests.
#[napi]
#[derive(Default)]
pub struct ManualClock(slidegate::clock::ManualClock);

#[napi]
impl ManualClock {
    /// A clock that stands at 1,000,000,000 seconds since the epoch.
    #[napi(constructor, catch_unwind)]
    pub fn new() -> Self {
        Self::default()
    }

    /// Moves it forwards. JavaScript has checked the number.
    #[napi(catch_unwind)]
    pub fn advance(&self, micros: f64) {
        self.0.advance(Duration::from_micros(micros as u64));
    }
}

impl ManualClock {
    pub(crate) fn shared(&self) -> slidegate::clock::ManualClock {
        self.0.clone()
    }
}
