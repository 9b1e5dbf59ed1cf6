//! The section `auth`: maps authorization requests of proxies to attributes.
//!
//! Every preset is served under its own name, so that one service can serve several proxies.
//! `attributes` of the section apply to every preset, because a user's identity does not depend on
//! the proxy.

use std::collections::BTreeMap;

use axum::http::HeaderName;
use lined_config::{Form, List, Section};
use schemars::JsonSchema;
use serde::Deserialize;
use slidegate_config::values::{Parsed, Text, form_of};
use slidegate_http::client_addr::{ClientAddr, Source, Trust, TrustedProxies};

use crate::limits::MAX_ATTRIBUTES;
use crate::wire::request::HOST;

/// Attributes, each with its source.
type AttributeSources = BTreeMap<String, Parsed<AttributeSource>>;

/// Authorization requests of proxies. `/v1/auth/nginx`, `/v1/auth/caddy` and `/v1/auth/traefik` are
/// served without this section.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("x-example" = "preset: nginx"))]
pub(super) struct AuthSection {
    /// The [preset](#presets) of `/v1/auth` itself. Default: 404.
    preset: Option<Preset>,
    /// The proxies whose forwarding headers are trusted, one or a list. `private` is RFC 1918, `fc00::/7`, link-local
    /// and loopback; `unix`, the clients of [`server.socket`](#server), always is. A network that includes every
    /// address is rejected.
    #[schemars(extend("format" = "trusted-proxy", "default" = ["loopback"]))]
    trusted_proxies: List<String>,
    /// [Sources](#sources) of attributes; they override every preset. Default: the preset's.
    #[serde(default)]
    #[schemars(extend("x-example" = "{user: header X-Account}", "propertyNames" = {"format": "attribute"}, "maxProperties" = MAX_ATTRIBUTES))]
    attributes: AttributeSources,
    /// Maps of `preset` and `attributes`, which override the others, by names that are served at `/v1/auth/NAME`.
    /// Names are 1 to 64 of `A-Z a-z 0-9 _ . -`.
    #[serde(default)]
    #[schemars(extend("x-example" = "{edge: {preset: traefik}}", "propertyNames" = {"format": "name"}, "maxProperties" = 64))]
    proxies: BTreeMap<String, ProxySection>,
}

/// One proxy.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("x-example" = "preset: nginx"))]
struct ProxySection {
    /// The kind of proxy.
    preset: Preset,
    /// Sources of attributes; they override those of the preset and of `auth`.
    #[serde(default)]
    #[schemars(extend("propertyNames" = {"format": "attribute"}, "maxProperties" = MAX_ATTRIBUTES))]
    attributes: AttributeSources,
}

/// The mapping of each path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Auth {
    /// The mapping of `/v1/auth`, if configured.
    pub(crate) unnamed: Option<Mapping>,
    /// The mappings of `/v1/auth/NAME`, including the presets. Names are unique.
    pub(crate) named: Vec<(String, Mapping)>,
}

/// The attributes of one proxy's requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mapping {
    /// Names are unique.
    pub(crate) attributes: Vec<Attribute>,
    pub(crate) denial: Denial,
}

/// An attribute and its source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Attribute {
    pub(crate) name: String,
    pub(crate) source: Origin,
    /// Whether requests without it are rejected. A proxy that omits what its preset expects is
    /// misconfigured, and policies about paths would silently not apply.
    pub(crate) required: bool,
}

/// The source of an attribute in a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Origin {
    /// The whole value of a header.
    Header(HeaderName),
    /// The path of the URI in a header.
    Path(HeaderName),
    /// The host in a header, normalized.
    Host(HeaderName),
    /// The client's address.
    Client(ClientAddr),
}

/// The response to the proxy for a denial.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Denial {
    /// 429, which the proxy passes on.
    TooManyRequests,
    /// 403, which nginx accepts, with 429 in a header field.
    Forbidden,
}

/// A known proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Preset {
    Nginx,
    Caddy,
    Traefik,
}

impl Auth {
    /// How the attribute `ip` is derived from a proxy's request.
    pub(crate) fn client(&self) -> ClientAddr {
        let client = self.attributes().filter(|one| one.name == "ip").find_map(|one| match &one.source {
            Origin::Client(rule) => Some(rule.clone()),
            Origin::Header(_) | Origin::Path(_) | Origin::Host(_) => None,
        });
        client.unwrap_or_default()
    }

