//! Tiers: quotas by the value of an attribute.

use std::collections::BTreeMap;

use crate::quota::Quota;
use crate::request::{Request, Value};

/// Quotas by the value of an attribute.
#[derive(Debug, Clone)]
pub(super) struct Tiers {
    pub(super) attribute: String,
    pub(super) quotas: BTreeMap<String, Quota>,
}

impl Tiers {
    /// The quota of a request's tier, if it has one.
    pub(super) fn of(&self, request: &Request<'_>) -> Option<&Quota> {
        match request.value(&self.attribute)? {
            Value::Bytes(value) => self.quotas.get(std::str::from_utf8(value).ok()?),
            Value::Address(_) => None,
        }
    }
}
