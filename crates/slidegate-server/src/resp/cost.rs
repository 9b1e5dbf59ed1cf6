//! Costs in arguments: a number, or numbers by name as in `input=900,output=4096`.

use slidegate::Cost;

use super::error::{CommandError, parse_integer};
use super::reply::Escaped;
use crate::limits::{MAX_COST, MAX_COST_NAME, MAX_COST_NAMES};

/// Reads the value of `COST` or `HOLD`, whose name is `word`.
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
        let (name, number) = split(word, part)?;
        if costs.iter().any(|(known, _)| *known == name) {
            return Err(CommandError::new(format!("{word} names `{name}` twice; name it once")));
        }
        if costs.len() == MAX_COST_NAMES {
            let detail =
                format!("{word} has more than {MAX_COST_NAMES} names; give those that policies count");
            return Err(CommandError::new(detail));
        }
        costs.push((name, parse_integer(&format!("{word} of `{name}`"), number, 0, MAX_COST)?));
    }
    let sum = costs.iter().fold(0_u64, |sum, (_, cost)| sum.saturating_add(*cost));
    if sum > MAX_COST {
        return Err(CommandError::new(format!("{word} is {sum} in all; give at most {MAX_COST}")));
    }
    Ok(costs.as_slice().into())
}

/// The name and the number of one part.
fn split<'b>(word: &str, part: &'b [u8]) -> Result<(&'b str, &'b [u8]), CommandError> {
    let invalid = || {
        CommandError::new(format!(
            "invalid {word} `{}`: must be a name of 1 to {MAX_COST_NAME} of the characters A-Z a-z 0-9 _ . -, `=` and a \
             number, for example `{word} input=900,output=4096`",
            Escaped(part)
        ))
    };
    let at = part.iter().position(|byte| *byte == b'=').ok_or_else(invalid)?;
    let is_of_name = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-');
    let name = &part[..at];
    if name.is_empty() || name.len() > MAX_COST_NAME || !name.iter().all(is_of_name) {
        return Err(invalid());
    }
    Ok((std::str::from_utf8(name).map_err(|_| invalid())?, &part[at + 1..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A cost that is read as another one is charged to the wrong limit.
    #[test]
    fn a_cost_is_a_number_or_numbers_by_name() {
        assert_eq!(parse_cost("COST", b"512"), Ok(512.into()));
        let named = [("input", 900), ("output.text", 4096)];
        assert_eq!(parse_cost("COST", b"input=900,output.text=4096"), Ok(named.into()));
        const FORM: &str = "must be a name of 1 to 64 of the characters A-Z a-z 0-9 _ . -, `=` and a number, for example \
                            `COST input=900,output=4096`";
        for (text, expected) in [
            ("many", "invalid COST `many`: must be a whole number from 0 to 9007199254740991".to_owned()),
            ("input=1,2", format!("invalid COST `2`: {FORM}")),
            ("=1", format!("invalid COST `=1`: {FORM}")),
            ("in put=1", format!("invalid COST `in put=1`: {FORM}")),
            ("input=1,", format!("invalid COST ``: {FORM}")),
            (
                "input=-1",
                "invalid COST of `input` `-1`: must be a whole number from 0 to 9007199254740991".to_owned(),
            ),
            ("input=1,input=2", "COST names `input` twice; name it once".to_owned()),
            (
                "a=9007199254740991,b=1",
                "COST is 9007199254740992 in all; give at most 9007199254740991".to_owned(),
            ),
        ] {
            assert_eq!(parse_cost("COST", text.as_bytes()).unwrap_err().detail, expected, "{text}");
        }
        let many: Vec<_> = (0..17).map(|at| format!("n{at}=1")).collect();
        let error = parse_cost("COST", many.join(",").as_bytes()).unwrap_err().detail.clone();
        assert_eq!(error, "COST has more than 16 names; give those that policies count");
    }
}
