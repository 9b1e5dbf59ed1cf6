//! Apache: a `LogFormat` and the meaning of its directives.
//!
//! Apache logs a request when it ends, with the time at which it began.

use crate::block::Escape;
use crate::format::field::{CLIENT, Columns, Field, HOST, METHOD, PATH, REFERER, USER, USER_AGENT, target};
use crate::format::template::{Piece, Pieces, Syntax};
use crate::format::time::Unit;

pub(crate) const SYNTAX: Syntax = Syntax {
    escape: Escape::Backslash,
    pieces,
    target: |directive| target(DIRECTIVES, directive),
    header_attribute,
    time_examples: "`%t`",
    is_list: |variable| variable.to_ascii_lowercase().contains("forwarded"),
};

/// Parses a format: `%h`, `%>s`, `%{User-Agent}i`, `%!200,304{Referer}i`, `%%` and literals. Directives are
/// named without modifiers. `\"` is a quote, as in a configuration file.
fn pieces(format: &str) -> Vec<Piece> {
    let mut pieces = Pieces::default();
    let mut rest = format;
    while let Some(at) = rest.find(['%', '\\']) {
        pieces.literal(&rest[..at]);
        let (sign, after) = rest[at..].split_at(1);
        if sign == "\\" {
            let mut characters = after.chars();
            match characters.next() {
                Some('t') => pieces.literal("\t"),
                Some(escaped) => pieces.literal(escaped.encode_utf8(&mut [0; 4])),
                None => {}
            }
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
        match (directive, argument.is_empty()) {
            ('%', _) => pieces.literal("%"),
            // `%t` is `[20/Nov/2026:10:00:00 +0000]`.
            ('t', true) => {
                pieces.literal("[");
                pieces.variable("%t");
                pieces.literal("]");
            }
            _ => pieces.variable(&format!("%{argument}{directive}")),
        }
    }
    pieces.literal(rest);
    pieces.0
}

const DIRECTIVES: &Columns = &[
    ("%a", CLIENT, 1),
    ("%h", CLIENT, 2),
    ("%{c}a", CLIENT, 3),
    ("%u", USER, 1),
    ("%t", Field::Start, 2),
    ("%{sec}t %{begin:sec}t", Field::Start, 3),
    ("%{msec}t %{usec}t %{begin:msec}t %{begin:usec}t", Field::Start, 1),
    ("%{end:sec}t", Field::End, 2),
    ("%{end:msec}t %{end:usec}t", Field::End, 1),
    ("%D %{us}T", Field::Duration(Unit::Microseconds), 1),
    ("%{ms}T", Field::Duration(Unit::Milliseconds), 1),
    ("%T %{s}T", Field::Duration(Unit::Seconds), 1),
    ("%r", Field::Request, 1),
    ("%m", METHOD, 2),
    ("%U", PATH, 2),
    ("%s", Field::Status, 1),
    ("%b %B", Field::Bytes, 1),
    ("%O", Field::Bytes, 2),
    ("%{Host}i", HOST, 1),
    ("%V", HOST, 2),
    ("%v", HOST, 3),
    ("%{Referer}i", REFERER, 1),
    ("%{User-Agent}i %{User-agent}i", USER_AGENT, 1),
];

/// The attribute for a directive with a request header: `header.x-tenant` for `%{X-Tenant}i`.
fn header_attribute(directive: &str) -> Option<String> {
    let name = directive.strip_prefix("%{")?.strip_suffix("}i")?;
    Some(format!("header.{}", name.to_ascii_lowercase()))
}
