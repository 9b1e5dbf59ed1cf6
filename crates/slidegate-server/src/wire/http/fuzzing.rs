//! Entry points of the fuzz targets: bodies and query strings.

use super::request::{BatchBody, RequestBody};
use crate::wire::json_body;

/// Attributes and cost.
type RequestParts = (Vec<(String, Vec<u8>)>, u64);

/// Reads the body of one request.
///
/// # Errors
/// What is wrong with it.
pub fn body(bytes: &[u8]) -> Result<RequestParts, String> {
    let body: RequestBody<'_> = json_body::parse(bytes).map_err(|problem| format!("{problem:?}"))?;
    Ok(body.asked())
}

/// Reads the body of a batch.
///
/// # Errors
/// What is wrong with it.
pub fn batch_body(bytes: &[u8]) -> Result<Vec<RequestParts>, String> {
    let batch: BatchBody<'_> = json_body::parse(bytes).map_err(|problem| format!("{problem:?}"))?;
    Ok(batch.requests.iter().map(RequestBody::asked).collect())
}

/// Reads a query string as a request.
///
/// # Errors
/// What is wrong with it.
pub fn query_string(query: &str) -> Result<RequestParts, String> {
    RequestBody::from_query(query).map(|body| body.asked()).map_err(|problem| format!("{problem:?}"))
}
