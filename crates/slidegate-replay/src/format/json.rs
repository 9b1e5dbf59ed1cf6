//! Logs with one JSON object per line.
//!
//! A format's paths form a tree, along which a line's object is read.

use std::borrow::Cow;

use serde_json::Value;

use crate::block::{Escape, RecordWriter};
use crate::format::LineKind;
use crate::format::field::{
    CLIENT, Columns, Field, FieldReader, HOST, METHOD, PATH, REFERER, Target, USER, USER_AGENT,
};
use crate::format::mapping::{FORWARDED_NAMES, Mapping, USUAL};
use crate::format::time::Unit;
use crate::malformed::Malformed;

/// The paths to read, as a tree.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tree {
    children: Vec<(Box<str>, Self)>,
    targets: Vec<Target>,
    /// The meaning of keys that are not children.
    others: Others,
    /// The value must begin with this, or the line is no request.
    must_begin: Option<&'static str>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Others {
    #[default]
    Ignored,
    /// Each is a request header: `header.x-tenant`.
    Headers,
}

/// A format of JSON objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JsonFormat {
    Caddy,
    Traefik,
    Envoy,
    Gcp,
    /// Keys by their usual names.
    Any,
}

const CADDY: &Columns = &[
    ("ts", Field::End, 1),
    ("duration", Field::Duration(Unit::Seconds), 1),
    ("request.client_ip", CLIENT, 1),
    ("request.remote_ip", CLIENT, 2),
    ("request.remote_addr", Field::ClientAndPort, 3),
    ("request.method", METHOD, 1),
    ("request.uri", PATH, 1),
    ("request.host", HOST, 1),
    ("request.headers.User-Agent", USER_AGENT, 1),
    ("request.headers.Referer", REFERER, 1),
    ("user_id", USER, 1),
    ("status", Field::Status, 1),
    ("size", Field::Bytes, 1),
];
const TRAEFIK: &Columns = &[
    ("StartUTC", Field::Start, 1),
    ("StartLocal", Field::Start, 2),
    ("time", Field::End, 3),
    ("Duration", Field::Duration(Unit::Nanoseconds), 1),
    ("ClientHost", CLIENT, 1),
    ("ClientAddr", Field::ClientAndPort, 2),
    ("ClientUsername", USER, 1),
    ("RequestMethod", METHOD, 1),
    ("RequestPath", PATH, 1),
    ("RequestHost", HOST, 1),
    ("DownstreamStatus", Field::Status, 1),
    ("OriginStatus", Field::Status, 2),
    ("DownstreamContentSize", Field::Bytes, 1),
    ("OriginContentSize", Field::Bytes, 2),
    ("request_User-Agent", USER_AGENT, 1),
    ("request_Referer", REFERER, 1),
];
const ENVOY: &Columns = &[
    ("start_time", Field::Start, 1),
    ("duration", Field::Duration(Unit::Milliseconds), 1),
    ("x_forwarded_for", CLIENT, 1),
    ("downstream_remote_address", Field::ClientAndPort, 2),
    ("method", METHOD, 1),
    ("path", PATH, 1),
    ("authority", HOST, 1),
    ("requested_server_name", HOST, 2),
    ("user_agent", USER_AGENT, 1),
    ("response_code", Field::Status, 1),
    ("bytes_sent", Field::Bytes, 1),
];
const GCP: &Columns = &[
    ("timestamp", Field::Start, 1),
    ("httpRequest.latency", Field::Duration(Unit::Seconds), 1),
    ("httpRequest.remoteIp", CLIENT, 1),
    ("httpRequest.requestMethod", METHOD, 1),
    ("httpRequest.requestUrl", Field::Url, 1),
    ("httpRequest.userAgent", USER_AGENT, 1),
    ("httpRequest.referer", REFERER, 1),
    ("httpRequest.status", Field::Status, 1),
    ("httpRequest.responseSize", Field::Bytes, 1),
];

impl JsonFormat {
    /// Paths with field and rank.
    fn paths(self) -> &'static Columns {
        match self {
            Self::Caddy => CADDY,
            Self::Traefik => TRAEFIK,
            Self::Envoy => ENVOY,
            Self::Gcp => GCP,
            Self::Any => USUAL,
        }
    }

    /// The tree of the format's paths and the user's mappings.
    pub(crate) fn tree(self, mapping: &mut Mapping) -> Tree {
        let mut tree = Tree::default();
        let paths = self.paths().iter();
        let paths =
            paths.flat_map(|(names, field, rank)| names.split(' ').map(move |path| (path, field, rank)));
        for (path, field, rank) in paths {
            let targets = mapping.targets(path, Some(Target::of_format(*field, *rank)), None);
            tree.insert(path, &targets);
        }
        let sources: Vec<String> = mapping.missing().into_iter().map(str::to_owned).collect();
        for source in sources {
            let targets = mapping.targets(&source, None, None);
            tree.insert(&source, &targets);
        }
        match self {
            Self::Caddy => {
                tree.at("request.headers").others = Others::Headers;
                tree.at("logger").must_begin = Some("http.log.access");
            }
            Self::Any => {
                for name in ["X-Forwarded-For", "x-forwarded-for"].iter().chain(&FORWARDED_NAMES) {
                    let targets = mapping.forwarded(name);
                    tree.insert(name, &targets);
                }
            }
            _ => {}
        }
        tree
    }
}

