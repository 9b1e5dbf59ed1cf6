//! Fuzz entry points for private functions. Only in fuzzed builds.

use crate::config::{Config, Storage, describe};
use crate::envoy::{EnvoyConfig, ReadOptions};
use crate::wire::query;

pub use crate::wire::http::fuzzing::{batch_body, body, query_string};
pub use crate::wire::resp::fuzzing::commands;

/// Reads a config file. Returns the policies as printed by `slidegate validate`.
///
/// # Errors
/// Its mistakes, one per line.
pub fn config(text: &str) -> Result<String, String> {
    let config = Config::parse(text, "fuzz.yaml").map_err(|errors| errors.to_string())?;
    let described = config.policies.iter().map(|policy| describe(policy, Storage::Memory));
    Ok(described.collect::<Vec<_>>().join("\n"))
}

/// The pairs of a query string, decoded.
#[must_use]
pub fn pairs(query: &str) -> Vec<(Vec<u8>, Vec<u8>)> {
    query::pairs(query).map(|(name, value)| (name.into_owned(), value.into_owned())).collect()
}

/// Reads a JSON object without duplicate names.
///
/// # Errors
/// Why it is invalid.
pub fn members(bytes: &[u8]) -> Result<serde_json::Map<String, serde_json::Value>, String> {
    crate::wire::json_body::members(bytes).map_err(|problem| format!("{problem:?}"))
}

/// Reads config files of envoyproxy/ratelimit, each given as its name and text.
///
/// # Panics
/// An error has several lines, or a policy applies to requests that do not name it.
pub fn envoy_files(files: &[(String, String)], merge_domains: bool) {
    match EnvoyConfig::parse(files, ReadOptions { merge_domains, ..ReadOptions::default() }) {
        Ok(config) => {
            let (_, _, _) = (config.summary(), config.dump(), config.example());
            let _ = config.explain("domain", &[vec![("key", "value")], vec![]], None);
            assert!(config.policies().iter().all(|policy| policy.options().only_when_named));
        }
        Err(errors) => {
            assert!(!errors.lines().is_empty());
            assert!(errors.lines().iter().all(|line| !line.contains('\n')), "{errors:?}");
        }
    }
}
