//! The control plane: what operators see and change, on one instance and in a fleet.

pub(crate) mod admin;
pub(crate) mod changes;
pub(crate) mod dashboard;
pub(crate) mod fleet;
pub(crate) mod pages;
pub(crate) mod state;
