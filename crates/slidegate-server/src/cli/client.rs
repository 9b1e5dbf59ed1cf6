//! Asking a running server: where it is, with which token, and how its answers are shown.
//!
//! A token is never an argument's value, which every user of the machine can read in the list of
//! processes.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use serde_json::Value;

use super::failure::Failure;
use super::output;
use super::values::milliseconds;
use crate::http_client;

/// Where the environment has the token.
const TOKEN_VARIABLE: &str = "SLIDEGATE_TOKEN";

/// Where the server is and which token it gets: the same for every command that asks one.
#[derive(Debug, Args)]
pub(super) struct ServerArgs {
    /// The server.
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:7979", global = true)]
    url: String,
    /// A file with the token. The variable `SLIDEGATE_TOKEN` holds the token itself. A server on
    /// loopback may need none.
    #[arg(long, value_name = "FILE", global = true)]
    token_file: Option<PathBuf>,
    /// How long to wait for the answer, in milliseconds.
    #[arg(long, value_name = "MS", default_value = "5000", value_parser = milliseconds, global = true)]
    timeout: Duration,
}

/// What every operator's command to a running server takes.
#[derive(Debug, Args)]
pub(super) struct ClientArgs {
    #[command(flatten)]
    server: ServerArgs,
    /// Print the server's JSON instead of words.
    #[arg(long, global = true)]
    pub(super) json: bool,
}

/// What is asked for.
#[derive(Debug, Clone, Copy)]
pub(super) enum Method {
    Get,
    Post,
    Put,
    Delete,
}

impl ServerArgs {
    /// The address of a path on the server.
    pub(super) fn url(&self, path: &str) -> String {
        format!("{}{path}", self.url.trim_end_matches('/'))
    }

    /// What sends requests. An answer with an error status is an answer.
    ///
    /// # Errors
    /// The URL wants TLS and the machine trusts no certificate authority.
    pub(super) fn agent(&self) -> Result<ureq::Agent, Failure> {
        let url = &self.url;
        http_client::agent(url, self.timeout)
            .map_err(|error| Failure(format!("{url} cannot be asked: {error}")))
    }

    /// The value of the `Authorization` header, if there is a token: from the file, or from the
    /// environment.
    ///
    /// # Errors
    /// A file that cannot be read or holds no token, and a token that cannot stand in a header.
    pub(super) fn authorization(&self) -> Result<Option<String>, Failure> {
        let (token, place) = match &self.token_file {
            Some(file) => {
                let place = format!("--token-file {}", file.display());
                let text = std::fs::read_to_string(file).map_err(|error| {
                    Failure(format!("{place}: {error}; give a file that holds the token alone"))
                })?;
                if text.trim().is_empty() {
                    return Err(Failure(format!("{place}: the file is empty; write the token there")));
                }
                (text, place)
            }
            None => (std::env::var(TOKEN_VARIABLE).unwrap_or_default(), TOKEN_VARIABLE.to_owned()),
        };
        let token = token.trim();
        if !token.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(Failure(format!(
                "{place}: this is no token; give the line of letters and digits that `slidegate token new` prints"
            )));
        }
        Ok((!token.is_empty()).then(|| format!("Bearer {token}")))
    }
}

impl ClientArgs {
    /// Asks, with `body` for what changes something, and gives the answer.
    pub(super) fn ask(&self, method: Method, path: &str, body: &Value) -> Result<Value, Failure> {
        let url = self.server.url(path);
        let agent = self.server.agent()?;
        let mut request = ureq::http::Request::builder().uri(&url).method(match method {
            Method::Get => "GET",
            Method::Post => "POST",
            Method::Put => "PUT",
            Method::Delete => "DELETE",
        });
        if let Some(authorization) = self.server.authorization()? {
            request = request.header("authorization", authorization);
        }
        let wrong =
            |error: &dyn std::fmt::Display| Failure(format!("{url} cannot be asked: {error}; see --url"));
        let unreachable = |error: ureq::Error| {
            Failure(format!("{url} did not answer: {error}; is `slidegate serve` running there? see --url"))
        };
        let answer = if let Method::Get = method {
            agent.run(request.body(()).map_err(|error| wrong(&error))?)
        } else {
            let request = request.header("content-type", "application/json").body(body.to_string());
            agent.run(request.map_err(|error| wrong(&error))?)
        };
        let mut answer = answer.map_err(unreachable)?;
        let status = answer.status();
        let text = answer.body_mut().read_to_string().map_err(unreachable)?;
        let json: Value = serde_json::from_str(&text)
            .map_err(|_| Failure(format!("{url} answered {status} without JSON; is it slidegate?")))?;
        if !status.is_success() {
            let detail = json["detail"].as_str().unwrap_or("no reason given");
            return Err(Failure(format!("{}: {detail}", status.as_u16())));
        }
        Ok(json)
    }

    /// Prints an answer as JSON if that is wanted, else as `words` say it.
    pub(super) fn print(&self, answer: &Value, words: impl FnOnce(&Value) -> String) -> Result<(), Failure> {
        if self.json { output::print(answer) } else { output::print(words(answer)) }
    }
}

/// One part of a path, whatever is in it.
pub(super) fn segment(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

/// Milliseconds for people: `1.5s`, `250ms`.
pub(super) fn span(ms: &Value) -> String {
    match ms.as_u64() {
        None => "never".to_owned(),
        Some(ms) if ms < 10_000 => format!("{ms}ms"),
        Some(ms) => format!("{}.{}s", ms / 1000, ms % 1000 / 100),
    }
}

/// A window as quotas are written: `1h`, `90s`.
pub(super) fn window(ms: &Value) -> String {
    slidegate::format_window(Duration::from_millis(ms.as_u64().unwrap_or(0)))
}
