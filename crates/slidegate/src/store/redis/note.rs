//! The note: one text that all instances share, such as what was changed while they run.
//!
//! It alone has no time to live: it is not usage, and is there until somebody writes another one. A writer says which
//! version it read, so no change is lost; the version is read by itself, so that looking often costs little.

use std::time::Duration;

use redis::Value;

use super::{Executed, Failure, FailureKind, MOST, RedisStore, explain, news};
use crate::time::instant;

/// Where it lies, named as all keys are. Keys of policies have a second colon.
const KEY: &[u8] = b"sg1:control";
/// Largest note, its version included, in bytes: Redis moves a mebibyte in a millisecond or two.
const LARGEST: usize = 1 << 20;
/// The first line: digits of the version and a line feed.
const FIRST_LINE: usize = 17;
/// How long a read or a write may take: no decision waits for it.
const PATIENCE: Duration = Duration::from_secs(2);

/// A text that all instances on a store share.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Note {
    /// Grows by one with each write. 0 where there is no note.
    pub version: u64,
    /// At most a mebibyte.
    pub text: String,
}

impl RedisStore {
    /// The note, unless it still is of the version that is known.
    pub(crate) async fn note(&self, known: Option<u64>) -> Result<Option<Note>, Failure> {
        let first = self.note_bytes(FIRST_LINE).await?;
        if known.is_some() && known == version_of(&first) {
            return Ok(None);
        }
        let bytes = self.note_bytes(LARGEST + 1).await?;
        let note = read(&bytes).ok_or_else(|| {
            let detail = "`sg1:control` is not a note that this release can read; another program wrote it, or a newer \
                          slidegate did";
            self.note_failed(FailureKind::Malformed, detail.to_owned())
        })?;
        Ok(Some(note).filter(|note| Some(note.version) != known))
    }

    /// Writes the note after this version; false if there is another one by now.
    pub(crate) async fn set_note(&self, after: u64, text: &str) -> Result<bool, Failure> {
        let value = format!("{}\n{text}", after + 1);
        if value.len() > LARGEST {
            let detail = format!("a note of {} bytes is too large; {LARGEST} is the most", value.len());
            return Err(Failure::of_none(Executed::No, FailureKind::Other, detail));
        }
        let args = [after.to_string().into_bytes(), value.into_bytes()];
        let deadline = instant() + PATIENCE;
        let calls = &self.calls;
        let written = calls.wire.run(calls.scripts.note(), &[KEY.to_vec()], &args, deadline).await;
        let written = written.map_err(explain)? == Value::Int(1);
        if written {
            calls.forget_denials();
            // Whoever does not hear it, looks within seconds.
            let _ = news::publish_note(calls, deadline).await;
        }
        Ok(written)
    }

    /// Waits until another instance has told of a note.
    pub(crate) async fn note_announced(&self) {
        if let Some(remembered) = &self.calls.remembered {
            self.news.keep(&self.calls, remembered);
        }
        self.calls.note_announced.notified().await;
    }

    /// The first bytes of what is stored.
    async fn note_bytes(&self, most: usize) -> Result<Vec<u8>, Failure> {
        let mut command = redis::cmd("GETRANGE");
        command.arg(KEY).arg(0).arg(most - 1);
        match self.calls.wire.command(Some(KEY), &command, instant() + PATIENCE).await.map_err(explain)? {
            Value::BulkString(bytes) => Ok(bytes),
            other => {
                Err(self.note_failed(FailureKind::Malformed, format!("answered GETRANGE with {other:?}")))
            }
        }
    }

    fn note_failed(&self, kind: FailureKind, detail: String) -> Failure {
        self.calls.failed(self.calls.wire.slot(KEY), Executed::No, kind, detail)
    }
}

/// The version that the first bytes tell; 0 where there are none.
fn version_of(bytes: &[u8]) -> Option<u64> {
    if bytes.is_empty() {
        return Some(0);
    }
    let digits = &bytes[..bytes.iter().position(|byte| *byte == b'\n')?];
    std::str::from_utf8(digits).ok()?.parse().ok().filter(|version| (1..=MOST).contains(version))
}

fn read(bytes: &[u8]) -> Option<Note> {
    let version = version_of(bytes).filter(|_| bytes.len() <= LARGEST)?;
    let text = bytes.iter().position(|byte| *byte == b'\n').map_or(&[][..], |at| &bytes[at + 1..]);
    Some(Note { version, text: String::from_utf8(text.to_vec()).ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What something else wrote under the name must not pass for limits.
    #[test]
    fn only_a_version_and_a_text_are_a_note() {
        let note = |version, text: &str| Some(Note { version, text: text.to_owned() });
        assert_eq!(read(b""), note(0, ""));
        assert_eq!(read(b"12\n{}\n"), note(12, "{}\n"));
        for foreign in [&b"{}"[..], b"\n", b"0\n", b"-1\nx", b"9007199254740992\n", b"1\n\xff", b"12"] {
            assert_eq!(read(foreign), None, "{foreign:?}");
        }
        assert_eq!(read(&[b"1\n".as_slice(), &vec![b'x'; LARGEST]].concat()), None);
    }
}
