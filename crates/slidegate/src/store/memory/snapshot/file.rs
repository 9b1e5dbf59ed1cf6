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
        let lock = open_lock(&beside(&path, "lock")).map_err(unusable)?;
        lock.try_lock().map_err(|error| match error {
            fs::TryLockError::WouldBlock => {
                let message = format!("another process saves its usage to `{name}`; give each its own file");
                SnapshotError { kind: Kind::InUse, message }
            }
            fs::TryLockError::Error(error) => unusable(error),
        })?;
        if fs::metadata(&path).is_ok_and(|found| !found.is_file()) {
            return Err(unusable(not_a_file()));
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
        match open(OpenOptions::new().read(true), &self.path, Links::Follow) {
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

/// Creates a file that only its owner can read, in place of what has its name: others may have put a
/// link there.
fn create(path: &Path) -> io::Result<File> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => open(OpenOptions::new().write(true).create_new(true), path, Links::Refuse),
    }
}

/// Opens or creates a file that is locked, and never written.
fn open_lock(path: &Path) -> io::Result<File> {
    open(OpenOptions::new().write(true).create(true).truncate(false), path, Links::Refuse)
}

/// Whether a symbolic link may stand for a file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Links {
    Follow,
    Refuse,
}

/// Opens a regular file. Does not wait for the other side of a pipe.
fn open(options: &mut OpenOptions, path: &Path, links: Links) -> io::Result<File> {
    #[cfg(unix)]
    {
        use rustix::fs::OFlags;
        use std::os::unix::fs::OpenOptionsExt;
        let follow = if links == Links::Refuse { OFlags::NOFOLLOW } else { OFlags::empty() };
        options.mode(0o600).custom_flags((OFlags::NONBLOCK | follow).bits().cast_signed());
    }
    let file = options.open(path)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(not_a_file()) }
}

fn not_a_file() -> io::Error {
    io::Error::other("it is not a regular file")
}
