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

pub(crate) use fixed_window::FixedWindow;
pub(crate) use held::{HeldKey, counts_still, inspect_with_holds};
pub(crate) use in_flight::InFlight;
pub(crate) use log_reply::LogReply;
pub(crate) use saved::{Ages, SavedHold, SavedState};
pub(crate) use sliding_log::SlidingLog;
pub(crate) use sliding_window::SlidingWindow;
pub(crate) use state::{State, VerbEffect, charge, decision, inspect, perform};
pub(crate) use token_bucket::TokenBucket;

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
macro_rules! for_algorithm {
    ($algorithm:expr, $state:ident => $run:expr) => {
        match $algorithm {
            $crate::quota::Algorithm::SlidingLog => {
                type $state = $crate::algorithm::SlidingLog;
                $run
            }
            $crate::quota::Algorithm::SlidingWindow => {
                type $state = $crate::algorithm::SlidingWindow;
                $run
            }
            $crate::quota::Algorithm::FixedWindow => {
                type $state = $crate::algorithm::FixedWindow;
                $run
            }
            $crate::quota::Algorithm::TokenBucket => {
                type $state = $crate::algorithm::TokenBucket;
                $run
            }
            $crate::quota::Algorithm::InFlight => {
                type $state = $crate::algorithm::InFlight;
                $run
            }
        }
    };
}
pub(crate) use for_algorithm;
