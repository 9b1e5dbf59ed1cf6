//! `slidegate health`: asks the service on this machine whether it is ready, for containers.
//!
//! The config file may have become invalid since the service started, so that the service still uses
//! an older one. Only its `server.listen` is read, and whether there is a `server.cert_file`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use serde_json::Value;

use super::failure::Failure;
use super::sources::PolicyArgs;
use super::values::address;
use super::{client, output};
use crate::config;
use crate::http_client;
use slidegate_envoy::Settings;

#[derive(Debug, Args)]
pub(super) struct HealthArgs {
    /// Ask whether the process is alive (`/healthz`) instead of ready (`/readyz`)
    #[arg(long)]
    live: bool,
    /// Config file of the service, or set the variable `SLIDEGATE_CONFIG`; only `server.listen` is
    /// read
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// HTTP address of the service; overrides the config file, as for `serve`. The variable
    /// `SLIDEGATE_LISTEN` does so, too
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = address)]
    listen: Option<SocketAddr>,
    /// The service replaces envoyproxy/ratelimit: its address is in `HOST` and `PORT`
    #[arg(long)]
    envoy_env: bool,
}

/// Time for the whole exchange. Docker starts a probe every 30 s, and kills it after 30 s.
const TIMEOUT: Duration = Duration::from_secs(1);
/// Most bytes of a response that are read.
const MAX_BODY: u64 = 64 * 1024;
/// The exit code of a service that is not healthy. Docker reserves 2.
const UNHEALTHY: u8 = 1;

pub(super) fn run(args: &HealthArgs) -> ExitCode {
    match args.url().and_then(|url| ask(&url)) {
        Ok(line) => {
            // A closed standard output does not make the service unhealthy.
            let _ = output::print(line);
            ExitCode::SUCCESS
        }
        Err(failure) => {
            output::print_error(failure);
            ExitCode::from(UNHEALTHY)
        }
    }
}

impl HealthArgs {
    /// The URL at which this machine reaches the service.
    fn url(&self) -> Result<String, Failure> {
        let address = self.address()?;
        let policies = PolicyArgs { config: self.config.clone(), policies: Vec::new() };
        // With `--listen` the file need not be readable.
        let has_tls = config::http_has_tls(policies.file().as_deref()).unwrap_or_default();
        let scheme = if has_tls { "https" } else { "http" };
        Ok(format!("{scheme}://{address}{}", if self.live { "/healthz" } else { "/readyz" }))
    }

    /// The address at which this machine reaches the service.
    fn address(&self) -> Result<SocketAddr, Failure> {
        let of_envoy = || {
            let settings = Settings::of_environment(&|name| std::env::var(name).ok());
            settings.map(|settings| settings.http).map_err(|error| Failure(error.to_string()))
        };
        let given = match self.listen {
            None if self.envoy_env => of_envoy()?,
            given => given,
        };
        let policies = PolicyArgs { config: self.config.clone(), policies: Vec::new() };
        let listen = match given {
            Some(listen) => listen,
            None => config::http_address(policies.file().as_deref())
                .map_err(|errors| Failure(format!("{errors}; or give the address with --listen")))?,
        };
        if listen.port() == 0 {
            return Err(Failure(format!(
                "the port of {listen} is chosen at the start; give it with --listen"
            )));
        }
        let ip = match listen.ip() {
            IpAddr::V4(Ipv4Addr::UNSPECIFIED) => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(Ipv6Addr::UNSPECIFIED) => Ipv6Addr::LOCALHOST.into(),
            ip => ip,
        };
        Ok(SocketAddr::new(ip, listen.port()))
    }
}

/// The answer in one line. Unhealthy answers are failures.
fn ask(url: &str) -> Result<String, Failure> {
    let agent: ureq::Agent = ureq::Agent::config_builder()
        .http_status_as_error(false)
        .timeout_global(Some(TIMEOUT))
        .max_redirects(0)
        // The certificate names other addresses than this machine's, and no secret is sent.
        .tls_config(http_client::unchecked_tls())
        // The service is on this machine, whatever `HTTP_PROXY` says.
        .proxy(None)
        .build()
        .into();
    let unreachable = |error: ureq::Error| Failure(format!("no response from {url}: {error}"));
    let mut response = agent.get(url).call().map_err(unreachable)?;
    let body = response.body_mut().with_config().limit(MAX_BODY).read_to_string().map_err(unreachable)?;
    let body: Value = serde_json::from_str(&body).unwrap_or_default();
    let status = response.status();
    if !status.is_success() {
        let why = body["status"].as_str().unwrap_or_else(|| client::detail(&body));
        return Err(Failure(format!("{url} returned {}: {why}", status.as_u16())));
    }
    let word = body["status"].as_str().unwrap_or("ok");
    let degraded = if body["degraded"] == true { ", but the shared store is unavailable" } else { "" };
    Ok(format!("{word}: {url}{degraded}"))
}
