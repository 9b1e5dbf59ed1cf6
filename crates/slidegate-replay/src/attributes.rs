//! The attributes of an entry, as policies see them.

use std::borrow::Cow;
use std::net::IpAddr;

use slidegate::{Value, Verb, normalized_path};

use crate::entry::{Entry, POLICY, VERB};

/// An attribute by its name. Attributes are asked for one by one, because policies need few of
/// them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Attribute {
    Ip,
    Path,
    Method,
    User,
    UserAgent,
    Host,
    Referer,
    Status,
    /// One that only the log has.
    Other,
}

/// The attributes that entries can have whatever their format is.
const NAMED: [(&str, Attribute); 8] = [
    ("ip", Attribute::Ip),
    ("path", Attribute::Path),
    ("method", Attribute::Method),
    ("user", Attribute::User),
    ("user_agent", Attribute::UserAgent),
    ("host", Attribute::Host),
    ("referer", Attribute::Referer),
    ("status", Attribute::Status),
];

/// The value of an attribute.
#[derive(Debug)]
pub(crate) enum AttributeValue<'e> {
    Address(IpAddr),
    Text(Cow<'e, [u8]>),
}

impl AttributeValue<'_> {
    pub(crate) fn value(&self) -> Value<'_> {
        match self {
            Self::Address(ip) => Value::Address(*ip),
            Self::Text(text) => Value::Bytes(text),
        }
    }
}

/// The attribute `ip` of a client. One that the server logged by name is counted by it.
pub(crate) fn client_value(client: &[u8]) -> Option<AttributeValue<'_>> {
    let by_name = || AttributeValue::Text(Cow::Borrowed(client));
    (!client.is_empty()).then(|| address(client).map_or_else(by_name, AttributeValue::Address))
}

/// The attributes of an entry besides its further ones.
pub(crate) fn named_attributes<'e>(
    entry: &'e Entry<'_>,
) -> impl Iterator<Item = (&'static str, AttributeValue<'e>)> {
    NAMED.into_iter().filter_map(|(name, attribute)| Some((name, attribute.value(entry, name)?)))
}

/// What a recording of the service says of a request besides its attributes. Other logs have
/// checks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RecordedRequest<'e> {
    /// What was done with the cost.
    pub(crate) verb: Verb,
    /// The only policy that decided.
    pub(crate) policy: Option<&'e str>,
}

impl<'e> RecordedRequest<'e> {
    pub(crate) fn of(entry: &Entry<'e>) -> Self {
        if entry.extra.is_empty() {
            return Self { verb: Verb::Check, policy: None };
        }
        let text = |name| entry.extra.get(name).and_then(|value| std::str::from_utf8(value).ok());
        let verb = match text(VERB) {
            Some("peek") => Verb::Peek,
            Some("refund") => Verb::Refund,
            Some("penalize") => Verb::Penalize,
            _ => Verb::Check,
        };
        Self { verb, policy: text(POLICY) }
    }
}

impl Attribute {
    pub(crate) fn of(name: &str) -> Self {
        NAMED.into_iter().find(|(known, _)| *known == name).map_or(Self::Other, |(_, attribute)| attribute)
    }

    /// Its value, where `name` is its name.
    pub(crate) fn value<'e>(self, entry: &'e Entry<'_>, name: &str) -> Option<AttributeValue<'e>> {
        let column = |column: &'e Option<Cow<'_, [u8]>>| column.as_deref().map(Cow::Borrowed);
        let line = entry.request.as_ref();
        let text = match self {
            Self::Ip if !entry.client.is_empty() => return client_value(entry.client),
            // Normalized as that of a live request is by the endpoints for proxies: one path in any
            // spelling is one key.
            Self::Path => {
                line.filter(|line| !line.target.is_empty()).map(|line| normalized_path(&line.target))
            }
            Self::Method => {
                line.filter(|line| !line.method.is_empty()).map(|line| Cow::Borrowed(line.method))
            }
            Self::User => column(&entry.user),
            Self::UserAgent => column(&entry.user_agent),
            Self::Host => column(&entry.host),
            Self::Referer => column(&entry.referer),
            Self::Status if entry.status > 0 => Some(Cow::Owned(entry.status.to_string().into_bytes())),
            Self::Ip | Self::Status | Self::Other => None,
        };
        text.or_else(|| entry.extra.get(name).map(Cow::Borrowed)).map(AttributeValue::Text)
    }
}

/// The address of a client: with or without a port, and of a list the last, which is the one that
/// the nearest proxy saw.
pub(crate) fn address(client: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(client).ok()?;
    if let Ok(ip) = text.parse() {
        return Some(ip);
    }
    let last = text.rsplit(',').next()?.trim();
    let bare = last.strip_prefix('[').and_then(|last| last.strip_suffix(']')).unwrap_or(last);
    bare.parse().ok().or_else(|| last.parse().ok().map(|address: std::net::SocketAddr| address.ip()))
}
