//! Logs with one JSON object per line.
//!
//! The paths that a format wants are a tree; a line is read once, along the tree, and what is not
//! in it is skipped without being built.

use std::borrow::Cow;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::block::{Escape, RecordWriter, Text};
use crate::call::{self, Call};
use crate::entry::{CHANGE, POLICY, REQUESTS, RESERVATION, VERB};
use crate::format::LineKind;
use crate::format::field::{Field, FieldReader, MAPPED, Target, Value};
use crate::format::mapping::{Mapping, USUAL};
use crate::format::time::Unit;
use crate::malformed::Malformed;

/// The paths that are read, as a tree.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tree {
    children: Vec<(Box<str>, Self)>,
    targets: Vec<Target>,
    /// What keys mean that are not among the children.
    others: Others,
    /// The value is kept as a whole, for this part of a recorded call.
    recorded: Option<RecordedPart>,
    /// The value must begin with this, or the line is no request.
    must_begin: Option<&'static str>,
}

/// What a recording has of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RecordedPart {
    Requests,
    Reservation,
    Change,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Others {
    #[default]
    Ignored,
    /// Each is an attribute of its name.
    Attributes,
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
    Slidegate,
    /// Keys by their usual names.
    Any,
}

impl JsonFormat {
    /// Path, field and rank of what it has.
    fn paths(self) -> &'static [(&'static str, Field, u8)] {
        const CLIENT: Field = Field::Text(Text::Client);
        const METHOD: Field = Field::Text(Text::Method);
        const PROTOCOL: Field = Field::Text(Text::Protocol);
        const HOST: Field = Field::Text(Text::Host);
        const USER: Field = Field::Text(Text::User);
        const AGENT: Field = Field::Text(Text::UserAgent);
        const REFERER: Field = Field::Text(Text::Referer);
        match self {
            Self::Caddy => &[
                ("ts", Field::End, 1),
                ("duration", Field::Duration(Unit::Seconds), 1),
                ("request.client_ip", CLIENT, 1),
                ("request.remote_ip", CLIENT, 2),
                ("request.remote_addr", Field::ClientAndPort, 3),
                ("request.method", METHOD, 1),
                ("request.uri", Field::Text(Text::Target), 1),
                ("request.proto", PROTOCOL, 1),
                ("request.host", HOST, 1),
                ("request.headers.User-Agent", AGENT, 1),
                ("request.headers.Referer", REFERER, 1),
                ("user_id", USER, 1),
                ("status", Field::Status, 1),
                ("size", Field::Bytes, 1),
            ],
            Self::Traefik => &[
                ("StartUTC", Field::Start, 1),
                ("StartLocal", Field::Start, 2),
                ("time", Field::End, 3),
                ("Duration", Field::Duration(Unit::Nanoseconds), 1),
                ("ClientHost", CLIENT, 1),
                ("ClientAddr", Field::ClientAndPort, 2),
                ("ClientUsername", USER, 1),
                ("RequestMethod", METHOD, 1),
                ("RequestPath", Field::Text(Text::Target), 1),
                ("RequestProtocol", PROTOCOL, 1),
                ("RequestHost", HOST, 1),
                ("DownstreamStatus", Field::Status, 1),
                ("OriginStatus", Field::Status, 2),
                ("DownstreamContentSize", Field::Bytes, 1),
                ("OriginContentSize", Field::Bytes, 2),
                ("request_User-Agent", AGENT, 1),
                ("request_Referer", REFERER, 1),
            ],
            Self::Envoy => &[
                ("start_time", Field::Start, 1),
                ("duration", Field::Duration(Unit::Milliseconds), 1),
                ("x_forwarded_for", CLIENT, 1),
                ("downstream_remote_address", Field::ClientAndPort, 2),
                ("method", METHOD, 1),
                ("path", Field::Text(Text::Target), 1),
                ("protocol", PROTOCOL, 1),
                ("authority", HOST, 1),
                ("requested_server_name", HOST, 2),
                ("user_agent", AGENT, 1),
                ("response_code", Field::Status, 1),
                ("bytes_sent", Field::Bytes, 1),
            ],
            Self::Gcp => &[
                ("timestamp", Field::Start, 1),
                ("httpRequest.latency", Field::Duration(Unit::Seconds), 1),
                ("httpRequest.remoteIp", Field::Text(Text::Client), 1),
                ("httpRequest.requestMethod", METHOD, 1),
                ("httpRequest.requestUrl", Field::Url, 1),
                ("httpRequest.protocol", PROTOCOL, 1),
                ("httpRequest.userAgent", AGENT, 1),
                ("httpRequest.referer", REFERER, 1),
                ("httpRequest.status", Field::Status, 1),
                ("httpRequest.responseSize", Field::Bytes, 1),
            ],
            Self::Slidegate => {
                &[("time", Field::Start, 1), ("cost", Field::Cost, 1), ("attributes.ip", CLIENT, 1)]
            }
            Self::Any => USUAL,
        }
    }

    /// The tree of what it has and what the user maps.
    pub(crate) fn tree(self, mapping: &mut Mapping) -> Tree {
        let mut tree = Tree::default();
        for (path, field, rank) in self.paths() {
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
            Self::Slidegate => {
                for (path, name) in [("verb", VERB), ("policy", POLICY)] {
                    let targets = mapping.targets(path, None, Some(name.to_owned()));
                    tree.insert(path, &targets);
                }
                tree.at("attributes").others = Others::Attributes;
                tree.at("requests").recorded = Some(RecordedPart::Requests);
                tree.at("reservation").recorded = Some(RecordedPart::Reservation);
                tree.at("change").recorded = Some(RecordedPart::Change);
            }
            _ => {}
        }
        tree
    }
}

