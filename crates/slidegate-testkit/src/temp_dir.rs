//! A test's own directory.

use std::fs::{self, DirBuilder};
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A directory that only its owner can enter, removed on drop.
pub struct TempDir(PathBuf);

impl TempDir {
    /// Creates an empty directory. The name only helps to recognize it and need not be unique.
    pub fn new(name: &str) -> Self {
        static CREATED: AtomicU32 = AtomicU32::new(0);
        let process = std::process::id();
        loop {
            let number = CREATED.fetch_add(1, Ordering::Relaxed);
            let path = std::env::temp_dir().join(format!("slidegate-{name}-{process}-{number}"));
            match DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Self(path),
                // Left by an earlier process with the same id.
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => panic!("cannot create {}: {error}", path.display()),
            }
        }
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Its path as text, for arguments and configs.
    pub fn as_str(&self) -> &str {
        self.0.to_str().expect("paths of tests are text")
    }

    /// Writes a file, creating folders as needed, and returns its path.
    pub fn file(&self, name: &str, content: impl AsRef<[u8]>) -> String {
        let path = self.0.join(name);
        path.parent()
            .map_or(Ok(()), fs::create_dir_all)
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        fs::write(&path, content).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        path.into_os_string().into_string().expect("paths of tests are text")
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        // Leftovers are harmless, and a panic here would hide the important one.
        let _ = fs::remove_dir_all(&self.0);
    }
}
