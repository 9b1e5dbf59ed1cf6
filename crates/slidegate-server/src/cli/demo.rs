//! `slidegate demo`: the service on loopback with synthetic traffic, so its page has data.

use std::net::SocketAddr;
use std::time::Duration;

use clap::Args;

use super::demo_traffic::Demo;
use super::failure::{Failure, fail};
use super::serve;
use super::values::window;
use crate::config::Config;

/// One policy of each kind. Request limits do not count tokens, so reservations fit.
const CONFIG: &str = "\
policies:
  - {name: per-user, scope: [user], quota: 120/1m, counts: requests, candidate: 80/1m, notify: 100%}
  - {name: per-address, scope: [ip], quota: 1200/1m, counts: requests}
  - name: login
    when: {path: /login}
    scope: [ip]
    quota: 8/1m
    counts: requests
    escalate: {after: 20 denials in 10s, block: [20s, 1m]}
  - name: spend-per-month
    when: {path: /chat}
    scope: [user]
    limit: {by: plan, values: {free: 20, team: 200}, default: 20}
    window: month
    time_zone: Europe/Berlin
    counts: {input: 0.000002, output: 0.00001}
    unit: usd
    estimate: 0.05
    notify: [5%, 80%]
  - {name: tokens, scope: [user], quota: 10_000_000/1h, counts: tokens, unit: tokens}
  - {name: concurrent, scope: [user], in_flight: 4, lease: 30s}
  - {name: stricter, scope: [user], quota: 60/1m, counts: requests, mode: shadow}
";

#[derive(Debug, Args)]
pub(super) struct DemoArgs {
    /// Address of the page, on loopback; port 0 takes any
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7979")]
    listen: SocketAddr,
    /// How long it runs, at most a day
    #[arg(long = "for", value_name = "DURATION", default_value = "1h", value_parser = window)]
    duration: Duration,
}

pub(super) fn run(args: &DemoArgs, is_json: bool) -> Result<(), Failure> {
    if !args.listen.ip().is_loopback() {
        let listen = args.listen;
        return fail(format!(
            "invalid --listen `{listen}`: the demo has no token, so it must be on loopback, for example \
             127.0.0.1:7979"
        ));
    }
    if args.duration > Duration::from_secs(86_400) {
        return fail("invalid --for: must be at most 1d");
    }
    let mut config = Config::parse(CONFIG, "demo")?;
    config.listen = args.listen;
    serve::run_demo(config, Demo::new(args.duration), is_json)
}
