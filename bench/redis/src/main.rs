//! The cost of slidegate's store in Redis, compared with the scripts that are usually written
//! instead.
//!
//! All contenders run on one private server, in turn, because the speed of a machine drifts. A row
//! is the median of its rounds. The relevant time is that of Redis, which decides on one core for
//! everybody. `bench/README.md` describes the rows.

mod attack;
mod drive;
mod figures;
mod holds;
mod module;
mod options;
mod peers;
mod scripts;
mod server;
mod store;
mod turns;

use options::{Options, Part};
use server::Server;

/// Why a run ended early, in one line.
type Failed = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main]
async fn main() {
    let options = match Options::parse() {
        Ok(options) => options,
        Err(error) => {
            eprintln!("{error}\n{}", options::USAGE);
            std::process::exit(2);
        }
    };
    if let Err(error) = run(&options).await {
        eprintln!("{error}");
        std::process::exit(1);
    }
}

async fn run(options: &Options) -> Result<(), Failed> {
    let server = Server::start(&[]).await?;
    println!("Redis {}, over a socket file", server.meter().await?.version().await?);
    if options.has(Part::Scripts) {
        scripts::run(&server, options).await?;
    }
    if options.has(Part::Store) {
        store::run(&server, options).await?;
    }
    if options.has(Part::Holds) {
        holds::run(&server, options).await?;
    }
    if options.has(Part::Module) {
        module::run(options).await?;
    }
    if options.has(Part::Calls) {
        module::run_calls(options).await?;
    }
    if options.has(Part::Turns) {
        turns::run(&server).await?;
    }
    if options.has(Part::Attack) {
        attack::run(&server, options).await?;
    }
    Ok(())
}
