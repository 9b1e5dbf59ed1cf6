//! The caller's span, from the header fields of W3C Trace Context:
//! <https://www.w3.org/TR/trace-context/>.

use axum::http::HeaderMap;
use opentelemetry::trace::{SpanContext, SpanId, TraceFlags, TraceId};

/// Maximum length of a propagated `tracestate`: the minimum that W3C Trace Context requires.
const MAX_STATE: usize = 512;

/// The span that a request is part of. `None` if the fields name none, or an invalid one.
pub(super) fn parent(headers: &HeaderMap) -> Option<SpanContext> {
    let (trace_id, span_id, flags) = ids(headers.get("traceparent")?.to_str().ok()?)?;
    let state = headers.get("tracestate").and_then(|state| state.to_str().ok());
    // An invalid state is dropped, as the standard has it.
    let state = state.filter(|state| state.len() <= MAX_STATE).and_then(|state| state.parse().ok());
    let context = SpanContext::new(trace_id, span_id, flags, true, state.unwrap_or_default());
    context.is_valid().then_some(context)
}

/// The fields of a `traceparent`: version, trace, span and flags in lowercase hexadecimal digits.
/// Later versions may have more fields.
fn ids(text: &str) -> Option<(TraceId, SpanId, TraceFlags)> {
    let (known, more) = text.split_at_checked("00-".len() + 32 + "-".len() + 16 + "-00".len())?;
    let mut fields = known.split('-');
    let mut digits = |count: usize| {
        let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        fields.next().filter(|field| field.len() == count && field.bytes().all(is_digit))
    };
    let (version, trace, span, flags) = (digits(2)?, digits(32)?, digits(16)?, digits(2)?);
    let is_known = match version {
        "00" => more.is_empty(),
        "ff" => false,
        _ => more.is_empty() || more.starts_with('-'),
    };
    let flags = u8::from_str_radix(flags, 16).ok().filter(|_| is_known)?;
    let sampled = TraceFlags::new(flags) & TraceFlags::SAMPLED;
    Some((TraceId::from_hex(trace).ok()?, SpanId::from_hex(span).ok()?, sampled))
}

#[cfg(test)]
mod tests {
    use opentelemetry::propagation::TextMapPropagator;
    use opentelemetry::trace::TraceContextExt;
    use opentelemetry_sdk::propagation::TraceContextPropagator;

    use super::*;

    const VALID: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn headers(parent: &str, state: Option<&str>) -> HeaderMap {
        let fields = [("traceparent", Some(parent)), ("tracestate", state)];
        let fields = fields.into_iter().filter_map(|(name, value)| Some((name, value?)));
        fields.map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
    }

    /// What the SDK reads of these, which other services use.
    fn by_the_sdk(headers: &HeaderMap) -> SpanContext {
        let fields = headers.iter().map(|(name, value)| (name.to_string(), value.to_str().unwrap().into()));
        let fields: std::collections::HashMap<String, String> = fields.collect();
        TraceContextPropagator::new().extract(&fields).span().span_context().clone()
    }

    /// A caller whose span is not recognized loses this service from its traces.
    #[test]
    fn callers_are_read_as_the_sdk_reads_them() {
        let later = VALID.replace("00-", "01-");
        let parents = [VALID, &VALID.replace("-01", "-00"), &VALID.replace("-01", "-03"), &later];
        let later_with_more = format!("{later}-more-to-come");
        let long = format!("a={}", "x".repeat(MAX_STATE));
        for parent in parents.into_iter().chain([later_with_more.as_str()]) {
            for state in [None, Some(""), Some("vendor=x"), Some("a=1, b=2 ,,c=3"), Some("nonsense")] {
                let headers = headers(parent, state);
                assert_eq!(super::parent(&headers), Some(by_the_sdk(&headers)), "{headers:?}");
            }
            let cut = super::parent(&headers(parent, Some(&long))).unwrap();
            assert_eq!(cut.trace_state().header(), "");
        }
    }

    /// A span under a made-up parent is in no trace that anyone looks at.
    #[test]
    fn what_the_standard_forbids_is_no_caller() {
        for invalid in [
            "",
            "00",
            &VALID.to_uppercase(),
            &VALID.replace("00-", "ff-"),
            &VALID.replace("00-", "0-"),
            &VALID.replace("00-", "+0-"),
            &VALID.replace("0af", "+af"),
            &VALID.replace("-01", "-0g"),
            &VALID.replace("-01", "-1"),
            &VALID.replace('-', "_"),
            &format!("{VALID}-"),
            &format!("{VALID}-more"),
            &VALID.replace("00-", "01-").replace("-01", "-01more"),
            &VALID.replace("0af7651916cd43dd8448eb211c80319c", &"0".repeat(32)),
            &VALID.replace("b7ad6b7169203331", &"0".repeat(16)),
            &VALID.replace("-01", "-0é"),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert("traceparent", axum::http::HeaderValue::from_bytes(invalid.as_bytes()).unwrap());
            assert_eq!(parent(&headers), None, "{invalid}");
        }
        assert_eq!(parent(&HeaderMap::new()), None);
    }
}
