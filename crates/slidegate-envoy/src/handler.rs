//! The handler of calls: makes requests of a call, decides them in one step, and encodes the
//! decisions.
//!
//! All descriptors of a call are decided together: either each of them is charged or none, so a
//! denied descriptor charges nothing on another.

mod denial;
mod kuadrant;
mod metadata;
mod record;
mod request;
mod response;
mod status;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use slidegate::headers::HeaderOptions;
use slidegate::{Decisions, PolicyDecision, Reason, Role, Verb};
use tonic::Status;

use crate::config::{EnvoyConfig, LiveConfig};
use crate::grpc_settings::GrpcSettings;
use crate::host::Host;
use crate::message::{CallMessage, EncodedResponse};
use crate::settings::Settings;
use record::Recorded;
use request::{Asks, Batch, Requests};
use response::{Additions, Response, header};

pub(crate) use request::has_refund;

/// Handles calls, of gRPC and of `/json`.
#[derive(Debug)]
pub struct RateLimitHandler<H> {
    host: Arc<H>,
    /// Whether every response has the configured headers.
    response_headers: bool,
    /// Whether health follows the shared store.
    health_follows_store: bool,
    /// Config files of envoyproxy/ratelimit. Without them, the policies of the service decide.
    files: Option<ConfigFiles>,
}

/// Config files of envoyproxy/ratelimit, and the settings for replacing it.
#[derive(Debug)]
pub struct ConfigFiles {
    /// The running config.
    pub live: LiveConfig,
    /// The settings.
    pub settings: Settings,
}

impl<H: Host> RateLimitHandler<H> {
    /// A handler over `host`; `files` replace its policies for calls.
    pub fn new(host: Arc<H>, settings: &GrpcSettings, files: Option<ConfigFiles>) -> Self {
        let &GrpcSettings { response_headers, health_follows_store, .. } = settings;
        Self { host, response_headers, health_follows_store, files }
    }

    pub(crate) fn host(&self) -> &H {
        &self.host
    }

    /// The config files, if any.
    pub(crate) fn files(&self) -> Option<&ConfigFiles> {
        self.files.as_ref()
    }

    /// Whether proxies should use this instance. An unavailable shared store counts only if
    /// configured, because policies have fallbacks: if all instances reported unhealthy, nothing
    /// would be limited.
    pub fn is_healthy(&self) -> bool {
        let has_domains = |config: Arc<EnvoyConfig>| config.has_domains();
        let is_configured = self.files.as_ref().is_none_or(|files| {
            !files.settings.needs_a_domain || files.live.current().is_some_and(has_domains)
        });
        is_configured && !(self.health_follows_store && self.host.is_degraded())
    }

    /// Decides a call: all of its descriptors are charged, or none.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` for a malformed call, `UNAVAILABLE` without a config or during a reload.
    pub(crate) async fn should_rate_limit(
        &self,
        call: &CallMessage,
        caller: &H::Caller,
    ) -> Result<EncodedResponse, Status> {
        self.counted(self.decide(call, caller, Asks::AsSaid)).await
    }

    /// The config that decides, if there are files. Hold it until the call is decided: a reload
    /// removes no policy before.
    ///
    /// # Errors
    /// `UNAVAILABLE` if none is loaded yet.
    fn config(&self, domain: &str) -> Result<Option<Arc<EnvoyConfig>>, Status> {
        let Some(files) = &self.files else { return Ok(None) };
        let no_config = || Status::unavailable("no rate limit configuration loaded");
        let config = files.live.current().ok_or_else(no_config)?;
        if !config.has_domain(domain) {
            files.live.statistics().record_unknown_domain(domain);
        }
        Ok(Some(config))
    }

    async fn decide(
        &self,
        call: &CallMessage,
        caller: &H::Caller,
        asks: Asks,
    ) -> Result<EncodedResponse, Status> {
        request::validate(call)?;
        let files = self.files.as_ref();
        let config = self.config(call.domain())?;
        let settings = files.map(|files| &files.settings);
        let targets = request::targets(config.as_deref(), call, asks)?;
        let mut requests = Requests::new();
        let batch = Batch::new(&*self.host, call, &targets, settings, asks, &mut requests)?;
        let mut decisions = self.host.decide(caller, &requests).await;
        removed_meanwhile(&decisions)?;
        let is_report = matches!(asks, Asks::Report(_));
        let is_lost = |one: PolicyDecision<'_>| one.reason() == Some(Reason::StoreUnavailable);
        if is_report && decisions.iter().any(is_lost) {
            return Err(Status::unavailable("the hits are not charged: the shared store is unavailable"));
        }

        let response = Response::new(&batch, &decisions);
        if let Some(files) = files {
            let recorded = if asks == Asks::Check { Recorded::Denied } else { Recorded::All };
            record::statistics(files.live.statistics(), &batch, &decisions, recorded);
        }
        let is_shadow = settings.is_some_and(|settings| settings.shadow_mode);
        let is_overruled = is_shadow || is_report;
        if let Some(files) = files.filter(|_| is_shadow && response.is_denied()) {
            files.live.statistics().calls().global_shadow_mode.fetch_add(1, Relaxed);
        }
        let names = settings.and_then(|settings| settings.headers.as_ref());
        let mut headers = names.map_or_else(Vec::new, |names| response.three_headers(names, !is_overruled));
        let mut metadata = None;
        let mut raw_body = None;
        let mut retry_after = Vec::new();
        if !is_overruled {
            metadata = response.denial_metadata(&*self.host);
            raw_body = response.store_unavailable_body();
            retry_after = response.retry_after(self.host.headers());
        }
        if settings.is_some_and(|settings| settings.dynamic_metadata) {
            let of_call = metadata::of_call(call, &targets, response.statuses());
            metadata.get_or_insert_default().fields.extend(of_call.fields);
        }
        let encoded = response.encode(is_overruled);
        if self.response_headers && names.is_none() && !is_overruled {
            // The headers describe the peeks if one of them denies, otherwise the checks.
            let is_denied_by_peek = decisions.iter().any(|one| {
                one.verb() == Verb::Peek
                    && one.role() == Role::Deciding
                    && one.is_denied()
                    && one.policy().is_enforced()
            });
            let shown = if is_denied_by_peek || asks == Asks::Check { Verb::Peek } else { Verb::Check };
            decisions.retain(|one| one.verb() == shown && one.role() == Role::Deciding);
            // Waits are those of the whole response.
            let options = HeaderOptions { retry_after: false, retry_after_ms: false, ..*self.host.headers() };
            let fields = options.headers(&decisions).into_iter();
            headers.extend(fields.map(|(name, value)| header(name, value)));
        }
        headers.extend(retry_after);
        Ok(Additions { headers, metadata, raw_body }.add_to(encoded))
    }
}

/// Whether a policy was removed between the lookup and the decision.
///
/// # Errors
/// `UNAVAILABLE`.
pub fn removed_meanwhile(decisions: &Decisions<'_>) -> Result<(), Status> {
    let Some(error) = decisions.error() else { return Ok(()) };
    Err(Status::unavailable(format!("{error}; the limits are being reloaded, retry the call")))
}
