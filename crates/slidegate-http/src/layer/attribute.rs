//! Attributes: where the values that policies count by are in an HTTP request.
//!
//! A policy does not apply to a request that lacks an attribute of its scope. To limit such
//! requests too, define a substitute with [`Attribute::or`].

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use http::HeaderName;
use slidegate::Value;

use super::axum_request::{PathParams, matched_path};
use super::head::Head;
use crate::client_addr::Resolved;

/// Where the value of an attribute is in a request.
///
/// ```
/// use slidegate_http::layer::Attribute;
///
/// let by_key_or_address = Attribute::header("x-api-key").or(Attribute::client_addr());
/// let by_host = Attribute::read(|request| Some(request.uri.host()?.into()));
/// ```
#[derive(Clone)]
pub struct Attribute(AttributeSource);

/// Reads a value from a request.
type Read = dyn for<'p> Fn(&Head<'p>) -> Option<AttributeValue<'p>> + Send + Sync;

#[derive(Clone)]
#[cfg_attr(not(feature = "axum"), expect(dead_code, reason = "the last two are axum's"))]
enum AttributeSource {
    ClientAddr,
    Header(HeaderName),
    Method,
    Path,
    Constant(Arc<[u8]>),
    Read(Arc<Read>),
    Either(Arc<[Attribute; 2]>),
    Never,
    MatchedPath,
    PathParam(Arc<str>),
}

impl Attribute {
    /// The client's address, found by the layer's
    /// [rule](super::RateLimitLayerBuilder::client_addr). Clients without an address, such as those
    /// on a Unix socket, share the value `unknown`; the layer warns about it once, with `tracing`.
    #[must_use]
    pub fn client_addr() -> Self {
        Self(AttributeSource::ClientAddr)
    }

    /// The first line of this header field, byte for byte. An empty value counts as absent.
    ///
    /// # Panics
    /// If the name is not a valid header name in lower case.
    #[must_use]
    pub fn header(name: &'static str) -> Self {
        Self(AttributeSource::Header(HeaderName::from_static(name)))
    }

    /// The method, such as `GET`.
    #[must_use]
    pub fn method() -> Self {
        Self(AttributeSource::Method)
    }

    /// The path as the layer sees it, without the query: `/users/7`. A nested router removes its
    /// prefix from it.
    #[must_use]
    pub fn path() -> Self {
        Self(AttributeSource::Path)
    }

    /// A constant value. Policies can use it as a condition to tell the routes of this layer from
    /// others.
    #[must_use]
    pub fn value(value: impl Into<Vec<u8>>) -> Self {
        Self(AttributeSource::Constant(value.into().into()))
    }

    /// A value from the request's extensions, set by other middleware.
    ///
    /// ```
    /// use slidegate_http::layer::Attribute;
    ///
    /// struct Account { name: String }
    /// let user = Attribute::extension(|account: &Account| Some(account.name.as_str().into()));
    /// ```
    #[must_use]
    pub fn extension<T: Send + Sync + 'static>(
        read: impl for<'p> Fn(&'p T) -> Option<AttributeValue<'p>> + Send + Sync + 'static,
    ) -> Self {
        Self::read(move |request| request.extensions.get::<T>().and_then(&read))
    }

    /// The value that `read` returns. It runs for every request, on the thread that serves it, and
    /// may run again for one that is denied.
    #[must_use]
    pub fn read(
        read: impl for<'p> Fn(&Head<'p>) -> Option<AttributeValue<'p>> + Send + Sync + 'static,
    ) -> Self {
        Self(AttributeSource::Read(Arc::new(read)))
    }

    /// Absent in every request: for the attributes of policies that are meant for other layers of
    /// the same gate.
    #[must_use]
    pub fn never() -> Self {
        Self(AttributeSource::Never)
    }

    /// This value, or `other` if it is absent.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self(AttributeSource::Either(Arc::new([self, other])))
    }

    /// The value in a request.
    pub(super) fn of<'p>(
        &'p self,
        view: &RequestView<'p>,
        client: Option<&Resolved>,
    ) -> Option<AttributeValue<'p>> {
        match &self.0 {
            AttributeSource::ClientAddr => Some(match client?.addr {
                Some(addr) => addr.into(),
                None => UNKNOWN.into(),
            }),
            AttributeSource::Header(name) => {
                let value = view.head.headers.get(name)?.as_bytes();
                (!value.is_empty()).then(|| value.into())
            }
            AttributeSource::Method => Some(view.head.method.as_str().into()),
            AttributeSource::Path => Some(view.head.uri.path().into()),
            AttributeSource::Constant(value) => Some((&**value).into()),
            AttributeSource::Read(read) => read(&view.head),
            AttributeSource::Either(either) => {
                either[0].of(view, client).or_else(|| either[1].of(view, client))
            }
            AttributeSource::Never => None,
            AttributeSource::MatchedPath => matched_path(view.head.extensions).map(Into::into),
            AttributeSource::PathParam(name) => view.params?.value(name).map(Into::into),
        }
    }

    /// Whether this source or one of its alternatives matches.
    fn any(&self, is: &impl Fn(&AttributeSource) -> bool) -> bool {
        match &self.0 {
            AttributeSource::Either(either) => either.iter().any(|one| one.any(is)),
            source => is(source),
        }
    }

    pub(super) fn needs_client_addr(&self) -> bool {
        self.any(&|source| matches!(source, AttributeSource::ClientAddr))
    }

    pub(super) fn needs_path_params(&self) -> bool {
        self.any(&|source| matches!(source, AttributeSource::PathParam(_)))
    }
}

