//! Run-time changes, shared by all instances: the control document, and the resulting policies.

mod active;
mod control;
mod document;
mod escalate;
mod fold;
mod merge;
mod reconcile;
mod refusal;
mod terms;

pub(crate) use active::initial;
pub(crate) use control::{Control, ControlStatus, Location};
pub(crate) use document::{ActionRecord, Change, Document, KeyChange, KeyKind, KeyTerms, What};
pub(crate) use fold::Base;
pub(crate) use refusal::{Cause, Refusal};
pub(crate) use terms::{Counting, Terms};
