//! Arguments of commands (numbers and words) and of loading the module.

use slidegate_stored::Requests;

/// Maximum limit and cost: scripts count in doubles, which are exact up to here.
pub(crate) const MOST: u64 = (1 << 53) - 1;

/// Default prefix of the commands for applications.
pub(crate) const PREFIX: &str = "rl.";
/// Maximum bytes of another prefix.
const MAX_PREFIX: usize = 32;

/// The command prefix of these load arguments: `SG.` for `prefix SG.`. The error describes the invalid argument.
pub(crate) fn prefix_of(arguments: &[&[u8]]) -> Result<String, String> {
    let quoted = |text: &[u8]| String::from_utf8_lossy(text).escape_debug().to_string();
    match arguments {
        [] => Ok(PREFIX.to_owned()),
        [word, prefix] if word.eq_ignore_ascii_case(b"prefix") => {
            let is_named = |byte: &u8| byte.is_ascii_alphanumeric() || b"._-".contains(byte);
            let is_prefix = (1..=MAX_PREFIX).contains(&prefix.len()) && prefix.iter().all(is_named);
            let text = || String::from_utf8_lossy(prefix).to_ascii_lowercase();
            is_prefix.then(text).ok_or_else(|| {
                format!(
                    "invalid prefix `{}`: must be 1 to {MAX_PREFIX} letters, digits, `.`, `_` or `-`, for example `SG.`",
                    quoted(prefix)
                )
            })
        }
        _ => Err(format!(
            "invalid arguments `{}`: must be none, or `prefix` and a prefix, for example `prefix SG.`",
            arguments.iter().map(|argument| quoted(argument)).collect::<Vec<_>>().join(" ")
        )),
    }
}

/// A decimal number. `None` if the text is not one or is out of range.
pub(crate) fn number(text: &[u8], least: u64, most: u64) -> Option<u64> {
    if text.is_empty() || text.len() > 16 {
        return None;
    }
    let digit = |sum: u64, byte: &u8| byte.is_ascii_digit().then(|| sum * 10 + u64::from(byte - b'0'));
    text.iter().try_fold(0, digit).filter(|number| (least..=most).contains(number))
}

/// A number in its range, or an error that names the argument.
pub(crate) fn named(name: &str, text: &[u8], least: u64, most: u64) -> Result<u64, String> {
    number(text, least, most).ok_or_else(|| {
        let text: String = String::from_utf8_lossy(text).chars().take(40).collect();
        format!("ERR invalid {name} `{}`: must be a whole number from {least} to {most}", text.escape_debug())
    })
}

/// Parses requests: pairs of a cost and a number of requests, which may be missing at the end.
pub(crate) fn requests<'a>(
    mut argument: impl FnMut(usize) -> &'a [u8],
    count: usize,
) -> Option<Vec<Requests>> {
    let pairs = (0..count).step_by(2).map(|at| {
        let times = if at + 1 < count { number(argument(at + 1), 1, MOST)? } else { 1 };
        Some(Requests { cost: number(argument(at), 0, MOST)?, count: times })
    });
    pairs.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A misread number charges what nobody asked for.
    #[test]
    fn numbers_are_decimal_and_in_their_range() {
        assert_eq!(number(b"0", 0, 9), Some(0));
        assert_eq!(number(b"9007199254740991", 0, MOST), Some(MOST));
        for wrong in ["", "-1", "+1", " 1", "1 ", "1.0", "0x1", "9007199254740992", "99999999999999999999"] {
            assert_eq!(number(wrong.as_bytes(), 0, MOST), None, "{wrong}");
        }
        assert_eq!((number(b"0", 1, 9), number(b"10", 1, 9)), (None, None));
    }

    /// A user who types a command must learn what is wrong with it.
    #[test]
    fn an_error_names_the_argument_and_its_range() {
        let error = named("period", b"1m\n", 1, 9).unwrap_err();
        assert_eq!(error, "ERR invalid period `1m\\n`: must be a whole number from 1 to 9");
    }

    /// Checks that wait for one another are sent as one call.
    #[test]
    fn requests_are_costs_with_how_many_there_are_of_each() {
        let read = |args: &'static [&'static [u8]]| requests(|at| args[at], args.len());
        let of = |cost, count| Requests { cost, count };
        assert_eq!(read(&[b"3"]), Some(vec![of(3, 1)]));
        assert_eq!(read(&[b"3", b"2", b"0"]), Some(vec![of(3, 2), of(0, 1)]));
        assert_eq!(read(&[b"3", b"2", b"1", b"7"]), Some(vec![of(3, 2), of(1, 7)]));
        assert_eq!(read(&[b"3", b"0"]), None, "no request");
        assert_eq!(read(&[b"x"]), None);
    }
}
