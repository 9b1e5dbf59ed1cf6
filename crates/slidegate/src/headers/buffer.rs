//! A buffer for the header fields of one response.
//!
//! All values are slices of one string, so the fields of a response cost one allocation.

use std::sync::LazyLock;

use bytes::Bytes;
use http::header::{Entry, HeaderMap, HeaderName, HeaderValue};

use super::write::{FieldName, FieldSink};

/// Values of header fields, one after the other in the order of [`FieldName`].
#[derive(Default)]
pub(crate) struct FieldBuffer {
    text: String,
    /// End offset in `text` of the value of each name, or 0 if the field is absent. Small, because
    /// it moves with every response.
    ends: [u32; FieldName::ALL.len()],
}

/// Initial capacity: enough for the fields of one policy in the default style.
const INITIAL_CAPACITY: usize = 128;

impl FieldSink for FieldBuffer {
    fn field(&mut self, name: FieldName, write: impl FnOnce(&mut String)) {
        if self.text.capacity() == 0 {
            self.text.reserve(INITIAL_CAPACITY);
        }
        write(&mut self.text);
        self.ends[name as usize] =
            u32::try_from(self.text.len()).expect("the fields of a response are few and short");
    }
}

/// Header names, created once because creating one costs more than looking it up.
static NAMES: LazyLock<[HeaderName; FieldName::ALL.len()]> =
    LazyLock::new(|| FieldName::ALL.map(|name| HeaderName::from_static(name.as_str())));

impl FieldBuffer {
    /// Adds the fields that `headers` does not have yet. A field set by an inner limit or by the
    /// handler takes precedence.
    pub(crate) fn append_to(self, headers: &mut HeaderMap) {
        if self.text.is_empty() {
            return;
        }
        let text = Bytes::from(self.text);
        let used = NAMES.iter().zip(self.ends).filter(|(_, end)| *end > 0);
        headers.reserve(used.clone().count());
        let mut start = 0;
        for (name, end) in used {
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

    /// Clients must get the same fields from the layer as from `headers_of`.
    #[test]
    fn responses_have_every_field_of_every_style() {
        let limiter = Limiter::new(Quota::per_minute(0));
        let denied = limiter.check("alice");
        for draft in [Draft::Off, Draft::Draft6, Draft::Draft7, Draft::Draft10] {
            for x_ratelimit in [XRateLimit::Off, XRateLimit::EpochSeconds, XRateLimit::DeltaSeconds] {
                let options = HeaderOptions { draft, x_ratelimit, retry_after: true, retry_after_ms: true };
                let fields = options.headers_of("p", &limiter.quota(), &denied);
                let mut texts = FieldBuffer::default();
                for (name, value) in &fields {
                    let name = FieldName::ALL.into_iter().find(|known| known.as_str() == *name).unwrap();
                    texts.field(name, |text| text.push_str(value));
                }
                let mut headers = HeaderMap::new();
                texts.append_to(&mut headers);
                assert_eq!(headers.len(), fields.len());
                for (name, value) in fields {
                    assert_eq!(headers[name], value);
                }
            }
        }
    }
}
