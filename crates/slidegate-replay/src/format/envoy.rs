//! Envoy: a text format, and what its operators mean.

use crate::block::Text;
use crate::format::field::{Field, Target};
use crate::format::template::Piece;
use crate::format::time::Unit;

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

/// Reads a format's text: `%NAME%`, `%NAME(argument)%`, `%NAME(argument):length%`, `%%` and
/// literals.
pub(crate) fn pieces(format: &str) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let mut literal = String::new();
    let mut rest = format.trim_end_matches(['\n', '\r']);
    while let Some(start) = rest.find('%') {
        literal.push_str(&rest[..start]);
        let after = &rest[start + 1..];
        if let Some(after) = after.strip_prefix('%') {
            literal.push('%');
            rest = after;
            continue;
        }
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
        let Some((end, _)) = end else {
            literal.push('%');
            rest = after;
            continue;
        };
        if !literal.is_empty() {
            pieces.push(Piece::Literal(std::mem::take(&mut literal)));
        }
        pieces.push(Piece::Variable(after[..end].to_owned()));
        rest = &after[end + 1..];
    }
    literal.push_str(rest);
    if !literal.is_empty() {
        pieces.push(Piece::Literal(literal));
    }
    pieces
}

/// What an operator means; `None` for those that decide nothing.
pub(crate) fn target(operator: &str) -> Option<Target> {
    // Without a maximal length.
    let operator = match operator.rsplit_once("):") {
        Some((before, _)) => &operator[..=before.len()],
        None => operator,
    };
    let upper = operator.to_ascii_uppercase();
    let (field, rank) = match upper.as_str() {
        "REQ(:METHOD)" => (Field::Text(Text::Method), 1),
        "PROTOCOL" => (Field::Text(Text::Protocol), 1),
        "RESPONSE_CODE" => (Field::Status, 1),
        "BYTES_SENT" => (Field::Bytes, 1),
        "DURATION" => (Field::Duration(Unit::Milliseconds), 1),
        "REQ(X-FORWARDED-FOR)" => (Field::Text(Text::Client), 2),
        "DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT" => (Field::Text(Text::Client), 3),
        "DOWNSTREAM_REMOTE_ADDRESS" => (Field::ClientAndPort, 4),
        "DOWNSTREAM_DIRECT_REMOTE_ADDRESS_WITHOUT_PORT" => (Field::Text(Text::Client), 5),
        "DOWNSTREAM_DIRECT_REMOTE_ADDRESS" => (Field::ClientAndPort, 6),
        "REQ(USER-AGENT)" => (Field::Text(Text::UserAgent), 1),
        "REQ(REFERER)" => (Field::Text(Text::Referer), 1),
        "REQ(:AUTHORITY)" | "REQ(HOST)" => (Field::Text(Text::Host), 1),
        "REQUESTED_SERVER_NAME" => (Field::Text(Text::Host), 2),
        _ if upper.starts_with("START_TIME") => (Field::Start, 1),
        // `%REQ(X-ENVOY-ORIGINAL-PATH?:PATH)%` is the first of the two that there is.
        _ if upper.starts_with("REQ(") && upper.ends_with(":PATH)") => (Field::Text(Text::Target), 1),
        _ => return None,
    };
    Some(Target::of_format(field, rank))
}

/// The attribute of an operator that has a request header: `header.x-tenant` of `REQ(X-TENANT)`.
pub(crate) fn header_attribute(operator: &str) -> Option<String> {
    let name = operator.strip_prefix("REQ(")?.split(['?', ')']).next()?;
    (!name.starts_with(':')).then(|| format!("header.{}", name.to_ascii_lowercase()))
}
