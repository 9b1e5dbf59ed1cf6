//! The head of a request, borrowed, for the functions of a layer.
//!
//! Taking the request apart and reassembling it would take as long as a decision.

use http::request::Parts;
use http::{Extensions, HeaderMap, Method, Request, Uri, Version};

/// The head of a request: everything but its body.
///
/// ```
/// use slidegate_http::layer::Head;
///
/// fn is_export(head: &Head<'_>) -> bool {
///     head.method == http::Method::GET && head.uri.path().ends_with(".pdf")
/// }
/// let request = http::Request::get("/report.pdf").body(()).unwrap();
/// assert!(is_export(&Head::from(&request)));
/// ```
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Head<'p> {
    /// The method.
    pub method: &'p Method,
    /// The target as the layer sees it. A nested router removes its prefix from the path.
    pub uri: &'p Uri,
    /// The HTTP version.
    pub version: Version,
    /// The header fields.
    pub headers: &'p HeaderMap,
    /// The extensions, set by the server and other middleware.
    pub extensions: &'p Extensions,
}

impl<'p, B> From<&'p Request<B>> for Head<'p> {
    fn from(request: &'p Request<B>) -> Self {
        Self {
            method: request.method(),
            uri: request.uri(),
            version: request.version(),
            headers: request.headers(),
            extensions: request.extensions(),
        }
    }
}

impl<'p> From<&'p Parts> for Head<'p> {
    fn from(parts: &'p Parts) -> Self {
        Self {
            method: &parts.method,
            uri: &parts.uri,
            version: parts.version,
            headers: &parts.headers,
            extensions: &parts.extensions,
        }
    }
}