impl Tree {
    /// Adds a path. A key may itself contain dots, so each way to split the path is tried.
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

/// Dots of a path at which it may be split: each doubles the paths in the tree.
const MAX_DOTS: usize = 6;

/// Parses lines.
#[derive(Debug)]
pub(crate) struct JsonParser {
    tree: Tree,
    pub(crate) fields: FieldReader,
}

impl JsonParser {
    pub(crate) fn new(tree: Tree, fields: FieldReader) -> Self {
        Self { tree, fields }
    }

    /// Parses one line.
    pub(crate) fn parse(&mut self, line: &[u8], out: &mut RecordWriter<'_>) -> Result<LineKind, Malformed> {
        match std::str::from_utf8(line) {
            Ok(text) => self.parse_text(text, out),
            // Some servers write bytes as the client sent them.
            Err(_) => self.parse_text(&String::from_utf8_lossy(line), out),
        }
    }

    fn parse_text(&mut self, line: &str, out: &mut RecordWriter<'_>) -> Result<LineKind, Malformed> {
        self.fields.begin();
        let mut state = State { fields: &mut self.fields, out, malformed: None, is_other: false };
        let mut json = serde_json::Deserializer::from_str(line);
        let read = Walk { tree: &self.tree, state: &mut state, depth: 0 }.deserialize(&mut json);
        let (malformed, is_other) = (state.malformed.take(), state.is_other);
        if let Some(malformed) = malformed {
            return Err(malformed);
        }
        if read.is_err() || json.end().is_err() || !line.trim_start().starts_with('{') {
            return Err(Malformed::Json);
        }
        if is_other {
            return Ok(LineKind::Other);
        }
        self.fields.finish(out)?;
        Ok(LineKind::Request)
    }
}

struct State<'s, 'b> {
    fields: &'s mut FieldReader,
    out: &'s mut RecordWriter<'b>,
    /// A value that cannot be read.
    malformed: Option<Malformed>,
    /// The line is not about a request.
    is_other: bool,
}

impl State<'_, '_> {
    fn take_recorded<E: Error>(&mut self, part: RecordedPart, value: serde_json::Value) -> Result<(), E> {
        let (name, key, text, expected) = match part {
            RecordedPart::Requests => ("requests", REQUESTS, Call::of_line(value), call::EXPECTED),
            RecordedPart::Reservation => {
                let text = call::checked::<call::RecordedReservation>(value);
                ("reservation", RESERVATION, text, call::EXPECTED_RESERVATION)
            }
            RecordedPart::Change => {
                let text = call::checked::<call::RecordedChange>(value);
                ("change", CHANGE, text, call::EXPECTED_CHANGE)
            }
        };
        self.fields.note_own_costs();
        let taken = match text {
            Some(text) => self.out.named_extra(key, &text),
            None => Err(Malformed::Field(name, expected)),
        };
        taken.map_err(|malformed| {
            self.malformed = Some(malformed);
            E::custom("malformed")
        })
    }
}

/// Reads a value along the tree.
struct Walk<'w, 's, 'b> {
    tree: &'w Tree,
    state: &'w mut State<'s, 'b>,
    depth: u8,
}

impl<'de> DeserializeSeed<'de> for Walk<'_, '_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl Walk<'_, '_, '_> {
    fn take<E: Error>(self, value: Value<'_>) -> Result<(), E> {
        if let Some(prefix) = self.tree.must_begin {
            self.state.is_other |=
                !matches!(value, Value::Text(text, _) if text.starts_with(prefix.as_bytes()));
        }
        for target in &self.tree.targets {
            if let Err(malformed) = self.state.fields.set(*target, value, self.state.out) {
                self.state.malformed = Some(malformed);
                return Err(E::custom("malformed"));
            }
        }
        Ok(())
    }
}

