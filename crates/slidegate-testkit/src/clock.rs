//! A server's wall clock, moved while the server runs.
//!
//! Timers and timeouts are on another clock and do not notice, as on a machine whose time is
//! corrected.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process::run;

/// Compiled by the tests that need it.
const SHIM: &str = include_str!("clock_shim.c");

const SHIM_NAME: &str = "clock_shim.so";

/// How far a server's wall clock is off, and the library that puts it there.
pub struct ClockOffset {
    file: File,
    path: PathBuf,
    folder: PathBuf,
}

impl ClockOffset {
    /// An offset of zero, kept in `dir`, with the library compiled into the same place.
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

    /// Moves the clock to `micros` microseconds off the true time, whatever it was off before.
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

    /// Makes a command that has yet to start see this clock.
    pub fn put_on(&self, command: &mut Command) {
        command.envs(self.variables());
    }

    /// The environment variables of a process that sees this clock. `LD_PRELOAD` is divided at spaces, which a path
    /// may have: the library is found by its name.
    pub fn variables(&self) -> [(&'static str, &str); 3] {
        let [folder, path] = [&self.folder, &self.path].map(|path| path.to_str().unwrap());
        [("LD_LIBRARY_PATH", folder), ("LD_PRELOAD", SHIM_NAME), ("SLIDEGATE_CLOCK_OFFSET", path)]
    }
}
