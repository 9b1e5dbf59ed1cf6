//! Redaction: keys are shown in clear, masked or hashed, as each policy configures.
//!
//! Applies to everything the observer exports: log, events, top keys and the dashboard. Responses
//! are not redacted, because they contain the client's own key. A key's text has no control
//! characters; see the library's `Key`.

use std::borrow::Cow;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;

use siphasher::sip128::SipHasher24;
use slidegate_config::policy::KeysShown;

/// Maximum bytes of a displayed key. A longer key is cut and ends in a hash.
pub(super) const MAX_SHOWN: usize = 256;
/// Characters of a hash, six bits each: 126 bits.
const HASH_CHARACTERS: usize = 21;
/// Characters of the hash after a masked key, to tell equal masks apart: 24 bits.
const MARK_CHARACTERS: usize = 4;
/// A masked value shows one of this many characters, at most [`MAX_UNMASKED`].
const MASKED_FOR_ONE: usize = 4;
const MAX_UNMASKED: usize = 2;

/// The alphabet of hashes.
const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// Redacts keys. Hashes use the configured secret, or one that is random per process.
#[derive(Debug)]
pub(crate) struct Redactor {
    secret: [u64; 2],
}

impl Redactor {
    pub(crate) fn new(secret: Option<&str>) -> Self {
        let random = || RandomState::new().hash_one(0);
        let secret = secret.map_or_else(
            || [random(), random()],
            |secret| {
                // Differs from the hash keys of names in the store, so those do not reveal these.
                let hash = SipHasher24::new_with_keys(0, 1).hash(secret.as_bytes());
                [hash.h1, hash.h2]
            },
        );
        Self { secret }
    }

    /// The redacted text of a key.
    pub(crate) fn show<'k>(&self, key: &'k str, how: KeysShown) -> Cow<'k, str> {
        let key = self.cut(key);
        match how {
            KeysShown::Plain => key,
            KeysShown::Masked => {
                let values: Vec<_> = key.split(',').map(masked).collect();
                format!("{}#{}", values.join(","), self.hash(&key, MARK_CHARACTERS)).into()
            }
            KeysShown::Hashed => format!("#{}", self.hash(&key, HASH_CHARACTERS)).into(),
        }
    }

    /// The key's text, cut to a bounded length; idempotent.
    pub(crate) fn cut<'k>(&self, key: &'k str) -> Cow<'k, str> {
        if key.len() <= MAX_SHOWN {
            return key.into();
        }
        let room = MAX_SHOWN - HASH_CHARACTERS - "...#".len();
        let fits = |(at, c): &(usize, char)| at + c.len_utf8() <= room;
        let start: String = key.char_indices().take_while(fits).map(|(_, c)| c).collect();
        format!("{start}...#{}", self.hash(key, HASH_CHARACTERS)).into()
    }

    /// Whether a text is a redacted key.
    pub(crate) fn is_shown(text: &str, how: KeysShown) -> bool {
        let is_mark = |mark: &str, characters: usize| {
            mark.len() == characters && mark.bytes().all(|byte| LETTERS.contains(&byte))
        };
        match how {
            KeysShown::Plain => Self::is_cut(text),
            KeysShown::Masked => text
                .rsplit_once('#')
                .is_some_and(|(start, mark)| start.contains("***") && is_mark(mark, MARK_CHARACTERS)),
            KeysShown::Hashed => text.strip_prefix('#').is_some_and(|hash| is_mark(hash, HASH_CHARACTERS)),
        }
    }

    /// Whether a text looks like the result of [`cut`](Self::cut).
    pub(crate) fn is_cut(text: &str) -> bool {
        // A character of up to four bytes may not have fit.
        (MAX_SHOWN - 3..=MAX_SHOWN).contains(&text.len())
            && text.rsplit_once("...#").is_some_and(|(_, hash)| hash.len() == HASH_CHARACTERS)
    }

    /// SipHash-2-4 with 128 bits of output (Aumasson and Bernstein, 2012), in letters, digits, `-`
    /// and `_`.
    fn hash(&self, text: &str, characters: usize) -> String {
        let hash = SipHasher24::new_with_keys(self.secret[0], self.secret[1]).hash(text.as_bytes());
        let mut bits = u128::from(hash.h1) << 64 | u128::from(hash.h2);
        let mut next = || {
            let letter = usize::try_from(bits & 63).expect("six bits");
            bits >>= 6;
            char::from(LETTERS[letter])
        };
        (0..characters).map(|_| next()).collect()
    }
}

/// The first characters of a value and three stars, whatever its length.
fn masked(value: &str) -> String {
    let shown = (value.chars().count() / MASKED_FOR_ONE).min(MAX_UNMASKED);
    value.chars().take(shown).chain("***".chars()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A mask must not reveal short values in full.
    #[test]
    fn masked_and_hashed_keys_do_not_show_what_they_are() {
        let redactor = Redactor::new(None);
        for (key, start) in [
            ("bob", "***#"),
            ("alice", "a***#"),
            ("zo\u{eb}-the-third", "zo***#"),
            ("alice,192.0.2.7", "a***,19***#"),
            ("*", "***#"),
            ("", "***#"),
        ] {
            let masked = redactor.show(key, KeysShown::Masked);
            assert_eq!(
                (&masked[..start.len()], masked.len()),
                (start, start.len() + MARK_CHARACTERS),
                "{key}"
            );
            let hashed = redactor.show(key, KeysShown::Hashed);
            assert!(hashed.len() == 1 + HASH_CHARACTERS && hashed.starts_with('#'), "{hashed}");
            assert_eq!(redactor.show(key, KeysShown::Plain), key);
        }
    }

    /// Operators must be able to find one client in the logs of many instances; others must not.
    #[test]
    fn hashes_are_the_same_under_one_secret_and_others_under_another() {
        let of = |secret| Redactor::new(secret).show("alice", KeysShown::Hashed);
        assert_eq!(of(Some("s")), of(Some("s")));
        assert_ne!(of(Some("s")), of(Some("t")));
        assert_ne!(of(None), of(None));
    }

    /// A link must not open another key that only looks the same.
    #[test]
    fn what_is_shown_is_told_from_keys() {
        let redactor = Redactor::new(None);
        for key in ["alice", "bob,192.0.2.7", "", &"\u{eb}".repeat(5000), &"k".repeat(256), &"k".repeat(257)]
        {
            for how in [KeysShown::Masked, KeysShown::Hashed] {
                assert!(Redactor::is_shown(&redactor.show(key, how), how), "{key}");
                assert!(!Redactor::is_shown(key, how), "{key}");
            }
            let plain = redactor.show(key, KeysShown::Plain);
            assert_eq!(Redactor::is_shown(&plain, KeysShown::Plain), key.len() > MAX_SHOWN, "{key}");
        }
    }

    /// Clients choose keys, so their stored length must be bounded.
    #[test]
    fn long_keys_are_cut_and_still_told_apart() {
        let redactor = Redactor::new(None);
        let long = "\u{eb}".repeat(5000);
        let other = format!("{long}!");
        let (one, two) = (redactor.show(&long, KeysShown::Plain), redactor.show(&other, KeysShown::Plain));
        assert!(one.len() <= MAX_SHOWN && one.starts_with("\u{eb}\u{eb}"), "{one}");
        assert_ne!(one, two);
        assert_eq!(redactor.show(&"k".repeat(MAX_SHOWN), KeysShown::Plain).len(), MAX_SHOWN);
    }
}
