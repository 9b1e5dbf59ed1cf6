//! Reading a snapshot: the whole file is verified before anything of it is used.

use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::time::Duration;

use super::section::{self, Kind, MAGIC, PREAMBLE_BYTES, VERSION};
use super::{SnapshotError, section::read};
use crate::algorithm::Input;
use crate::time::{Boot, Moment, Timestamp, micros};

/// Difference of two clocks up to which both are taken for right: they are read one after the
/// other.
const CLOCK_NOISE: Duration = Duration::from_millis(1);

/// A verified snapshot, to be restored with [`Gate::restore`](crate::Gate::restore).
#[derive(Debug)]
pub struct Snapshot {
    file: BufReader<File>,
    bytes: u64,
    pub(super) written: Written,
    attachments: Vec<(String, Vec<u8>)>,
    pub(super) keys: u64,
}

/// When a snapshot was written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Written {
    pub(super) wall: Timestamp,
    boot: Boot,
    pub(super) identity_seed: [u8; 16],
    /// How long it took.
    took_us: u64,
}

impl Snapshot {
    /// Reads the whole file and verifies it.
    ///
    /// # Errors
    /// If the file cannot be read, or is not a whole snapshot of a version that this release reads.
    pub fn read(mut file: File) -> Result<Self, SnapshotError> {
        let unreadable = |error| SnapshotError::io("cannot read the snapshot", &error);
        let bytes = file.metadata().map_err(unreadable)?.len();
        file.rewind().map_err(unreadable)?;
        let mut snapshot = Self {
            file: BufReader::with_capacity(1 << 18, file),
            bytes,
            written: Written::default(),
            attachments: Vec::new(),
            keys: 0,
        };
        let mut sections = snapshot.sections()?;
        let (mut written, mut attachments, mut totals) = (None, Vec::new(), None);
        while let Some((kind, content)) = sections.next()? {
            let mut input = Input(content);
            let damaged = || SnapshotError::damaged(format!("a section of kind {kind:?} is malformed"));
            match kind {
                Kind::Header => written = Some(Written::from_header(&mut input).ok_or_else(damaged)?),
                Kind::Attachment => {
                    let name = take_text(&mut input).ok_or_else(damaged)?.to_owned();
                    attachments.push((name, input.0.to_vec()));
                }
                Kind::Policies | Kind::Keys | Kind::Holds => {}
                Kind::End => totals = input.u64().zip(input.u64()),
            }
        }
        let malformed = || SnapshotError::damaged("the last section is malformed");
        let (keys, took_us) = totals.ok_or_else(malformed)?;
        let written = written.ok_or_else(|| SnapshotError::damaged("the header is missing"))?;
        let written = Written { took_us, ..written };
        Ok(Self { written, attachments, keys, ..snapshot })
    }

    /// What the identities of keys depend on.
    pub(in crate::store::memory) fn identity_seed(&self) -> [u8; 16] {
        self.written.identity_seed
    }

    /// When it was written, by the wall clock of then.
    #[must_use]
    pub fn written_at(&self) -> Timestamp {
        self.written.wall
    }

    /// Keys in the snapshot.
    #[must_use]
    pub fn keys(&self) -> u64 {
        self.keys
    }

    /// Bytes of the file.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// What the program saved under this name, see [`Gate::save`](crate::Gate::save).
    #[must_use]
    pub fn attachment(&self, name: &str) -> Option<&[u8]> {
        self.attachments.iter().find(|(known, _)| known == name).map(|(_, content)| content.as_slice())
    }

    /// All sections, from the first.
    pub(super) fn sections(&mut self) -> Result<Sections<'_>, SnapshotError> {
        let unreadable = |error| SnapshotError::io("cannot read the snapshot", &error);
        self.file.seek(SeekFrom::Start(0)).map_err(unreadable)?;
        let mut preamble = [0; PREAMBLE_BYTES];
        let is_whole = self.file.read_exact(&mut preamble).is_ok();
        let (magic, version) = preamble.split_at(MAGIC.len());
        if !is_whole || magic != MAGIC {
            return Err(SnapshotError::damaged("the file is not a snapshot of slidegate"));
        }
        if version != VERSION.to_le_bytes() {
            let version = Input(version).u32().unwrap_or(0);
            return Err(SnapshotError::damaged(format!(
                "the snapshot has format {version}, and this release reads {VERSION}"
            )));
        }
        let left = self.bytes.saturating_sub(PREAMBLE_BYTES as u64);
        Ok(Sections { file: &mut self.file, left, number: 0, content: Vec::new(), is_at_end: false })
    }
}

