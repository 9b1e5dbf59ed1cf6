//! Output of commands to standard output and standard error.
//!
//! `println!` panics on a closed pipe, as in `slidegate policy list | head -1`. Here a closed pipe
//! is not an error, and the command keeps its exit code.

use std::fmt::Display;
use std::io::{self, ErrorKind, Write};

use super::failure::Failure;

/// Prints a line on standard output.
///
/// # Errors
/// Standard output cannot be written, for example on a full disk. A closed pipe is not an error.
pub(crate) fn print(line: impl Display) -> Result<(), Failure> {
    accept_closed(write_line(&mut io::stdout().lock(), line))
}

/// Prints a line on standard error. Failures are ignored.
pub(crate) fn print_error(line: impl Display) {
    // There is nowhere to report the failure.
    let _ = write_line(&mut io::stderr().lock(), line);
}

/// Converts a write error of standard output, ignoring a closed pipe.
///
/// # Errors
/// Any error except a closed pipe.
pub(crate) fn accept_closed(written: io::Result<()>) -> Result<(), Failure> {
    match written {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Failure(format!("cannot write to standard output: {error}")))
        }
        _ => Ok(()),
    }
}

fn write_line(out: &mut impl Write, line: impl Display) -> io::Result<()> {
    writeln!(out, "{line}")?;
    out.flush()
}
