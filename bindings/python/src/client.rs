//! Who sent a request, for middleware.

use pyo3::prelude::*;
use slidegate_bindings as bindings;

use crate::convert::raise;

#[pyclass(frozen, module = "slidegate")]
pub(crate) struct ClientRule(bindings::ClientRule);

#[pymethods]
impl ClientRule {
    #[expect(clippy::needless_pass_by_value, reason = "as Python passes lists")]
    #[new]
    fn new(trusted_proxies: Vec<String>, header: Option<&str>, ipv6_prefix: Option<u8>) -> PyResult<Self> {
        bindings::ClientRule::new(header, &trusted_proxies, ipv6_prefix).map(Self).map_err(raise)
    }

    /// The header, in lower case, whose lines `client` needs.
    #[getter]
    fn header(&self) -> Option<String> {
        self.0.header().map(str::to_ascii_lowercase)
    }

    /// The key of the client, from its peer's address and the lines of the header.
    #[expect(clippy::needless_pass_by_value, reason = "as Python passes lists")]
    fn client(&self, peer: Option<&str>, lines: Vec<Vec<u8>>) -> String {
        self.0.client(peer, lines.iter().map(Vec::as_slice))
    }
}
