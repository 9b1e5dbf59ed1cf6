//! The auth door: `auth:` of the file, made into mappings from a proxy's request to attributes.
//!
//! A preset is what a proxy sends, and stands under its own name whether the file says anything or not: one service
//! answers several proxies. What the file adds stands over all of them, since who a user is does not depend on the proxy.

use axum::http::HeaderName;
use slidegate::client_addr::{ClientAddr, Source, Trust, TrustedProxies};

use super::Findings;
use super::file::{Entry, Node, Shown};
use super::resolve::attribute_name;
use super::section::{Section, list, text, wrong};

/// Most attributes of a mapping: as many as a request may have.
const MAX_ATTRIBUTES: usize = crate::limits::MAX_ATTRIBUTES;
/// Most mappings of a file.
const MAX_PROXIES: usize = 64;
/// Longest name of a mapping, in bytes. It stands in a path.
const MAX_NAME: usize = 64;

/// Every key of the section.
pub(super) const KEYS: [&str; 4] = ["preset", "trusted_proxies", "attributes", "proxies"];
/// Every key of one of `proxies`.
const PROXY_KEYS: [&str; 2] = ["preset", "attributes"];
/// How a section without anything else looks.
pub(super) const EXAMPLE: &str = "preset: nginx";

const SOURCE: &str =
    "write `header X-User`, `path X-Original-URI`, `client-address`, `client-address Forwarded` or `none`";

/// Which mapping answers which path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Auth {
    /// That of `/v1/auth` itself, if the file says which preset that is.
    pub(crate) unnamed: Option<Mapping>,
    /// Those of `/v1/auth/NAME`, the presets' own among them. No two have one name.
    pub(crate) named: Vec<(String, Mapping)>,
}

/// What one proxy's requests say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mapping {
    /// No two have one name.
    pub(crate) attributes: Vec<Attribute>,
    pub(crate) denial: Denial,
}

/// An attribute and where it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Attribute {
    pub(crate) name: String,
    pub(crate) source: Origin,
    /// Whether a request without it is refused: a proxy that does not send what its preset says is set up wrongly, and
    /// policies about paths would silently not apply.
    pub(crate) required: bool,
}

/// Where an attribute stands in a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Origin {
    /// The whole value of a header.
    Header(HeaderName),
    /// The path of the URI in a header.
    Path(HeaderName),
    /// The client's address.
    Client(ClientAddr),
}

/// How a proxy has to be told that a request is denied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Denial {
    /// By the status that its client gets: 429.
    TooManyRequests,
    /// By 403, which nginx takes for an answer, and a field that says 429.
    Forbidden,
}

/// What a proxy sends, by its name.
#[derive(Debug, Clone, Copy)]
struct Preset {
    name: &'static str,
    uri: &'static str,
    method: &'static str,
    denial: Denial,
}

const PRESETS: [Preset; 3] = [
    Preset { name: "nginx", uri: "x-original-uri", method: "x-original-method", denial: Denial::Forbidden },
    Preset {
        name: "caddy",
        uri: "x-forwarded-uri",
        method: "x-forwarded-method",
        denial: Denial::TooManyRequests,
    },
    Preset {
        name: "traefik",
        uri: "x-forwarded-uri",
        method: "x-forwarded-method",
        denial: Denial::TooManyRequests,
    },
];

/// An attribute of the file: what it is read from, or that it is not.
type Said = (String, Option<Origin>);

impl Auth {
    /// Attributes that hold an address, and so are compared and counted as such.
    pub(crate) fn address_attributes(&self) -> impl Iterator<Item = &str> {
        let mappings = self.unnamed.iter().chain(self.named.iter().map(|(_, mapping)| mapping));
        let attributes = mappings.flat_map(|mapping| &mapping.attributes);
        attributes
            .filter(|attribute| matches!(attribute.source, Origin::Client(_)))
            .map(|attribute| attribute.name.as_str())
    }
}

/// The presets, with loopback for the only proxy.
impl Default for Auth {
    fn default() -> Self {
        let trust = trust_loopback();
        Self { unnamed: None, named: presets(&trust, &[]) }
    }
}

impl Preset {
    fn mapping(&self, trust: &Trust, said: &[Said]) -> Mapping {
        let header = HeaderName::from_static;
        let of = |name: &str, source, required| Attribute { name: name.to_owned(), source, required };
        let mut attributes = vec![
            of("ip", Origin::Client(ClientAddr::new(Source::XForwardedFor, trust.clone())), false),
            of("user", Origin::Header(header("x-user")), false),
            of("host", Origin::Header(header("x-forwarded-host")), false),
            of("method", Origin::Header(header(self.method)), true),
            of("path", Origin::Path(header(self.uri)), true),
        ];
        for (name, source) in said {
            attributes.retain(|attribute| attribute.name != *name);
            if let Some(source) = source {
                attributes.push(of(name, source.clone(), false));
            }
        }
        Mapping { attributes, denial: self.denial }
    }
}

