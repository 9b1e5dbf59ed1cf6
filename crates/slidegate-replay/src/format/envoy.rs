//! Envoy: a text format and the meaning of its operators.

use crate::block::Escape;
use crate::format::field::{CLIENT, Columns, Field, HOST, METHOD, PATH, REFERER, Target, USER_AGENT, target};
use crate::format::template::{Piece, Pieces, Syntax};
use crate::format::time::Unit;

pub(crate) const SYNTAX: Syntax = Syntax {
    escape: Escape::None,
    pieces,
    target: operator_target,
    header_attribute,
    time_examples: "`%START_TIME%`",
    is_list: |variable| variable.to_ascii_lowercase().contains("forwarded"),
};

/// Envoy's default.
pub(crate) const DEFAULT: &str = "[%START_TIME%] \"%REQ(:METHOD)% %REQ(X-ENVOY-ORIGINAL-PATH?:PATH)% %PROTOCOL%\" %RESPONSE_CODE% \
     %RESPONSE_FLAGS% %BYTES_RECEIVED% %BYTES_SENT% %DURATION% %RESP(X-ENVOY-UPSTREAM-SERVICE-TIME)% \
     \"%REQ(X-FORWARDED-FOR)%\" \"%REQ(USER-AGENT)%\" \"%REQ(X-REQUEST-ID)%\" \"%REQ(:AUTHORITY)%\" \"%UPSTREAM_HOST%\"";
/// Istio's default.
pub(crate) const ISTIO: &str = "[%START_TIME%] \"%REQ(:METHOD)% %REQ(X-ENVOY-ORIGINAL-PATH?:PATH)% %PROTOCOL%\" %RESPONSE_CODE% \
     %RESPONSE_FLAGS% %RESPONSE_CODE_DETAILS% %CONNECTION_TERMINATION_DETAILS% \
     \"%UPSTREAM_TRANSPORT_FAILURE_REASON%\" %BYTES_RECEIVED% %BYTES_SENT% %DURATION% \
     %RESP(X-ENVOY-UPSTREAM-SERVICE-TIME)% \"%REQ(X-FORWARDED-FOR)%\" \"%REQ(USER-AGENT)%\" \"%REQ(X-REQUEST-ID)%\" \
     \"%REQ(:AUTHORITY)%\" \"%UPSTREAM_HOST%\" %UPSTREAM_CLUSTER_RAW% %UPSTREAM_LOCAL_ADDRESS% \
     %DOWNSTREAM_LOCAL_ADDRESS% %DOWNSTREAM_REMOTE_ADDRESS% %REQUESTED_SERVER_NAME% %ROUTE_NAME%";

/// Parses a format: `%NAME%`, `%NAME(argument)%`, `%NAME(argument):length%`, `%%` and literals.
fn pieces(format: &str) -> Vec<Piece> {
    let mut pieces = Pieces::default();
    let mut rest = format.trim_end_matches(['\n', '\r']);
    while let Some((literal, after)) = rest.split_once('%') {
        pieces.literal(literal);
        // A `%` within parentheses does not end an operator.
        let mut depth = 0;
        let end = after.char_indices().find(|(_, character)| {
            match character {
                '(' => depth += 1,
                ')' => depth -= 1,
                _ => {}
            }
            *character == '%' && depth <= 0
        });
        rest = match end {
            Some((0, _)) => {
                pieces.literal("%");
                &after[1..]
            }
            Some((end, _)) => {
                pieces.variable(&after[..end]);
                &after[end + 1..]
            }
            None => {
                pieces.literal("%");
                after
            }
        };
    }
    pieces.literal(rest);
    pieces.0
}

const OPERATORS: &Columns = &[
    ("REQ(:METHOD)", METHOD, 1),
    ("RESPONSE_CODE", Field::Status, 1),
    ("BYTES_SENT", Field::Bytes, 1),
    ("DURATION", Field::Duration(Unit::Milliseconds), 1),
    ("REQ(X-FORWARDED-FOR)", CLIENT, 2),
    ("DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT", CLIENT, 3),
    ("DOWNSTREAM_REMOTE_ADDRESS", Field::ClientAndPort, 4),
    ("DOWNSTREAM_DIRECT_REMOTE_ADDRESS_WITHOUT_PORT", CLIENT, 5),
    ("DOWNSTREAM_DIRECT_REMOTE_ADDRESS", Field::ClientAndPort, 6),
    ("REQ(USER-AGENT)", USER_AGENT, 1),
    ("REQ(REFERER)", REFERER, 1),
    ("REQ(:AUTHORITY) REQ(HOST)", HOST, 1),
    ("REQUESTED_SERVER_NAME", HOST, 2),
];

/// The target of an operator; `None` if it is irrelevant to decisions.
fn operator_target(operator: &str) -> Option<Target> {
    // Without the maximum length.
    let operator = match operator.rsplit_once("):") {
        Some((before, _)) => &operator[..=before.len()],
        None => operator,
    };
    let upper = operator.to_ascii_uppercase();
    match upper.as_str() {
        upper if upper.starts_with("START_TIME") => Some(Target::of_format(Field::Start, 1)),
        // `%REQ(X-ENVOY-ORIGINAL-PATH?:PATH)%` is the first of the two that exists.
        upper if upper.starts_with("REQ(") && upper.ends_with(":PATH)") => Some(Target::of_format(PATH, 1)),
        upper => target(OPERATORS, upper),
    }
}

/// The attribute for an operator with a request header: `header.x-tenant` for `REQ(X-TENANT)`.
fn header_attribute(operator: &str) -> Option<String> {
    let name = operator.strip_prefix("REQ(")?.split(['?', ')']).next()?;
    (!name.starts_with(':')).then(|| format!("header.{}", name.to_ascii_lowercase()))
}