/// The sections of a file, in their order.
#[derive(Debug)]
pub(super) struct Sections<'a> {
    file: &'a mut BufReader<File>,
    left: u64,
    number: u32,
    content: Vec<u8>,
    is_at_end: bool,
}

impl Sections<'_> {
    /// The next section; `None` after the last.
    pub(super) fn next(&mut self) -> Result<Option<(Kind, &[u8])>, SnapshotError> {
        if self.is_at_end {
            if self.left > 0 {
                return Err(SnapshotError::damaged(format!("{} bytes follow its end", self.left)));
            }
            return Ok(None);
        }
        let kind = read(self.file, self.number, &mut self.left, &mut self.content)?;
        if (kind == section::Kind::Header) != (self.number == 0) {
            return Err(SnapshotError::damaged(format!("section {} is out of order", self.number)));
        }
        self.number += 1;
        self.is_at_end = kind == Kind::End;
        Ok(Some((kind, &self.content)))
    }
}

impl Written {
    fn from_header(input: &mut Input<'_>) -> Option<Self> {
        let wall = Timestamp::from_micros(input.u64()?);
        let boot = Boot { id: input.array()?, elapsed_us: input.u64()? };
        Some(Self { wall, boot, identity_seed: input.array()?, took_us: 0 })
    }

    /// Time between the begin of the snapshot and now.
    ///
    /// If the machine was not restarted, the clock that counts since it was decides, so that a
    /// corrected wall clock does not matter. Otherwise the difference of the wall clocks: one that
    /// was set back is taken for no time at all.
    pub(super) fn until(&self, now: Moment, boot: Option<Boot>) -> Duration {
        let by_wall = now.wall - self.wall;
        let same_boot = boot.filter(|boot| boot.id == self.boot.id && boot.id != [0; 16]);
        let by_boot = same_boot.map(|boot| boot.elapsed_us.saturating_sub(self.boot.elapsed_us));
        let elapsed = match by_boot.map(Duration::from_micros) {
            // The wall clock is exact to the microsecond if it was not corrected.
            Some(by_boot) if by_boot.abs_diff(by_wall) > CLOCK_NOISE => by_boot,
            _ => by_wall,
        };
        elapsed.max(Duration::from_micros(self.took_us))
    }
}

pub(super) fn take_text<'a>(input: &mut Input<'a>) -> Option<&'a str> {
    let len = input.u16()?;
    std::str::from_utf8(input.bytes(len.into())?).ok()
}

/// The instant of the snapshot by a clock that shows `now` after this time.
pub(super) fn before(now: Timestamp, elapsed: Duration) -> u64 {
    now.as_micros().saturating_sub(micros(elapsed))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_secs(86_400);

    /// A wall clock that is corrected during a restart must neither free nor lock a key.
    #[test]
    fn the_downtime_is_counted_by_the_clock_that_was_not_corrected() {
        let at = |secs: u64| Timestamp::from_secs(1_000_000 + secs);
        let boot = |id: u8, secs: u64| Boot { id: [id; 16], elapsed_us: (5000 + secs) * 1_000_000 };
        let written = Written { wall: at(0), boot: boot(1, 0), ..Written::default() };
        let until = |wall: Timestamp, boot| written.until(Moment { at: wall, wall }, boot).as_secs();
        assert_eq!(until(at(60), Some(boot(1, 60))), 60);
        assert_eq!(until(at(60) + DAY, Some(boot(1, 60))), 60, "set forward by a day");
        assert_eq!(until(Timestamp::from_secs(0), Some(boot(1, 60))), 60, "set back");
        assert_eq!(until(at(60), Some(boot(2, 1))), 60, "the machine was restarted");
        assert_eq!(until(at(60), None), 60);
        assert_eq!(until(Timestamp::from_secs(0), Some(boot(2, 1))), 0, "never negative");
        let slow = Written { took_us: 9_000_000, ..written };
        let now = Moment { at: at(1), wall: at(1) };
        assert_eq!(slow.until(now, None).as_secs(), 9, "never less than writing took");
    }
}
