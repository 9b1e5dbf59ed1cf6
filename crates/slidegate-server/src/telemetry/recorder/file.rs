//! The file of a recording: rotated by size, readable by its owner only.
//!
//! What cannot be written is cut off again, so that the file ends with a whole line.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use slidegate::Timestamp;

use crate::config::Record;

/// Bytes that are written at once.
const BUFFER_BYTES: usize = 256 << 10;

/// Counts of written and failed lines.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Outcome {
    pub(super) written: u64,
    pub(super) lost: u64,
    /// Why lines were lost.
    pub(super) error: Option<String>,
}

/// A file, and the ones before it.
#[derive(Debug)]
pub(super) struct RotatedFile {
    path: PathBuf,
    max_bytes: u64,
    files: usize,
    /// `None` while it cannot be opened.
    file: Option<File>,
    /// Bytes in the file.
    length: u64,
    buffer: Vec<u8>,
    /// Lines in the buffer.
    lines: u64,
    /// The text of the last second, because neighbouring lines often have the same.
    second: (u64, String),
}

impl RotatedFile {
    /// Opens the file to continue it.
    ///
    /// # Errors
    /// It cannot be written, or another process writes it.
    pub(super) fn open(settings: &Record) -> io::Result<Self> {
        let Record { path, max_bytes, files, .. } = settings;
        let file = create(path)?;
        let length = file.metadata()?.len();
        Ok(Self {
            path: path.clone(),
            max_bytes: *max_bytes,
            files: *files,
            file: Some(file),
            length,
            buffer: Vec::with_capacity(BUFFER_BYTES),
            lines: 0,
            second: (u64::MAX, String::new()),
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Adds a line: its time, and the rest, which ends with a line end.
    pub(super) fn write(&mut self, at: Timestamp, rest: &[u8]) -> Outcome {
        let us = at.as_micros();
        let (second, us) = (us / 1_000_000, us % 1_000_000);
        if self.second.0 != second {
            let time =
                i64::try_from(second).ok().and_then(|second| jiff::Timestamp::from_second(second).ok());
            let time = time.unwrap_or(jiff::Timestamp::MAX);
            self.second = (second, time.strftime("%Y-%m-%dT%H:%M:%S").to_string());
        }
        self.buffer.extend_from_slice(b"{\"time\":\"");
        self.buffer.extend_from_slice(self.second.1.as_bytes());
        let digits = itoa::Buffer::new().format(1_000_000 + us).to_owned();
        self.buffer.push(b'.');
        self.buffer.extend_from_slice(&digits.as_bytes()[1..]);
        self.buffer.push(b'Z');
        self.buffer.extend_from_slice(rest);
        self.lines += 1;
        if self.buffer.len() < BUFFER_BYTES { Outcome::default() } else { self.flush() }
    }

    /// Writes what is buffered, and opens the file again if others moved or removed it.
    pub(super) fn tick(&mut self) -> Outcome {
        let done = self.flush();
        let identity = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
        let ours = self.file.as_ref().and_then(|file| file.metadata().ok()).map(identity);
        if ours.is_some() && fs::metadata(&self.path).ok().map(identity) != ours {
            self.file = None;
        }
        done
    }

    /// Writes what is buffered.
    pub(super) fn flush(&mut self) -> Outcome {
        if self.lines == 0 {
            return Outcome::default();
        }
        let done = match self.write_buffer() {
            Ok(()) => Outcome { written: self.lines, ..Outcome::default() },
            Err(error) => {
                // A part may have been written.
                if let Some(file) = &self.file {
                    let _ = file.set_len(self.length);
                }
                Outcome { lost: self.lines, error: Some(error.to_string()), ..Outcome::default() }
            }
        };
        self.buffer.clear();
        self.lines = 0;
        done
    }

    fn write_buffer(&mut self) -> io::Result<()> {
        if self.length > 0 && self.length + self.buffer.len() as u64 > self.max_bytes && self.file.is_some() {
            self.rotate()?;
        }
        let file = match &mut self.file {
            Some(file) => file,
            none => {
                let file = create(&self.path)?;
                self.length = file.metadata()?.len();
                none.insert(file)
            }
        };
        file.write_all(&self.buffer)?;
        self.length += self.buffer.len() as u64;
        Ok(())
    }

    /// Renames the files: `requests.jsonl` becomes `requests.jsonl.1`, and so on. The oldest is
    /// deleted.
    fn rotate(&mut self) -> io::Result<()> {
        if self.files == 1 {
            fs::remove_file(&self.path)?;
        } else {
            for number in (1..self.files - 1).rev() {
                let older = self.numbered(number);
                if older.exists() {
                    fs::rename(older, self.numbered(number + 1))?;
                }
            }
            fs::rename(&self.path, self.numbered(1))?;
        }
        self.file = None;
        self.length = 0;
        Ok(())
    }

    fn numbered(&self, number: usize) -> PathBuf {
        let mut name = OsString::from(&self.path);
        name.push(format!(".{number}"));
        name.into()
    }
}

/// Opens a file for appending, for its owner only, locked against other processes.
fn create(path: &Path) -> io::Result<File> {
    // Opening a pipe would wait for a reader.
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let file = OpenOptions::new().append(true).create(true).mode(0o600).custom_flags(flags).open(path)?;
    let kind = file.metadata()?.file_type();
    if kind.is_fifo() || kind.is_socket() {
        return Err(io::Error::other("it is a pipe or a socket: must be a file"));
    }
    if kind.is_file() {
        // One that was there may have had another mode.
        file.set_permissions(Permissions::from_mode(0o600))?;
    }
    file.try_lock().map_err(|error| match error {
        fs::TryLockError::WouldBlock => {
            io::Error::new(io::ErrorKind::WouldBlock, "another process writes it")
        }
        fs::TryLockError::Error(error) => error,
    })?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use slidegate_testkit::TempDir;

    use super::*;

    fn settings(path: PathBuf, files: usize) -> Record {
        Record { path, max_bytes: 1000, files, sample: 1.0 }
    }

    fn write(file: &mut RotatedFile, numbers: std::ops::Range<u64>) -> u64 {
        numbers
            .map(|number| {
                file.write(Timestamp::from_micros(number), format!("\",\"n\":{number:04}}}\n").as_bytes());
                file.flush().written
            })
            .sum()
    }

    fn lines(path: &Path) -> Vec<String> {
        fs::read_to_string(path).unwrap_or_default().lines().map(str::to_owned).collect()
    }

    /// A forgotten recording must not fill the disk, and the newest lines are the ones that count.
    #[test]
    fn files_are_bounded_in_size_and_number_and_the_newest_lines_stay() {
        for files in [1, 2, 4] {
            let folder = TempDir::new("record-rotation");
            let path = folder.path().join("r.jsonl");
            let mut file = RotatedFile::open(&settings(path.clone(), files)).unwrap();
            assert_eq!(write(&mut file, 0..200), 200);
            let mut found = Vec::new();
            let count = fs::read_dir(folder.path()).unwrap().count();
            assert_eq!(count, files);
            for number in (1..files).rev() {
                let older = file.numbered(number);
                assert!(older.metadata().unwrap().len() <= 1000);
                found.extend(lines(&older));
            }
            found.extend(lines(&path));
            let first = 200 - found.len();
            let expected =
                (first..200).map(|n| format!("{{\"time\":\"1970-01-01T00:00:00.{n:06}Z\",\"n\":{n:04}}}"));
            assert_eq!(found, expected.collect::<Vec<_>>());
        }
    }

    /// What is recorded is for the operator only.
    #[test]
    fn files_are_for_their_owner_only_and_for_one_process() {
        let folder = TempDir::new("record-mode");
        let path = folder.path().join("r.jsonl");
        fs::write(&path, "{}\n").unwrap();
        let mut file = RotatedFile::open(&settings(path.clone(), 2)).unwrap();
        write(&mut file, 0..40);
        for path in [path.clone(), file.numbered(1)] {
            assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600, "{}", path.display());
        }
        let other = RotatedFile::open(&settings(path, 2)).unwrap_err();
        assert_eq!(other.kind(), io::ErrorKind::WouldBlock);
    }

    /// `logrotate` and operators move files away.
    #[test]
    fn a_file_that_was_moved_away_is_created_again() {
        let folder = TempDir::new("record-moved");
        let path = folder.path().join("r.jsonl");
        let mut file = RotatedFile::open(&settings(path.clone(), 2)).unwrap();
        write(&mut file, 0..2);
        fs::rename(&path, folder.path().join("away")).unwrap();
        file.tick();
        write(&mut file, 2..5);
        assert_eq!((lines(&folder.path().join("away")).len(), lines(&path).len()), (2, 3));
    }

    /// A full disk costs lines, and not the service: they are counted, and no half line stays.
    #[test]
    fn lines_that_cannot_be_written_are_counted_and_later_ones_are_written() {
        let folder = TempDir::new("record-failed");
        let path = folder.path().join("r.jsonl");
        let mut file = RotatedFile::open(&settings(path.clone(), 2)).unwrap();
        assert_eq!(write(&mut file, 0..2), 2);
        // Writing fails as on a full disk: the device is always full.
        let good = file.file.replace(OpenOptions::new().write(true).open("/dev/full").unwrap());
        file.write(Timestamp::EPOCH, b"\"}\n");
        let Outcome { written, lost, error } = file.flush();
        assert_eq!((written, lost), (0, 1));
        assert_eq!(error.as_deref(), Some("No space left on device (os error 28)"));
        file.file = good;
        assert_eq!(write(&mut file, 3..5), 2);
        assert_eq!(lines(&path).len(), 4);
    }
}
