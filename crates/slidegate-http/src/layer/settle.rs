//! Where the true cost of a request is found, once it is known.

use std::fmt;
use std::sync::Arc;

use http::response::Parts;
use http::{HeaderMap, HeaderName};
use slidegate::Cost;

/// Where the true cost of a reserved request is found.
///
/// In any case, the reservation is settled when the response body ends, fails, or is dropped
/// because the client disconnected. If no cost was found by then, it is settled to what was held,
/// or forgotten if the policy [says so](slidegate::reserve::Unsettled::Forget).
///
/// ```
/// use slidegate_http::layer::Settle;
///
/// #[derive(Clone)] // extensions are cloned
/// struct Usage { tokens: u64 }
/// let by_field = Settle::header("x-usage-tokens");
/// let by_handler = Settle::extension(|usage: &Usage| Some(usage.tokens));
/// let by_size = Settle::bytes();
/// ```
#[derive(Clone, Default)]
pub struct Settle(CostSource);

#[derive(Clone, Default)]
enum CostSource {
    #[default]
    Recorded,
    Bytes,
    Field(HeaderName),
    Read(Arc<ReadCost>),
}

type ReadCost = dyn Fn(&Parts) -> Option<Cost<'static>> + Send + Sync;

impl Settle {
    /// The cost that the handler [records](super::Reservation::record), possibly in a stream that
    /// outlives it. Settled in part every second in which it changed. The default.
    #[must_use]
    pub fn recorded() -> Self {
        Self(CostSource::Recorded)
    }

    /// The bytes of the response body, as they are passed on. Settled in parts, each second in which
    /// some flowed. A handler that panics has sent none.
    #[must_use]
    pub fn bytes() -> Self {
        Self(CostSource::Bytes)
    }

    /// The number in a field of the response's header, or of its trailers, such as `x-usage-tokens`.
    ///
    /// # Panics
    /// If the name is not a valid header name in lower case.
    #[must_use]
    pub fn header(name: &'static str) -> Self {
        Self(CostSource::Field(HeaderName::from_static(name)))
    }

    /// A value that the handler puts into the extensions of the response.
    #[must_use]
    pub fn extension<T: Send + Sync + 'static, C: Into<Cost<'static>>>(
        read: impl Fn(&T) -> Option<C> + Send + Sync + 'static,
    ) -> Self {
        Self::read(move |response| response.extensions.get::<T>().and_then(&read))
    }

    /// The cost that `read` finds in the head of the response.
    #[must_use]
    pub fn read<C: Into<Cost<'static>>>(read: impl Fn(&Parts) -> Option<C> + Send + Sync + 'static) -> Self {
        Self(CostSource::Read(Arc::new(move |response| read(response).map(Into::into))))
    }

    /// Whether the cost grows while the body flows.
    pub(super) fn is_in_parts(&self) -> bool {
        matches!(self.0, CostSource::Recorded | CostSource::Bytes)
    }

    pub(super) fn counts_bytes(&self) -> bool {
        matches!(self.0, CostSource::Bytes)
    }

    /// The cost in the head of a response.
    pub(super) fn in_head(&self, response: &Parts) -> Option<Cost<'static>> {
        match &self.0 {
            CostSource::Recorded | CostSource::Bytes => None,
            CostSource::Field(name) => number(&response.headers, name),
            CostSource::Read(read) => read(response),
        }
    }

    /// The cost in the trailers of a response.
    pub(super) fn in_trailers(&self, trailers: &HeaderMap) -> Option<Cost<'static>> {
        if let CostSource::Field(name) = &self.0 { number(trailers, name) } else { None }
    }
}

fn number(fields: &HeaderMap, name: &HeaderName) -> Option<Cost<'static>> {
    fields.get(name)?.to_str().ok()?.trim().parse::<u64>().ok().map(Into::into)
}

impl fmt::Debug for Settle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            CostSource::Recorded => f.write_str("recorded"),
            CostSource::Bytes => f.write_str("bytes"),
            CostSource::Field(name) => write!(f, "header({name})"),
            CostSource::Read(_) => f.write_str("read"),
        }
    }
}
