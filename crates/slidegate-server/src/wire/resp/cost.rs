//! Costs in arguments: a number, or numbers by name as in `input=900,output=4096`.

use slidegate::Cost;

use super::error::{CommandError, parse_integer};
use super::reply::Escaped;
use crate::limits::MAX_COST;
use crate::wire::request::named_cost;

/// Parses the value of `COST` or `HOLD`; `word` is the option's name.
#[inline]
pub(super) fn parse_cost<'b>(word: &str, bytes: &'b [u8]) -> Result<Cost<'b>, CommandError> {
    if bytes.contains(&b'=') {
        by_name(word, bytes)
    } else {
        parse_integer(word, bytes, 0, MAX_COST).map(Into::into)
    }
}

#[cold]
fn by_name<'b>(word: &str, bytes: &'b [u8]) -> Result<Cost<'b>, CommandError> {
    let mut costs: Vec<(&'b str, u64)> = Vec::new();
    for part in bytes.split(|byte| *byte == b',') {
        let mut halves = part.splitn(2, |byte| *byte == b'=');
        let (name, number) = (halves.next().and_then(|name| str::from_utf8(name).ok()), halves.next());
        let (Some(name), Some(number)) = (name, number) else {
            return Err(CommandError::new(format!(
                "invalid {word} `{}`: must be a number, or numbers by name, for example `{word} input=900,output=4096`",
                Escaped(part)
            )));
        };
        costs.push((
            name,
            parse_integer(&format!("{word} of `{}`", name.escape_debug()), number, 0, MAX_COST)?,
        ));
    }
    named_cost(&costs).map_err(|bad| CommandError::new(bad.detail))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A misread cost is charged to the wrong limit.
    #[test]
    fn a_cost_is_a_number_or_numbers_by_name() {
        assert_eq!(parse_cost("COST", b"512"), Ok(512.into()));
        let named = [("input", 900), ("output.text", 4096)];
        assert_eq!(parse_cost("COST", b"input=900,output.text=4096"), Ok(named.into()));
        const FORM: &str = "must be a number, or numbers by name, for example `COST input=900,output=4096`";
        const NAME: &str = "must be 1 to 64 of the characters A-Z a-z 0-9 _ . -";
        for (text, expected) in [
            ("many", "invalid COST `many`: must be a whole number from 0 to 9007199254740991".to_owned()),
            ("input=1,2", format!("invalid COST `2`: {FORM}")),
            ("=1", format!("invalid name of a cost ``: {NAME}")),
            ("in put=1", format!("invalid name of a cost `in put`: {NAME}")),
            ("input=1,", format!("invalid COST ``: {FORM}")),
            (
                "input=-1",
                "invalid COST of `input` `-1`: must be a whole number from 0 to 9007199254740991".to_owned(),
            ),
            ("input=1,input=2", "cost `input` is given more than once; give it once".to_owned()),
            (
                "a=9007199254740991,b=1",
                "cost 9007199254740992 is too large; give a whole number from 0 to 9007199254740991"
                    .to_owned(),
            ),
        ] {
            assert_eq!(parse_cost("COST", text.as_bytes()).unwrap_err().detail, expected, "{text}");
        }
        let many: Vec<_> = (0..17).map(|at| format!("n{at}=1")).collect();
        let error = parse_cost("COST", many.join(",").as_bytes()).unwrap_err().detail.clone();
        assert_eq!(error, "the cost has 17 names; give 1 to 16 that policies count, or a number");
    }
}
