//! The control document: a text with the run-time changes, shared by all instances.
//!
//! It is the only key without a TTL: it is not usage, and stays until it is replaced. A writer
//! passes the id of the document that it read, and a script replaces only that one, so no change is
//! overwritten. The id is on the first line, which is read by itself, so polling is cheap.

use redis::Value;
use redis_once::{Call, Executed, Failure, FailureKind, LastFailure, ReplyBound};
use slidegate::internal::instant;
use slidegate::store::{ControlDocument, ControlDocumentId};

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
    let ControlDocument { id, text, .. } = document;
    if !id.is_writable() {
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
    let line = &bytes[..bytes.iter().position(|byte| *byte == b'\n')?];
    ControlDocumentId::from_text(std::str::from_utf8(line).ok()?)
}

pub(crate) fn read(bytes: &[u8]) -> Option<ControlDocument> {
    let id = id_of(bytes).filter(|_| bytes.len() <= LARGEST)?;
    let text = bytes.iter().position(|byte| *byte == b'\n').map_or(&[][..], |at| &bytes[at + 1..]);
    Some(ControlDocument::new(id, String::from_utf8(text.to_vec()).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What something else wrote under the name must not pass for limits, and what older releases
    /// wrote must be read.
    #[test]
    fn only_an_id_and_a_text_are_a_control_document() {
        let document = |id, text: &str| Some(ControlDocument::new(id, text));
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
