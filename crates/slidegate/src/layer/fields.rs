//! The header fields of one response, held as text until it comes.
//!
//! All values are slices of one buffer, so that a response's fields cost one allocation for the text and not one for
//! each.

use bytes::Bytes;
use http::header::{Entry, HeaderMap, HeaderName, HeaderValue};
use smallvec::SmallVec;

use crate::headers::Fields;

/// Header fields, one after the other.
#[derive(Default)]
pub(super) struct FieldTexts {
    text: String,
    /// Places of their names in [`NAMES`], and where their values end. Small, as it moves with every response.
    ends: SmallVec<[(u8, u32); 6]>,
}

/// Room for the fields of one policy in the default style; more makes the text grow.
const ORDINARY: usize = 128;

impl Fields for FieldTexts {
    fn field(&mut self, name: &'static str, write: impl FnOnce(&mut String)) {
        if self.text.capacity() == 0 {
            self.text.reserve(ORDINARY);
        }
        write(&mut self.text);
        let name = NAMES.iter().position(|known| known.as_str() == name).and_then(|at| u8::try_from(at).ok());
        let end = u32::try_from(self.text.len()).expect("the fields of a response are few and short");
        self.ends.push((name.expect("every field has its name in the list"), end));
    }
}

/// Every name that there is, since making one costs more than finding it.
static NAMES: [HeaderName; 10] = [
    HeaderName::from_static("ratelimit-policy"),
    HeaderName::from_static("ratelimit"),
    HeaderName::from_static("x-ratelimit-limit"),
    HeaderName::from_static("x-ratelimit-remaining"),
    HeaderName::from_static("x-ratelimit-reset"),
    HeaderName::from_static("retry-after"),
    HeaderName::from_static("retry-after-ms"),
    HeaderName::from_static("ratelimit-limit"),
    HeaderName::from_static("ratelimit-remaining"),
    HeaderName::from_static("ratelimit-reset"),
];

impl FieldTexts {
    /// Adds the fields that are not there yet: what an inner limit or the handler itself has said stands.
    pub(super) fn put_into(self, headers: &mut HeaderMap) {
        if self.ends.is_empty() {
            return;
        }
        headers.reserve(self.ends.len());
        let text = Bytes::from(self.text);
        let mut start = 0;
        for (name, end) in self.ends {
            let end = end as usize;
            if let Entry::Vacant(place) = headers.entry(&NAMES[usize::from(name)]) {
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

    /// A field whose name is missing in the list would end the request in a panic.
    #[test]
    fn every_field_of_every_style_has_its_name() {
        let limiter = Limiter::new(Quota::per_minute(0));
        let denied = limiter.check("alice");
        for draft in [Draft::Off, Draft::Draft6, Draft::Draft7, Draft::Draft10] {
            for x_ratelimit in [XRateLimit::Off, XRateLimit::EpochSeconds, XRateLimit::DeltaSeconds] {
                let options = HeaderOptions { draft, x_ratelimit, retry_after: true, retry_after_ms: true };
                let fields = options.headers_of("p", &limiter.quota(), &denied);
                let mut texts = FieldTexts::default();
                for (name, value) in &fields {
                    texts.field(name, |text| text.push_str(value));
                }
                let mut headers = HeaderMap::new();
                texts.put_into(&mut headers);
                assert_eq!(headers.len(), fields.len());
                for (name, value) in fields {
                    assert_eq!(headers[name], value);
                }
                for name in options.names() {
                    assert!(NAMES.iter().any(|known| known == name), "{name}");
                }
            }
        }
    }
}
