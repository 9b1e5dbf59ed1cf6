//! Tiers: quotas by the value of an attribute.

use std::collections::BTreeMap;

use crate::fold::Fold;
use crate::quota::Quota;
use crate::request::{Request, Value};

/// Quotas by the value of an attribute.
#[derive(Debug, Clone)]
pub struct Tiers {
    /// The attribute.
    pub attribute: String,
    /// The quotas by its value.
    pub quotas: BTreeMap<String, Quota>,
    /// The fold of the attribute, applied to the values.
    pub(super) fold: Fold,
}

impl Tiers {
    /// The value of a request's tier and its quota, if it has one.
    #[must_use]
    pub fn of(&self, request: &Request<'_>) -> Option<(&str, &Quota)> {
        match self.fold.of(request.value(&self.attribute)?).value() {
            Value::Bytes(value) => {
                let (value, quota) = self.quotas.get_key_value(std::str::from_utf8(value).ok()?)?;
                Some((value, quota))
            }
            Value::Address(_) => None,
        }
    }

    /// Folds the values, if this is their attribute.
    pub(super) fn folded(self, attribute: &str, fold: Fold) -> Self {
        if self.attribute != attribute || fold == Fold::NONE {
            return self;
        }
        let quotas = self.quotas.into_iter().map(|(value, quota)| (fold.of_text(&value), quota));
        Self { quotas: quotas.collect(), fold: self.fold.and(fold), ..self }
    }
}
