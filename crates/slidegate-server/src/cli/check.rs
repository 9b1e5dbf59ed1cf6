//! `slidegate check`: checks one request on a running server.

use std::process::ExitCode;

use serde_json::{Value, json};

use super::failure::Failure;
use super::values::{attribute, cost};
use super::{client, output};
use clap::Args;

#[derive(Debug, Args)]
pub(super) struct CheckArgs {
    /// Attributes of the request, such as `user=alice`
    #[arg(required = true, value_name = "NAME=VALUE", value_parser = attribute)]
    attributes: Vec<(String, String)>,
    /// Cost of the request
    #[arg(long, default_value = "1", value_parser = cost, allow_hyphen_values = true)]
    cost: u64,
    /// Decide without charging
    #[arg(long)]
    peek: bool,
    /// Print the server's JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: client::ServerArgs,
}

/// Exit codes. 2 is an error.
const ALLOWED: u8 = 0;
const DENIED: u8 = 1;

pub(super) fn run(args: &CheckArgs) -> Result<ExitCode, Failure> {
    let route = if args.peek { "peek" } else { "check" };
    let url = args.server.url(&format!("/v1/{route}"));
    let attributes: serde_json::Map<_, _> =
        args.attributes.iter().map(|(name, value)| (name.clone(), Value::from(value.clone()))).collect();
    if attributes.len() < args.attributes.len() {
        return Err(Failure("an attribute is given twice; give each attribute once".to_owned()));
    }
    let body = json!({ "attributes": attributes, "cost": args.cost }).to_string();

    let mut request = args.server.agent()?.post(&url).header("content-type", "application/json");
    if let Some(authorization) = args.server.authorization()? {
        request = request.header("authorization", authorization);
    }
    let unreachable = |error: ureq::Error| {
        Failure(format!(
            "no response from {url}: {error}; check that `slidegate serve` is running there, or set --url"
        ))
    };
    let mut response = request.send(body).map_err(unreachable)?;
    let text = response.body_mut().read_to_string().map_err(unreachable)?;
    let decision: Value = serde_json::from_str(&text).map_err(|_| {
        Failure(format!(
            "{url} returned {} without a decision; check that it is a slidegate server",
            response.status()
        ))
    })?;

    let Some(allowed) = decision["allowed"].as_bool() else {
        let detail = decision["detail"].as_str().unwrap_or("no reason given");
        return Err(Failure(format!("{url} returned {}: {detail}", response.status())));
    };
    if args.json {
        output::print(text)?;
    } else {
        let verdict = if allowed { "allowed" } else { "denied" };
        output::print(format_args!("{verdict}: {}", decision["why"].as_str().unwrap_or("")))?;
    }
    Ok(ExitCode::from(if allowed { ALLOWED } else { DENIED }))
}
