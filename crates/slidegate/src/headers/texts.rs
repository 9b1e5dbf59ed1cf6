//! The header fields of one response, held as text until it comes.
//!
//! All values are slices of one buffer, so that a response's fields cost one allocation for the text and not one for
//! each.

use std::sync::LazyLock;

use bytes::Bytes;
use http::header::{Entry, HeaderMap, HeaderName, HeaderValue};

use super::{Fields, Name};

/// Header fields, one after the other.
#[derive(Default)]
pub(crate) struct FieldTexts {
    text: String,
    /// Where in it the value of each name ends, 0 for those that are not told. Small, as it moves with every response.
    ends: [u32; Name::ALL.len()],
}

/// Room for the fields of one policy in the default style; more makes the text grow.
const ORDINARY: usize = 128;

impl Fields for FieldTexts {
    fn field(&mut self, name: Name, write: impl FnOnce(&mut String)) {
        if self.text.capacity() == 0 {
            self.text.reserve(ORDINARY);
        }
        write(&mut self.text);
        self.ends[name as usize] =
            u32::try_from(self.text.len()).expect("the fields of a response are few and short");
    }
}

/// Every name as responses have it, since making one costs more than finding it.
static NAMES: LazyLock<[HeaderName; Name::ALL.len()]> =
    LazyLock::new(|| Name::ALL.map(|name| HeaderName::from_static(name.as_str())));

impl FieldTexts {
    /// Adds the fields that are not there yet: what an inner limit or the handler itself has said stands.
    pub(crate) fn put_into(self, headers: &mut HeaderMap) {
        if self.text.is_empty() {
            return;
        }
        let text = Bytes::from(self.text);
        let told = NAMES.iter().zip(self.ends).filter(|(_, end)| *end > 0);
        headers.reserve(told.clone().count());
        let mut start = 0;
        for (name, end) in told {
            let end = end as usize;
            if let Entry::Vacant(place) = headers.entry(name) {
                let value = HeaderValue::from_maybe_shared(text.slice(start..end));
                place.insert(value.expect("fields are printable ASCII"));
            }
            start = end;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::headers::{Draft, HeaderOptions, XRateLimit};
    use crate::{Limiter, Quota};

    /// A client must be told the same by every door.
    #[test]
    fn responses_have_every_field_of_every_style() {
        let limiter = Limiter::new(Quota::per_minute(0));
        let denied = limiter.check("alice");
        for draft in [Draft::Off, Draft::Draft6, Draft::Draft7, Draft::Draft10] {
            for x_ratelimit in [XRateLimit::Off, XRateLimit::EpochSeconds, XRateLimit::DeltaSeconds] {
                let options = HeaderOptions { draft, x_ratelimit, retry_after: true, retry_after_ms: true };
                let fields = options.headers_of("p", &limiter.quota(), &denied);
                let mut texts = FieldTexts::default();
                for (name, value) in &fields {
                    let name = Name::ALL.into_iter().find(|known| known.as_str() == *name).unwrap();
                    texts.field(name, |text| text.push_str(value));
                }
                let mut headers = HeaderMap::new();
                texts.put_into(&mut headers);
                assert_eq!(headers.len(), fields.len());
                for (name, value) in fields {
                    assert_eq!(headers[name], value);
                }
            }
        }
    }
}
