//! Names of formats in `--log-format`, and the parser for each.

use std::fs::File;
use std::io::Read;

use slidegate_http::client_addr::ClientAddr;

use crate::format::delimited::DelimitedParser;
use crate::format::field::{FieldReader, SourceSet, TimeRules};
use crate::format::json::JsonFormat;
use crate::format::mapping::Mapping;
use crate::format::parser::{Grammar, LineParser};
use crate::format::template::{Piece, Syntax, Template};
use crate::format::{apache, envoy, nginx};

/// The format of an access log.
#[derive(Clone, Debug)]
pub struct LogFormat(pub(crate) Format);

#[derive(Clone, Debug)]
pub(crate) enum Format {
    /// Common and combined, with the name for reports.
    Clf(&'static str),
    Template {
        syntax: Syntax,
        name: String,
        text: String,
    },
    Haproxy,
    Json(JsonFormat),
    Csv,
}

/// Options that apply to parsers of every format.
#[derive(Clone, Debug)]
pub(crate) struct ParserOptions {
    pub(crate) fields: Vec<(String, String)>,
    pub(crate) cost_field: Option<String>,
    pub(crate) client: ClientAddr,
    /// Whether the fields are the user's, so that one of them must be a time.
    pub(crate) needs_time: bool,
    pub(crate) time: TimeRules,
}

/// Maximum bytes of an nginx configuration file.
const MAX_CONFIG_BYTES: u64 = 4 * 1024 * 1024;

impl LogFormat {
    /// The names, for help and errors.
    pub const NAMES: &'static str = "`common`, `combined`, `apache:FORMAT`, `nginx:FORMAT`, `nginx:@FILE`, `ingress-nginx`, `nginx-proxy-manager`, \
         `caddy`, `traefik`, `traefik-json`, `envoy`, `envoy:FORMAT`, `envoy-json`, `istio`, `haproxy`, `gcp`, `json` or `csv`";