fn presets(trust: &Trust, said: &[Said]) -> Vec<(String, Mapping)> {
    PRESETS.iter().map(|preset| (preset.name.to_owned(), preset.mapping(trust, said))).collect()
}

fn trust_loopback() -> Trust {
    Trust::Networks(TrustedProxies::new(["loopback"]).expect("loopback is a word of its own"))
}

/// Reads the section.
pub(super) fn auth(section: &Section<'_>, findings: &mut Findings) -> Auth {
    let trust = trust(section, findings);
    let said = section
        .get("attributes")
        .map_or_else(Vec::new, |node| attributes(node, "auth.attributes", &trust, findings));
    let unnamed = section.read("preset", findings, preset).map(|preset| preset.mapping(&trust, &said));
    let mut auth = Auth { unnamed, named: presets(&trust, &said) };
    let Some(node) = section.get("proxies") else { return auth };
    let Some(entries) = node.entries() else {
        let way_out = "write names and what each sends, for example `proxies: {edge: {preset: traefik}}`";
        section.find(node.line, wrong("proxies", node, way_out), findings);
        return auth;
    };
    if entries.len() > MAX_PROXIES {
        let message = format_args!("proxies has {} entries; give at most {MAX_PROXIES}", entries.len());
        section.find(node.line, message, findings);
        return auth;
    }
    for entry in entries {
        if let Some(mapping) = proxy(entry, &trust, &said, findings) {
            auth.named.retain(|(name, _)| *name != entry.key);
            auth.named.push((entry.key.clone(), mapping));
        }
    }
    auth
}

fn trust(section: &Section<'_>, findings: &mut Findings) -> Trust {
    const TRUSTED: &str =
        "give networks, addresses, `loopback` or `private`, for example `[loopback, 10.0.0.0/8]`";
    let Some(node) = section.get("trusted_proxies") else { return trust_loopback() };
    let mut entries = Vec::new();
    for entry in node.one_or_many() {
        match text("trusted_proxies", entry, TRUSTED) {
            Ok(text) => entries.push((entry.line, text)),
            Err(message) => section.find(entry.line, message, findings),
        }
    }
    for (line, entry) in &entries {
        match TrustedProxies::new([entry]) {
            Ok(proxies) if proxies.trusts_everyone() => {
                let message = format_args!(
                    "trusted_proxies has `{}`, which lets every client choose its own address; name the proxies' networks",
                    Shown(entry)
                );
                section.find(*line, message, findings);
            }
            Ok(_) => {}
            Err(error) => section.find(*line, format_args!("trusted_proxies: {error}"), findings),
        }
    }
    TrustedProxies::new(entries.iter().map(|(_, entry)| entry)).map_or_else(
        |error| {
            if entries.len() > slidegate::client_addr::MAX_NETWORKS {
                section.find(node.line, format_args!("trusted_proxies: {error}"), findings);
            }
            trust_loopback()
        },
        Trust::Networks,
    )
}

fn preset(node: &Node) -> Result<&'static Preset, String> {
    let names: Vec<_> = PRESETS.iter().map(|preset| preset.name).collect();
    let known = node.scalar().and_then(|name| PRESETS.iter().find(|preset| preset.name == name));
    known.ok_or_else(|| wrong("preset", node, &format!("known are {}", list(&names))))
}

fn proxy(entry: &Entry, trust: &Trust, said: &[Said], findings: &mut Findings) -> Option<Mapping> {
    let place = format!("proxy `{}`", Shown(&entry.key));
    let mut section = Section::of(&entry.value, place, EXAMPLE, findings)?;
    section.expect_only(&PROXY_KEYS, findings);
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if entry.key.is_empty() || entry.key.len() > MAX_NAME || !entry.key.chars().all(plain) {
        let message = format_args!("the name is part of a path; give 1 to {MAX_NAME} of `A-Z a-z 0-9 _ . -`");
        section.find(entry.line, message, findings);
    }
    section.expect("preset", "write what it sends, for example `preset: nginx`", findings);
    let mut said = said.to_vec();
    if let Some(node) = section.get("attributes") {
        let place = format!("{}: attributes", section.place());
        said.extend(attributes(node, &place, trust, findings));
    }
    section.read("preset", findings, preset).map(|preset| preset.mapping(trust, &said))
}

