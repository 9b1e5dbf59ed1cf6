//! One request of an access log.

use std::borrow::Cow;

use crate::block::{Block, Record, Span, Text};

/// One request of an access log. Texts are as the client sent them: escapes of the log are undone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// The client: an address, possibly with a port, a name, or the address list of a proxy
    /// (`10.0.0.1, 10.0.0.2`), as written. Empty if the log has no client.
    pub client: &'a [u8],
    /// The user the client logged in as. `None` for `-` and for Apache's `""`.
    pub user: Option<Cow<'a, [u8]>>,
    /// The time of the request, in microseconds since the Unix epoch: of its start if the log says
    /// when that was.
    pub time_us: u64,
    /// The request line. `None` if it was not HTTP: `-`, empty, a TLS handshake on the plain port.
    pub request: Option<RequestLine<'a>>,
    /// The host that the request was for. `None` if the log does not have it.
    pub host: Option<Cow<'a, [u8]>>,
    /// The response's status. 0 for `-`.
    pub status: u16,
    /// The response's length in bytes. 0 for `-`.
    pub bytes: u64,
    /// What the request costs. 1 unless the log says otherwise.
    pub cost: u64,
    /// The `Referer` header. `None` in the common format, for `-` and when empty.
    pub referer: Option<Cow<'a, [u8]>>,
    /// The `User-Agent` header. `None` in the common format, for `-` and when empty.
    pub user_agent: Option<Cow<'a, [u8]>>,
    /// Further attributes, by name.
    pub extra: Extras<'a>,
}

/// The first line of an HTTP request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestLine<'a> {
    /// The method, in the case the client sent: `GET`. Empty if the log does not have it.
    pub method: &'a [u8],
    /// The request target, with the query if the log has that. May contain spaces if the client did
    /// not encode them. Empty if the log does not have it.
    pub target: Cow<'a, [u8]>,
}

impl RequestLine<'_> {
    /// The target without its query.
    pub fn path(&self) -> &[u8] {
        match memchr::memchr(b'?', &self.target) {
            Some(query) => &self.target[..query],
            None => &self.target,
        }
    }
}

/// Attributes of an entry besides those that have a field of their own.
#[derive(Clone, Copy, Default)]
pub struct Extras<'a> {
    block: Option<&'a Block>,
    spans: &'a [(Span, Span)],
}

impl<'a> Extras<'a> {
    /// Whether there is no entry.
    #[must_use]
    #[inline]
    pub fn is_empty(self) -> bool {
        self.spans.is_empty()
    }

    /// Name and value of each, in the order of the log.
    pub fn iter(self) -> impl Iterator<Item = (&'a str, &'a [u8])> {
        self.spans.iter().filter_map(move |&(name, value)| {
            let block = self.block?;
            Some((std::str::from_utf8(block.text(name)?).ok()?, block.text(value)?))
        })
    }

    /// The value of an attribute; of two with one name the first.
    #[must_use]
    pub fn get(self, name: &str) -> Option<&'a [u8]> {
        self.iter().find(|(known, _)| *known == name).map(|(_, value)| value)
    }
}

impl std::fmt::Debug for Extras<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl PartialEq for Extras<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for Extras<'_> {}

impl<'a> Entry<'a> {
    /// The entry of a record in its block.
    #[inline]
    pub(crate) fn of(block: &'a Block, record: &'a Record) -> Self {
        let text = |which: Text| block.text(record.texts[which as usize]);
        let (method, target) = (text(Text::Method), text(Text::Target));
        let request = (method.is_some() || target.is_some()).then(|| RequestLine {
            method: method.unwrap_or_default(),
            target: Cow::Borrowed(target.unwrap_or_default()),
        });
        Self {
            client: text(Text::Client).unwrap_or_default(),
            user: text(Text::User).map(Cow::Borrowed),
            time_us: record.time_us,
            request,
            host: text(Text::Host).map(Cow::Borrowed),
            status: record.status,
            bytes: record.bytes,
            cost: record.cost,
            referer: text(Text::Referer).map(Cow::Borrowed),
            user_agent: text(Text::UserAgent).map(Cow::Borrowed),
            extra: Extras { block: Some(block), spans: block.extras(record) },
        }
    }
}
