//! Metric formats and content negotiation.
//!
//! The page is written as `OpenMetrics` and converted to the older Prometheus text format on
//! request. That format names a counter's family like its samples and has no `# UNIT` or `# EOF`.

use axum::http::{HeaderMap, HeaderValue, header};

/// A metric format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    /// Prometheus text format 0.0.4.
    Text,
    /// `OpenMetrics` 1.0.0.
    OpenMetrics,
    /// `OpenMetrics` 0.0.1, requested by older Prometheus servers; the content is the same.
    OpenMetricsDraft,
}

/// How well a format matches the request: its weight, 0 if it is not acceptable, and how specific
/// the matching media range is.
type Fit = (f32, Specificity);

/// The specificity of a media range.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
enum Specificity {
    /// `*/*`
    Anything,
    /// `text/*`
    Type,
    /// The format itself.
    Exact,
}

impl Format {
    /// The best format for the `Accept` header, by RFC 9110, section 12.5.1. `OpenMetrics` must
    /// have a higher weight than text, or the same weight and be named explicitly. If neither is
    /// acceptable, the response is text, as in other Prometheus exporters.
    pub(super) fn wanted(headers: &HeaderMap) -> Self {
        let ranges: Vec<_> = headers
            .get_all(header::ACCEPT)
            .iter()
            .filter_map(|value| value.to_str().ok())
            .flat_map(|value| value.split(','))
            .filter_map(MediaRange::read)
            .collect();
        let [text, metrics, draft] =
            [Self::Text, Self::OpenMetrics, Self::OpenMetricsDraft].map(|format| format.fit(&ranges));
        let (format, (quality, specificity)) =
            if draft.0 > metrics.0 { (Self::OpenMetricsDraft, draft) } else { (Self::OpenMetrics, metrics) };
        let is_by_name = quality >= text.0 && quality > 0.0 && specificity == Specificity::Exact;
        if quality > text.0 || is_by_name { format } else { Self::Text }
    }

    /// The most specific range that matches a format determines its weight.
    fn fit(self, ranges: &[MediaRange<'_>]) -> Fit {
        let fits = ranges.iter().filter_map(|range| Some((range.quality, range.covers(self)?)));
        let is_better = |a: &Fit, b: &Fit| (b.1, b.0) > (a.1, a.0);
        fits.reduce(|a, b| if is_better(&a, &b) { b } else { a }).unwrap_or((0.0, Specificity::Anything))
    }

    /// Type, subtype and version.
    fn name(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::Text => ("text", "plain", "0.0.4"),
            Self::OpenMetrics => ("application", "openmetrics-text", "1.0.0"),
            Self::OpenMetricsDraft => ("application", "openmetrics-text", "0.0.1"),
        }
    }

    /// The media type of the response.
    pub(super) fn media_type(self) -> HeaderValue {
        HeaderValue::from_static(match self {
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::OpenMetricsDraft => "application/openmetrics-text; version=0.0.1; charset=utf-8",
        })
    }

    /// Converts an `OpenMetrics` page to this format.
    pub(super) fn write(self, page: String) -> String {
        match self {
            Self::Text => text_of(&page),
            Self::OpenMetrics | Self::OpenMetricsDraft => page,
        }
    }
}

/// One element of an `Accept` header.
#[derive(Debug)]
struct MediaRange<'h> {
    r#type: &'h str,
    subtype: &'h str,
    version: Option<&'h str>,
    /// 0 to 1.
    quality: f32,
}