/// Reads a map from attributes to what they are read from.
fn attributes(node: &Node, place: &str, trust: &Trust, findings: &mut Findings) -> Vec<Said> {
    let Some(entries) = node.entries() else {
        let message = format_args!("{place} is {node}; write for example `{{user: header X-User}}`");
        findings.add(node.line, message);
        return Vec::new();
    };
    if entries.len() > MAX_ATTRIBUTES {
        let message =
            format_args!("{place} has {} entries; a request has at most {MAX_ATTRIBUTES}", entries.len());
        findings.add(node.line, message);
        return Vec::new();
    }
    let mut said = Vec::new();
    for entry in entries {
        match attribute_name(&entry.key).and_then(|name| Ok((name, source(&entry.key, &entry.value, trust)?)))
        {
            Ok(attribute) => said.push(attribute),
            Err(message) => findings.add(entry.value.line, format_args!("{place}: {message}")),
        }
    }
    said
}

/// `header NAME`, `path NAME`, `client-address`, `client-address NAME`, `none`.
fn source(key: &str, node: &Node, trust: &Trust) -> Result<Option<Origin>, String> {
    let no = || wrong(&Shown(key).to_string(), node, SOURCE);
    let mut words = node.scalar().ok_or_else(no)?.split_whitespace();
    let (kind, name, more) = (words.next(), words.next(), words.next());
    let header = |name: &str| HeaderName::try_from(name).map_err(|_| no());
    match (kind, name, more) {
        (Some("none"), None, None) => Ok(None),
        (Some("header"), Some(name), None) => Ok(Some(Origin::Header(header(name)?))),
        (Some("path"), Some(name), None) => Ok(Some(Origin::Path(header(name)?))),
        (Some("client-address"), name, None) => {
            let source = name
                .unwrap_or("x-forwarded-for")
                .parse::<Source>()
                .map_err(|error| format!("{} is {node}; {error}", Shown(key)))?;
            Ok(Some(Origin::Client(ClientAddr::new(source, trust.clone()))))
        }
        _ => Err(no()),
    }
}

#[cfg(test)]
mod tests {
    use super::{Denial, Origin};
    use crate::config::Config;
    use crate::config::tests::{error, errors};

    const POLICY: &str = "\npolicies: [{name: p, quota: 1/1s}]\n";

    fn config(auth: &str) -> Config {
        Config::parse(&format!("auth: {auth}{POLICY}"), "slidegate.yaml")
            .unwrap_or_else(|errors| panic!("{errors}"))
    }

    /// Each attribute of a mapping and where it stands.
    fn told(config: &Config, name: &str) -> Vec<String> {
        let named = config.auth.named.iter().find(|(known, _)| known == name);
        let mapping = &named.expect("the mapping is there").1;
        let attribute = |attribute: &super::Attribute| {
            let source = match &attribute.source {
                Origin::Header(name) => format!("header {name}"),
                Origin::Path(name) => format!("path {name}"),
                Origin::Client(_) => "client".to_owned(),
            };
            format!("{}: {source}{}", attribute.name, if attribute.required { "!" } else { "" })
        };
        mapping.attributes.iter().map(attribute).collect()
    }

    /// A proxy's file in `deploy/` must work without a line of configuration.
    #[test]
    fn the_presets_stand_under_their_names_whatever_the_file_says() {
        for config in [Config::default(), config("{trusted_proxies: private}")] {
            assert_eq!(
                told(&config, "nginx"),
                [
                    "ip: client",
                    "user: header x-user",
                    "host: header x-forwarded-host",
                    "method: header x-original-method!",
                    "path: path x-original-uri!"
                ]
            );
            assert_eq!(told(&config, "caddy"), told(&config, "traefik"));
            assert_eq!(config.auth.named[0].1.denial, Denial::Forbidden);
            assert!(config.auth.unnamed.is_none());
        }
    }

    /// Who a user is does not depend on the proxy; what one proxy is to be told does.
    #[test]
    fn what_the_file_says_stands_over_every_preset_and_a_proxy_s_own_over_that() {
        let config = config(
            "{preset: caddy, attributes: {user: header X-Account, host: none, proxy: client-address peer}, \
             proxies: {edge: {preset: traefik, attributes: {user: header X-Login, page: path Referer}}}}",
        );
        let caddy = ["ip: client", "method: header x-forwarded-method!", "path: path x-forwarded-uri!"];
        assert_eq!(told(&config, "caddy")[..3], caddy);
        assert_eq!(told(&config, "caddy")[3..], ["user: header x-account", "proxy: client"]);
        assert_eq!(
            told(&config, "edge")[3..],
            ["proxy: client", "user: header x-login", "page: path referer"]
        );
        assert_eq!(config.auth.unnamed.as_ref().unwrap().attributes.len(), 5);
        assert!(config.is_address("proxy") && config.is_address("ip"));
    }