impl Tree {
    /// Adds a path. Keys may contain dots, so every way to split the path is tried.
    fn insert(&mut self, path: &str, targets: &[Target]) {
        self.at_key(path).targets.extend_from_slice(targets);
        for (dot, _) in path.match_indices('.').take(MAX_DOTS) {
            self.at_key(&path[..dot]).insert(&path[dot + 1..], targets);
        }
    }

    fn at_key(&mut self, key: &str) -> &mut Self {
        let at = self.children.iter().position(|(known, _)| &**known == key).unwrap_or_else(|| {
            self.children.push((key.into(), Self::default()));
            self.children.len() - 1
        });
        &mut self.children[at].1
    }

    fn at(&mut self, path: &str) -> &mut Self {
        path.split('.').fold(self, |tree, key| tree.at_key(key))
    }

    fn child(&self, key: &str) -> Option<&Self> {
        self.children.iter().find(|(known, _)| &**known == key).map(|(_, child)| child)
    }
}

/// Maximum dots at which a path may be split: each doubles its paths in the tree.
const MAX_DOTS: usize = 6;

/// Parses one line.
pub(crate) fn parse(
    line: &[u8],
    tree: &Tree,
    fields: &mut FieldReader,
    out: &mut RecordWriter<'_>,
) -> Result<LineKind, Malformed> {
    // Some servers write bytes as sent by the client.
    let object: Option<Object> = serde_json::from_str(&String::from_utf8_lossy(line)).ok();
    fields.begin();
    let kind = Walk { fields, out }.object(tree, &object.ok_or(Malformed::Json)?)?;
    if kind == LineKind::Request {
        fields.finish(out)?;
    }
    Ok(kind)
}

type Object = serde_json::Map<String, Value>;

/// Reads a line's values along the tree.
struct Walk<'s, 'b> {
    fields: &'s mut FieldReader,
    out: &'s mut RecordWriter<'b>,
}

impl Walk<'_, '_> {
    fn object(&mut self, tree: &Tree, object: &Object) -> Result<LineKind, Malformed> {
        let mut kind = LineKind::Request;
        for (key, value) in object {
            match (tree.child(key), tree.others) {
                (Some(child), _) => {
                    if self.value(child, value)? == LineKind::Other {
                        kind = LineKind::Other;
                    }
                }
                (None, Others::Ignored) => {}
                (None, Others::Headers) => {
                    self.attribute(&format!("header.{}", key.to_ascii_lowercase()), value)?;
                }
            }
        }
        Ok(kind)
    }

    fn value(&mut self, tree: &Tree, value: &Value) -> Result<LineKind, Malformed> {
        match value {
            Value::Object(object) => return self.object(tree, object),
            // The first value of a list counts: Caddy's headers are lists.
            Value::Array(values) => {
                return values.first().map_or(Ok(LineKind::Request), |first| self.value(tree, first));
            }
            _ => {}
        }
        let Some(text) = text_of(value) else { return Ok(LineKind::Request) };
        // -1 stands for an absent value.
        let is_negative = value.as_i64().is_some_and(i64::is_negative);
        for target in &tree.targets {
            if !(is_negative && matches!(target.field, Field::Status | Field::Bytes)) {
                self.fields.set(*target, text.as_bytes(), Escape::None, self.out)?;
            }
        }
        let is_other = tree.must_begin.is_some_and(|prefix| !text.starts_with(prefix));
        Ok(if is_other { LineKind::Other } else { LineKind::Request })
    }

    fn attribute(&mut self, name: &str, value: &Value) -> Result<(), Malformed> {
        text_of(value).map_or(Ok(()), |text| self.out.named_extra(name, text.as_bytes()))
    }
}

/// The text of a value that is not an object; of a list, the first value's.
fn text_of(value: &Value) -> Option<Cow<'_, str>> {
    match value {
        Value::String(text) => Some(Cow::Borrowed(text)),
        Value::Number(number) => Some(Cow::Owned(match number.as_f64().filter(|_| number.is_f64()) {
            // Without exponent.
            Some(float) => float.to_string(),
            None => number.to_string(),
        })),
        Value::Bool(value) => Some(Cow::Borrowed(if *value { "true" } else { "false" })),
        Value::Array(values) => values.first().and_then(text_of),
        Value::Null | Value::Object(_) => None,
    }
}

/// Detects an object's format by its keys.
pub(crate) fn detect(line: &[u8]) -> Option<JsonFormat> {
    let object: Object = serde_json::from_slice(line).ok()?;
    let has = |key: &str| object.contains_key(key);
    let is_caddy = object.get("request").and_then(|request| request.as_object()).is_some_and(|request| {
        ["remote_ip", "client_ip", "remote_addr"].iter().any(|key| request.contains_key(*key))
    });
    Some(match () {
        () if is_caddy => JsonFormat::Caddy,
        () if has("StartUTC") || has("DownstreamStatus") || has("RequestMethod") => JsonFormat::Traefik,
        () if has("httpRequest") => JsonFormat::Gcp,
        () if has("start_time") && (has("response_code") || has("response_flags")) => JsonFormat::Envoy,
        () => JsonFormat::Any,
    })
}
