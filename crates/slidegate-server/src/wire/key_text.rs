//! Parses a key's text, as printed in responses and used in paths, into the values of its scope.

use std::net::IpAddr;

use slidegate::{Key, OnMissing, Policy, Request, Value};

use crate::wire::request::UNKNOWN;

/// Why a key of requests without an attribute has no block and no own limit.
pub(crate) const OF_MISSING: &str = "requests that lack an attribute cannot be blocked or have a limit of their own; \
                                     the policy's `on_missing` says what happens to them";

/// The values of a policy's scope.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KeyText(Vec<TextPart>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum TextPart {
    Bytes(Vec<u8>),
    Address(IpAddr),
    /// The request lacks the attribute.
    Missing,
}

impl KeyText {
    /// Maximum bytes of the text: changes of keys are stored for all instances.
    pub(crate) const MAX: usize = 1024;

    /// Parses a key of a policy. `is_address` returns whether an attribute is an IP address.
    ///
    /// # Errors
    /// One line: the text cannot be a key of this policy.
    pub(crate) fn read(
        policy: &Policy,
        text: &str,
        is_address: impl Fn(&str) -> bool,
    ) -> Result<Self, String> {
        let (name, scope) = (policy.name(), policy.scope());
        if text.len() > Self::MAX {
            return Err(format!(
                "the key has {} bytes; {} is the most that can be asked for",
                text.len(),
                Self::MAX
            ));
        }
        if scope.is_empty() {
            return match text {
                "*" => Ok(Self(Vec::new())),
                _ => Err(format!("policy `{name}` has one key for everybody; write `*`")),
            };
        }
        let values: Vec<&str> = text.split(',').collect();
        if values.len() != scope.len() {
            return Err(format!(
                "`{}` has {} values and policy `{name}` counts by {}; join one value for each by commas, with `%2C` for \
                 a comma within one",
                text.escape_debug(),
                values.len(),
                scope.join(",")
            ));
        }
        let counts_missing = matches!(policy.options().on_missing, Some(OnMissing::OneKey | OnMissing::Deny));
        let part = |(value, attribute): (&str, &String)| {
            // An attribute with this value is printed as `%2A`.
            if value == "*" && counts_missing {
                return Ok(TextPart::Missing);
            }
            if !is_address(attribute) || value == UNKNOWN {
                return unescape(value).map(TextPart::Bytes);
            }
            // The printed address includes the prefix by which it is counted.
            let address = value.split_once('/').map_or(value, |(address, _)| address);
            address.parse().map(TextPart::Address).map_err(|_| {
                format!(
                    "invalid {attribute} `{}`: must be an IP address, for example `192.0.2.7`",
                    value.escape_debug()
                )
            })
        };
        values.into_iter().zip(scope).map(part).collect::<Result<_, _>>().map(Self)
    }

    /// The values for the library; `None` if one is missing.
    pub(crate) fn values(&self) -> Option<Vec<Value<'_>>> {
        self.0.iter().map(TextPart::value).collect()
    }

    /// A request for this key under this policy only.
    pub(crate) fn request<'r>(&'r self, policy: &'r Policy) -> Request<'r> {
        let attributes = policy.scope().iter().zip(self.0.iter().map(TextPart::value));
        let request = attributes.fold(Request::new(), |request, (name, value)| match value {
            Some(value) => request.with(name, value),
            None => request,
        });
        request.under(policy.name())
    }
}

impl TextPart {
    fn value(&self) -> Option<Value<'_>> {
        match self {
            Self::Bytes(bytes) => Some(bytes.as_slice().into()),
            Self::Address(ip) => Some((*ip).into()),
            Self::Missing => None,
        }
    }
}

/// A key's text in responses. A text longer than routes accept is cut and ends in `...`: clients choose keys,
/// and every applicable policy prints one.
pub(crate) fn shown(key: &Key<'_>) -> String {
    let mut text = key.to_string();
    if text.len() > KeyText::MAX {
        let boundary = |at: &usize| text.is_char_boundary(*at);
        let end = (0..=KeyText::MAX - CUT.len()).rev().find(boundary).unwrap_or(0);
        text.truncate(end);
        text.push_str(CUT);
    }
    text
}

