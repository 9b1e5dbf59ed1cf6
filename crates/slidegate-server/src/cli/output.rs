//! What commands print: standard output and standard error, either of which may be closed early.
//!
//! `println!` panics when its reader is gone, as in `slidegate policy list | head -1`. Here a closed pipe is not an
//! error: whoever reads has seen enough, and the command still ends with its own exit code.

use std::fmt::Display;
use std::io::{self, ErrorKind, Write};

use super::failure::Failure;

/// Prints a line on standard output.
///
/// # Errors
/// When standard output cannot be written, for example on a full disk. A closed pipe is not an error.
pub(crate) fn print(line: impl Display) -> Result<(), Failure> {
    accept_closed(write_line(&mut io::stdout().lock(), line))
}

/// Prints a line on standard error, if anybody still reads it.
pub(crate) fn print_error(line: impl Display) {
    // There is nowhere left to report a failure to.
    let _ = write_line(&mut io::stderr().lock(), line);
}

/// Turns a failure to write to standard output into the command's failure, unless the reader has closed it.
///
/// # Errors
/// Any failure but a closed pipe.
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
