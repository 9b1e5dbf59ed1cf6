//! The attributes of an entry, as policies see them.

use std::borrow::Cow;
use std::net::IpAddr;

use slidegate::{Request, Value, Verb};

use crate::entry::{Entry, POLICY, VERB};

/// The names of the attributes that entries can have whatever their format is.
const NAMES: [&str; 8] = ["ip", "path", "method", "user", "user_agent", "host", "referer", "status"];

/// All attributes of an entry.
pub(crate) fn request<'e>(entry: &'e Entry<'_>, status: &'e str) -> Request<'e> {
    let known = NAMES.into_iter().filter_map(|name| Some((name, value(entry, name, status)?)));
    let mut request =
        known.fold(Request::new().cost(entry.cost), |request, (name, value)| request.with(name, value));
    request.extend(entry.extra.iter());
    let RecordedCall { verb, policy } = RecordedCall::of(entry);
    request = request.verb(verb);
    policy.into_iter().fold(request, Request::under)
}

/// What a recording of the service says of a request besides its attributes. Other logs have
/// checks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RecordedCall<'e> {
    /// What was done with the cost.
    pub(crate) verb: Verb,
    /// The only policy that decided.
    pub(crate) policy: Option<&'e str>,
}

impl<'e> RecordedCall<'e> {
    pub(crate) fn of(entry: &Entry<'e>) -> Self {
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

/// The value of one attribute of an entry: ip, user, host, method, path, `user_agent`, referer,
/// status, or one that only its log has. `status` is the text of the entry's status.
///
/// Attributes are asked for one by one, because policies need few of them.
pub(crate) fn value<'e>(entry: &'e Entry<'_>, name: &str, status: &'e str) -> Option<Value<'e>> {
    let text = |text: &'e [u8]| (!text.is_empty()).then_some(Value::Bytes(text));
    let column = |column: &'e Option<Cow<'_, [u8]>>| column.as_deref().map(Value::Bytes);
    let line = entry.request.as_ref();
    let known = match name {
        // A client that the server logged by name is counted by it.
        "ip" => text(entry.client).map(|client| address(entry.client).map_or(client, Value::Address)),
        "path" => line.and_then(|line| text(line.path())),
        "method" => line.and_then(|line| text(line.method)),
        "user" => column(&entry.user),
        "user_agent" => column(&entry.user_agent),
        "host" => column(&entry.host),
        "referer" => column(&entry.referer),
        "status" if entry.status > 0 => text(status.as_bytes()),
        _ => None,
    };
    known.or_else(|| entry.extra.get(name).map(Value::Bytes))
}

/// The address of a client: with or without a port, and of a list the last, which is the one that
/// the nearest proxy saw.
fn address(client: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(client).ok()?;
    if let Ok(ip) = text.parse() {
        return Some(ip);
    }
    let last = text.rsplit(',').next()?.trim();
    let bare = last.strip_prefix('[').and_then(|last| last.strip_suffix(']')).unwrap_or(last);
    bare.parse().ok().or_else(|| last.parse().ok().map(|address: std::net::SocketAddr| address.ip()))
}
