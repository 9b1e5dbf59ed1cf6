//! Detects a log's format from its first lines.

use crate::block::{Block, RecordWriter};
use crate::format::json::{self, JsonFormat};
use crate::format::name::{self, Format, ParserOptions};
use crate::format::wrapper::Wrapper;
use crate::format::{LineKind, delimited};

/// Maximum lines examined.
const MAX_LINES: usize = 100;

/// The detected format.
#[derive(Clone, Debug)]
pub(crate) struct Detected {
    pub(crate) wrapper: Option<Wrapper>,
    pub(crate) format: Format,
    /// The earliest time in the first lines, in microseconds since the Unix epoch.
    pub(crate) first_us: Option<u64>,
    /// Whether the clock repeated that time, so another line must tell which occurrence is meant.
    pub(crate) is_repeated: bool,
}

/// Detects wrapper and format (unless given) from the beginning of a log. If no format fits, assumes JSON if
/// the log is JSON, otherwise the combined format, whose errors then describe the lines.
pub(crate) fn detect(sample: &[u8], given: Option<&Format>, options: &ParserOptions) -> Detected {
    let lines: Vec<&[u8]> = lines(sample).collect();
    let bare = best(&lines, given, options);
    let mut best_wrapped: Option<(Option<Wrapper>, Fit)> = bare.map(|fit| (None, fit));
    // A wrapped line may itself be valid JSON or CSV, so wrappers are always tried.
    for wrapper in Wrapper::ALL {
        let inner: Vec<_> = lines.iter().filter_map(|line| wrapper.unwrap(line)).collect();
        // A wrapper must match at least half of the lines.
        if inner.is_empty() || inner.len() * 2 < lines.len() {
            continue;
        }
        let inner: Vec<&[u8]> = inner.iter().map(|line| &**line).collect();
        if let Some(fit) = best(&inner, given, options)
            && best_wrapped.as_ref().is_none_or(|(_, known)| fit.requests >= known.requests)
        {
            best_wrapped = Some((Some(wrapper), fit));
        }
    }
    match best_wrapped {
        Some((wrapper, fit)) => {
            Detected { wrapper, format: fit.format, first_us: fit.first_us, is_repeated: fit.is_repeated }
        }
        None => {
            let is_json = lines.first().is_some_and(|line| json::detect(line).is_some());
            let unknown = if is_json { Format::Json(JsonFormat::Any) } else { Format::Clf("combined") };
            let format = given.cloned().unwrap_or(unknown);
            Detected { wrapper: None, format, first_us: None, is_repeated: false }
        }
    }
}

fn lines(sample: &[u8]) -> impl Iterator<Item = &[u8]> {
    let lines = sample.split(|byte| *byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    lines.filter(|line| !line.is_empty()).take(MAX_LINES)
}

/// How well a format fits.
struct Fit {
    format: Format,
    requests: usize,
    first_us: Option<u64>,
    is_repeated: bool,
}

/// The format that parses the most lines; of equals, the more specific one. `None` if none parses any.
fn best(lines: &[&[u8]], given: Option<&Format>, options: &ParserOptions) -> Option<Fit> {
    let candidates = given.map_or_else(|| candidates(lines, options), |format| vec![format.clone()]);
    let mut best: Option<Fit> = None;
    for format in candidates {
        let fit = fit(format, lines, options);
        if fit.requests > best.as_ref().map_or(0, |best| best.requests) {
            best = Some(fit);
        }
    }
    best
}

fn candidates(lines: &[&[u8]], options: &ParserOptions) -> Vec<Format> {
    let Some(first) = lines.first() else { return Vec::new() };
    let first = first.strip_prefix(b"\xef\xbb\xbf").unwrap_or(first);
    // A server's own messages may precede its first access.
    let mut objects = Vec::new();
    for format in lines.iter().filter_map(|line| json::detect(line)) {
        if !objects.contains(&format) {
            objects.push(format);
        }
    }
    if !objects.is_empty() {
        objects.sort_by_key(|format| *format == JsonFormat::Any);
        return objects.into_iter().map(Format::Json).collect();
    }
    let clf = if lines.iter().any(|line| is_traefik(line)) {
        "traefik"
    } else if lines.iter().any(|line| memchr::memchr_iter(b'"', line).count() >= 6) {
        "combined"
    } else {
        "common"
    };
    let mut candidates =
        vec![Format::Haproxy, name::ingress(), name::istio(), name::envoy(), Format::Clf(clf)];
    candidates.extend(name::proxy_manager());
    if is_csv_header(first, options) {
        candidates.push(Format::Csv);
    }
    candidates
}

/// ` 1041 "api@docker" "http://10.1.2.3:8080" 4ms`
fn is_traefik(line: &[u8]) -> bool {
    let mut columns = line.rsplit(|byte| *byte == b' ');
    let (duration, service) = (columns.next().unwrap_or_default(), columns.next().unwrap_or_default());
    let digits = duration.strip_suffix(b"ms").unwrap_or_default();
    !digits.is_empty() && digits.iter().all(u8::is_ascii_digit) && service.ends_with(b"\"")
}

/// Whether a line names columns, including one for times.
fn is_csv_header(line: &[u8], options: &ParserOptions) -> bool {
    let separator = delimited::separator(line);
    let mut rest = Some(line);
    let mut columns = 0;
    let mut has_time = false;
    while let Some((cell, after)) = rest.and_then(|text| delimited::csv_cell(text, separator)) {
        let name = String::from_utf8_lossy(&cell).trim().to_owned();
        has_time |= options.fields.iter().any(|(field, source)| field.contains("time") && *source == name)
            || delimited::usual_target(&name).is_some_and(|target| target.field.is_time());
        columns += 1;
        rest = after;
    }
    columns >= 2 && has_time
}

/// Counts the requests among the lines and finds their earliest time.
fn fit(format: Format, lines: &[&[u8]], options: &ParserOptions) -> Fit {
    let parser = format.parser(options);
    let mut fit = Fit { format, requests: 0, first_us: None, is_repeated: false };
    let Ok(mut parser) = parser else { return fit };
    let mut block = Block::default();
    parser.begin_block(&mut block.parsed);
    for line in lines {
        let mut out = RecordWriter::new(line, &mut block.parsed);
        out.begin(1);
        if parser.parse(line, &mut out) == Ok(LineKind::Request) {
            fit.requests += 1;
            let time_us = out.record.time_us;
            fit.first_us = Some(fit.first_us.map_or(time_us, |first_us| first_us.min(time_us)));
        }
    }
    let fold = &parser.fields.fold;
    fit.is_repeated = fold.is_opening() || fold.opening_us().is_some();
    fit
}
