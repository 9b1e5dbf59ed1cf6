//! Read access of tokens for one key.
//!
//! A request is compared by its decoded path and query. Only the two routes of the key are allowed, so such a
//! token cannot read routes added later.

use std::borrow::Cow;

use axum::http::Uri;
use percent_encoding::percent_decode_str;

use crate::config::OwnKey;
use crate::wire::query;

/// Whether a request reads only this key: the key itself or its events.
pub(super) fn may_read(key: &OwnKey, uri: &Uri) -> bool {
    if let Some(path) = uri.path().strip_prefix("/v1/keys/") {
        let Some((policy, name)) = path.split_once('/') else { return false };
        // With the store's `hash_tag`, a parameter selects another key of the same text.
        return uri.query().is_none() && is(policy, &key.policy) && is(name, &key.key);
    }
    if uri.path() != "/v1/events" {
        return false;
    }
    let Ok(mut parameters) = query::texts(uri.query().unwrap_or_default()) else { return false };
    parameters.retain(|(name, _)| name != "limit");
    parameters.sort_unstable();
    let own = [("key", &key.key), ("policy", &key.policy)];
    parameters.len() == own.len()
        && parameters.iter().zip(own).all(|((name, value), (own, of))| name == own && value == of)
}

/// Whether a path segment is this text.
fn is(segment: &str, text: &str) -> bool {
    let decoded: Cow<'_, [u8]> = percent_decode_str(segment).into();
    *decoded == *text.as_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A customer must never read another one's data.
    #[test]
    fn a_token_of_one_key_reads_this_key_and_its_events_only() {
        let key = OwnKey { policy: "per-user".to_owned(), key: "alice/1".to_owned() };
        let reads = |uri: &str| may_read(&key, &uri.parse().unwrap());
        for uri in [
            "/v1/keys/per-user/alice%2F1",
            "/v1/keys/per%2duser/%61lice%2F1",
            "/v1/events?policy=per-user&key=alice/1",
            "/v1/events?key=alice%2F1&limit=5&policy=per-user",
        ] {
            assert!(reads(uri), "{uri}");
        }
        for uri in [
            "/v1/keys/per-user/alice%2F2",
            "/v1/keys/per-user/alice%2F1?tenant=other",
            "/v1/keys/per-user/alice%2F1?",
            "/v1/keys/other/alice%2F1",
            "/v1/keys/per-user",
            "/v1/keys/per-user/alice%2F1/block",
            "//v1/keys/per-user/alice%2F1",
            "/v1/events",
            "/v1/events?policy=per-user",
            "/v1/events?key=alice/1",
            "/v1/events?policy=per-user&key=bob",
            "/v1/events?policy=per-user&key=alice/1&key=bob",
            "/v1/events?policy=per-user&key=alice/1&policy=other",
            "/v1/events?policy=per-user&key=alice/1&instance=x",
            "/v1/status",
            "/v1/top?policy=per-user&key=alice/1",
            "/v1/live",
            "/metrics",
        ] {
            assert!(!reads(uri), "{uri}");
        }
    }
}
