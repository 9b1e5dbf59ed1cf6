//! The native part of the npm package `slidegate`.
//!
//! The package's JavaScript, in `lib/`, is the only caller. It checks and names arguments; this part
//! converts values. No panic crosses into Node: every function catches them.

// Numbers of JavaScript are `f64`. Its side checks that they are whole and not negative; casts saturate.
#![allow(clippy::cast_possible_truncation, clippy::cast_precision_loss, clippy::cast_sign_loss)]
// Functions of Node-API take values that were converted for the call.
#![allow(clippy::needless_pass_by_value)]

use std::sync::atomic::{AtomicU32, Ordering};

mod client_rule;
mod clock;
mod error;
mod gate;
mod limiter;
mod pending;
mod runtime;
mod values;

/// The number of a call that will wait.
#[napi_derive::napi(catch_unwind)]
pub fn next_call() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Takes a call that waits out of its queue. Its promise is settled when it has left.
#[napi_derive::napi(catch_unwind)]
pub fn leave(number: u32) {
    pending::leave(number);
}
