//! `slidegate health`: asks the local service whether it is ready, for containers.
//!
//! The config file may have become invalid since the service started; the service then still runs
//! an older one. So only the addresses in section `server` are read, and whether there is a
//! certificate.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use serde_json::Value;

use super::failure::{Failure, fail};
use super::sources::PolicyArgs;
use super::{client, output};
use crate::config::{self, address};
use crate::envoy::Settings;
use crate::http_client;

#[derive(Debug, Args)]
pub(super) struct HealthArgs {
    /// Ask whether the process is alive (`/healthz`) instead of ready (`/readyz`)
    #[arg(long)]
    live: bool,
    /// Config file of the service, or set the variable `SLIDEGATE_CONFIG`; only `server.listen` and
    /// `server.socket` are read
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

/// Timeout of the whole exchange. Docker starts a probe every 30 s and kills it after 30 s.
const TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum bytes read of a response.
const MAX_BODY: u64 = 64 * 1024;
/// Exit code of an unhealthy service. Docker reserves 2.
const UNHEALTHY: u8 = 1;

pub(super) fn run(args: &HealthArgs) -> ExitCode {
    match args.ask() {
        Ok(line) => {
            // A closed standard output does not make the service unhealthy.
            let _ = output::print(line);
            ExitCode::SUCCESS
        }
        Err(Failure(line)) => {
            output::print_error(line);
            ExitCode::from(UNHEALTHY)
        }
    }
}

impl HealthArgs {
    /// The response in one line. An unhealthy response is a failure.
    fn ask(&self) -> Result<String, Failure> {
        let path = if self.live { "/healthz" } else { "/readyz" };
        // With `--listen` the file may be unreadable.
        let policies = PolicyArgs::of_file(self.config.clone());
        let setting = |key| config::http_setting(policies.file().as_deref(), key).unwrap_or_default();
        // TCP may require a client certificate.
        let is_selected = self.listen.is_some() || self.envoy_env;
        if let Some((_, socket)) = setting("socket").filter(|_| !is_selected) {
            return of_socket(Path::new(&socket), path);
        }
        let scheme = if setting("cert_file").is_some() { "https" } else { "http" };
        of_url(&format!("{scheme}://{}{path}", self.address()?))
    }

    /// The address at which this machine reaches the service.
    fn address(&self) -> Result<SocketAddr, Failure> {
        let of_envoy = || {
            let settings = Settings::of_environment(&|name| std::env::var(name).ok());
            settings.map(|settings| settings.http)
        };
        let given = match self.listen {
            None if self.envoy_env => of_envoy()?,
            given => given,
        };
        let policies = PolicyArgs::of_file(self.config.clone());
        let listen = match given {
            Some(listen) => listen,
            None => config::http_address(policies.file().as_deref())
                .map_err(|errors| Failure(format!("{errors}; or give the address with --listen")))?,
        };
        if listen.port() == 0 {
            return fail(format!("the port of {listen} is chosen at the start; give it with --listen"));
        }
        let ip = match listen.ip() {
            IpAddr::V4(Ipv4Addr::UNSPECIFIED) => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(Ipv6Addr::UNSPECIFIED) => Ipv6Addr::LOCALHOST.into(),
            ip => ip,
        };
        Ok(SocketAddr::new(ip, listen.port()))
    }
}

/// Asks over a Unix socket.
fn of_socket(socket: &Path, path: &str) -> Result<String, Failure> {
    let name = format!("{}:{path}", socket.display());
    let unreachable = |error: std::io::Error| Failure(format!("no response from {name}: {error}"));
    let mut stream = UnixStream::connect(socket).map_err(unreachable)?;
    stream.set_read_timeout(Some(TIMEOUT)).map_err(unreachable)?;
    stream.set_write_timeout(Some(TIMEOUT)).map_err(unreachable)?;
    // The response to an HTTP/1.0 request is not chunked and ends with the connection.
    write!(stream, "GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n").map_err(unreachable)?;
    let mut response = String::new();
    stream.take(MAX_BODY).read_to_string(&mut response).map_err(unreachable)?;
    let (head, body) = response.split_once("\r\n\r\n").unwrap_or((&response, ""));
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    let status = status.ok_or_else(|| Failure(format!("{name} returned what is not HTTP")))?;
    answer(&name, status, body)
}

/// Asks over TCP.
fn of_url(url: &str) -> Result<String, Failure> {
    let agent: ureq::Agent = ureq::Agent::config_builder()
        .http_status_as_error(false)
        .timeout_global(Some(TIMEOUT))
        .max_redirects(0)
        // The certificate may not name this address, and no secret is sent.
        .tls_config(http_client::unchecked_tls())
        // The service is local, whatever `HTTP_PROXY` says.
        .proxy(None)
        .build()
        .into();
    let unreachable = |error: ureq::Error| {
        let error = http_client::reason(&error);
        Failure(format!("no response from {url}: {error}; check that `slidegate serve` is running"))
    };
    let mut response = agent.get(url).call().map_err(unreachable)?;
    let body = response.body_mut().with_config().limit(MAX_BODY).read_to_string().map_err(unreachable)?;
    answer(url, response.status().as_u16(), &body)
}

/// Formats a response in one line. An unhealthy response is a failure.
fn answer(from: &str, status: u16, body: &str) -> Result<String, Failure> {
    let body: Value = serde_json::from_str(body).unwrap_or_default();
    if !(200..300).contains(&status) {
        let why = body["status"].as_str().unwrap_or_else(|| client::detail(&body));
        return fail(format!("{from} returned {status}: {why}"));
    }
    let word = body["status"].as_str().unwrap_or("ok");
    let degraded = if body["degraded"] == true { ", but the shared store is unavailable" } else { "" };
    Ok(format!("{word}: {from}{degraded}"))
}
