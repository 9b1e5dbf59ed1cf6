//! A secret: a value that is used and compared, and never printed.
//!
//! Comparing two takes as long wherever they differ, so that nobody can guess one byte by byte; only their length shows.

use std::fmt;

use subtle::ConstantTimeEq;

/// A password, a key or a digest that no log, error or `Debug` output may hold: both print `***`.
///
/// There is no way to serialize it, and [`expose`](Self::expose) is the only way to its value. The memory that held it is
/// not overwritten when it is dropped: whoever can read the memory of this process has the connections' copies as well.
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
    /// A secret of this value.
    pub const fn new(value: T) -> Self {
        Self(value)
    }

    /// The value, for whoever needs it: not for anything that is printed, stored or sent to others.
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

    /// A change of a password must be seen, and nothing of the password.
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
