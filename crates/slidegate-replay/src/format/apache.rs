//! Apache: a `LogFormat`, and what its directives mean.
//!
//! Apache logs a request when it ends, under the time at which it began.

use crate::block::Text;
use crate::format::field::{Field, Target};
use crate::format::template::Piece;
use crate::format::time::Unit;

/// Reads a format's text: `%h`, `%>s`, `%{User-Agent}i`, `%!200,304{Referer}i`, `%%` and literals. A
/// directive is named without modifiers. `\"` is a quote, as in a configuration file.
pub(crate) fn pieces(format: &str) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let mut literal = String::new();
    let mut rest = format;
    while let Some(at) = rest.find(['%', '\\']) {
        literal.push_str(&rest[..at]);
        let (sign, after) = rest[at..].split_at(1);
        if sign == "\\" {
            let mut characters = after.chars();
            literal.extend(characters.next().map(|escaped| if escaped == 't' { '\t' } else { escaped }));
            rest = characters.as_str();
            continue;
        }
        let after =
            after.trim_start_matches(|c: char| c.is_ascii_digit() || matches!(c, '!' | ',' | '<' | '>'));
        let (argument, after) = match after.strip_prefix('{').and_then(|inner| inner.split_once('}')) {
            Some((argument, after)) => (format!("{{{argument}}}"), after),
            None => (String::new(), after),
        };
        let mut characters = after.chars();
        let directive = characters.next().unwrap_or('%');
        rest = characters.as_str();
        if directive == '%' {
            literal.push('%');
            continue;
        }
        // `%t` is `[20/Nov/2026:10:00:00 +0000]`.
        let has_brackets = directive == 't' && argument.is_empty();
        if has_brackets {
            literal.push('[');
        }
        if !literal.is_empty() {
            pieces.push(Piece::Literal(std::mem::take(&mut literal)));
        }
        pieces.push(Piece::Variable(format!("%{argument}{directive}")));
        if has_brackets {
            literal.push(']');
        }
    }
    literal.push_str(rest);
    if !literal.is_empty() {
        pieces.push(Piece::Literal(literal));
    }
    pieces
}

/// What a directive means; `None` for those that decide nothing.
pub(crate) fn target(directive: &str) -> Option<Target> {
    let (field, rank) = match directive {
        "%a" => (Field::Text(Text::Client), 1),
        "%h" => (Field::Text(Text::Client), 2),
        "%{c}a" => (Field::Text(Text::Client), 3),
        "%u" => (Field::Text(Text::User), 1),
        "%t" => (Field::Start, 2),
        "%{sec}t" | "%{begin:sec}t" => (Field::Start, 3),
        "%{msec}t" | "%{usec}t" | "%{begin:msec}t" | "%{begin:usec}t" => (Field::Start, 1),
        "%{end:sec}t" => (Field::End, 2),
        "%{end:msec}t" | "%{end:usec}t" => (Field::End, 1),
        "%D" | "%{us}T" => (Field::Duration(Unit::Microseconds), 1),
        "%{ms}T" => (Field::Duration(Unit::Milliseconds), 1),
        "%T" | "%{s}T" => (Field::Duration(Unit::Seconds), 1),
        "%r" => (Field::Request, 1),
        "%m" => (Field::Text(Text::Method), 2),
        "%U" => (Field::Text(Text::Target), 2),
        "%H" => (Field::Text(Text::Protocol), 2),
        "%s" => (Field::Status, 1),
        "%b" | "%B" => (Field::Bytes, 1),
        "%O" => (Field::Bytes, 2),
        "%{Host}i" => (Field::Text(Text::Host), 1),
        "%V" => (Field::Text(Text::Host), 2),
        "%v" => (Field::Text(Text::Host), 3),
        "%{Referer}i" => (Field::Text(Text::Referer), 1),
        "%{User-Agent}i" | "%{User-agent}i" => (Field::Text(Text::UserAgent), 1),
        _ => return None,
    };
    Some(Target::of_format(field, rank))
}

/// The attribute of a directive that has a request header: `header.x-tenant` of `%{X-Tenant}i`.
pub(crate) fn header_attribute(directive: &str) -> Option<String> {
    let name = directive.strip_prefix("%{")?.strip_suffix("}i")?;
    Some(format!("header.{}", name.to_ascii_lowercase()))
}
