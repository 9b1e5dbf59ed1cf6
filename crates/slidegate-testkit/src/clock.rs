//! A server's wall clock, movable while the server runs.
//!
//! Timers and timeouts use another clock and are not affected, as on a machine whose time is corrected.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process::run;

/// Compiled by the tests that need it.
const SHIM: &str = include_str!("clock_shim.c");

const SHIM_NAME: &str = "clock_shim.so";

/// The offset of a server's wall clock, and the library that applies it.
pub struct ClockOffset {
    file: File,
    path: PathBuf,
    folder: PathBuf,
}

impl ClockOffset {
    /// An offset of zero, stored in `dir`, with the library compiled there too.
    pub fn create(dir: &Path) -> Self {
        let (path, shim, source) = (dir.join("clock-offset"), dir.join(SHIM_NAME), dir.join("clock_shim.c"));
        std::fs::write(&source, SHIM).unwrap();
        let mut compiler = Command::new("cc");
        compiler.args(["-shared", "-fPIC", "-O1", "-Wall", "-o"]).arg(&shim).arg(source);
        run(compiler, "gcc");
        let offset = Self { file: File::create(&path).unwrap(), path, folder: dir.to_owned() };
        offset.set(0);
        offset
    }

    /// Sets the offset from the true time to `micros` microseconds.
    pub fn set(&self, micros: i64) {
        self.write(micros, 0);
    }

    /// Stops the clock at `micros` microseconds since the epoch.
    pub fn stand(&self, micros: u64) {
        self.write(i64::try_from(micros).unwrap(), 1);
    }

    fn write(&self, micros: i64, stands: i64) {
        let bytes: Vec<u8> = [micros, stands].iter().flat_map(|number| number.to_ne_bytes()).collect();
        self.file.write_all_at(&bytes, 0).unwrap();
    }

    /// Applies this clock to a command before it starts.
    pub fn put_on(&self, command: &mut Command) {
        command.envs(self.variables());
    }

    /// Environment variables of a process with this clock. `LD_PRELOAD` is split at spaces, which a path may
    /// contain, so the library is found by name.
    pub fn variables(&self) -> [(&'static str, &str); 3] {
        let [folder, path] = [&self.folder, &self.path].map(|path| path.to_str().unwrap());
        [("LD_LIBRARY_PATH", folder), ("LD_PRELOAD", SHIM_NAME), ("SLIDEGATE_CLOCK_OFFSET", path)]
    }
}
