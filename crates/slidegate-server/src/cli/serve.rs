//! `slidegate serve`: the service, from its configuration to its end.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;

use super::{Failure, ServeArgs};
use crate::config::{Config, describe};
use crate::front::Front;
use crate::shutdown::Signals;
use crate::{listener, protocol};

/// Between two sweeps for expired keys.
const SWEEP_EVERY: Duration = Duration::from_secs(1);
/// A full store is reported this often at most, in sweeps.
const REPORT_EVERY: u32 = 10;

pub(super) fn run(args: &ServeArgs) -> Result<ExitCode, Failure> {
    let mut config = args.policies.config()?;
    if let Some(listen) = args.listen {
        config.listen = listen;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure(format!("cannot start threads: {error}")))?;
    runtime.block_on(serve(config))
}

async fn serve(config: Config) -> Result<ExitCode, Failure> {
    let mut signals =
        Signals::listen().map_err(|error| Failure(format!("cannot listen to signals: {error}")))?;
    let listen = config.listen;
    let listener = TcpListener::bind(listen).await.map_err(|error| {
        Failure(format!("cannot listen to {listen}: {error}; choose another address with --listen"))
    })?;
    let address = listener.local_addr().unwrap_or(listen);
    let grace = config.shutdown_grace;
    println!("{}", greeting(&config, address));

    let front = Arc::new(Front::new(config));
    let sweeper = tokio::spawn(sweep(Arc::clone(&front)));
    let routes = protocol::http::routes(Arc::clone(&front));
    let stop = async {
        let signal = signals.next().await;
        front.begin_shutdown();
        tracing::info!(signal, grace_s = grace.as_secs(), "shutting down: open requests finish");
    };
    let cut_off = listener::serve(listener, routes, stop, grace).await;
    sweeper.abort();
    if cut_off > 0 {
        tracing::warn!(connections = cut_off, "cut off connections that did not finish in time");
    }
    tracing::info!("stopped");
    Ok(ExitCode::SUCCESS)
}

/// What the service listens to, what it enforces, and a line to try it with.
fn greeting(config: &Config, address: SocketAddr) -> String {
    let mut lines = vec![
        format!("slidegate {}", env!("CARGO_PKG_VERSION")),
        format!("listening  http://{address}"),
        format!("store      memory, up to {} keys", config.max_keys),
    ];
    for (at, policy) in config.policies.iter().enumerate() {
        lines.push(format!("{:<10} {}", if at == 0 { "policies" } else { "" }, describe(policy)));
    }
    let attributes: Vec<String> = config.policies.iter().next().map_or_else(Vec::new, |policy| {
        let value = |name: &String| if config.is_address(name) { "192.0.2.7" } else { "alice" };
        policy.scope_attributes().iter().map(|name| format!("{name}={}", value(name))).collect()
    });
    let query = if attributes.is_empty() { String::new() } else { format!("?{}", attributes.join("&")) };
    lines.push(format!("try        curl -i 'http://{address}/v1/check{query}'"));
    lines.join("\n")
}

/// Removes expired keys while the service is idle, and is loud when a full store dropped keys that still counted.
async fn sweep(front: Arc<Front>) {
    let mut ticks = tokio::time::interval(SWEEP_EVERY);
    let mut reported = 0;
    for tick in 0u32.. {
        ticks.tick().await;
        front.sweep();
        let stats = front.stats();
        if stats.dropped > reported && tick.is_multiple_of(REPORT_EVERY) {
            tracing::warn!(
                dropped = stats.dropped - reported,
                max_keys = stats.max_keys,
                "the memory store is full and dropped keys that still counted, so their limits were not enforced in \
                 full; raise store.memory.max_keys"
            );
            reported = stats.dropped;
        }
    }
}