    /// Attributes that are addresses.
    pub(crate) fn address_attributes(&self) -> impl Iterator<Item = &str> {
        let addresses = self.attributes().filter(|one| matches!(one.source, Origin::Client(_)));
        addresses.map(|attribute| attribute.name.as_str())
    }

    fn attributes(&self) -> impl Iterator<Item = &Attribute> {
        let mappings = self.unnamed.iter().chain(self.named.iter().map(|(_, mapping)| mapping));
        mappings.flat_map(|mapping| &mapping.attributes)
    }
}

impl Preset {
    /// The preset's attributes, overridden by `sources`.
    fn mapping<'s>(self, trust: &Trust, sources: impl IntoIterator<Item = &'s AttributeSources>) -> Mapping {
        let (uri, method, denial) = match self {
            Self::Nginx => ("x-original-uri", "x-original-method", Denial::Forbidden),
            Self::Caddy | Self::Traefik => ("x-forwarded-uri", "x-forwarded-method", Denial::TooManyRequests),
        };
        let header = HeaderName::from_static;
        let of = |name: &str, source, required| Attribute { name: name.to_owned(), source, required };
        let mut attributes = vec![
            of("ip", Origin::Client(ClientAddr::new(Source::XForwardedFor, trust.clone())), false),
            of("user", Origin::Header(header("x-user")), false),
            of(HOST, Origin::Host(header("x-forwarded-host")), false),
            of("method", Origin::Header(header(method)), true),
            of("path", Origin::Path(header(uri)), true),
        ];
        for (name, source) in sources.into_iter().flatten() {
            attributes.retain(|attribute| attribute.name != *name);
            attributes.extend(source.origin(name, trust).map(|origin| of(name, origin, false)));
        }
        Mapping { attributes, denial }
    }
}

impl AuthSection {
    pub(super) fn build(&self, section: &Section<'_>) -> Auth {
        let Self { preset, trusted_proxies, attributes, proxies } = self;
        // The permissions of a Unix socket's file decide who may connect. Its peers have no address, so
        // their forwarding headers are trusted.
        let trusted = trusted_proxies.0.iter().map(String::as_str).chain(["unix"]);
        let trust = Trust::Networks(TrustedProxies::new(trusted).unwrap_or_else(|error| {
            section.invalid("trusted_proxies", error);
            TrustedProxies::new(["loopback", "unix"]).expect("these are words of their own")
        }));
        let mut named: Vec<_> =
            [("nginx", Preset::Nginx), ("caddy", Preset::Caddy), ("traefik", Preset::Traefik)]
                .map(|(name, preset)| (name.to_owned(), preset.mapping(&trust, [attributes])))
                .into();
        for (name, proxy) in proxies {
            named.retain(|(known, _)| known != name);
            named.push((name.clone(), proxy.preset.mapping(&trust, [attributes, &proxy.attributes])));
        }
        Auth { unnamed: preset.map(|preset| preset.mapping(&trust, [attributes])), named }
    }
}

/// A network, an address, `loopback`, `private` or `unix`.
pub(super) const TRUSTED_PROXY: Form = Form::new(
    "trusted-proxy",
    "a network, an address, `loopback`, `private` or `unix`, for example `[loopback, 10.0.0.0/8]`",
    |text, _| {
        let proxies = TrustedProxies::new([text]).map_err(|_| String::new())?;
        if proxies.trusts_everyone() {
            return Err("must not contain every client, which could then choose its own address; name the \
                        networks of the proxies"
                .to_owned());
        }
        Ok(text.to_owned())
    },
);

/// The source of an attribute in the file: `header X-User`, `path X-Original-URI`,
/// `client-address`, `client-address Forwarded` or `none`.
#[derive(Debug, Clone)]
pub(super) enum AttributeSource {
    Header(HeaderName),
    Path(HeaderName),
    Client(Source),
    Nowhere,
}

impl AttributeSource {
    fn origin(&self, attribute: &str, trust: &Trust) -> Option<Origin> {
        match self {
            Self::Header(name) if attribute == HOST => Some(Origin::Host(name.clone())),
            Self::Header(name) => Some(Origin::Header(name.clone())),
            Self::Path(name) => Some(Origin::Path(name.clone())),
            Self::Client(source) => Some(Origin::Client(ClientAddr::new(source.clone(), trust.clone()))),
            Self::Nowhere => None,
        }
    }
}

