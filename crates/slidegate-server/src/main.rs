//! The `slidegate` binary: calls the library's command line.

#![forbid(unsafe_code)]

use std::process::ExitCode;

/// musl's own allocator has one lock for all threads.
#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    slidegate_server::main()
}