impl<'de> Visitor<'de> for Walk<'_, '_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<(), E> {
        self.take(Value::Text(text.as_bytes(), Escape::None))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<(), E> {
        self.take(Value::Text(text.as_bytes(), Escape::None))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<(), E> {
        self.take(Value::Unsigned(number))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<(), E> {
        let text = number.to_string();
        match self.tree.targets.iter().any(|target| matches!(target.field, Field::Status | Field::Bytes)) {
            // -1 stands for a value that there is not.
            true => Ok(()),
            false => self.take(Value::Text(text.as_bytes(), Escape::None)),
        }
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<(), E> {
        self.take(Value::Float(number))
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<(), E> {
        self.take(Value::Bool(value))
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        Ok(())
    }

    /// Of a list the first counts: Caddy's headers are lists.
    fn visit_seq<A: SeqAccess<'de>>(self, mut values: A) -> Result<(), A::Error> {
        if self.depth < MAX_DEPTH {
            let first = Walk { tree: self.tree, state: &mut *self.state, depth: self.depth + 1 };
            if values.next_element_seed(first)?.is_none() {
                return Ok(());
            }
        }
        while values.next_element::<IgnoredAny>()?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key_seed(Key(self.tree))? {
            let depth = self.depth + 1;
            match key {
                Known::Tree(Tree { recorded: Some(part), .. }) => {
                    let value = map.next_value()?;
                    self.state.take_recorded(*part, value)?;
                }
                Known::Tree(tree) if depth < MAX_DEPTH => {
                    map.next_value_seed(Walk { tree, state: &mut *self.state, depth })?;
                }
                Known::Attribute(name) if depth < MAX_DEPTH => {
                    map.next_value_seed(Attribute { name: &name, state: &mut *self.state, depth })?;
                }
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(())
    }
}

/// Levels of a line that are looked at: more than any path has.
const MAX_DEPTH: u8 = 16;

enum Known<'t, 'de> {
    Tree(&'t Tree),
    Attribute(Cow<'de, str>),
    Nothing,
}

/// Reads a key.
struct Key<'t>(&'t Tree);

impl<'t, 'de> DeserializeSeed<'de> for Key<'t> {
    type Value = Known<'t, 'de>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'t, 'de> Visitor<'de> for Key<'t> {
    type Value = Known<'t, 'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_borrowed_str<E: Error>(self, key: &'de str) -> Result<Self::Value, E> {
        Ok(match (self.0.child(key), self.0.others) {
            (Some(tree), _) => Known::Tree(tree),
            (None, Others::Ignored) => Known::Nothing,
            (None, Others::Attributes) => Known::Attribute(Cow::Borrowed(key)),
            (None, Others::Headers) => Known::Attribute(Cow::Owned(header_attribute(key))),
        })
    }

    fn visit_str<E: Error>(self, key: &str) -> Result<Self::Value, E> {
        Ok(match (self.0.child(key), self.0.others) {
            (Some(tree), _) => Known::Tree(tree),
            (None, Others::Ignored) => Known::Nothing,
            (None, Others::Attributes) => Known::Attribute(Cow::Owned(key.to_owned())),
            (None, Others::Headers) => Known::Attribute(Cow::Owned(header_attribute(key))),
        })
    }
}

fn header_attribute(name: &str) -> String {
    format!("header.{}", name.to_ascii_lowercase())
}

/// Reads the value of an attribute that only the line names.
struct Attribute<'a, 's, 'b> {
    name: &'a str,
    state: &'a mut State<'s, 'b>,
    depth: u8,
}

impl<'de> DeserializeSeed<'de> for Attribute<'_, '_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl Attribute<'_, '_, '_> {
    fn take<E: Error>(self, value: &str) -> Result<(), E> {
        self.state.out.named_extra(self.name, value.as_bytes()).map_err(|malformed| {
            self.state.malformed = Some(malformed);
            E::custom("malformed")
        })
    }
}

impl<'de> Visitor<'de> for Attribute<'_, '_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<(), E> {
        self.take(text)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<(), E> {
        self.take(text)
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<(), E> {
        self.take(&number.to_string())
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<(), E> {
        self.take(&number.to_string())
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<(), E> {
        self.take(&number.to_string())
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<(), E> {
        self.take(if value { "true" } else { "false" })
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut values: A) -> Result<(), A::Error> {
        if self.depth < MAX_DEPTH {
            let first = Self { depth: self.depth + 1, ..self };
            if values.next_element_seed(first)?.is_none() {
                return Ok(());
            }
        }
        while values.next_element::<IgnoredAny>()?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(())
    }
}

/// Which format an object is of, by its keys.
pub(crate) fn detect(line: &[u8]) -> Option<JsonFormat> {
    let object: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(line).ok()?;
    let has = |key: &str| object.contains_key(key);
    let is_caddy = object.get("request").and_then(|request| request.as_object()).is_some_and(|request| {
        ["remote_ip", "client_ip", "remote_addr"].iter().any(|key| request.contains_key(*key))
    });
    let is_request = object.get("attributes").is_some_and(serde_json::Value::is_object);
    let is_call = object.get("requests").is_some_and(serde_json::Value::is_array);
    let is_change = object.get("change").is_some_and(serde_json::Value::is_object);
    let is_recording = has("time") && (is_request || is_call || is_change);
    Some(match () {
        () if is_recording => JsonFormat::Slidegate,
        () if is_caddy => JsonFormat::Caddy,
        () if has("StartUTC") || has("DownstreamStatus") || has("RequestMethod") => JsonFormat::Traefik,
        () if has("httpRequest") => JsonFormat::Gcp,
        () if has("start_time") && (has("response_code") || has("response_flags")) => JsonFormat::Envoy,
        () => JsonFormat::Any,
    })
}

/// The rank of a mapped field is above all others, so `MAPPED` must be the least.
const _: () = assert!(MAPPED == 0);
