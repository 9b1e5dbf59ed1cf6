//! Secrets: values that are used and compared but never printed.
//!
//! Comparison takes constant time for values of equal length, so a secret cannot be guessed byte by
//! byte. Only the length is revealed.

use std::fmt;

use subtle::ConstantTimeEq;

/// A password, key or digest. `Debug` and `Display` print `***`, so it never appears in logs or
/// errors.
///
/// A secret cannot be serialized; [`expose`](Self::expose) is the only access to its value. Its
/// memory is not overwritten on drop: anyone who can read this process's memory can also read the
/// copies held by connections.
///
/// ```
/// use slidegate::Secret;
///
/// let password = Secret::new("open sesame".to_owned());
/// assert_eq!(format!("{password:?} {password}"), "*** ***");
/// assert_eq!(password.expose(), "open sesame");
/// assert_ne!(password, Secret::new("open barley".to_owned()));
/// ```
#[derive(Clone)]
pub struct Secret<T>(T);

impl<T> Secret<T> {
    /// Wraps `value`.
    pub const fn new(value: T) -> Self {
        Self(value)
    }

    /// The value. Do not print it, store it or send it to others.
    pub const fn expose(&self) -> &T {
        &self.0
    }
}

impl<T> From<T> for Secret<T> {
    fn from(value: T) -> Self {
        Self::new(value)
    }
}

impl<T: AsRef<[u8]>> PartialEq for Secret<T> {
    fn eq(&self, other: &Self) -> bool {
        self.0.as_ref().ct_eq(other.0.as_ref()).into()
    }
}

impl<T: AsRef<[u8]>> Eq for Secret<T> {}

impl<T> fmt::Debug for Secret<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl<T> fmt::Display for Secret<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A changed password must be detected, and no password may be printed.
    #[test]
    fn secrets_are_compared_by_value_and_print_nothing() {
        let values = ["", "a", "b", "ab", "hidden"];
        for one in values {
            for other in values {
                assert_eq!(Secret::new(one) == Secret::new(other), one == other, "`{one}` and `{other}`");
            }
            assert_eq!(format!("{:?} {0} {0:#?} {0:>9}", Secret::new(one)), "*** *** *** ***");
        }
        assert_ne!(Secret::new([0_u8; 16]), Secret::new([1_u8; 16]));
    }
}
