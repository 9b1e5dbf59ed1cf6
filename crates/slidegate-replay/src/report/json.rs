//! An outcome as JSON.

use std::io::{self, Write};

use crate::outcome::Outcome;

impl Outcome {
    /// Writes the outcome as indented JSON. docs/replay-json.md documents the fields.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write_json(&self, mut out: impl Write) -> io::Result<()> {
        serde_json::to_writer_pretty(&mut out, self)?;
        out.write_all(b"\n")?;
        out.flush()
    }
}
