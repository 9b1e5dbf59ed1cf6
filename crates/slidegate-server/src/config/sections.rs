//! The sections of the file, and the config built from them.
//!
//! Building continues after mistakes to find all of them. The result is valid only if none was
//! reported.

use std::net::SocketAddr;

use lined_config::Section;
use schemars::JsonSchema;
use serde::Deserialize;
use slidegate::{CostUnit, PolicySet};
use slidegate_config::policies::{MINIMAL, Policies, PolicySections, report_missing};
use slidegate_config::values::Span;
use slidegate_http::headers::{Draft, HeaderOptions, XRateLimit};

use super::admin::AccessRules;
use super::auth::AuthSection;
use super::environment::Outside;
use super::grpc::GrpcSection;
use super::listener::ListenerKeys;
use super::observe::Observe;
use super::resp::{Resp, RespSection};
use super::secret_files;
use super::store::{StoreSection, refuse_closed, try_out};
use super::values::from_str;
use super::webhook::WebhookSection;
use super::{Config, FileContent};
use crate::listener::ConnectionCaps;

/// The config file. docs/config.md is the reference.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("x-example" = MINIMAL))]
pub(super) struct File {
    #[serde(flatten)]
    limits: PolicySections,
    /// The HTTP interface.
    server: ServerSection,
    /// Envoy's rate-limit service. Without `listen` and `socket` it is not served.
    grpc: Option<GrpcSection>,
    /// Where usage is kept.
    store: StoreSection,
    /// The port for clients of Redis. Not served without this section.
    resp: Option<RespSection>,
    /// The header fields of responses.
    headers: HeadersSection,
    /// Authorization requests of proxies.
    auth: AuthSection,
    /// Who may read, change and use the running service.
    admin: AccessRules,
    /// Metrics, events, top keys, logs and traces.
    observe: Observe,
    /// Where notifications of policies with `notify` or `escalate` are sent. Disabled without this section.
    webhook: Option<WebhookSection>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("x-example" = "listen: 127.0.0.1:7979"))]
struct ServerSection {
    /// Address and port. `serve --listen` and `SLIDEGATE_LISTEN` take precedence, in this order.
    #[schemars(extend("format" = "address", "default" = "127.0.0.1:7979"))]
    listen: SocketAddr,
    #[serde(flatten)]
    listener: ListenerKeys,
    /// Maximum time for open requests during graceful shutdown.
    #[schemars(extend("default" = "10s"))]
    shutdown_grace: Span<0, 3_600_000>,
    /// After SIGTERM, how long the service reports that it is not ready, and [still serves](day-to-day.md#shutdown).
    /// `serve --drain-delay` and `SLIDEGATE_DRAIN_DELAY` take precedence. Default: 5s; 0s if every listener is on
    /// loopback or a Unix socket.
    drain_delay: Option<Span<0, 3_600_000>>,
    /// Maximum [connections](topology.md#connections) of all protocols together.
    #[schemars(range(min = 1, max = 1_000_000), extend("default" = 16_384))]
    max_connections: usize,
    /// Maximum connections of one client address or IPv6 /56 network. A proxy is one address. Unix sockets are
    /// exempt.
    #[schemars(range(min = 1, max = 1_000_000), extend("default" = 8192))]
    max_connections_per_peer: usize,
    /// How long an HTTP connection may be idle between two requests.
    #[schemars(extend("default" = "75s"))]
    idle_timeout: Span<1000, 3_600_000>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("x-example" = "draft: draft-10"))]
struct HeadersSection {
    /// The version of the `RateLimit` and `RateLimit-Policy` fields.
    #[serde(deserialize_with = "from_str")]
    #[schemars(with = "String", extend("default" = "draft-10", "enum" = ["draft-10", "draft-7", "draft-6", "off"]))]
    draft: Draft,
    /// `X-RateLimit-Limit`, `-Remaining` and `-Reset`, with the reset as Unix time in seconds (`epoch`) or as seconds
    /// from now (`delta`). `openai` and `anthropic`: [the fields of these
    /// APIs](reserve.md#header-fields-for-clients-of-language-models).
    #[serde(deserialize_with = "from_str")]
    #[schemars(with = "String", extend("default" = "epoch", "enum" = ["epoch", "delta", "openai", "anthropic", "off"]))]
    x_ratelimit: XRateLimit,
    /// `Retry-After` on denials, in whole seconds, rounded up, at least 1; 1 where only [the end of other
    /// requests](reserve.md#limits-on-what-is-in-flight) is waited for.
    #[schemars(extend("default" = true))]
    retry_after: bool,
    /// `retry-after-ms` beside it, in whole milliseconds.
    #[schemars(extend("default" = false))]
    retry_after_ms: bool,
}

impl HeadersSection {
    /// The fields. Reports a style with units if no policy has one, unless `may_lack_units`.
    fn build(&self, section: &Section<'_>, policies: &PolicySet, may_lack_units: bool) -> HeaderOptions {
        let Self { draft, x_ratelimit, retry_after, retry_after_ms } = *self;
        let shows_units = matches!(x_ratelimit, XRateLimit::OpenAi | XRateLimit::Anthropic);
        if shows_units
            && !may_lack_units
            && policies.iter().all(|policy| policy.unit_name().and_then(CostUnit::from_name).is_none())
        {
            let why = format_args!(
                "`{x_ratelimit}` shows policies with a unit, and none has one; write for example `unit: tokens` in a \
                 policy"
            );
            section.invalid("x_ratelimit", why);
        }
        HeaderOptions { draft, x_ratelimit, retry_after, retry_after_ms }
    }
}

