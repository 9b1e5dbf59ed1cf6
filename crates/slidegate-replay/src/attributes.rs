//! The attributes of an entry, as policies see them.

use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr};

use slidegate::{Request, Value, Verb, normalized_path};

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

/// Texts of an entry that are not in its log as policies need them.
#[derive(Debug)]
pub(crate) struct EntryTexts<'e> {
    status: u16,
    digits: [u8; 5],
    /// The path, if it was asked for and there is one.
    path: Option<Cow<'e, [u8]>>,
}

impl<'e> EntryTexts<'e> {
    /// All texts, the path only if it is asked for.
    pub(crate) fn new(entry: &'e Entry<'_>, asks_for_path: bool) -> Self {
        let line = entry.request.as_ref().filter(|_| asks_for_path);
        let path = line.and_then(|line| path_value(&line.target));
        Self { status: entry.status, digits: digits_of(entry.status), path }
    }

    /// The digits of the status.
    fn status(&self) -> &[u8] {
        let zeros = self.digits.iter().take_while(|digit| **digit == b'0').count();
        &self.digits[zeros.min(4)..]
    }
}

/// The path of a request target, normalized as that of a live request is by the endpoints for
/// proxies: one path in any spelling is one key.
#[inline]
pub(crate) fn path_value(target: &[u8]) -> Option<Cow<'_, [u8]>> {
    (!target.is_empty()).then(|| normalized_path(target))
}

/// A text; empty, it is absent.
#[inline]
pub(crate) fn text_value(text: &[u8]) -> Option<Value<'_>> {
    (!text.is_empty()).then_some(Value::Bytes(text))
}

/// The attribute `ip` of a client. One that the server logged by name is counted by it.
#[inline]
pub(crate) fn client_value(client: &[u8]) -> Option<Value<'_>> {
    (!client.is_empty()).then(|| address(client).map_or(Value::Bytes(client), Value::Address))
}

/// A number in five digits.
fn digits_of(number: u16) -> [u8; 5] {
    let digit = |divisor: u16| b'0' + u8::try_from(number / divisor % 10).expect("a digit");
    [10_000, 1000, 100, 10, 1].map(digit)
}

/// All attributes of an entry.
pub(crate) fn request<'e>(entry: &'e Entry<'_>, texts: &'e EntryTexts<'_>) -> Request<'e> {
    let known =
        NAMED.into_iter().filter_map(|(name, attribute)| Some((name, attribute.value(entry, name, texts)?)));
    let mut request =
        known.fold(Request::new().cost(entry.cost), |request, (name, value)| request.with(name, value));
    request.extend(entry.extra.iter());
    let RecordedRequest { verb, policy } = RecordedRequest::of(entry);
    request = request.verb(verb);
    policy.into_iter().fold(request, Request::under)
}

/// The names of the attributes that an entry has besides its further ones.
pub(crate) fn present_names(entry: &Entry<'_>) -> impl Iterator<Item = &'static str> {
    let texts = EntryTexts::new(entry, true);
    NAMED
        .into_iter()
        .filter_map(move |(name, attribute)| attribute.value(entry, name, &texts).is_some().then_some(name))
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
    #[inline]
    pub(crate) fn value<'e>(
        self,
        entry: &'e Entry<'_>,
        name: &str,
        texts: &'e EntryTexts<'_>,
    ) -> Option<Value<'e>> {
        let column = |column: &'e Option<Cow<'_, [u8]>>| column.as_deref().map(Value::Bytes);
        let line = entry.request.as_ref();
        let known = match self {
            Self::Ip => client_value(entry.client),
            Self::Path => column(&texts.path),
            Self::Method => line.and_then(|line| text_value(line.method)),
            Self::User => column(&entry.user),
            Self::UserAgent => column(&entry.user_agent),
            Self::Host => column(&entry.host),
            Self::Referer => column(&entry.referer),
            Self::Status if texts.status > 0 => text_value(texts.status()),
            Self::Status | Self::Other => None,
        };
        known.or_else(|| entry.extra.get(name).map(Value::Bytes))
    }
}

/// The address of a client: with or without a port, and of a list the last, which is the one that
/// the nearest proxy saw.
pub(crate) fn address(client: &[u8]) -> Option<IpAddr> {
    if let Some(ip) = ipv4(client) {
        return Some(IpAddr::V4(ip));
    }
    let text = std::str::from_utf8(client).ok()?;
    if let Ok(ip) = text.parse() {
        return Some(ip);
    }
    let last = text.rsplit(',').next()?.trim();
    let bare = last.strip_prefix('[').and_then(|last| last.strip_suffix(']')).unwrap_or(last);
    bare.parse().ok().or_else(|| last.parse().ok().map(|address: std::net::SocketAddr| address.ip()))
}

/// An IPv4 address as nearly every log has it: four numbers without leading zeros.
#[inline]
fn ipv4(text: &[u8]) -> Option<Ipv4Addr> {
    if text.len() > 15 {
        return None;
    }
    let (mut bits, mut part, mut digits, mut dots) = (0_u32, 0_u32, 0, 0);
    for &byte in text {
        match byte {
            b'0'..=b'9' if digits == 0 || part > 0 => {
                part = part * 10 + u32::from(byte - b'0');
                digits += 1;
            }
            b'.' if digits > 0 && part < 256 => {
                bits = bits << 8 | part;
                (part, digits, dots) = (0, 0, dots + 1);
            }
            _ => return None,
        }
    }
    (dots == 3 && digits > 0 && part < 256).then(|| Ipv4Addr::from_bits(bits << 8 | part))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A condition on the status compares text: a lost digit would put all 404s under 40.
    #[test]
    fn every_status_is_written_as_the_standard_library_does() {
        for status in 0..=u16::MAX {
            let texts = EntryTexts { status, digits: digits_of(status), path: None };
            assert_eq!(texts.status(), status.to_string().as_bytes());
        }
    }

    /// An address that is read otherwise than the standard library does is another client.
    #[test]
    fn addresses_are_read_as_the_standard_library_reads_them() {
        let numbers = [
            "0", "1", "9", "10", "99", "100", "192", "255", "256", "1000", "00", "01", "007", "", "-1", "1a",
        ];
        for first in numbers {
            for last in numbers {
                for text in [
                    format!("{first}.2.3.{last}"),
                    format!("1.{first}.{last}.4"),
                    format!("{first}.{last}"),
                    format!("1.2.3.{first}.{last}"),
                    format!("{last}.1.2.3{first}"),
                ] {
                    assert_eq!(ipv4(text.as_bytes()), text.parse().ok(), "{text}");
                }
            }
        }
    }
}
