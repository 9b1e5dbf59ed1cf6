//! Attributes: where the values that policies count by stand in an HTTP request.
//!
//! A request that lacks an attribute is not under the policies that count by it. Where that must not let it off, say what
//! counts instead: [`Attribute::or`].

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use http::HeaderName;

use super::head::Head;
use crate::client_addr::Resolved;
use crate::request::Value;

#[cfg(feature = "axum")]
use super::axum::PathParams;

/// Where the value of an attribute is taken from in each request.
///
/// ```
/// use slidegate::layer::Attribute;
///
/// let by_key_or_address = Attribute::header("x-api-key").or(Attribute::client_addr());
/// let by_host = Attribute::read(|request| Some(request.uri.host()?.into()));
/// ```
#[derive(Clone)]
pub struct Attribute(Place);

/// Reads a value from a request.
type Read = dyn for<'p> Fn(&Head<'p>) -> Option<AttributeValue<'p>> + Send + Sync;

#[derive(Clone)]
enum Place {
    ClientAddr,
    Header(HeaderName),
    Method,
    Path,
    Constant(Arc<[u8]>),
    Read(Arc<Read>),
    Either(Arc<[Attribute; 2]>),
    Nowhere,
    #[cfg(feature = "axum")]
    MatchedPath,
    #[cfg(feature = "axum")]
    PathParam(Arc<str>),
}

impl Attribute {
    /// The client's address, by the layer's [rule](super::RateLimitLayerBuilder::client_addr). Clients without one, as on
    /// a Unix socket, share the value `unknown`.
    #[must_use]
    pub fn client_addr() -> Self {
        Self(Place::ClientAddr)
    }

    /// The first line of this header field, byte for byte. An empty one counts as absent.
    ///
    /// # Panics
    /// When the name is not a header's name in lower case.
    #[must_use]
    pub fn header(name: &'static str) -> Self {
        Self(Place::Header(HeaderName::from_static(name)))
    }

    /// The method: `GET`.
    #[must_use]
    pub fn method() -> Self {
        Self(Place::Method)
    }

    /// The path as the layer sees it, without the query: `/users/7`. Routers that are nested in others see less of it.
    #[must_use]
    pub fn path() -> Self {
        Self(Place::Path)
    }

    /// The same value in every request: tells the routes of this layer from those of others, so that policies can have
    /// it as a condition.
    #[must_use]
    pub fn value(value: impl Into<Vec<u8>>) -> Self {
        Self(Place::Constant(value.into().into()))
    }

    /// What other middleware has put into the request's extensions.
    ///
    /// ```
    /// use slidegate::layer::Attribute;
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

    /// Whatever the function finds. Runs for every request, on the thread that serves it.
    #[must_use]
    pub fn read(
        read: impl for<'p> Fn(&Head<'p>) -> Option<AttributeValue<'p>> + Send + Sync + 'static,
    ) -> Self {
        Self(Place::Read(Arc::new(read)))
    }

    /// The path pattern that axum matched: `/users/{id}`. Absent outside of a `Router`'s routes.
    #[cfg(feature = "axum")]
    #[must_use]
    pub fn matched_path() -> Self {
        Self(Place::MatchedPath)
    }

    /// A parameter of the path pattern that axum matched, percent-decoded. Absent outside of a `Router`'s routes.
    #[cfg(feature = "axum")]
    #[must_use]
    pub fn path_param(name: impl Into<Arc<str>>) -> Self {
        Self(Place::PathParam(name.into()))
    }

    /// Absent in every request: for an attribute of policies that are meant for other layers of the same gate.
    #[must_use]
    pub fn never() -> Self {
        Self(Place::Nowhere)
    }

    /// This value, or the other one where this is absent.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self(Place::Either(Arc::new([self, other])))
    }

    /// The value in a request.
    pub(super) fn of<'p>(&'p self, seen: &Seen<'p>, client: Option<&Resolved>) -> Option<AttributeValue<'p>> {
        match &self.0 {
            Place::ClientAddr => Some(match client?.addr {
                Some(addr) => addr.into(),
                None => UNKNOWN.into(),
            }),
            Place::Header(name) => {
                let value = seen.head.headers.get(name)?.as_bytes();
                (!value.is_empty()).then(|| value.into())
            }
            Place::Method => Some(seen.head.method.as_str().into()),
            Place::Path => Some(seen.head.uri.path().into()),
            Place::Constant(value) => Some((&**value).into()),
            Place::Read(read) => read(&seen.head),
            Place::Either(either) => either[0].of(seen, client).or_else(|| either[1].of(seen, client)),
            Place::Nowhere => None,
            #[cfg(feature = "axum")]
            Place::MatchedPath => super::axum::matched_path(seen.head.extensions).map(Into::into),
            #[cfg(feature = "axum")]
            Place::PathParam(name) => seen.params?.value(name).map(Into::into),
        }
    }

    /// Whether it or what stands in for it is one of these.
    fn any(&self, is: &impl Fn(&Place) -> bool) -> bool {
        match &self.0 {
            Place::Either(either) => either.iter().any(|one| one.any(is)),
            place => is(place),
        }
    }

    pub(super) fn needs_client_addr(&self) -> bool {
        self.any(&|place| matches!(place, Place::ClientAddr))
    }

    #[cfg(feature = "axum")]
    pub(super) fn needs_path_params(&self) -> bool {
        self.any(&|place| matches!(place, Place::PathParam(_)))
    }
}