    /// A mapping that is not understood would limit by something else than was meant.
    #[test]
    fn each_wrong_line_names_its_value_and_the_way_out() {
        let source = super::SOURCE;
        let trusted =
            "give networks, addresses, `loopback` or `private`, for example `[loopback, 10.0.0.0/8]`";
        for (text, expected) in [
            ("nginx".into(), "auth is `nginx`; write keys and values, for example `preset: nginx`".into()),
            ("{presets: nginx}".into(), "auth: unknown key `presets`; did you mean `preset`?".into()),
            (
                "{preset: apache}".into(),
                "auth: preset is `apache`; known are `nginx`, `caddy`, `traefik`".into(),
            ),
            ("{attributes: [user]}".into(), "auth.attributes is a list; write for example `{user: header X-User}`".into()),
            ("{attributes: {user: X-User}}".into(), format!("auth.attributes: user is `X-User`; {source}")),
            ("{attributes: {user: header}}".into(), format!("auth.attributes: user is `header`; {source}")),
            ("{attributes: {user: header X User}}".into(), format!("auth.attributes: user is `header X User`; {source}")),
            ("{attributes: {user: 'header X:'}}".into(), format!("auth.attributes: user is `header X:`; {source}")),
            ("{attributes: {user: []}}".into(), format!("auth.attributes: user is a list; {source}")),
            (
                "{attributes: {ip: 'client-address X:'}}".into(),
                "auth.attributes: ip is `client-address X:`; invalid client address source `X:`: must be `peer` \
                 or a header name, for example `x-forwarded-for`"
                    .into(),
            ),
            ("{trusted_proxies: {}}".into(), format!("auth: trusted_proxies is a map; {trusted}")),
            (
                "{trusted_proxies: 10.0.0/8}".into(),
                "auth: trusted_proxies: invalid trusted proxy `10.0.0/8`: must be an address or a network, for example \
                 `10.0.0.0/8`"
                    .into(),
            ),
            (
                "{trusted_proxies: [loopback, 0.0.0.0/0]}".into(),
                "auth: trusted_proxies has `0.0.0.0/0`, which lets every client choose its own address; name the proxies' \
                 networks"
                    .into(),
            ),
            (
                "{proxies: [edge]}".into(),
                "auth: proxies is a list; write names and what each sends, for example `proxies: {edge: {preset: traefik}}`"
                    .into(),
            ),
            (
                "{proxies: {a/b: {preset: nginx}}}".into(),
                "proxy `a/b`: the name is part of a path; give 1 to 64 of `A-Z a-z 0-9 _ . -`".into(),
            ),
            (
                "{proxies: {edge: {attributes: {user: none}}}}".into(),
                "proxy `edge`: preset is missing; write what it sends, for example `preset: nginx`".into(),
            ),
            (
                "{proxies: {edge: {preset: nginx, attributes: {user: 5}}}}".into(),
                format!("proxy `edge`: attributes: user is 5; {source}"),
            ),
        ] as [(String, String); 17] {
            assert_eq!(error(&format!("auth: {text}{POLICY}")), format!("slidegate.yaml:1: {expected}"), "{text}");
        }
        let text = "auth:\n  attributes:\n    user: X-User\n    ip: header\n";
        let lines: Vec<_> =
            errors(&format!("{text}{POLICY}")).iter().map(|line| line[..17].to_owned()).collect();
        assert_eq!(lines, ["slidegate.yaml:3:", "slidegate.yaml:4:"]);
    }

    /// People take the comment signs away and expect it to work.
    #[test]
    fn the_example_has_every_key_and_is_read() {
        let example = include_str!("../../../../docs/slidegate.example.yaml");
        let lines = example.lines().skip_while(|line| !line.starts_with("# What proxies send")).skip(1);
        let text: Vec<_> = lines.map(|line| line.strip_prefix("# ").unwrap_or(line)).collect();
        let text = text.join("\n");
        let config = Config::parse(&format!("{text}{POLICY}"), "slidegate.example.yaml").unwrap();
        let edge = [
            "method: header x-forwarded-method!",
            "path: path x-forwarded-uri!",
            "user: header x-user",
            "ip: client",
        ];
        assert_eq!(told(&config, "edge"), edge);
        for key in super::KEYS {
            assert!(text.contains(&format!("  {key}:")), "{key} is not in the example");
        }
    }
}
