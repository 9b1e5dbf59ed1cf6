//! One request of an access log.

use std::borrow::Cow;

use crate::block::{Block, Record, Span, Text};

/// One request of an access log. Texts are as sent by the client: the log's escapes are decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// The client as written: an address, possibly with a port, a name, or a proxy's address list
    /// (`10.0.0.1, 10.0.0.2`). Empty if the log has no client.
    pub client: &'a [u8],
    /// The user that the client logged in as. `None` for `-` and for Apache's `""`.
    pub user: Option<Cow<'a, [u8]>>,
    /// Time of the request, in microseconds since the Unix epoch: its start, if the log says when
    /// that was.
    pub time_us: u64,
    /// The request line. `None` if it was not HTTP: `-`, empty, or a TLS handshake on the plain
    /// port.
    pub request: Option<RequestLine<'a>>,
    /// The requested host. `None` if not logged.
    pub host: Option<Cow<'a, [u8]>>,
    /// The response's status. 0 for `-`.
    pub status: u16,
    /// The response's length in bytes. 0 for `-`.
    pub bytes: u64,
    /// Cost of the request. 1 unless the log says otherwise.
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
    /// The method, in the case sent by the client: `GET`. Empty if not logged.
    pub method: &'a [u8],
    /// The request target, including a logged query. May contain spaces that the client did not
    /// encode. Empty if not logged.
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

/// Attributes of an entry that have no field of their own.
#[derive(Clone, Copy, Default)]
pub struct Extras<'a> {
    block: Option<&'a Block>,
    spans: &'a [(Span, Span)],
}

impl<'a> Extras<'a> {
    /// Whether there are no attributes.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.spans.is_empty()
    }

    /// Names and values, in the order of the log.
    pub fn iter(self) -> impl Iterator<Item = (&'a str, &'a [u8])> {
        self.spans.iter().filter_map(move |&(name, value)| {
            let block = self.block?;
            Some((std::str::from_utf8(block.text(name)?).ok()?, block.text(value)?))
        })
    }

    /// The value of an attribute; the first one if the name is repeated.
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