impl<'h> MediaRange<'h> {
    /// `None` if malformed; such an element is ignored.
    fn read(element: &'h str) -> Option<Self> {
        let mut parts = element.split(';').map(str::trim);
        let (r#type, subtype) = parts.next()?.split_once('/')?;
        let mut range = Self { r#type, subtype, version: None, quality: 1.0 };
        for part in parts {
            let Some((name, value)) = part.split_once('=') else { continue };
            let (name, value) = (name.trim(), value.trim().trim_matches('"'));
            if name.eq_ignore_ascii_case("q") {
                range.quality = value.parse().ok().filter(|weight| (0.0..=1.0).contains(weight))?;
            } else if name.eq_ignore_ascii_case("version") {
                range.version = Some(value);
            }
        }
        Some(range)
    }

    /// The specificity for a format, if it matches. A range without a version matches every
    /// version.
    fn covers(&self, format: Format) -> Option<Specificity> {
        let (r#type, subtype, version) = format.name();
        if (self.r#type, self.subtype) == ("*", "*") {
            return Some(Specificity::Anything);
        }
        if !self.r#type.eq_ignore_ascii_case(r#type) {
            return None;
        }
        if self.subtype == "*" {
            return Some(Specificity::Type);
        }
        let is_it =
            self.subtype.eq_ignore_ascii_case(subtype) && self.version.is_none_or(|one| one == version);
        is_it.then_some(Specificity::Exact)
    }
}

/// Converts `OpenMetrics` to text format 0.0.4: `# TYPE` and `# HELP` use the names of the samples,
/// unsupported types map to the nearest one, and `# UNIT` and `# EOF` are omitted.
fn text_of(page: &str) -> String {
    let mut text = String::with_capacity(page.len() + page.len() / 16);
    let mut help: Option<(&str, &str)> = None;
    for line in page.lines() {
        if let Some((name, words)) = line.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' ')) {
            // The names of the samples depend on the type, which is in the next line.
            help = Some((name, words));
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' '))
        {
            let (suffix, kind) = match kind {
                "counter" => ("_total", "counter"),
                "info" => ("_info", "gauge"),
                "unknown" => ("", "untyped"),
                kind => ("", kind),
            };
            if let Some((_, words)) = help.take().filter(|(of, _)| *of == name) {
                text.extend(["# HELP ", name, suffix, " ", &words.replace("\\\"", "\""), "\n"]);
            }
            text.extend(["# TYPE ", name, suffix, " ", kind, "\n"]);
        } else if !line.starts_with('#') {
            text.extend([line, "\n"]);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROMETHEUS_3: &str = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,\
        application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,\
        text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
    const PROMETHEUS_2: &str =
        "application/openmetrics-text; version=0.0.1,text/plain;version=0.0.4;q=0.5,*/*;q=0.1";

    /// A scraper drops a page in a format that it did not request, and alerts stop.
    #[test]
    fn the_format_is_the_one_that_is_wanted_most() {
        use Format::{OpenMetrics, OpenMetricsDraft, Text};
        for (accept, format) in [
            ("", Text),
            ("*/*", Text),
            ("text/plain", Text),
            ("text/plain; version=0.0.4", Text),
            ("text/*", Text),
            ("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", Text),
            ("application/json", Text),
            ("application/openmetrics-text", OpenMetrics),
            ("Application/OpenMetrics-Text; Version=\"1.0.0\"", OpenMetrics),
            ("application/*", OpenMetrics),
            (PROMETHEUS_3, OpenMetrics),
            (PROMETHEUS_2, OpenMetricsDraft),
            ("application/openmetrics-text, text/plain", OpenMetrics),
            ("application/openmetrics-text;q=0.5, text/plain", Text),
            ("application/openmetrics-text;q=0.5, text/plain;q=0.4", OpenMetrics),
            ("application/openmetrics-text;q=0.5, */*", Text),
            ("application/openmetrics-text, */*;q=0.1", OpenMetrics),
            ("application/openmetrics-text;q=0, */*", Text),
            ("text/plain;q=0, */*", OpenMetrics),
            ("text/plain;q=0, application/openmetrics-text;q=0.001", OpenMetrics),
            ("application/openmetrics-text; version=2.0.0", Text),
            ("text/plain; version=1.0.0, application/openmetrics-text;q=0.1", OpenMetrics),
            ("application/openmetrics-text;q=1.5", Text),
            ("application/openmetrics-text;q=x, nonsense, ;", Text),
        ] {
            let mut headers = HeaderMap::new();
            if !accept.is_empty() {
                headers.insert(header::ACCEPT, HeaderValue::from_static(accept));
            }
            assert_eq!(Format::wanted(&headers), format, "{accept}");
        }
        // Repeated header fields form one list.
        let mut headers = HeaderMap::new();
        headers.append(header::ACCEPT, HeaderValue::from_static("text/plain;q=0.1"));
        headers.append(header::ACCEPT, HeaderValue::from_static("application/openmetrics-text;q=0.2"));
        assert_eq!(Format::wanted(&headers), OpenMetrics);
    }

    /// A parser of the text format finds a counter's type by the name of its samples.
    #[test]
    fn the_text_format_names_families_as_their_samples() {
        let page = "\
# HELP slidegate_build What \\\"runs\\\".
# TYPE slidegate_build info
slidegate_build_info{version=\"1\"} 1
# HELP slidegate_start_time_seconds When.
# TYPE slidegate_start_time_seconds gauge
# UNIT slidegate_start_time_seconds seconds
slidegate_start_time_seconds 1.5
# HELP slidegate_checks Checks.
# TYPE slidegate_checks counter
slidegate_checks_total{policy=\"a # b\"} 3
# HELP ratelimit_hits Hits.
# TYPE ratelimit_hits unknown
ratelimit_hits 4
# EOF
";
        let text = "\
# HELP slidegate_build_info What \"runs\".
# TYPE slidegate_build_info gauge
slidegate_build_info{version=\"1\"} 1
# HELP slidegate_start_time_seconds When.
# TYPE slidegate_start_time_seconds gauge
slidegate_start_time_seconds 1.5
# HELP slidegate_checks_total Checks.
# TYPE slidegate_checks_total counter
slidegate_checks_total{policy=\"a # b\"} 3
# HELP ratelimit_hits Hits.
# TYPE ratelimit_hits untyped
ratelimit_hits 4
";
        assert_eq!(Format::Text.write(page.to_owned()), text);
        assert_eq!(Format::OpenMetrics.write(page.to_owned()), page);
    }
}