/// Attributes from axum.
#[cfg(feature = "axum")]
impl Attribute {
    /// The path pattern that axum matched, such as `/users/{id}`. Absent outside the routes of a
    /// `Router`.
    #[must_use]
    pub fn matched_path() -> Self {
        Self(AttributeSource::MatchedPath)
    }

    /// A parameter of the path pattern that axum matched, percent-decoded. Absent outside the
    /// routes of a `Router`.
    #[must_use]
    pub fn path_param(name: impl Into<Arc<str>>) -> Self {
        Self(AttributeSource::PathParam(name.into()))
    }
}

/// The shared key of all clients without a known address. It is text, so no address equals it.
const UNKNOWN: &str = "unknown";

impl fmt::Debug for Attribute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            AttributeSource::ClientAddr => f.write_str("client_addr"),
            AttributeSource::Header(name) => write!(f, "header({name})"),
            AttributeSource::Method => f.write_str("method"),
            AttributeSource::Path => f.write_str("path"),
            AttributeSource::Constant(value) => write!(f, "value({})", value.escape_ascii()),
            AttributeSource::Read(_) => f.write_str("read"),
            AttributeSource::Either(either) => write!(f, "{:?}.or({:?})", either[0], either[1]),
            AttributeSource::Never => f.write_str("never"),
            AttributeSource::MatchedPath => f.write_str("matched_path"),
            AttributeSource::PathParam(name) => write!(f, "path_param({name})"),
        }
    }
}

/// The parts of a request that attributes read.
#[derive(Clone, Copy)]
pub(super) struct RequestView<'p> {
    pub(super) head: Head<'p>,
    pub(super) params: Option<&'p PathParams>,
}

/// The value of an attribute in one request: text, bytes, the digits of a number, or an [`IpAddr`];
/// borrowed or owned.
///
/// Created with `From`. Text is never treated as an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttributeValue<'p>(Repr<'p>);

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Repr<'p> {
    Borrowed(&'p [u8]),
    Owned(Box<[u8]>),
    Address(IpAddr),
}

impl<'p> AttributeValue<'p> {
    pub(super) fn into_repr(self) -> Repr<'p> {
        self.0
    }

    #[inline]
    pub(super) fn borrowed(&self) -> Value<'_> {
        match &self.0 {
            Repr::Borrowed(bytes) => Value::Bytes(bytes),
            Repr::Owned(bytes) => Value::Bytes(bytes),
            Repr::Address(ip) => Value::Address(*ip),
        }
    }

    /// An owned copy that outlives the request.
    pub(super) fn owned(value: Value<'_>) -> Self {
        Self(match value {
            Value::Bytes(bytes) => Repr::Owned(bytes.into()),
            Value::Address(ip) => Repr::Address(ip),
        })
    }
}

impl<'p> From<&'p str> for AttributeValue<'p> {
    fn from(text: &'p str) -> Self {
        text.as_bytes().into()
    }
}

impl<'p> From<&'p [u8]> for AttributeValue<'p> {
    fn from(bytes: &'p [u8]) -> Self {
        Self(Repr::Borrowed(bytes))
    }
}

impl From<String> for AttributeValue<'_> {
    fn from(text: String) -> Self {
        text.into_bytes().into()
    }
}

impl From<Vec<u8>> for AttributeValue<'_> {
    fn from(bytes: Vec<u8>) -> Self {
        Self(Repr::Owned(bytes.into()))
    }
}

impl From<u64> for AttributeValue<'_> {
    fn from(number: u64) -> Self {
        number.to_string().into()
    }
}

impl From<IpAddr> for AttributeValue<'_> {
    fn from(ip: IpAddr) -> Self {
        Self(Repr::Address(ip))
    }
}
