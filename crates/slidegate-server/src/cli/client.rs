//! Client of a running server, used by operator commands: URL, token, requests and output.
//!
//! The token is read from a file or the environment, never from an argument: arguments are visible
//! to all local users in the process list.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;
use slidegate::CostUnit;
use slidegate::clock::{format_wait, format_window};
use ureq::http::{Method, Request, StatusCode};

use super::failure::{Failure, fail};
use super::output;
use super::values::milliseconds;
use crate::{config, http_client};

/// The environment variable with the token.
const TOKEN_VARIABLE: &str = "SLIDEGATE_TOKEN";
/// The default address of `serve`.
const DEFAULT_URL: &str = "http://127.0.0.1:7979";

/// Options of every command that talks to a server.
#[derive(Debug, Args)]
#[command(next_help_heading = "Server")]
pub(super) struct ServerArgs {
    /// URL of the server
    #[arg(long, value_name = "URL", env = "SLIDEGATE_URL", hide_env_values = true, default_value = DEFAULT_URL, global = true)]
    url: String,
    /// File with the token, or set the variable `SLIDEGATE_TOKEN` to the token; a server on
    /// loopback may need none
    #[arg(long, value_name = "FILE", global = true)]
    token_file: Option<PathBuf>,
    /// File with the certificate authorities to trust, in PEM, instead of the system's
    #[arg(long, value_name = "FILE", global = true)]
    ca_file: Option<PathBuf>,
    /// Timeout, in milliseconds
    #[arg(long, value_name = "MS", default_value = "5000", value_parser = milliseconds, global = true)]
    timeout: Duration,
}

/// Options of the admin commands.
#[derive(Debug, Args)]
pub(super) struct ClientArgs {
    #[command(flatten)]
    server: ServerArgs,
    /// Print the server's JSON
    #[arg(long, global = true)]
    pub(super) json: bool,
}

/// A server and its credentials.
pub(super) struct Client {
    agent: ureq::Agent,
    url: String,
    /// The value of the `Authorization` header, if a token is given.
    authorization: Option<String>,
}

impl ServerArgs {
    /// # Errors
    /// The file with the token cannot be read or is empty, the token has invalid characters, or the
    /// URL uses TLS and the system trusts no certificate authority.
    pub(super) fn client(&self) -> Result<Client, Failure> {
        config::check_names()?;
        // An empty variable counts as unset.
        let url = if self.url.is_empty() { DEFAULT_URL } else { self.url.trim_end_matches('/') }.to_owned();
        if !url.contains("://") {
            let shown = http_client::without_login(&url);
            return fail(format!(
                "invalid --url `{shown}`: must begin with http:// or https://, as `http://{shown}`"
            ));
        }
        let agent = http_client::agent(&url, self.timeout, self.ca_file.as_deref()).map_err(|error| {
            Failure(format!("cannot connect to {}: {error}", http_client::without_login(&url)))
        })?;
        Ok(Client { agent, url, authorization: self.token()?.map(|token| format!("Bearer {token}")) })
    }

    fn token(&self) -> Result<Option<String>, Failure> {
        let (token, source) = match &self.token_file {
            Some(file) => {
                let source = format!("--token-file {}", file.display());
                let text = std::fs::read_to_string(file).map_err(|error| {
                    Failure(format!("{source}: {error}; the file must contain only the token"))
                })?;
                if text.trim().is_empty() {
                    return fail(format!("{source}: the file is empty; it must contain only the token"));
                }
                (text, source)
            }
            None => (std::env::var(TOKEN_VARIABLE).unwrap_or_default(), TOKEN_VARIABLE.to_owned()),
        };
        let token = token.trim();
        if !token.bytes().all(|byte| byte.is_ascii_graphic()) {
            return fail(format!(
                "{source}: invalid token; use the token that `slidegate token new` printed"
            ));
        }
        Ok((!token.is_empty()).then(|| token.to_owned()))
    }
}

impl Client {
    /// The URL of a path on the server, for messages.
    pub(super) fn url(&self, path: &str) -> String {
        format!("{}{path}", http_client::without_login(&self.url))
    }

