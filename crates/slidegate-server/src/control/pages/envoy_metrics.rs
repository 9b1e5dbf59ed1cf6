//! The statistics of envoyproxy/ratelimit, with the metric names and labels of its Prometheus
//! exporter.
//!
//! The names lack the suffix `_total` that `OpenMetrics` requires of counters, and dashboards
//! depend on these names. Their type is therefore `unknown`, which Prometheus treats the same.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;

use crate::engine::App;
use crate::envoy::{HitCounter, LiveConfig};
use crate::record::policy_counters::OTHERS;

/// Maximum label sets, with six series each. Other limits are summed under [`OTHERS`].
const MAX_SETS: usize = 2000;

/// Metrics exported while envoyproxy/ratelimit files are used.
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
        let help = "Calls with an unknown domain";
        samples(&mut encoder, "ratelimit_service_rate_limit_domain_not_found", help, domains)?;

        let calls = live.statistics().calls();
        let one = |count: &std::sync::atomic::AtomicU64| count.load(Relaxed);
        let total = [(vec![("grpc_method", "ShouldRateLimit")], one(&calls.total))];
        samples(&mut encoder, "ratelimit_service_total_requests", "Calls", total)?;
        let errors = [
            (vec![("err_type", "service_error")], one(&calls.service_errors)),
            (vec![("err_type", "redis_error")], one(&calls.redis_errors)),
        ];
        let help = "Malformed calls, and calls decided by fallbacks because the shared store was unavailable";
        samples(&mut encoder, "ratelimit_service_should_rate_limit_error", help, errors)?;
        let shadow = [(Vec::new(), one(&calls.global_shadow_mode))];
        let help = "Calls that would be over the limit without SHADOW_MODE";
        samples(&mut encoder, "ratelimit_service_global_shadow_mode", help, shadow)?;
        let [succeeded, failed] = live.loads();
        let (name, help) = ("ratelimit_service_config_load_success", "Successful loads of the files");
        samples(&mut encoder, name, help, [(Vec::new(), succeeded)])?;
        let (name, help) = ("ratelimit_service_config_load_error", "Failed loads of the files");
        samples(&mut encoder, name, help, [(Vec::new(), failed)])?;
        Ok(())
    }
}

/// The counters of each limit with hits, by domain and the first two keys of its path.
fn limits(encoder: &mut DescriptorEncoder<'_>, live: &LiveConfig) -> fmt::Result {
    let all = live.statistics().all();
    let mut sets: BTreeMap<[&str; 3], [u64; HitCounter::ALL.len()]> = BTreeMap::new();
    for named in all.iter().filter(|named| named.counters.get(HitCounter::TotalHits) > 0) {
        let labels = named.key.labels();
        let has_room = sets.len() < MAX_SETS || sets.contains_key(&labels);
        let sums = sets.entry(if has_room { labels } else { [OTHERS, OTHERS, ""] }).or_default();
        for (sum, (count, ..)) in sums.iter_mut().zip(HitCounter::ALL) {
            *sum += named.counters.get(count);
        }
    }
    for (at, (_, name, help)) in HitCounter::ALL.into_iter().enumerate() {
        let name = format!("ratelimit_service_rate_limit_{name}");
        let of_set = sets.iter().map(|([domain, first, second], sums)| {
            let labels = [("domain", *domain), ("key1", *first), ("key2", *second)];
            (labels.into_iter().filter(|(_, value)| !value.is_empty()).collect(), sums[at])
        });
        samples(encoder, &name, help, of_set)?;
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
