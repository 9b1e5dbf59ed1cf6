//! The control document: a text with the run-time changes, shared by all instances on a store.

use std::fmt;

use crate::quota::Quota;

/// Identifies one write of the control document.
///
/// A version alone is not enough: a store that loses its data, or fails over to a lagging replica,
/// reuses older versions. The random parts tell such a document from the lost one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ControlDocumentId {
    /// Random, chosen by the instance that writes the first document, or the first after a loss. 0
    /// in documents of releases that wrote the version alone.
    pub epoch: u64,
    /// Grows with each write, up to [`Quota::MAX_COUNT`]. 0 if there is no document.
    pub version: u64,
    /// Random, chosen by each write. 0 where `epoch` is 0.
    pub revision: u64,
}

impl ControlDocumentId {
    /// The id of a document that does not exist.
    pub const ABSENT: Self = Self { epoch: 0, version: 0, revision: 0 };

    /// Whether the document does not exist.
    #[must_use]
    pub fn is_absent(&self) -> bool {
        self.version == 0
    }

    /// Whether a document may be written with this id: the version is 1 to [`Quota::MAX_COUNT`],
    /// and the random parts are not 0.
    #[must_use]
    pub fn is_writable(&self) -> bool {
        self.epoch != 0 && self.revision != 0 && (1..=Quota::MAX_COUNT).contains(&self.version)
    }

    /// Parses the [text](fmt::Display) of the id of a document that exists. Only one spelling is
    /// valid, so stores may compare ids as text.
    #[must_use]
    pub fn from_text(text: &str) -> Option<Self> {
        let mut words = text.split(' ');
        let version =
            words.next()?.parse().ok().filter(|version| (1..=Quota::MAX_COUNT).contains(version))?;
        let mut random = || u64::from_str_radix(words.next()?, 16).ok().filter(|number| *number != 0);
        let id = match (random(), random()) {
            (Some(epoch), Some(revision)) => Self { epoch, version, revision },
            _ => Self { version, ..Self::ABSENT },
        };
        Some(id).filter(|id| id.to_string() == text)
    }
}

impl fmt::Display for ControlDocumentId {
    /// The version in decimal, then epoch and revision with 16 hexadecimal digits each; empty if
    /// there is no document.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { epoch, version, revision } = self;
        match (version, epoch) {
            (0, _) => Ok(()),
            (_, 0) => write!(f, "{version}"),
            _ => write!(f, "{version} {epoch:016x} {revision:016x}"),
        }
    }
}

/// A text shared by all instances on a store.
///
/// ```
/// use slidegate::store::{ControlDocument, ControlDocumentId};
///
/// let first = ControlDocumentId { epoch: 7, version: 1, revision: 9 };
/// assert!(!ControlDocument::new(first, "{}").id.is_absent());
/// assert!(ControlDocument::default().id.is_absent());
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct ControlDocument {
    /// Identifies the write.
    pub id: ControlDocumentId,
    /// At most a mebibyte. Empty if there is no document.
    pub text: String,
}

impl ControlDocument {
    /// A document to be written, or one that was read.
    #[must_use]
    pub fn new(id: ControlDocumentId, text: impl Into<String>) -> Self {
        Self { id, text: text.into() }
    }
}
