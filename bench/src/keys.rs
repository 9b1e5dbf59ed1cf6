//! The text of a key: `user-` and seven digits, written before each decision.
//!
//! A server does not see a prepared key: the key's bytes come from a request that was just read.

/// A buffer that keys are written into.
#[derive(Debug)]
pub(crate) struct KeyText(String);

const NAME: &str = "user-";
/// The number of the key.
const PLACES: [u32; 7] = [1_000_000, 100_000, 10_000, 1_000, 100, 10, 1];

impl KeyText {
    pub(crate) fn new() -> Self {
        let mut text = String::with_capacity(NAME.len() + PLACES.len());
        text.push_str(NAME);
        Self(text)
    }

    /// Writes the key of number `n`, below ten million.
    #[inline]
    pub(crate) fn write(&mut self, n: u32) -> &String {
        self.0.truncate(NAME.len());
        for place in PLACES {
            #[allow(clippy::cast_possible_truncation)] // a digit
            let digit = (n / place % 10) as u8;
            self.0.push(char::from(b'0' + digit));
        }
        &self.0
    }
}
