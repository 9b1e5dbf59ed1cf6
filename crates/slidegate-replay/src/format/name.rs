//! Names of formats, as `--log-format` takes them, and how each becomes a parser.

use std::fs::File;
use std::io::Read;

use slidegate::client_addr::ClientAddr;

use crate::block::Escape;
use crate::format::clf::{ClfOptions, ClfParser};
use crate::format::delimited::{DelimitedParser, Kind};
use crate::format::field::{FieldReader, Target, TimeRules};
use crate::format::json::{JsonFormat, JsonParser};
use crate::format::mapping::Mapping;
use crate::format::parser::{ALB, ALB_REQUIRED, Grammar, LineParser, alb_target};
use crate::format::template::{Piece, Template};
use crate::format::time::TimeReader;
use crate::format::{apache, envoy, nginx};

/// The format of an access log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogFormat(pub(crate) Format);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// Common and combined, under the name that the report uses.
    Clf(&'static str),
    Nginx {
        name: String,
        text: String,
        escape: Escape,
    },
    Envoy {
        name: String,
        text: String,
    },
    Apache {
        text: String,
    },
    Alb,
    Haproxy,
    Json(JsonFormat),
    Csv,
    W3c,
    CloudFront,
}

/// What a mapping and the options make of every format.
#[derive(Clone, Debug)]
pub(crate) struct ParserOptions {
    pub(crate) fields: Vec<(String, String)>,
    pub(crate) cost_field: Option<String>,
    pub(crate) client: ClientAddr,
    /// Whether the fields are those of the user, so that one of them must be a time.
    pub(crate) needs_time: bool,
    pub(crate) time: TimeRules,
}

/// The longest nginx configuration that is read for its `log_format`.
const MAX_CONFIG_BYTES: u64 = 4 * 1024 * 1024;

impl LogFormat {
    /// The names, for help and errors.
    pub const NAMES: &'static str = "`common`, `combined`, `apache:FORMAT`, `nginx:FORMAT`, `nginx:@FILE`, `ingress-nginx`, \
         `caddy`, `traefik`, `traefik-json`, `envoy`, `envoy:FORMAT`, `envoy-json`, `istio`, `haproxy`, `alb`, `cloudfront`, \
         `w3c`, `gcp`, `json`, `csv` or `slidegate`";

    /// A format by its name. `nginx:` and `envoy:` are followed by the text of a format;
    /// `nginx:@FILE` reads the `log_format` of a configuration file, and `nginx:@FILE:NAME` the one
    /// of this name.
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
            "caddy" => Format::Json(JsonFormat::Caddy),
            "traefik-json" => Format::Json(JsonFormat::Traefik),
            "envoy" => envoy_default(),
            "istio" => istio(),
            "envoy-json" => Format::Json(JsonFormat::Envoy),
            "haproxy" => Format::Haproxy,
            "alb" => Format::Alb,
            "cloudfront" => Format::CloudFront,
            "w3c" => Format::W3c,
            "gcp" => Format::Json(JsonFormat::Gcp),
            "json" => Format::Json(JsonFormat::Any),
            "csv" => Format::Csv,
            "slidegate" => Format::Json(JsonFormat::Slidegate),
            _ => match text.split_once(':') {
                Some(("nginx", file)) if file.starts_with('@') => from_config(&file[1..])?,
                Some(("nginx", text)) => {
                    Format::Nginx { name: "nginx".into(), text: text.into(), escape: Escape::Backslash }
                }
                Some(("apache", text)) => Format::Apache { text: text.into() },
                Some(("envoy", text)) => Format::Envoy { name: "envoy".into(), text: text.into() },
                _ => return Err(format!("must be {}", Self::NAMES)),
            },
        };
        // A format that cannot be used is better refused now than at the first log.
        let options = ParserOptions {
            fields: Vec::new(),
            cost_field: None,
            client: ClientAddr::default(),
            // A field that the user maps can be the time.
            needs_time: false,
            time: TimeRules { zone: jiff::tz::TimeZone::UTC, derive_start: true },
        };
        format.parser(&options).map(|_| Self(format))
    }
}

pub(crate) fn ingress() -> Format {
    Format::Nginx { name: "ingress-nginx".into(), text: nginx::INGRESS.into(), escape: Escape::Backslash }
}

pub(crate) fn envoy_default() -> Format {
    Format::Envoy { name: "envoy".into(), text: envoy::DEFAULT.into() }
}

pub(crate) fn istio() -> Format {
    Format::Envoy { name: "istio".into(), text: envoy::ISTIO.into() }
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
    Ok(Format::Nginx {
        name: format!("nginx {}", found.name),
        text: found.text.clone(),
        escape: found.escape,
    })
}