    /// Finds a format by name. `nginx:` and `envoy:` are followed by a format; `nginx:@FILE` reads
    /// the `log_format` of a configuration file, and `nginx:@FILE:NAME` the one with this name.
    ///
    /// # Errors
    /// There is no such format, its text cannot be split into variables, or the file cannot be read
    /// or does not have the format. Whether a format has a time is seen when a log is opened.
    pub fn parse(text: &str) -> Result<Self, String> {
        let format = match text {
            "common" => Format::Clf("common"),
            "combined" | "nginx" | "apache" | "vhost_combined" => Format::Clf("combined"),
            "traefik" => Format::Clf("traefik"),
            "ingress-nginx" => ingress(),
            "nginx-proxy-manager" => proxy_manager()[0].clone(),
            "caddy" => Format::Json(JsonFormat::Caddy),
            "traefik-json" => Format::Json(JsonFormat::Traefik),
            "envoy" => envoy(),
            "istio" => istio(),
            "envoy-json" => Format::Json(JsonFormat::Envoy),
            "haproxy" => Format::Haproxy,
            "gcp" => Format::Json(JsonFormat::Gcp),
            "json" => Format::Json(JsonFormat::Any),
            "csv" => Format::Csv,
            _ => match text.split_once(':') {
                Some(("nginx", file)) if file.starts_with('@') => from_config(&file[1..])?,
                Some(("nginx", text)) => template(nginx::SYNTAX, "nginx", text),
                Some(("apache", text)) => template(apache::SYNTAX, "apache", text),
                Some(("envoy", text)) => template(envoy::SYNTAX, "envoy", text),
                _ => return Err(format!("must be {}", Self::NAMES)),
            },
        };
        // An unusable format is better rejected now than at the first log.
        let options = ParserOptions {
            fields: Vec::new(),
            cost_field: None,
            client: ClientAddr::default(),
            // A user-mapped field may provide the time.
            needs_time: false,
            time: TimeRules { zone: jiff::tz::TimeZone::UTC, derive_start: true, slack_us: 0 },
        };
        format.parser(&options).map(|_| Self(format))
    }
}

fn template(syntax: Syntax, name: &str, text: &str) -> Format {
    Format::Template { syntax, name: name.into(), text: text.into() }
}

pub(crate) fn ingress() -> Format {
    template(nginx::SYNTAX, "ingress-nginx", nginx::INGRESS)
}

pub(crate) fn proxy_manager() -> [Format; 2] {
    nginx::PROXY_MANAGER.map(|text| template(nginx::SYNTAX, "nginx-proxy-manager", text))
}

pub(crate) fn envoy() -> Format {
    template(envoy::SYNTAX, "envoy", envoy::DEFAULT)
}

pub(crate) fn istio() -> Format {
    template(envoy::SYNTAX, "istio", envoy::ISTIO)
}

/// Reads `FILE` or `FILE:NAME`.
fn from_config(text: &str) -> Result<Format, String> {
    let (path, wanted) = match text.rsplit_once(':') {
        Some((path, name)) if !name.contains('/') && !std::path::Path::new(text).exists() => {
            (path, Some(name))
        }
        _ => (text, None),
    };
    let mut config = Vec::new();
    let read = File::open(path).and_then(|file| file.take(MAX_CONFIG_BYTES).read_to_end(&mut config));
    read.map_err(|error| format!("{path}: {error}"))?;
    let formats = nginx::log_formats(&String::from_utf8_lossy(&config));
    let names = || formats.iter().map(|format| format!("`{}`", format.name)).collect::<Vec<_>>().join(", ");
    let found = match wanted {
        Some(name) => formats.iter().find(|format| format.name == name).ok_or_else(|| {
            format!(
                "{path}: no `log_format {name}`: the file has {}",
                if formats.is_empty() { "none".into() } else { names() }
            )
        })?,
        None => match formats.as_slice() {
            [one] => one,
            [] => {
                return Err(format!(
                    "{path}: no `log_format`: expected one, for example `log_format main '$remote_addr ...';`"
                ));
            }
            _ => {
                return Err(format!(
                    "{path}: several `log_format`: name one of {}, for example `nginx:@{path}:{}`",
                    names(),
                    formats[0].name
                ));
            }
        },
    };
    let syntax = Syntax { escape: found.escape, ..nginx::SYNTAX };
    Ok(template(syntax, &format!("nginx {}", found.name), &found.text))
}

impl Format {
    /// The name for reports.
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Clf(name) => name,
            Self::Template { name, .. } => name,
            Self::Haproxy => "haproxy",
            Self::Json(JsonFormat::Caddy) => "caddy",
            Self::Json(JsonFormat::Traefik) => "traefik-json",
            Self::Json(JsonFormat::Envoy) => "envoy-json",
            Self::Json(JsonFormat::Gcp) => "gcp",
            Self::Json(JsonFormat::Any) => "json",
            Self::Csv => "csv",
        }
    }

    /// A parser of this format.
    ///
    /// # Errors
    /// The format cannot be split into variables, has no time, or does not have a field that the
    /// options name.
    pub(crate) fn parser(&self, options: &ParserOptions) -> Result<LineParser, String> {
        let mut mapping = Mapping::new(options.fields.clone(), options.cost_field.clone());
        let has_cost = options.cost_field.is_some() || options.fields.iter().any(|(name, _)| name == "cost");
        let has_names = !matches!(self, Self::Clf(_) | Self::Haproxy);
        if !has_names {
            let unknown = mapping.missing().into_iter().find(|source| *source != "bytes");
            let first = options.fields.first().map(|(_, source)| source.as_str());
            if let Some(unknown) = unknown.or(first) {
                return Err(format!(
                    "format `{}` has no named fields, so `{unknown}` is unknown: expected `--cost-field bytes`, \
                     or a format with names, such as `nginx:FORMAT`, `json` or `csv`",
                    self.name()
                ));
            }
        }
        let grammar = match self {
            Self::Clf(_) => Grammar::Clf,
            Self::Haproxy => Grammar::Haproxy,
            Self::Template { syntax, name, text } => {
                Grammar::Template(template_of(syntax, name, text, &mut mapping, options.needs_time)?)
            }
            Self::Json(format) => Grammar::Json(format.tree(&mut mapping)),
            Self::Csv => Grammar::Csv(Box::new(DelimitedParser::new(std::mem::take(&mut mapping)))),
        };
        // In a format without names, the user can only name the response's length.
        let sources = if has_names { SourceSet::default() } else { SourceSet::ALL };
        Ok(LineParser {
            grammar,
            fields: FieldReader::new(&options.time, has_names && has_cost, sources),
            cost_is_bytes: has_cost && !has_names,
            attributes: mapping.attributes,
            client: options.client.clone(),
        })
    }
}

fn template_of(
    syntax: &Syntax,
    name: &str,
    text: &str,
    mapping: &mut Mapping,
    needs_time: bool,
) -> Result<Template, String> {
    let pieces = (syntax.pieces)(text);
    let template = Template::new(&pieces, syntax.escape, |variable| {
        let target = (syntax.target)(variable);
        // The list of forwarded addresses is both a header and a client.
        let is_header = target.is_none() || nginx::is_forwarded(variable);
        mapping.targets(variable, target, (syntax.header_attribute)(variable).filter(|_| is_header))
    })
    .and_then(|template| template.with_lists(syntax.is_list))
    .map_err(|error| format!("format `{name}`: {error}"))?;
    if let Some(missing) = mapping.missing().first() {
        let variables = pieces.iter().filter_map(|piece| match piece {
            Piece::Variable(variable) => Some(format!("`{variable}`")),
            Piece::Literal(_) => None,
        });
        let variables = variables.collect::<Vec<_>>().join(", ");
        return Err(format!("format `{name}` has no variable `{missing}`: it has {variables}"));
    }
    if needs_time && !template.has(|target| target.field.is_time()) {
        return Err(format!(
            "format `{name}` has no time: expected a variable such as {}, or one that `--field time=VARIABLE` names",
            syntax.time_examples
        ));
    }
    Ok(template)
}
