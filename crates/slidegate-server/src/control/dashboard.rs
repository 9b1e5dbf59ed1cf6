//! The dashboard at `/`, embedded in the binary.
//!
//! Its files contain no data, so they need no token. The page requests its data under `/v1` with
//! the operator's token.

use std::hash::{DefaultHasher, Hash, Hasher};

use axum::extract::Path;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use crate::wire::problem::Problem;
use crate::wire::routes::Routes;

/// A file of the dashboard.
struct Asset {
    path: &'static str,
    media_type: &'static str,
    content: &'static [u8],
}

/// A file of `dashboard/` and its URL path.
macro_rules! file {
    ($path:literal, $media_type:expr, $source:literal) => {
        Asset {
            path: $path,
            media_type: $media_type,
            content: include_bytes!(concat!("dashboard/", $source)),
        }
    };
}

const HTML: &str = "text/html; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const TEXT: &str = "text/plain; charset=utf-8";

static FILES: [Asset; 29] = [
    file!("/", HTML, "index.html"),
    file!("/dashboard/style.css", STYLE, "style.css"),
    file!("/dashboard/icon.svg", "image/svg+xml", "icon.svg"),
    file!("/dashboard/icon_alarm.svg", "image/svg+xml", "icon_alarm.svg"),
    file!("/dashboard/runbooks.md", TEXT, "runbooks.md"),
    file!("/dashboard/theme.js", SCRIPT, "theme.js"),
    file!("/dashboard/app.js", SCRIPT, "app.js"),
    file!("/dashboard/alarms.js", SCRIPT, "alarms.js"),
    file!("/dashboard/api.js", SCRIPT, "api.js"),
    file!("/dashboard/chart.js", SCRIPT, "chart.js"),
    file!("/dashboard/confirm.js", SCRIPT, "confirm.js"),
    file!("/dashboard/denials.js", SCRIPT, "denials.js"),
    file!("/dashboard/dom.js", SCRIPT, "dom.js"),
    file!("/dashboard/exports.js", SCRIPT, "exports.js"),
    file!("/dashboard/format.js", SCRIPT, "format.js"),
    file!("/dashboard/history.js", SCRIPT, "history.js"),
    file!("/dashboard/key.js", SCRIPT, "key.js"),
    file!("/dashboard/limit_dialog.js", SCRIPT, "limit_dialog.js"),
    file!("/dashboard/panel.js", SCRIPT, "panel.js"),
    file!("/dashboard/policies.js", SCRIPT, "policies.js"),
    file!("/dashboard/rates.js", SCRIPT, "rates.js"),
    file!("/dashboard/shadow.js", SCRIPT, "shadow.js"),
    file!("/dashboard/status.js", SCRIPT, "status.js"),
    file!("/dashboard/token_dialog.js", SCRIPT, "token_dialog.js"),
    file!("/dashboard/top.js", SCRIPT, "top.js"),
    file!("/dashboard/usage_chart.js", SCRIPT, "usage_chart.js"),
    file!("/dashboard/uplot.min.js", SCRIPT, "vendor/uplot.min.js"),
    file!("/dashboard/uplot.min.css", STYLE, "vendor/uplot.min.css"),
    file!("/dashboard/uplot.LICENSE", TEXT, "vendor/uplot.LICENSE"),
];

/// uPlot, also used by other pages with charts.
pub(crate) const CHART_SCRIPT: &str = include_str!("dashboard/vendor/uplot.min.js");
/// uPlot's style sheet.
pub(crate) const CHART_STYLE: &str = include_str!("dashboard/vendor/uplot.min.css");

/// Security headers: no external or inline resources, no HTML from strings, no framing.
const SECURITY_HEADERS: [(HeaderName, HeaderValue); 6] = [
    (
        header::CONTENT_SECURITY_POLICY,
        HeaderValue::from_static(
            "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; \
             form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
        ),
    ),
    (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
    (header::X_FRAME_OPTIONS, HeaderValue::from_static("DENY")),
    // The URL contains a key.
    (header::REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
    (HeaderName::from_static("cross-origin-opener-policy"), HeaderValue::from_static("same-origin")),
    (HeaderName::from_static("cross-origin-resource-policy"), HeaderValue::from_static("same-origin")),
];

pub(crate) fn routes() -> Routes {
    let table = [
        ("/", get(async move |headers: HeaderMap| FILES[0].respond(&headers))),
        ("/dashboard/{file}", get(file)),
    ];
    Routes::over((), table)
}

async fn file(Path(name): Path<String>, headers: HeaderMap) -> Result<Response, Problem> {
    let is_named = |file: &&Asset| file.path.strip_prefix("/dashboard/") == Some(&name);
    let found = FILES.iter().find(is_named);
    found.map(|file| file.respond(&headers)).ok_or_else(|| {
        let detail = format!("the dashboard has no file `{}`; open `/`", name.escape_debug());
        Problem::new(StatusCode::NOT_FOUND, detail)
    })
}

impl Asset {
    /// The `ETag`: a hash of the content. May differ between program versions.
    fn etag(&self) -> HeaderValue {
        let mut hasher = DefaultHasher::new();
        self.content.hash(&mut hasher);
        HeaderValue::try_from(format!("\"{:016x}\"", hasher.finish())).expect("hexadecimal digits are safe")
    }

    /// The file, or 304 if the browser has it. Browsers must revalidate, so that a new version
    /// never runs an old script.
    fn respond(&self, headers: &HeaderMap) -> Response {
        let tag = self.etag();
        let is_known = headers.get(header::IF_NONE_MATCH) == Some(&tag);
        let mut response =
            if is_known { StatusCode::NOT_MODIFIED.into_response() } else { self.content.into_response() };
        let fields = response.headers_mut();
        fields.extend(SECURITY_HEADERS);
        fields.insert(header::CONTENT_TYPE, HeaderValue::from_static(self.media_type));
        fields.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        fields.insert(header::ETAG, tag);
        response
    }
}
