//! The file of a snapshot: replaced as a whole, so that a crash at any moment leaves the last good
//! one.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::restore::VerifiedSnapshot;
use super::{SnapshotError, SnapshotErrorKind};

/// The place of a program's snapshot, locked against other processes until this value is dropped, and
/// what was read from it. For programs that save attachments, or need a store with another clock or
/// number of keys; others [open](crate::Gate::open) a gate.
///
/// Beside `PATH` it uses `PATH.tmp`, which becomes `PATH` when it is complete, `PATH.lock`, and
/// `PATH.damaged-N`. Files are readable by their owner only, because keys of up to 15 bytes are
/// stored in clear.
///
/// ```
/// use slidegate::{Gate, MemoryStore, Policy, PolicySet, Quota, Request, store::SnapshotFile};
///
/// # let dir = std::env::temp_dir().join(format!("slidegate-file-{}", std::process::id()));
/// # std::fs::create_dir_all(&dir)?;
/// # let path = dir.join("usage.snapshot");
/// let policies = || PolicySet::new([Policy::new("per-user", Quota::per_hour(1))?.with_scope(["user"])]);
/// let mut file = SnapshotFile::open(&path)?;
/// file.read()?; // finds nothing the first time
/// let store = MemoryStore::builder().max_keys(10_000).for_snapshot(&file).build();
/// let gate = Gate::with_memory(policies()?, store);
/// gate.restore(&mut file)?;
/// gate.check(&Request::new().with("user", "alice"));
/// gate.save_to(&mut file, &[("release", b"1.2")])?;
/// # drop((gate, file));
///
/// // The next process:
/// let mut file = SnapshotFile::open(&path)?;
/// assert!(file.read()?);
/// assert_eq!(file.attachment("release"), Some(&b"1.2"[..]));
/// # std::fs::remove_dir_all(&dir)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct SnapshotFile {
    path: PathBuf,
    /// Held for its lock.
    _lock: File,
    pub(super) found: Option<VerifiedSnapshot>,
}

/// Most damaged files that are kept.
const MAX_DAMAGED: u32 = 5;

impl SnapshotFile {
    /// Locks the place, and checks that files can be created there.
    ///
    /// # Errors
    /// If the directory does not exist or is not writable, or another process uses the file.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, SnapshotError> {
        let path = path.into();
        let lock = open_lock(&beside(&path, "lock")).map_err(|error| unusable(&path, &error))?;
        lock.try_lock().map_err(|error| match error {
            fs::TryLockError::WouldBlock => {
                let name = path.display();
                let message = format!("another process saves its usage to `{name}`; give each its own file");
                SnapshotError { kind: SnapshotErrorKind::InUse, message }
            }
            fs::TryLockError::Error(error) => unusable(&path, &error),
        })?;
        if fs::metadata(&path).is_ok_and(|found| !found.is_file()) {
            return Err(unusable(&path, &not_a_file()));
        }
        Ok(Self { path, _lock: lock, found: None })
    }

    /// The path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads and verifies the snapshot. Returns whether there is one.
    ///
    /// # Errors
    /// If it cannot be read, is damaged, or is of another version of the format.
    pub fn read(&mut self) -> Result<bool, SnapshotError> {
        self.found = match open(OpenOptions::new().read(true), &self.path, Links::Follow) {
            Ok(file) => Some(VerifiedSnapshot::read(file)?),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => return Err(SnapshotError::io("cannot read the snapshot", &error)),
        };
        Ok(self.found.is_some())
    }

    /// The attachment that the program [saved](crate::Gate::save_to) under this name in the
    /// snapshot that was [read](Self::read).
    #[must_use]
    pub fn attachment(&self, name: &str) -> Option<&[u8]> {
        let all = &self.found.as_ref()?.header.attachments;
        all.iter().find(|(known, _)| known == name).map(|(_, content)| content.as_slice())
    }

    /// The seed of key identities in the snapshot that was read.
    pub(in crate::store::memory) fn identity_seed(&self) -> Option<[u8; 16]> {
        self.found.as_ref().map(|found| found.header.identity_seed)
    }

    /// Replaces the snapshot by what `write` writes. It is on disk when this returns. If anything
    /// fails, the former snapshot stays.
    pub(crate) fn save<T>(
        &mut self,
        write: impl FnOnce(&mut File) -> io::Result<T>,
    ) -> Result<T, SnapshotError> {
        let temporary = beside(&self.path, "tmp");
        let saved = self.save_by(&temporary, write);
        match &saved {
            // It would keep the bytes of the replaced file.
            Ok(_) => self.found = None,
            // Frees the disk. If that fails as well, the next attempt begins with it.
            Err(_) => drop(fs::remove_file(&temporary)),
        }
        saved.map_err(|error| unusable(&self.path, &error))
    }

    fn save_by<T>(&self, temporary: &Path, write: impl FnOnce(&mut File) -> io::Result<T>) -> io::Result<T> {
        let mut out = create(temporary)?;
        let saved = write(&mut out)?;
        out.sync_all()?;
        fs::rename(temporary, &self.path)?;
        // Otherwise the new name may be lost with the power.
        File::open(self.directory())?.sync_all()?;
        Ok(saved)
    }

    /// Renames a damaged snapshot, so that it can be examined. Keeps the last five.
    ///
    /// # Errors
    /// Errors of the file system.
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

/// Why the file cannot be written, and what to do about it.
fn unusable(path: &Path, error: &io::Error) -> SnapshotError {
    let advice = match error.kind() {
        ErrorKind::NotFound => "; create its directory",
        ErrorKind::PermissionDenied => "; its directory must be writable",
        _ => "",
    };
    SnapshotError {
        kind: SnapshotErrorKind::Io,
        message: format!("cannot save usage to `{}`: {error}{advice}", path.display()),
    }
}

fn not_a_file() -> io::Error {
    io::Error::other("it is not a regular file")
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    /// A disk that is full must leave the last good file.
    #[test]
    fn a_snapshot_that_cannot_be_completed_leaves_the_former_one() {
        let dir = std::env::temp_dir().join(format!("slidegate-full-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let mut file = SnapshotFile::open(dir.join("usage")).unwrap();
        file.save(|out| out.write_all(b"former")).unwrap();
        let failed = file.save(|out| {
            out.write_all(&[7; 3_000_000])?;
            Err::<(), _>(io::Error::other("no space"))
        });
        let expected = format!("cannot save usage to `{}`: no space", file.path().display());
        assert_eq!(failed.unwrap_err().to_string(), expected);
        assert_eq!(fs::read(file.path()).unwrap(), b"former");
        let mut names: Vec<_> = fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["usage", "usage.lock"]);
        fs::remove_dir_all(&dir).unwrap();
    }
}
