//! The control document: a text with the run-time changes, shared by all instances.
//!
//! It is the only key without a TTL: it is not usage, and stays until it is replaced. A writer
//! passes the id of the document that it read, and a script replaces only that one, so no change is
//! overwritten. The id is on the first line, which is read by itself, so polling is cheap.

use std::fmt;

use redis::Value;
use redis_once::{Call, Executed, Failure, FailureKind, LastFailure, ReplyBound};
use slidegate::internal::instant;

use super::PATIENCE;
use crate::call::MOST;
use crate::calls::{Calls, explain};

/// The document's key. Keys of policies have a second colon.
const KEY: &[u8] = b"sg1:control";
/// The maximum size of the document, its first line included, in bytes: Redis moves a mebibyte in a
/// millisecond or two.
const LARGEST: usize = 1 << 20;
/// The longest first line: 16 digits of the version, epoch and revision with 16 each, two spaces
/// and a line feed.
const FIRST_LINE: usize = 51;
/// Identifies one write of the control document.
///
/// A version alone is not enough: a store that loses its data, or fails over to a lagging replica,
/// reuses older versions. The random parts tell such a document from the lost one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ControlDocumentId {
    /// Random, chosen by the instance that writes the first document, or the first after a loss. 0
    /// in documents of releases that wrote the version alone.
    pub epoch: u64,
    /// Grows with each write. 0 if there is no document.
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

    /// Reads a first line without its line feed.
    fn read(line: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(line).ok()?;
        let mut words = text.split(' ');
        let version = words.next()?.parse().ok().filter(|version| (1..=MOST).contains(version))?;
        let mut random = || u64::from_str_radix(words.next()?, 16).ok().filter(|number| *number != 0);
        let id = match (random(), random()) {
            (Some(epoch), Some(revision)) => Self { epoch, version, revision },
            _ => Self { version, ..Self::ABSENT },
        };
        // The script compares the line as text, so only one spelling is valid.
        Some(id).filter(|id| id.to_string() == text)
    }
}

impl fmt::Display for ControlDocumentId {
    /// The first line of the document; empty if there is none.
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
/// use slidegate_redis::{ControlDocument, ControlDocumentId};
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
    /// A document to be written.
    #[must_use]
    pub fn new(id: ControlDocumentId, text: impl Into<String>) -> Self {
        Self { id, text: text.into() }
    }
}

/// The document, or `None` if it is still the `known` one.
pub(crate) async fn read_document(
    calls: &Calls,
    known: Option<ControlDocumentId>,
) -> Result<Option<ControlDocument>, Failure> {
    let first = stored_bytes(calls, FIRST_LINE).await?;
    if known.is_some() && known == id_of(&first) {
        return Ok(None);
    }
    let bytes = stored_bytes(calls, LARGEST + 1).await?;
    let document = read(&bytes).ok_or_else(|| {
        let detail = "`sg1:control` is not a control document that this release can read; another program \
                      or a newer slidegate wrote it";
        failed(calls, FailureKind::ForeignValue, detail)
    })?;
    Ok(Some(document).filter(|document| Some(document.id) != known))
}

/// Replaces the document `found`. Returns false if another one is stored by now.
pub(crate) async fn write_document(
    calls: &Calls,
    found: ControlDocumentId,
    document: &ControlDocument,
) -> Result<bool, Failure> {
    let ControlDocument { id, text } = document;
    if id.epoch == 0 || id.revision == 0 || !(1..=MOST).contains(&id.version) {
        let detail = format!(
            "control document: invalid version {}, epoch {} and revision {}: the version must be 1 to \
             {MOST}, epoch and revision random numbers other than 0",
            id.version, id.epoch, id.revision
        );
        return Err(Failure::without_node(Executed::No, FailureKind::Other, detail));
    }
    let value = format!("{id}\n{text}");
    if value.len() > LARGEST {
        let detail =
            format!("control document: invalid size of {} bytes: must be at most {LARGEST}", value.len());
        return Err(Failure::without_node(Executed::No, FailureKind::Other, detail));
    }
    let args = [found.to_string().into_bytes(), value.into_bytes()];
    let deadline = instant() + PATIENCE;
    let unread = LastFailure::default();
    let script = &calls.scripts().control_document;
    let call = Call { script, keys: &[KEY.to_vec()], args: &args, native: None };
    let written =
        calls.reply(calls.client.run(call, ReplyBound::SMALL, deadline, &unread).await)? == Value::Int(1);
    if written {
        calls.denials.publish_control_document(deadline).await;
    }
    Ok(written)
}

