//! An HTTP client that returns every response unchanged: no redirects, no errors for status codes,
//! no default headers.

use std::time::Duration;

use serde_json::Value;
use ureq::http::Request;

/// Timeout for responses that never come, however busy the machine is.
const PATIENCE: Duration = Duration::from_secs(60);

/// A complete response.
#[derive(Debug)]
pub struct Response {
    /// The status code.
    pub status: u16,
    headers: Vec<(String, String)>,
    /// The body as text.
    pub body: String,
}

impl Response {
    /// Parses a response whose server closed the connection.
    pub fn parse(text: &str) -> Self {
        let (head, body) =
            text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("not an HTTP response: {text:?}"));
        let mut lines = head.lines();
        let status = lines.next().and_then(|line| line.split(' ').nth(1)?.parse().ok());
        let headers = lines
            .filter_map(|line| line.split_once(": "))
            .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
            .collect();
        Self { status: status.expect("a status"), headers, body: body.to_owned() }
    }

    /// The first value of a header; `name` is in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// The body as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error} in {}", self.body))
    }
}

/// Sends a request on a new connection and returns the response.
///
/// `headers` are lines as on the wire, each with its line end: `"name: value\r\n"`.
pub fn try_send(method: &str, url: &str, headers: &str, body: &str) -> Result<Response, ureq::Error> {
    let agent: ureq::Agent = ureq::Agent::config_builder()
        .http_status_as_error(false)
        .allow_non_standard_methods(true)
        .max_redirects(0)
        .max_idle_connections(0)
        .timeout_global(Some(PATIENCE))
        .user_agent("")
        .accept("")
        .accept_encoding("")
        .proxy(None)
        .build()
        .into();
    let mut request = Request::builder().method(method).uri(url);
    for (name, value) in headers.lines().filter_map(|line| line.split_once(": ")) {
        request = request.header(name, value);
    }
    let request = request.body(body.to_owned()).expect("tests send valid requests");
    let mut response = agent.run(request)?;
    let headers = response.headers().iter().map(|(name, value)| {
        (name.as_str().to_owned(), String::from_utf8_lossy(value.as_bytes()).into_owned())
    });
    let (headers, status) = (headers.collect(), response.status().as_u16());
    Ok(Response { status, headers, body: response.body_mut().read_to_string()? })
}

/// [`try_send`] that panics without a response.
pub fn send(method: &str, url: &str, headers: &str, body: &str) -> Response {
    try_send(method, url, headers, body).unwrap_or_else(|error| panic!("{method} {url}: {error}"))
}
