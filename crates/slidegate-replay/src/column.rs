//! One column of a line: quotes, escapes, numbers, and marks of absent values.

use std::borrow::Cow;

/// Splits `"text" rest` into `text` and ` rest`. `None` without a closing quote.
///
/// A space or the line end follows a closing quote: some servers do not escape quotes in headers.
pub(crate) fn quoted(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut at = 1;
    loop {
        at += memchr::memchr2(b'"', b'\\', line.get(at..)?)?;
        if line[at] == b'\\' {
            at += 2;
        } else if matches!(line.get(at + 1), None | Some(b' ')) {
            return Some((&line[1..at], &line[at + 1..]));
        } else {
            at += 1;
        }
    }
}

/// Decodes servers' escapes. Other backslashes are kept.
pub(crate) fn unescape(text: &[u8]) -> Cow<'_, [u8]> {
    if memchr::memchr(b'\\', text).is_none() {
        return Cow::Borrowed(text);
    }
    let mut plain = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&byte, after)) = rest.split_first() {
        let (byte, after) = match (byte, after) {
            (b'\\', [b'x', high, low, after @ ..]) => match (hex(*high), hex(*low)) {
                (Some(high), Some(low)) => (high << 4 | low, after),
                _ => (byte, &rest[1..]),
            },
            (b'\\', [quote @ (b'"' | b'\\'), after @ ..]) => (*quote, after),
            (b'\\', [b'n', after @ ..]) => (b'\n', after),
            (b'\\', [b'r', after @ ..]) => (b'\r', after),
            (b'\\', [b't', after @ ..]) => (b'\t', after),
            (b'\\', [b'b', after @ ..]) => (0x08, after),
            (b'\\', [b'v', after @ ..]) => (0x0b, after),
            (b'\\', [b'f', after @ ..]) => (0x0c, after),
            _ => (byte, after),
        };
        plain.push(byte);
        rest = after;
    }
    Cow::Owned(plain)
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16)?.try_into().ok()
}

/// `None` for texts that servers write for absent values.
pub(crate) fn present(text: &[u8]) -> Option<&[u8]> {
    (!matches!(text, b"" | b"-" | b"\"\"")).then_some(text)
}

pub(crate) fn number_or_dash<T: TryFrom<u64> + Default>(text: &[u8]) -> Option<T> {
    if text == b"-" { Some(T::default()) } else { number(text) }
}

/// Digits only: `FromStr` would accept a sign.
pub(crate) fn number<T: TryFrom<u64>>(text: &[u8]) -> Option<T> {
    let digit = |byte: &u8| byte.is_ascii_digit().then(|| u64::from(byte - b'0'));
    let (first, rest) = text.split_first()?;
    let number =
        rest.iter().try_fold(digit(first)?, |number, byte| number.checked_mul(10)?.checked_add(digit(byte)?));
    T::try_from(number?).ok()
}

/// Whether a text has only a method's characters (RFC 9110, 5.6.2). They exclude the backslash, so
/// escaped garbage is not a method.
pub(crate) fn is_token(text: &[u8]) -> bool {
    let is_allowed = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
    // Nearly all are upper case.
    !text.is_empty() && text.iter().all(|byte| byte.is_ascii_uppercase() || is_allowed(byte))
}

/// The first word, and the text after its space, if any.
pub(crate) fn split_at_space(text: &[u8]) -> (&[u8], Option<&[u8]>) {
    match text.iter().position(|&byte| byte == b' ') {
        Some(space) => (&text[..space], Some(&text[space + 1..])),
        None => (text, None),
    }
}
