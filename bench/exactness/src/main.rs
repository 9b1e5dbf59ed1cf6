//! Makes very many decisions and judges each by a checker that shares no code with slidegate.
//!
//! ```sh
//! cargo run --release -p slidegate-exactness -- --store memory --decisions 1000000000
//! cargo run --release -p slidegate-exactness -- --store redis --decisions 10000000
//! cargo run --release -p slidegate-exactness -- --store cluster --decisions 10000000
//! ```
//!
//! It ends with an error at the first decision that is wrong.

mod memory;
mod shared;

use std::process::ExitCode;

/// What to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Store {
    Memory,
    Redis,
    Cluster,
}

fn options() -> Result<(Store, u64), lexopt::Error> {
    use lexopt::prelude::*;
    let (mut store, mut decisions) = (Store::Memory, 10_000_000);
    let mut parser = lexopt::Parser::from_env();
    while let Some(argument) = parser.next()? {
        match argument {
            Long("store") => {
                store = match parser.value()?.string()?.as_str() {
                    "memory" => Store::Memory,
                    "redis" => Store::Redis,
                    "cluster" => Store::Cluster,
                    other => return Err(format!("--store `{other}`; use memory, redis or cluster").into()),
                }
            }
            Long("decisions") => decisions = parser.value()?.parse()?,
            _ => return Err(argument.unexpected()),
        }
    }
    Ok((store, decisions))
}

fn main() -> ExitCode {
    let (store, decisions) = match options() {
        Ok(options) => options,
        Err(error) => {
            eprintln!("error: {error}");
            return ExitCode::from(2);
        }
    };
    let outcome = match store {
        Store::Memory => memory::run(decisions),
        Store::Redis | Store::Cluster => shared::run(decisions, store == Store::Cluster),
    };
    match outcome {
        Ok(summary) => {
            println!("{summary}");
            ExitCode::SUCCESS
        }
        Err(wrong) => {
            eprintln!("wrong: {wrong}");
            ExitCode::FAILURE
        }
    }
}
