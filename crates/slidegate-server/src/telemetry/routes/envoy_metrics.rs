//! The statistics of envoyproxy/ratelimit, named and labelled as its Prometheus has them.
//!
//! Their names lack the `_total` that counters have to end in, and dashboards ask for them as they are: so their type is
//! told as unknown, which Prometheus treats alike.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;

use crate::app::App;
use slidegate_envoy::{HitCounter, LiveConfig};

/// The label of what has no series of its own. No policy can have this name.
pub(super) const OTHERS: &str = "~others";
/// Most sets of labels, each with six series. Hits on all other limits are under [`OTHERS`] together.
const MAX_SETS: usize = 2000;

/// What is counted while files of the reference are followed.
#[derive(Debug)]
pub(super) struct EnvoyMetrics(pub(super) Arc<App>);

impl Collector for EnvoyMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Some(live) = self.0.observer().files.get() else { return Ok(()) };
        limits(&mut encoder, live)?;
        let domains = live.statistics().unknown_domains();
        let domains = domains.iter().map(|(domain, count)| {
            let domain = if domain.is_empty() { OTHERS } else { domain };
            (vec![("domain", domain)], *count)
        });
        let help = "Calls for a domain that no file has";
        samples(&mut encoder, "ratelimit_service_rate_limit_domain_not_found", help, domains)?;

        let calls = live.statistics().calls();
        let one = |count: &std::sync::atomic::AtomicU64| count.load(Relaxed);
        let total = [(vec![("grpc_method", "ShouldRateLimit")], one(&calls.total))];
        samples(&mut encoder, "ratelimit_service_total_requests", "Calls", total)?;
        let errors = [
            (vec![("err_type", "service_error")], one(&calls.service_errors)),
            (vec![("err_type", "redis_error")], one(&calls.redis_errors)),
        ];
        let help =
            "Calls that were none, and calls that fallbacks decided since the shared store did not answer";
        samples(&mut encoder, "ratelimit_service_should_rate_limit_error", help, errors)?;
        let shadow = [(Vec::new(), one(&calls.global_shadow_mode))];
        let help = "Calls that would have been over their limits without SHADOW_MODE";
        samples(&mut encoder, "ratelimit_service_global_shadow_mode", help, shadow)?;
        for (name, help, count) in [
            (
                "ratelimit_service_config_load_success",
                "How often files were taken in",
                live.loads_succeeded(),
            ),
            ("ratelimit_service_config_load_error", "How often files were refused", live.loads_failed()),
        ] {
            samples(&mut encoder, name, help, [(Vec::new(), count)])?;
        }
        Ok(())
    }
}

/// The counters of each limit that was ever hit, by its domain and the first two keys on the way to it.
fn limits(encoder: &mut DescriptorEncoder<'_>, live: &LiveConfig) -> fmt::Result {
    let all = live.statistics().all();
    let mut sets: BTreeMap<[&str; 3], [u64; HitCounter::ALL.len()]> = BTreeMap::new();
    for named in all.iter().filter(|named| named.counters.get(HitCounter::TotalHits) > 0) {
        let labels = named.key.labels();
        let has_room = sets.len() < MAX_SETS || sets.contains_key(&labels);
        let sums = sets.entry(if has_room { labels } else { [OTHERS, OTHERS, ""] }).or_default();
        for (sum, count) in sums.iter_mut().zip(HitCounter::ALL) {
            *sum += named.counters.get(count);
        }
    }
    for (at, count) in HitCounter::ALL.into_iter().enumerate() {
        let name = format!("ratelimit_service_rate_limit_{}", count.name());
        let of_set = sets.iter().map(|([domain, first, second], sums)| {
            let labels = [("domain", *domain), ("key1", *first), ("key2", *second)];
            (labels.into_iter().filter(|(_, value)| !value.is_empty()).collect(), sums[at])
        });
        samples(encoder, &name, count.help(), of_set)?;
    }
    Ok(())
}

fn samples<'l>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    samples: impl IntoIterator<Item = (Vec<(&'l str, &'l str)>, u64)>,
) -> fmt::Result {
    let mut encoder = encoder.encode_descriptor(name, help, None, MetricType::Unknown)?;
    for (labels, count) in samples {
        if labels.is_empty() {
            encoder.encode_gauge(&count)?;
        } else {
            encoder.encode_family(&labels)?.encode_gauge(&count)?;
        }
    }
    Ok(())
}
