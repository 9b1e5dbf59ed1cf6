//! A buffer for the header fields of one response.
//!
//! All values are slices of one string, so the fields of a response cost one allocation.

use std::sync::LazyLock;

use bytes::Bytes;
use http::header::{Entry, HeaderMap, HeaderName, HeaderValue};

use super::unit_field::{UNIT_FIELDS, UnitField};
use super::write::{FieldName, FieldSink};

/// Values of header fields, one after the other in the order of [`FieldName`].
#[derive(Default)]
pub(crate) struct FieldBuffer {
    text: String,
    /// End offset in `text` of the value of each plain name, or 0 if the field is absent. Small,
    /// because it moves with every response.
    ends: [u32; FieldName::PLAIN.len()],
    /// The same of the fields of units, which follow. Boxed, because few services send them.
    unit_ends: Option<Box<[u32; UNIT_FIELDS]>>,
}

/// Initial capacity: enough for the fields of one policy in the default style.
const INITIAL_CAPACITY: usize = 128;

impl FieldSink for FieldBuffer {
    fn field(&mut self, name: FieldName, write: impl FnOnce(&mut String)) {
        if self.text.capacity() == 0 {
            self.text.reserve(INITIAL_CAPACITY);
        }
        write(&mut self.text);
        let end = u32::try_from(self.text.len()).expect("the fields of a response are few and short");
        match name.plain() {
            Ok(at) => self.ends[at] = end,
            Err(unit) => self.unit_ends.get_or_insert_default()[unit.index()] = end,
        }
    }
}

/// Header names, created once because creating one costs more than looking it up.
static NAMES: LazyLock<[HeaderName; FieldName::PLAIN.len()]> =
    LazyLock::new(|| FieldName::PLAIN.map(|name| HeaderName::from_static(name.as_str())));
/// The same of the fields of units.
static UNIT_NAMES: LazyLock<[HeaderName; UNIT_FIELDS]> =
    LazyLock::new(|| UnitField::all().map(|name| HeaderName::from_static(name.as_str())));

impl FieldBuffer {
    /// Adds the fields that `headers` does not have yet. A field set by an inner limit or by the
    /// handler takes precedence.
    pub(crate) fn append_to(self, headers: &mut HeaderMap) {
        if self.text.is_empty() {
            return;
        }
        let text = Bytes::from(self.text);
        let start = append(headers, &text, 0, NAMES.iter().zip(self.ends));
        if let Some(ends) = self.unit_ends {
            append(headers, &text, start, UNIT_NAMES.iter().zip(*ends));
        }
    }
}

/// Adds fields whose values follow each other in `text` from `start` on. Returns where they end.
fn append<'n>(
    headers: &mut HeaderMap,
    text: &Bytes,
    mut start: usize,
    fields: impl Iterator<Item = (&'n HeaderName, u32)> + Clone,
) -> usize {
    let used = fields.filter(|(_, end)| *end > 0);
    headers.reserve(used.clone().count());
    for (name, end) in used {
        let end = end as usize;
        if let Entry::Vacant(place) = headers.entry(name) {
            let value = HeaderValue::from_maybe_shared(text.slice(start..end));
            place.insert(value.expect("fields are printable ASCII"));
        }
        start = end;
    }
    start
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
            for x_ratelimit in XRateLimit::ALL {
                let options = HeaderOptions { draft, x_ratelimit, retry_after: true, retry_after_ms: true };
                let fields = options.headers_of("p", &limiter.quota(), &denied);
                let mut texts = FieldBuffer::default();
                for (name, value) in &fields {
                    let units = UnitField::all().into_iter().map(FieldName::Unit);
                    let mut known = FieldName::PLAIN.into_iter().chain(units);
                    let name = known.find(|known| known.as_str() == *name).unwrap();
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