/// The key of all clients whose address nobody knows. An address never looks like this, as it is not text.
const UNKNOWN: &str = "unknown";

impl fmt::Debug for Attribute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Place::ClientAddr => f.write_str("client_addr"),
            Place::Header(name) => write!(f, "header({name})"),
            Place::Method => f.write_str("method"),
            Place::Path => f.write_str("path"),
            Place::Constant(value) => write!(f, "value({})", value.escape_ascii()),
            Place::Read(_) => f.write_str("read"),
            Place::Either(either) => write!(f, "{:?}.or({:?})", either[0], either[1]),
            Place::Nowhere => f.write_str("never"),
            #[cfg(feature = "axum")]
            Place::MatchedPath => f.write_str("matched_path"),
            #[cfg(feature = "axum")]
            Place::PathParam(name) => write!(f, "path_param({name})"),
        }
    }
}

/// A request as attributes see it.
#[derive(Clone, Copy)]
pub(super) struct Seen<'p> {
    pub(super) head: Head<'p>,
    #[cfg(feature = "axum")]
    pub(super) params: Option<&'p PathParams>,
}

/// The value of an attribute in one request: text, bytes, a number's digits or an [`IpAddr`], borrowed or not.
///
/// Made by `From`. Text that looks like an address is not one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttributeValue<'p>(Held<'p>);

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Held<'p> {
    Borrowed(&'p [u8]),
    Owned(Box<[u8]>),
    Address(IpAddr),
}

impl<'p> AttributeValue<'p> {
    pub(super) fn held(self) -> Held<'p> {
        self.0
    }

    /// As a request has it.
    pub(super) fn borrowed(&self) -> Value<'_> {
        match &self.0 {
            Held::Borrowed(bytes) => Value::Bytes(bytes),
            Held::Owned(bytes) => Value::Bytes(bytes),
            Held::Address(ip) => Value::Address(*ip),
        }
    }

    /// For longer than the request lasts.
    pub(super) fn kept(value: Value<'_>) -> Self {
        Self(match value {
            Value::Bytes(bytes) => Held::Owned(bytes.into()),
            Value::Address(ip) => Held::Address(ip),
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
        Self(Held::Borrowed(bytes))
    }
}

impl From<String> for AttributeValue<'_> {
    fn from(text: String) -> Self {
        text.into_bytes().into()
    }
}

impl From<Vec<u8>> for AttributeValue<'_> {
    fn from(bytes: Vec<u8>) -> Self {
        Self(Held::Owned(bytes.into()))
    }
}

impl From<u64> for AttributeValue<'_> {
    fn from(number: u64) -> Self {
        number.to_string().into()
    }
}

impl From<IpAddr> for AttributeValue<'_> {
    fn from(ip: IpAddr) -> Self {
        Self(Held::Address(ip))
    }
}
