//! A buffer for the header fields of one response.
//!
//! Fields that are one small number are kept as numbers, whose text is static. The values of all
//! others are slices of one string, so they cost one allocation. Without that string, larger numbers
//! are kept as numbers as well.

use std::sync::LazyLock;

use bytes::Bytes;
use http::header::{Entry, HeaderMap, HeaderName, HeaderValue};

use super::unit_field::{UNIT_FIELDS, UnitField};
use super::write::{FieldName, FieldSink, write_number};

/// Values of header fields, in the order of [`FieldName`].
#[derive(Default)]
pub(crate) struct FieldBuffer {
    text: String,
    /// By the position of a plain name, its number, or where its value ends in `text`. Not a list,
    /// because it moves with every response.
    values: [u64; FieldName::PLAIN.len()],
    /// Positions, as bits, of the fields that are numbers, and of those in `text`.
    numbers: u16,
    texts: u16,
    /// The ends in `text` of the fields of units, which follow, or 0 if a field is absent. Boxed,
    /// because few services send them.
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
        let end = self.text.len();
        match name.plain() {
            Ok(at) => {
                self.values[at] = end as u64;
                self.texts |= 1 << at;
            }
            Err(unit) => {
                let end = u32::try_from(end).expect("the fields of a response are few and short");
                self.unit_ends.get_or_insert_default()[unit.index()] = end;
            }
        }
    }

    #[inline]
    fn number(&mut self, name: FieldName, number: u64) {
        match name.plain() {
            Ok(at) if number < SMALL || self.text.is_empty() => {
                self.values[at] = number;
                self.numbers |= 1 << at;
            }
            _ => self.field(name, |text| write_number(text, number)),
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
    #[inline]
    pub(crate) fn append_to(&mut self, headers: &mut HeaderMap) {
        if self.numbers != 0 || !self.text.is_empty() {
            self.append_all_to(headers);
        }
    }

    fn append_all_to(&mut self, headers: &mut HeaderMap) {
        let text = Bytes::from(std::mem::take(&mut self.text));
        let mut start = 0;
        let mut left = self.numbers | self.texts;
        let names = &*NAMES;
        while left != 0 {
            let at = left.trailing_zeros() as usize;
            left &= left - 1;
            let value = self.values[at];
            if self.numbers & 1 << at != 0 {
                append(headers, &names[at], number_value(value));
            } else {
                #[allow(clippy::cast_possible_truncation)] // the length of a string
                let end = value as usize;
                append(headers, &names[at], text_value(&text, start, end));
                start = end;
            }
        }
        for (name, end) in UNIT_NAMES.iter().zip(self.unit_ends.iter().flat_map(|ends| **ends)) {
            if end > 0 {
                append(headers, name, text_value(&text, start, end as usize));
                start = end as usize;
            }
        }
    }
}

/// Adds a field that is not there yet.
///
/// Most are not, and then this takes a fifth less time than a vacant entry.
#[inline]
fn append(headers: &mut HeaderMap, name: &HeaderName, value: HeaderValue) {
    if headers.append(name, value) {
        remove_last(headers, name);
    }
}

/// Removes the value that was added last to a field that had others.
#[cold]
fn remove_last(headers: &mut HeaderMap, name: &HeaderName) {
    let Entry::Occupied(mut field) = headers.entry(name) else { return };
    let mut values = field.iter().cloned().collect::<Vec<_>>();
    values.pop();
    let mut values = values.into_iter();
    if let Some(first) = values.next() {
        field.insert(first);
        values.for_each(|value| field.append(value));
    }
}

/// Most limits are below this, and so is what remains of them.
const SMALL: u64 = 10_000;

/// The small numbers, as four digits each.
#[allow(clippy::cast_possible_truncation)] // single digits and their places
static FOUR_DIGITS: [u8; 4 * SMALL as usize] = {
    let mut text = [b'0'; 4 * SMALL as usize];
    let mut at = 0;
    while at < text.len() {
        let (number, place) = (at / 4, 10_usize.pow(3 - (at % 4) as u32));
        text[at] += (number / place % 10) as u8;
        at += 1;
    }
    text
};

/// A small number takes no allocation.
fn number_value(number: u64) -> HeaderValue {
    let zeros = match number {
        0..10 => 3,
        10..100 => 2,
        100..1000 => 1,
        1000..SMALL => 0,
        _ => return number.into(),
    };
    #[allow(clippy::cast_possible_truncation)] // below 10,000
    let at = 4 * number as usize;
    let digits = Bytes::from_static(&FOUR_DIGITS[at + zeros..at + 4]);
    HeaderValue::from_maybe_shared(digits).expect("digits are printable ASCII")
}

fn text_value(text: &Bytes, start: usize, end: usize) -> HeaderValue {
    HeaderValue::from_maybe_shared(text.slice(start..end)).expect("fields are printable ASCII")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::headers::{Draft, HeaderOptions, XRateLimit};
    use crate::{Limiter, Quota};

    #[test]
    fn numbers_are_written_as_decimal_digits() {
        for number in (0..SMALL + 2).chain([99_999, u64::MAX]) {
            let (mut fields, mut headers) = (FieldBuffer::default(), HeaderMap::new());
            fields.number(FieldName::XRateLimitLimit, number);
            fields.field(FieldName::RateLimit, |text| text.push_str("r=1"));
            fields.number(FieldName::XRateLimitReset, number);
            fields.append_to(&mut headers);
            for name in ["x-ratelimit-limit", "x-ratelimit-reset"] {
                assert_eq!(headers[name], number.to_string());
            }
        }
    }

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
        fields.number(FieldName::XRateLimitLimit, 5);
        fields.number(FieldName::XRateLimitRemaining, 12_345);
        fields.field(FieldName::RetryAfter, |text| text.push_str("60"));
        fields.append_to(&mut headers);
        let all = headers.iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap()));
        let expected = own.into_iter().chain([("x-ratelimit-remaining", "12345")]);
        assert_eq!(all.collect::<Vec<_>>(), expected.collect::<Vec<_>>());
    }

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
