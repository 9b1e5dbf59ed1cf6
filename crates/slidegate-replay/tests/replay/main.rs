//! Replays of random logs against brute force: lists of charges, searched every time.
// A test that cannot go on panics.
#![allow(clippy::unwrap_used)]

mod decisions;
mod diff;
mod sweep;
mod threads;
mod traffic;