impl File {
    /// Builds the config. `top` is the section of the whole file, `content` its JSON.
    pub(super) fn build(self, top: &Section<'_>, outside: &Outside, content: FileContent) -> Config {
        let auth = self.auth.build(&top.child("auth"));
        let mut observe = self.observe;
        if let Some(traces) = &observe.traces {
            traces.check(&top.child("observe").child("traces"));
        }
        observe.key_secret = self.store.key_secret();
        let has_policies = top.has("policies");
        if !has_policies && !outside.has_other_limits {
            report_missing(top);
        }
        let Policies { set: policies, candidates, keys_shown, escalations, addresses, warnings } =
            self.limits.build(top, auth.address_attributes());
        observe.keys_shown = keys_shown;
        observe.webhook = self.webhook.and_then(|webhook| webhook.build(&top.child("webhook")));
        let resp = self.resp.and_then(|resp| resp.build(&top.child("resp")));
        let has_open_port = resp.as_ref().is_some_and(Resp::is_open);
        self.admin.check(&top.child("admin"), outside.tokens.len(), has_open_port);
        let (memory, shared) = self.store.build(&top.child("store"));
        if let Some(shared) = shared.as_ref().filter(|_| top.is_valid_so_far()) {
            try_out(shared, &policies, top);
        } else if shared.is_none() {
            refuse_closed(&policies, top);
        }
        let (tls, socket) = self.server.listener.build(&top.child("server"), true);
        let may_lack_units = !has_policies || outside.has_other_limits;
        let headers = self.headers.build(&top.child("headers"), &policies, may_lack_units);
        Config {
            policies,
            candidates,
            escalations,
            listen: self.server.listen,
            tls,
            socket,
            grpc: self.grpc.map(|grpc| grpc.build(&top.child("grpc"), outside)).unwrap_or_default(),
            shutdown_grace: self.server.shutdown_grace.0,
            drain_delay: self.server.drain_delay.map(|delay| delay.0),
            connections: ConnectionCaps {
                total: self.server.max_connections,
                per_peer: self.server.max_connections_per_peer,
            },
            idle_timeout: self.server.idle_timeout.0,
            memory,
            shared,
            resp,
            address_attributes: addresses,
            warnings,
            headers,
            auth,
            admin: self.admin,
            observe,
            exposed: secret_files::warnings(top, outside),
            file: content,
        }
    }
}

#[cfg(test)]
mod tests {
    use slidegate_http::headers::{Draft, XRateLimit};

    use crate::config::Config;
    use crate::config::tests::parse;
    use crate::listener::ConnectionCaps;

    /// A setting that is ignored goes unnoticed until an incident.
    #[test]
    fn every_setting_arrives() {
        let text = "
server: {listen: '[::1]:80', shutdown_grace: 1m30s, max_connections: 9, max_connections_per_peer: 3, idle_timeout: 5s, drain_delay: 0s}
store: {memory: {max_keys: 200_000, max_bytes: 512 MiB, snapshot: {path: /var/lib/sg, interval: 5s}}}
attributes: {addresses: [ip, proxy]}
headers: {draft: draft-7, x_ratelimit: delta, retry_after: false, retry_after_ms: true}";
        let config = parse(text);
        assert_eq!((config.listen.to_string().as_str(), config.shutdown_grace.as_secs()), ("[::1]:80", 90));
        assert_eq!(config.drain_delay, Some(std::time::Duration::ZERO));
        assert_eq!(config.connections, ConnectionCaps { total: 9, per_peer: 3 });
        assert_eq!(config.idle_timeout.as_secs(), 5);
        assert_eq!((config.memory.max_keys, config.memory.max_bytes), (Some(200_000), Some(512 << 20)));
        let snapshot = config.memory.snapshot.clone().unwrap();
        assert_eq!((snapshot.path.to_str(), snapshot.interval.0.as_secs()), (Some("/var/lib/sg"), 5));
        let bare = "store: {memory: {max_bytes: 1048576, snapshot: {path: x}}}";
        let bare = parse(bare).memory;
        assert_eq!((bare.max_keys, bare.max_bytes), (None, Some(1 << 20)));
        assert_eq!(bare.snapshot.unwrap().interval.0.as_secs(), 60);
        assert!(config.is_address("proxy"));
        assert_eq!(
            (config.headers.draft, config.headers.x_ratelimit),
            (Draft::Draft7, XRateLimit::DeltaSeconds)
        );
        assert!(!config.headers.retry_after && config.headers.retry_after_ms);
        let text = "headers: {draft: off, x_ratelimit: OFF}\nserver:\nstore: {memory: }\n";
        let config = parse(text);
        assert_eq!((config.headers.draft, config.headers.x_ratelimit), (Draft::Off, XRateLimit::Off));
    }

    /// Clients that miss the fields they wait by retry at once.
    #[test]
    fn styles_with_units_need_a_policy_with_a_unit() {
        for (name, style) in [("openai", XRateLimit::OpenAi), ("anthropic", XRateLimit::Anthropic)] {
            let headers = format!("headers: {{x_ratelimit: {name}}}\n");
            let with_unit = format!("{headers}policies: [{{name: p, quota: 5/1m, unit: tokens}}]");
            let config = Config::parse(&with_unit, "slidegate.yaml").unwrap();
            assert_eq!(config.headers.x_ratelimit, style);
        }
    }
}
