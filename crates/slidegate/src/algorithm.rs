//! The four algorithms, and what is in flight. Each is a [`State`], by the rules of `state.rs`.

pub(crate) mod fixed_window;
pub(crate) mod held;
pub(crate) mod in_flight;
pub(crate) mod log_reply;
pub(crate) mod saved;
pub(crate) mod sliding_log;
pub(crate) mod sliding_window;
mod state;
pub(crate) mod token_bucket;

pub use fixed_window::FixedWindow;
pub use held::{HeldKey, counts_still, inspect_with_holds};
pub use in_flight::InFlight;
pub use log_reply::LogReply;
pub(crate) use saved::{Ages, SavedHold, SavedState};
pub use sliding_log::SlidingLog;
pub use sliding_window::SlidingWindow;
pub use state::{State, VerbEffect, decision, perform};
pub(crate) use state::{charge, inspect};
pub use token_bucket::TokenBucket;

/// Runs a macro on the four algorithms that count a rate: the name of the state type, which is also that of the variant of
/// `Algorithm`, and a name for a field.
macro_rules! for_each_rate {
    ($run:ident) => {
        $run! {
            SlidingLog sliding_log, SlidingWindow sliding_window,
            FixedWindow fixed_window, TokenBucket token_bucket
        }
    };
}
pub(crate) use for_each_rate;

/// Runs an expression for the state type of an algorithm.
#[doc(hidden)]
#[macro_export]
macro_rules! for_algorithm {
    ($algorithm:expr, $state:ident => $run:expr) => {
        match $algorithm {
            $crate::Algorithm::SlidingLog => {
                type $state = $crate::internal::SlidingLog;
                $run
            }
            $crate::Algorithm::SlidingWindow => {
                type $state = $crate::internal::SlidingWindow;
                $run
            }
            $crate::Algorithm::FixedWindow => {
                type $state = $crate::internal::FixedWindow;
                $run
            }
            $crate::Algorithm::TokenBucket => {
                type $state = $crate::internal::TokenBucket;
                $run
            }
            $crate::Algorithm::InFlight => {
                type $state = $crate::internal::InFlight;
                $run
            }
        }
    };
}
pub use for_algorithm;