/// The end of a cut text.
const CUT: &str = "...";

/// Decodes percent-encoded text.
fn unescape(text: &str) -> Result<Vec<u8>, String> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        let mut digit = || rest.next().and_then(|digit| char::from(digit).to_digit(16));
        let (Some(high), Some(low)) = (digit(), digit()) else {
            return Err(format!(
                "`{}` has a `%` without two hexadecimal digits; write `%25`",
                text.escape_debug()
            ));
        };
        out.push(u8::try_from(high * 16 + low).unwrap_or(0));
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use slidegate::Quota;

    fn policy(scope: &[&str]) -> Policy {
        Policy::new("p", Quota::per_minute(1)).unwrap().with_scope(scope.iter().copied())
    }

    fn read(scope: &[&str], text: &str) -> Result<KeyText, String> {
        KeyText::read(&policy(scope), text, |attribute| attribute == "ip")
    }

    /// A key copied from a response must reach that very key.
    #[test]
    fn what_is_printed_is_read_back() {
        let address: IpAddr = "2001:db8:1:2345::7".parse().unwrap();
        let requests = [
            Request::new().with("user", "alice").with("path", "/a,b%\n"),
            Request::new().with("user", b"\xff{}:\0").with("path", ""),
            Request::new().with("user", "*").with("path", "zoë"),
        ];
        let scope = ["user", "path"];
        for request in &requests {
            let printed = policy(&scope).key_of(request).unwrap().to_string();
            let key = read(&scope, &printed).unwrap();
            let again = key.values().unwrap();
            assert_eq!(again, [request.value("user").unwrap(), request.value("path").unwrap()], "{printed}");
        }
        let asked = Request::new().with("ip", address);
        let printed = policy(&["ip"]).key_of(&asked).unwrap().to_string();
        assert_eq!(printed, "2001:db8:1:2300::/56");
        assert_eq!(read(&["ip"], &printed).unwrap().values().unwrap().len(), 1);
        assert_eq!(read(&[], "*").unwrap().values().unwrap().len(), 0);
        // A missing value, where the policy counts requests without it.
        let counting = policy(&scope).with_on_missing(OnMissing::OneKey);
        let lacking = Request::new().with("path", "*");
        let printed = counting.key_of(&lacking).unwrap().to_string();
        assert_eq!(printed, "*,%2A");
        let key = KeyText::read(&counting, &printed, |_| false).unwrap();
        assert_eq!(key.values(), None);
        assert_eq!(counting.key_of(&key.request(&counting)).unwrap().to_string(), printed);
        assert_eq!(read(&["user"], "*").unwrap().values(), Some(vec!["*".into()]));
    }

    /// A client with a key of 64 KiB must not get megabytes in a response under fifty policies.
    #[test]
    fn long_keys_are_cut_in_responses() {
        let policy = policy(&["user"]);
        let shown_of = |user: &str| shown(&policy.key_of(&Request::new().with("user", user)).unwrap());
        assert_eq!(shown_of(&"x".repeat(1024)), "x".repeat(1024));
        let cut = shown_of(&"\u{e9}".repeat(30_000));
        assert!((1022..=1024).contains(&cut.len()) && cut.ends_with("\u{e9}..."), "{} bytes", cut.len());
        assert_eq!(shown_of(&"\0".repeat(60_000)).len(), 1024);
    }

    /// A block on the wrong key is no block.
    #[test]
    fn what_cannot_be_a_key_is_said() {
        for (scope, text, said) in [
            (
                &["user"][..],
                "a,b",
                "`a,b` has 2 values and policy `p` counts by user; join one value for each by commas, with `%2C` for a comma within one",
            ),
            (&["user"], "a%2", "`a%2` has a `%` without two hexadecimal digits; write `%25`"),
            (&["ip"], "home", "invalid ip `home`: must be an IP address, for example `192.0.2.7`"),
            (&[], "alice", "policy `p` has one key for everybody; write `*`"),
        ] {
            assert_eq!(read(scope, text).unwrap_err(), said);
        }
        assert!(read(&["user"], &"x".repeat(1025)).unwrap_err().contains("1024 is the most"));
    }
}