impl Format {
    /// The name for reports.
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Clf(name) => (*name).to_owned(),
            Self::Nginx { name, .. } | Self::Envoy { name, .. } => name.clone(),
            Self::Apache { .. } => "apache".to_owned(),
            Self::Alb => "alb".to_owned(),
            Self::Haproxy => "haproxy".to_owned(),
            Self::Json(JsonFormat::Caddy) => "caddy".to_owned(),
            Self::Json(JsonFormat::Traefik) => "traefik-json".to_owned(),
            Self::Json(JsonFormat::Envoy) => "envoy-json".to_owned(),
            Self::Json(JsonFormat::Gcp) => "gcp".to_owned(),
            Self::Json(JsonFormat::Slidegate) => "slidegate".to_owned(),
            Self::Json(JsonFormat::Any) => "json".to_owned(),
            Self::Csv => "csv".to_owned(),
            Self::W3c => "w3c".to_owned(),
            Self::CloudFront => "cloudfront".to_owned(),
        }
    }

    /// A parser of this format.
    ///
    /// # Errors
    /// The format cannot be split into variables, has no time, or does not have a field that the
    /// options name.
    pub(crate) fn parser(&self, options: &ParserOptions) -> Result<LineParser, String> {
        let mut mapping = Mapping::new(options.fields.clone(), options.cost_field.clone());
        let fields = |has_cost| Box::new(FieldReader::new(&options.time, has_cost));
        let has_cost = options.cost_field.is_some() || options.fields.iter().any(|(name, _)| name == "cost");
        let cost_is_bytes = options.cost_field.as_deref() == Some("bytes");
        let grammar = match self {
            Self::Clf(_) | Self::Haproxy => {
                let unknown = mapping.missing().into_iter().find(|source| *source != "bytes");
                if let Some(unknown) =
                    unknown.or_else(|| options.fields.first().map(|(_, source)| source.as_str()))
                {
                    return Err(format!(
                        "format `{}` has no named fields, so `{unknown}` is unknown: expected `--cost-field bytes`, \
                         or a format with names, such as `nginx:FORMAT`, `json` or `csv`",
                        self.name()
                    ));
                }
                match self {
                    Self::Haproxy => Grammar::Haproxy { fields: fields(false), cost_is_bytes },
                    _ => {
                        let time = TimeReader::new(options.time.zone.clone());
                        let ends_with_duration = matches!(self, Self::Clf("traefik"));
                        let options = ClfOptions { cost_is_bytes, ends_with_duration };
                        Grammar::Clf(Box::new(ClfParser::new(time, options)))
                    }
                }
            }
            Self::Nginx { text, escape, .. } => {
                // The list of forwarded addresses is a header as well as a client.
                let is_header = |name: &str| nginx::target(name).is_none() || name == nginx::FORWARDED;
                let attribute = |name: &str| is_header(name).then(|| nginx::header_attribute(name))?;
                let known = Known { of_format: nginx::target, attribute: &attribute };
                let template =
                    template(self, &nginx::pieces(text), *escape, &mut mapping, known, options.needs_time)?;
                Grammar::Template(Box::new(template), fields(has_cost))
            }
            Self::Apache { text } => {
                let attribute =
                    |name: &str| apache::target(name).is_none().then(|| apache::header_attribute(name))?;
                let known = Known { of_format: apache::target, attribute: &attribute };
                let pieces = apache::pieces(text);
                let template =
                    template(self, &pieces, Escape::Backslash, &mut mapping, known, options.needs_time)?;
                Grammar::Template(Box::new(template), fields(has_cost))
            }
            Self::Envoy { text, .. } => {
                let attribute =
                    |name: &str| envoy::target(name).is_none().then(|| envoy::header_attribute(name))?;
                let known = Known { of_format: envoy::target, attribute: &attribute };
                let template = template(
                    self,
                    &envoy::pieces(text),
                    Escape::None,
                    &mut mapping,
                    known,
                    options.needs_time,
                )?;
                Grammar::Template(Box::new(template), fields(has_cost))
            }
            Self::Alb => {
                let known = Known { of_format: alb_target, attribute: &|_| None };
                let template =
                    template(self, &nginx::pieces(ALB), Escape::Backslash, &mut mapping, known, true)?;
                Grammar::Template(Box::new(template.requiring(ALB_REQUIRED)), fields(has_cost))
            }
            Self::Json(format) => {
                let tree = format.tree(&mut mapping);
                let has_cost = has_cost || *format == JsonFormat::Slidegate;
                Grammar::Json(Box::new(JsonParser::new(tree, *fields(has_cost))))
            }
            Self::Csv | Self::W3c | Self::CloudFront => {
                let kind = match self {
                    Self::Csv => Kind::Csv,
                    Self::W3c => Kind::W3c,
                    _ => Kind::CloudFront,
                };
                let parser = DelimitedParser::new(kind, std::mem::take(&mut mapping), *fields(has_cost));
                Grammar::Delimited(Box::new(parser))
            }
        };
        // A recording has the client that was decided about.
        let client = Some(options.client.clone()).filter(|_| *self != Self::Json(JsonFormat::Slidegate));
        Ok(LineParser { grammar, attributes: mapping.attributes, client })
    }
}

/// What a format knows of its variables.
#[derive(Clone, Copy)]
struct Known<'k> {
    of_format: fn(&str) -> Option<Target>,
    attribute: &'k dyn Fn(&str) -> Option<String>,
}

fn template(
    format: &Format,
    pieces: &[Piece],
    escape: Escape,
    mapping: &mut Mapping,
    known: Known<'_>,
    needs_time: bool,
) -> Result<Template, String> {
    let name = format.name();
    let template = Template::new(pieces, escape, |variable| {
        mapping.targets(variable, (known.of_format)(variable), (known.attribute)(variable))
    })
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
            match format {
                Format::Envoy { .. } => "`%START_TIME%`",
                Format::Apache { .. } => "`%t`",
                _ => "`$time_local`, `$time_iso8601` or `$msec`",
            }
        ));
    }
    Ok(template)
}
