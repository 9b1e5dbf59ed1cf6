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

use crate::quota::{Algorithm, Quota};

/// The list of algorithms that count a rate. Runs a macro on it, after arguments in parentheses if there are any: the
/// name of the state type, which is also that of the variant of `Algorithm`, and the name of its files.
#[doc(hidden)]
#[macro_export]
macro_rules! for_each_rate {
    ($run:ident $(($($arguments:tt)*))?) => {
        $run! {
            $(($($arguments)*))?
            SlidingLog sliding_log, SlidingWindow sliding_window,
            FixedWindow fixed_window, TokenBucket token_bucket
        }
    };
}
pub use for_each_rate;

macro_rules! variants {
    ($($name:ident $file:ident),*) => {
        [$(Algorithm::$name),*]
    };
}

impl Algorithm {
    /// Every algorithm that counts a rate, in the order of the documentation.
    pub const ALL: [Self; 4] = for_each_rate!(variants);
}

/// Runs an expression for the state type of an algorithm. Must be imported by its name.
#[doc(hidden)]
#[macro_export]
macro_rules! for_algorithm {
    (($algorithm:expr, $state:ident => $run:expr) $($name:ident $file:ident),*) => {
        match $algorithm {
            $($crate::Algorithm::$name => {
                type $state = $crate::internal::$name;
                $run
            })*
            $crate::Algorithm::InFlight => {
                type $state = $crate::internal::InFlight;
                $run
            }
        }
    };
    ($algorithm:expr, $state:ident => $run:expr) => {
        $crate::for_each_rate!(for_algorithm ($algorithm, $state => $run))
    };
}
pub use for_algorithm;

/// How a quota counts, for people.
pub fn describe(quota: &Quota) -> String {
    for_algorithm!(quota.algorithm(), S => S::describe(quota))
}
