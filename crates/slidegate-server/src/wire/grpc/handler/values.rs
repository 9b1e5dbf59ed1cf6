//! Makes entry values decidable: text for config files, bounded length for policies.
//!
//! Different values stay different, or a client could use up another's limit.

use prost::bytes::Bytes;
use slidegate::request_path::normalized_path;

use crate::envoy::{BYTES_AS_TEXT, hash};

/// Maximum bytes of a value counted as it is: longer than usual tokens and paths.
pub(super) const MAX_VALUE: usize = 8192;
/// Bytes kept of a longer value, so conditions on its beginning hold: longer than any likely prefix in a
/// config.
const KEPT_BYTES: usize = 1024;
/// Separates the kept bytes from the hash of the whole value.
const MARK: &[u8] = b"...sha256:";
/// Hexadecimal digits of a hash.
const HASH_DIGITS: usize = 64;

/// Replaces a long value with its beginning and hash. Also applies to a value that already ends like that.
pub(super) fn shorten(value: &mut Bytes) {
    let is_like_short = || {
        let end = value.len().checked_sub(HASH_DIGITS);
        end.is_some_and(|end| value[..end].ends_with(MARK))
    };
    if value.len() > MAX_VALUE || is_like_short() {
        let hash = hash(value);
        let kept = &value[..KEPT_BYTES.min(value.len())];
        *value = [kept, MARK, hash.as_bytes()].concat().into();
    }
}

/// Replaces a request target with its path: no query, one spelling.
pub(super) fn normalize_path(value: &mut Bytes) {
    if value.first() == Some(&b'/') {
        match normalized_path(value) {
            std::borrow::Cow::Borrowed(path) if path.len() == value.len() => {}
            path => *value = path.into_owned().into(),
        }
    }
}

/// Makes a value text. Each byte that is not valid text becomes a character of [`BYTES_AS_TEXT`], as do the
/// bytes of these characters themselves.
pub(super) fn make_text(value: &mut Bytes) {
    // The first byte of these characters.
    if std::str::from_utf8(value).is_ok() && !value.contains(&0xF4) {
        return;
    }
    let mut text = String::with_capacity(value.len() + 16);
    let push_byte = |text: &mut String, byte: u8| {
        text.extend(char::from_u32(BYTES_AS_TEXT.start + u32::from(byte)));
    };
    for chunk in value.utf8_chunks() {
        for c in chunk.valid().chars() {
            if BYTES_AS_TEXT.contains(&u32::from(c)) {
                c.encode_utf8(&mut [0; 4]).bytes().for_each(|byte| push_byte(&mut text, byte));
            } else {
                text.push(c);
            }
        }
        chunk.invalid().iter().for_each(|byte| push_byte(&mut text, *byte));
    }
    *value = text.into();
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn each(values: &[Vec<u8>], change: fn(&mut Bytes)) -> Vec<Bytes> {
        let changed = values.iter().map(|value| {
            let mut value = Bytes::from(value.clone());
            change(&mut value);
            value
        });
        changed.collect()
    }

    /// No client may choose a value that shares another's key.
    #[test]
    fn different_values_stay_different_and_what_is_too_long_is_short() {
        let long = vec![b'u'; MAX_VALUE + 1];
        let short_form = each(std::slice::from_ref(&long), shorten)[0].to_vec();
        let values = [
            b"alice".to_vec(),
            vec![b'u'; MAX_VALUE],
            long.clone(),
            [&long[..], b"v"].concat(),
            short_form.clone(),
            each(&[short_form], shorten)[0].to_vec(),
            vec![0xff; MAX_VALUE + 7],
        ];
        let shortened = each(&values, shorten);
        assert_eq!(shortened.iter().collect::<HashSet<_>>().len(), values.len());
        assert!(shortened.iter().all(|value| value.len() <= MAX_VALUE));
        assert_eq!((&shortened[0][..], &shortened[1][..]), (&values[0][..], &values[1][..]));
        assert!(shortened[2].starts_with(&[b'u'; KEPT_BYTES]), "its prefix still matches");
    }

    /// Config files are text, and different values must still have different counters.
    #[test]
    fn bytes_that_are_no_text_become_characters_of_their_own() {
        let as_text = char::from_u32(BYTES_AS_TEXT.start + 0xff).unwrap().to_string().into_bytes();
        let values = [
            b"alice".to_vec(),
            b"\xff".to_vec(),
            b"\xfe".to_vec(),
            as_text,
            "\u{fffd}".into(),
            "\u{10ff00}".into(),
            vec![],
        ];
        let texts = each(&values, make_text);
        assert_eq!(texts.iter().collect::<HashSet<_>>().len(), values.len());
        assert!(texts.iter().all(|text| std::str::from_utf8(text).is_ok()));
        assert_eq!(texts[0], "alice");
        let around = &each(&[b"foo\xffbar".to_vec()], make_text)[0];
        assert!(around.starts_with(b"foo") && around.ends_with(b"bar"), "wildcards still match");
    }

    /// A query or another spelling must not evade a limit on a path.
    #[test]
    fn paths_are_normalized() {
        for (target, path) in [
            ("/login", "/login"),
            ("/login?next=/", "/login"),
            ("//x/../%6Cogin#y", "/login"),
            ("*", "*"),
            ("", ""),
        ] {
            assert_eq!(each(&[target.into()], normalize_path)[0], path, "{target}");
        }
    }
}