    /// Sends a request, with a JSON body if there is one, and returns the status and the body of
    /// the response, whatever the status is.
    ///
    /// # Errors
    /// The URL is invalid, there is no complete response, or the token is missing or wrong.
    pub(super) fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<(StatusCode, String), Failure> {
        let sent_to = format!("{}{path}", self.url);
        let url = self.url(path);
        let mut request = Request::builder().method(method).uri(&sent_to);
        if let Some(authorization) = &self.authorization {
            request = request.header("authorization", authorization);
        }
        let invalid =
            |error: &dyn std::fmt::Display| Failure(format!("invalid URL `{url}`: {error}; see --url"));
        let unreachable = |error: ureq::Error| {
            let error = http_client::reason(&error).replace(&sent_to, &url);
            Failure(format!(
                "no response from {url}: {error}; check that `slidegate serve` is running there, or set --url"
            ))
        };
        let response = match body {
            None => self.agent.run(request.body(()).map_err(|error| invalid(&error))?),
            Some(body) => {
                let request = request.header("content-type", "application/json").body(body.to_string());
                self.agent.run(request.map_err(|error| invalid(&error))?)
            }
        };
        let mut response = response.map_err(unreachable)?;
        let text = response.body_mut().read_to_string().map_err(unreachable)?;
        if response.status() == StatusCode::UNAUTHORIZED {
            let problem: Value = serde_json::from_str(&text).unwrap_or_default();
            let why = detail(&problem).split(';').next().unwrap_or_default();
            return fail(format!("{url} returned 401: {why}; give it with --token-file or {TOKEN_VARIABLE}"));
        }
        Ok((response.status(), text))
    }
}

impl ClientArgs {
    /// Sends a request, with a JSON body if there is one, and returns the JSON of the response.
    pub(super) fn send(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Value, Failure> {
        let client = self.server.client()?;
        let (status, text) = client.send(method, path, body)?;
        let json: Value = serde_json::from_str(&text).map_err(|_| {
            let url = client.url(path);
            Failure(format!("{url} returned {status} without JSON; check that it is a slidegate server"))
        })?;
        if !status.is_success() {
            return fail(format!("{}: {}", status.as_u16(), detail(&json)));
        }
        Ok(json)
    }

    /// Prints a response as JSON with --json, otherwise as text.
    pub(super) fn print(&self, response: &Value, text: impl FnOnce(&Value) -> String) -> Result<(), Failure> {
        if self.json {
            return output::print(response);
        }
        output::print(output::wrap(&text(response), output::width(), output::INDENT))
    }
}

/// The reason that an error response gives.
pub(super) fn detail(problem: &Value) -> &str {
    problem["detail"].as_str().unwrap_or("no reason given")
}

/// Percent-encodes one path segment or query value.
pub(super) fn segment(text: &str) -> impl std::fmt::Display {
    /// All but the unreserved characters of RFC 3986, section 2.3.
    const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');
    utf8_percent_encode(text, RESERVED)
}

/// Formats a wait in milliseconds: `4 d 2 h`, `12 s`.
pub(super) fn wait(ms: &Value) -> String {
    ms.as_u64().map_or_else(|| "never".to_owned(), |ms| format_wait(Duration::from_millis(ms)))
}

/// Formats an amount, with its decimals and without an exponent.
pub(super) fn amount(number: &Value) -> String {
    match number.as_f64().filter(|_| number.is_f64()) {
        Some(decimal) => decimal.to_string(),
        None => number.to_string(),
    }
}

/// The unit after an amount, unless it is requests.
pub(super) fn unit(of: &Value) -> String {
    let unit = of["unit"].as_str().filter(|unit| *unit != CostUnit::Requests.name());
    unit.map_or_else(String::new, |unit| format!(" {unit}"))
}

/// Formats the window of a quota in a response: `1h`, `90s`, `month in Europe/Berlin`.
pub(super) fn window(quota: &Value) -> String {
    let length = || format_window(Duration::from_millis(quota["window_ms"].as_u64().unwrap_or(0)));
    quota["calendar"].as_str().map_or_else(length, str::to_owned)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Command {
        #[command(flatten)]
        server: ServerArgs,
    }

    /// A unit file with `SLIDEGATE_URL=` means that nothing is set.
    #[test]
    fn an_empty_url_is_the_default() {
        let url =
            |text: &str| Command::parse_from(["c", "--url", text]).server.client().expect("a client").url("");
        assert_eq!(url(""), DEFAULT_URL);
        assert_eq!(url("http://192.0.2.7:80/"), "http://192.0.2.7:80");
    }
}