impl Text for AttributeSource {
    const FORM: Form = form_of::<Self>(
        "attribute-source",
        "`header NAME`, `path NAME`, `client-address`, `client-address NAME` or `none`, for example `header X-User`",
    )
    .pattern(r"^\s*(none|client-address(\s+\S+)?|(header|path)\s+\S+)\s*$");

    fn parse(text: &str) -> Result<Self, String> {
        let header = |name: &str| HeaderName::try_from(name).map_err(|_| String::new());
        match *text.split_whitespace().collect::<Vec<_>>() {
            ["none"] => Ok(Self::Nowhere),
            ["header", name] => header(name).map(Self::Header),
            ["path", name] => header(name).map(Self::Path),
            ["client-address"] => Ok(Self::Client(Source::XForwardedFor)),
            ["client-address", name] => {
                name.parse().map(Self::Client).map_err(|error: slidegate::Error| error.to_string())
            }
            _ => Err(String::new()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Denial, Origin};
    use crate::config::Config;
    use crate::config::tests::{default, parse};

    /// Each attribute of a mapping and its source.
    fn rules_of(config: &Config, name: &str) -> Vec<String> {
        let named = config.auth.named.iter().find(|(known, _)| known == name);
        let mapping = &named.expect("the mapping is there").1;
        let attribute = |attribute: &super::Attribute| {
            let source = match &attribute.source {
                Origin::Header(name) => format!("header {name}"),
                Origin::Path(name) => format!("path {name}"),
                Origin::Host(name) => format!("host {name}"),
                Origin::Client(_) => "client".to_owned(),
            };
            format!("{}: {source}{}", attribute.name, if attribute.required { "!" } else { "" })
        };
        mapping.attributes.iter().map(attribute).collect()
    }

    /// The proxies' files in `deploy/` must work without a config.
    #[test]
    fn presets_are_always_served_under_their_names() {
        for config in [default(), parse("auth: {trusted_proxies: private}")] {
            assert_eq!(
                rules_of(&config, "nginx"),
                [
                    "ip: client",
                    "user: header x-user",
                    "host: host x-forwarded-host",
                    "method: header x-original-method!",
                    "path: path x-original-uri!"
                ]
            );
            assert_eq!(rules_of(&config, "caddy"), rules_of(&config, "traefik"));
            assert_eq!(config.auth.named[0].1.denial, Denial::Forbidden);
            assert!(config.auth.unnamed.is_none());
        }
    }

    /// The user does not depend on the proxy, but header fields do.
    #[test]
    fn attributes_of_the_file_replace_those_of_presets_and_a_proxy_replaces_both() {
        let config = parse(
            "auth: {preset: caddy, attributes: {user: header X-Account, host: none, proxy: client-address peer}, \
             proxies: {edge: {preset: traefik, attributes: {user: header X-Login, page: path Referer}}}}",
        );
        let caddy = ["ip: client", "method: header x-forwarded-method!", "path: path x-forwarded-uri!"];
        assert_eq!(rules_of(&config, "caddy")[..3], caddy);
        assert_eq!(rules_of(&config, "caddy")[3..], ["proxy: client", "user: header x-account"]);
        assert_eq!(
            rules_of(&config, "edge")[3..],
            ["proxy: client", "page: path referer", "user: header x-login"]
        );
        assert_eq!(config.auth.unnamed.as_ref().unwrap().attributes.len(), 5);
        assert!(config.is_address("proxy") && config.is_address("ip"));
    }

    /// Users uncomment the example and expect it to work.
    #[test]
    fn the_example_has_every_key_and_is_read() {
        let example = include_str!("../../../../docs/slidegate.example.yaml");
        let lines = example.lines().skip_while(|line| !line.starts_with("# What proxies send")).skip(1);
        let text: Vec<_> = lines.map(|line| line.strip_prefix("# ").unwrap_or(line)).collect();
        let text = text.join("\n");
        let config = parse(&text);
        let edge = [
            "method: header x-forwarded-method!",
            "path: path x-forwarded-uri!",
            "user: header x-user",
            "ip: client",
        ];
        assert_eq!(rules_of(&config, "edge"), edge);
    }
}
