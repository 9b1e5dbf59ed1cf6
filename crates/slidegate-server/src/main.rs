//! The `slidegate` binary: runs the command line of the library beside it.

use std::process::ExitCode;

fn main() -> ExitCode {
    slidegate_server::main()
}
