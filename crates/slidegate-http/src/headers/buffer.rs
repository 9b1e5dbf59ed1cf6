//! The header fields of one response, as they are written.
//!
//! All values are slices of one string, so they cost one allocation.

use std::ops::Range;

use bytes::Bytes;
use http::header::{Entry, HeaderMap, HeaderName, HeaderValue};
use smallvec::SmallVec;

/// A header field: its name in lower case and its value in printable ASCII.
pub type Header = (&'static str, String);

/// Header fields, in the order in which they were written.
#[derive(Default)]
pub(crate) struct FieldBuffer {
    text: String,
    /// The name of each field, and where its value ends in `text`.
    fields: SmallVec<[(&'static HeaderName, usize); 6]>,
}

/// Initial capacity: enough for the fields of one policy in the default style.
const INITIAL_CAPACITY: usize = 128;

impl FieldBuffer {
    /// Adds a field. `write` appends its value to the shared buffer.
    pub(super) fn field(&mut self, name: &'static HeaderName, write: impl FnOnce(&mut String)) {
        if self.text.capacity() == 0 {
            self.text.reserve(INITIAL_CAPACITY);
        }
        write(&mut self.text);
        self.fields.push((name, self.text.len()));
    }

    /// Adds a field that is one number.
    pub(super) fn number(&mut self, name: &'static HeaderName, number: u64) {
        self.field(name, |text| write_number(text, number));
    }

    /// The fields as a list.
    pub(super) fn into_list(self) -> Vec<Header> {
        self.spans().map(|(name, span)| (name.as_str(), self.text[span].to_owned())).collect()
    }

    /// Adds the fields that `headers` does not have yet. A field set by an inner limit or by the
    /// handler takes precedence.
    pub(crate) fn append_to(&mut self, headers: &mut HeaderMap) {
        let text = Bytes::from(std::mem::take(&mut self.text));
        for (name, span) in self.spans() {
            if let Entry::Vacant(field) = headers.entry(name) {
                let value = HeaderValue::from_maybe_shared(text.slice(span));
                field.insert(value.expect("fields are printable ASCII"));
            }
        }
    }

    /// The name of each field, and where its value is in `text`.
    fn spans(&self) -> impl Iterator<Item = (&'static HeaderName, Range<usize>)> {
        let mut start = 0;
        self.fields.iter().map(move |(name, end)| (*name, std::mem::replace(&mut start, *end)..*end))
    }
}

/// Writes decimal digits.
pub(super) fn write_number(out: &mut String, number: u64) {
    out.push_str(itoa::Buffer::new().format(number));
}

#[cfg(test)]
mod tests {
    use slidegate::internal::NamedDecision;
    use slidegate::{Limiter, Quota};

    use super::*;
    use crate::headers::write::{RETRY_AFTER, X_PARTS};
    use crate::headers::{Draft, HeaderOptions, XRateLimit};

    /// A field that the service has set itself takes precedence, with all of its values.
    #[test]
    fn fields_that_are_there_keep_their_values_and_their_places() {
        let own =
            [("x-ratelimit-limit", "9"), ("x-ratelimit-limit", "8"), ("etag", "e"), ("retry-after", "7")];
        let mut headers = HeaderMap::new();
        for (name, value) in own {
            headers.append(name, HeaderValue::from_static(value));
        }
        let mut fields = FieldBuffer::default();
        fields.number(&X_PARTS[0], 5);
        fields.number(&X_PARTS[1], 12_345);
        fields.field(&RETRY_AFTER, |text| text.push_str("60"));
        fields.append_to(&mut headers);
        let all = headers.iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap()));
        let expected = own.into_iter().chain([("x-ratelimit-remaining", "12345")]);
        assert_eq!(all.collect::<Vec<_>>(), expected.collect::<Vec<_>>());
    }

    /// Clients must get the same fields from the layer as from `headers_of`.
    #[test]
    fn responses_have_every_field_of_every_style() {
        let (limiter, name) = (Limiter::new(Quota::per_minute(0)), "p");
        let (quota, decision) = (&limiter.quota(), &limiter.check("alice"));
        for draft in [Draft::Off, Draft::Draft6, Draft::Draft7, Draft::Draft10] {
            for x_ratelimit in XRateLimit::ALL {
                let options = HeaderOptions { draft, x_ratelimit, retry_after: true, retry_after_ms: true };
                let fields = options.headers_of(name, quota, decision);
                let one = NamedDecision {
                    name,
                    quota,
                    decision,
                    unit: Some(slidegate::CostUnit::Requests),
                    unit_name: None,
                };
                let (mut buffer, mut headers) = (FieldBuffer::default(), HeaderMap::new());
                options.write(&[one], &one, &mut buffer);
                buffer.append_to(&mut headers);
                assert_eq!(headers.len(), fields.len());
                for (name, value) in fields {
                    assert_eq!(headers[name], value);
                }
            }
        }
    }
}
