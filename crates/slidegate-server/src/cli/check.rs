//! `slidegate check`: checks one request on a running server.

use std::process::ExitCode;

use clap::Args;
use serde_json::{Value, json};
use ureq::http::Method;

use super::failure::{Failure, fail};
use super::values::{attribute, costs};
use super::{client, output};

#[derive(Debug, Args)]
pub(super) struct CheckArgs {
    /// Attributes of the request, such as `user=alice`
    #[arg(required = true, value_name = "NAME=VALUE", value_parser = attribute)]
    attributes: Vec<(String, String)>,
    /// Cost of the request: a number, or numbers by name, such as `input=900,output=4096`
    #[arg(long, value_parser = costs, allow_hyphen_values = true)]
    cost: Option<Value>,
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
    let attributes: serde_json::Map<_, _> =
        args.attributes.iter().map(|(name, value)| (name.clone(), Value::from(value.clone()))).collect();
    if attributes.len() < args.attributes.len() {
        return fail("an attribute is given twice; give each attribute once");
    }
    let path = if args.peek { "/v1/peek" } else { "/v1/check" };
    let client = args.server.client()?;
    let mut body = json!({ "attributes": attributes });
    if let Some(cost) = &args.cost {
        body["cost"] = cost.clone();
    }
    let (status, text) = client.send(Method::POST, path, Some(&body))?;
    let failed = |why: &str| Failure(format!("{} returned {status}{why}", client.url(path)));
    let decision: Value = serde_json::from_str(&text)
        .map_err(|_| failed(" without a decision; check that it is a slidegate server"))?;
    let Some(allowed) = decision["allowed"].as_bool() else {
        return Err(failed(&format!(": {}", client::detail(&decision))));
    };
    if args.json {
        output::print(text)?;
    } else {
        let verdict = if allowed { "allowed" } else { "denied" };
        output::print(format_args!("{verdict}: {}", decision["why"].as_str().unwrap_or("")))?;
    }
    Ok(ExitCode::from(if allowed { ALLOWED } else { DENIED }))
}
