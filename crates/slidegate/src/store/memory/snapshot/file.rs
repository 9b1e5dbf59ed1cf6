//! The file of a snapshot: replaced as a whole, so that a crash at any moment leaves the last good
//! one.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::{Kind, Snapshot, SnapshotError};

/// The place of a program's snapshot, locked against other processes until this value is dropped.
///
/// Beside `PATH` it uses `PATH.tmp`, which becomes `PATH` when it is complete, `PATH.lock`, and
/// `PATH.damaged-N`. Files are readable by their owner only, because keys of up to 15 bytes are
/// stored in clear.
#[derive(Debug)]
pub struct SnapshotFile {
    path: PathBuf,
    /// Held for its lock.
    _lock: File,
}

/// Most damaged files that are kept.
const MAX_DAMAGED: u32 = 5;
/// Bytes that are written at once.
const BUFFER_BYTES: usize = 1 << 20;

impl SnapshotFile {
    /// Locks the place, and checks that files can be created there.
    ///
    /// # Errors
    /// If the directory does not exist or is not writable, or another process uses the file.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, SnapshotError> {
        let path = path.into();
        let name = path.display();
        let unusable = |error: io::Error| {
            let advice = match error.kind() {
                ErrorKind::NotFound => "; create its directory",
                ErrorKind::PermissionDenied => "; its directory must be writable",
                _ => "",
            };
            let message = format!("cannot save usage to `{name}`: {error}{advice}");
            SnapshotError { kind: Kind::Io, message }
        };
        let lock = create(&beside(&path, "lock")).map_err(unusable)?;
        lock.try_lock().map_err(|error| match error {
            fs::TryLockError::WouldBlock => {
                let message = format!("another process saves its usage to `{name}`; give each its own file");
                SnapshotError { kind: Kind::InUse, message }
            }
            fs::TryLockError::Error(error) => unusable(error),
        })?;
        if path.is_dir() {
            return Err(unusable(io::Error::other("it is a directory")));
        }
        Ok(Self { path, _lock: lock })
    }

    /// The path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads and verifies the snapshot, if there is one.
    ///
    /// # Errors
    /// If it cannot be read, or is damaged.
    pub fn read(&self) -> Result<Option<Snapshot>, SnapshotError> {
        match File::open(&self.path) {
            Ok(file) => Snapshot::read(file).map(Some),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(SnapshotError::io("cannot read the snapshot", &error)),
        }
    }

    /// Replaces the snapshot by what `write` writes. It is on disk when this returns. If anything
    /// fails, the former snapshot stays.
    ///
    /// # Errors
    /// Those of `write` and of the file system.
    pub fn save<T>(&self, write: impl FnOnce(&mut dyn Write) -> io::Result<T>) -> io::Result<T> {
        let temporary = beside(&self.path, "tmp");
        let saved = self.save_by(&temporary, write);
        if saved.is_err() {
            // Frees the disk. If that fails as well, the next attempt begins with it.
            let _ = fs::remove_file(&temporary);
        }
        saved
    }

    fn save_by<T>(
        &self,
        temporary: &Path,
        write: impl FnOnce(&mut dyn Write) -> io::Result<T>,
    ) -> io::Result<T> {
        let mut out = BufWriter::with_capacity(BUFFER_BYTES, create(temporary)?);
        let saved = write(&mut out)?;
        out.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()?;
        fs::rename(temporary, &self.path)?;
        // Otherwise the new name may be lost with the power.
        File::open(self.directory())?.sync_all()?;
        Ok(saved)
    }

    /// Renames a damaged snapshot, so that it can be examined. Keeps the last five.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn set_aside(&self) -> io::Result<PathBuf> {
        let names = (1..=MAX_DAMAGED).map(|number| beside(&self.path, &format!("damaged-{number}")));
        // A file that does not exist is older than any.
        let age = |path: &PathBuf| {
            fs::metadata(path).and_then(|found| found.modified()).unwrap_or(SystemTime::UNIX_EPOCH)
        };
        let aside = names.min_by_key(age).expect("there are names");
        fs::rename(&self.path, &aside)?;
        // The oldest is replaced next, by this time.
        if let Ok(file) = File::open(&aside) {
            let _ = file.set_modified(crate::time::file_time());
        }
        Ok(aside)
    }

    fn directory(&self) -> &Path {
        self.path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
    }
}

/// The path with another ending.
fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(ending);
    name.into()
}

/// Creates or empties a file that only its owner can read.
fn create(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}