/// The first bytes of the stored document.
async fn stored_bytes(calls: &Calls, most: usize) -> Result<Vec<u8>, Failure> {
    let mut command = redis::cmd("GETRANGE");
    command.arg(KEY).arg(0).arg(most - 1);
    let bound = ReplyBound::of(most);
    let read = calls.client.bounded_command(Some(KEY), &command, bound, instant() + PATIENCE).await;
    match read.map_err(explain)? {
        Value::BulkString(bytes) => Ok(bytes),
        other => Err(failed(calls, FailureKind::Malformed, &format!("answered GETRANGE with {other:?}"))),
    }
}

fn failed(calls: &Calls, kind: FailureKind, detail: &str) -> Failure {
    calls.failed(calls.client.slot(KEY), Executed::No, kind, detail)
}

/// The id in the first bytes of a value; [`ControlDocumentId::ABSENT`] if it is empty.
fn id_of(bytes: &[u8]) -> Option<ControlDocumentId> {
    if bytes.is_empty() {
        return Some(ControlDocumentId::ABSENT);
    }
    ControlDocumentId::read(&bytes[..bytes.iter().position(|byte| *byte == b'\n')?])
}

pub(crate) fn read(bytes: &[u8]) -> Option<ControlDocument> {
    let id = id_of(bytes).filter(|_| bytes.len() <= LARGEST)?;
    let text = bytes.iter().position(|byte| *byte == b'\n').map_or(&[][..], |at| &bytes[at + 1..]);
    Some(ControlDocument { id, text: String::from_utf8(text.to_vec()).ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What something else wrote under the name must not pass for limits, and what older releases
    /// wrote must be read.
    #[test]
    fn only_an_id_and_a_text_are_a_control_document() {
        let document =
            |id: ControlDocumentId, text: &str| Some(ControlDocument { id, text: text.to_owned() });
        let legacy = ControlDocumentId { version: 12, ..ControlDocumentId::ABSENT };
        assert_eq!(read(b""), document(ControlDocumentId::ABSENT, ""));
        assert_eq!(read(b"12\n{}\n"), document(legacy, "{}\n"));
        let id = ControlDocumentId { epoch: 0xab, version: MOST, revision: u64::MAX };
        assert_eq!(read(format!("{id}\n{{}}").as_bytes()), document(id, "{}"));
        assert_eq!(id.to_string().len() + 1, FIRST_LINE);
        assert_eq!([ControlDocumentId::ABSENT.to_string(), legacy.to_string()], ["", "12"]);
        for foreign in [
            &b"{}"[..],
            b"\n",
            b"0\n",
            b"-1\nx",
            b"+1\nx",
            b"9007199254740992\n",
            b"1\n\xff",
            b"12",
            b"1 00000000000000ab\n",
            b"1 00000000000000ab 0000000000000000\n",
            b"1 ab ab\n",
            b"1 00000000000000ab 00000000000000ab 1\n",
            b"1  \n",
            b"01\n",
            b"1 00000000000000AB 00000000000000ab\n",
        ] {
            assert_eq!(read(foreign), None, "{foreign:?}");
        }
        assert_eq!(read(&[b"1\n".as_slice(), &vec![b'x'; LARGEST]].concat()), None);
    }
}
