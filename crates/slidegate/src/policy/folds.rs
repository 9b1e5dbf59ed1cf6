//! Folding of attribute values.

use super::Policy;
use crate::fold::Fold;

impl Policy {
    /// Counts several spellings of an attribute's value as one: in conditions, keys, overrides,
    /// blocks and tiers. Repeated folds of an attribute combine. See [`Fold`].
    ///
    /// Keys that fold differently than before start afresh.
    #[must_use]
    pub fn with_fold(mut self, attribute: impl Into<String>, fold: Fold) -> Self {
        let attribute = attribute.into();
        let fold = self.fold_of(&attribute).and(fold);
        self.folds.retain(|(known, _)| *known != attribute);
        for (_, condition) in self.when.iter_mut().filter(|(name, _)| *name == attribute) {
            *condition = condition.clone().folded(fold);
        }
        self.tiers = self.tiers.map(|tiers| tiers.folded(&attribute, fold));
        if fold != Fold::NONE {
            self.folds.push((attribute, fold));
        }
        self.fold_keys();
        self
    }

    pub(super) fn fold_keys(&mut self) {
        let folds: Vec<_> = self.keys.scope.iter().map(|attribute| self.fold_of(attribute)).collect();
        let is_any = folds.iter().any(|fold| *fold != Fold::NONE);
        self.keys.folds = if is_any { folds.into() } else { Box::default() };
    }

    pub(super) fn fold_of(&self, attribute: &str) -> Fold {
        let known = self.folds.iter().find(|(known, _)| known == attribute);
        known.map_or(Fold::NONE, |(_, fold)| *fold)
    }

    /// The folded attributes and their folds.
    #[must_use]
    pub fn folds(&self) -> &[(String, Fold)] {
        &self.folds
    }
}
