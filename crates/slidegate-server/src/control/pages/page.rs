//! Writes metrics of each kind, with their descriptions.

use std::fmt;

use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;

use crate::record::histogram::Reading;

/// A metrics page being written.
pub(super) struct Page<'e>(pub(super) DescriptorEncoder<'e>);

impl Page<'_> {
    /// An info metric: a constant in a label; `_info` is added to its name.
    pub(super) fn info<const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        labels: [(&str, &str); N],
    ) -> fmt::Result {
        self.0.encode_descriptor(name, help, None, MetricType::Info)?.encode_info(&labels)
    }

    /// A counter without labels; `_total` is added to its name.
    pub(super) fn total(&mut self, name: &str, help: &str, count: u64) -> fmt::Result {
        let mut encoder = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        encoder.encode_counter::<NoLabelSet, _, u64>(&count, None)
    }

    /// A gauge without labels.
    pub(super) fn value(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        self.0.encode_descriptor(name, help, None, MetricType::Gauge)?.encode_gauge(&value)
    }

    /// A gauge of seconds without labels; `_seconds` is added to its name.
    pub(super) fn seconds(&mut self, name: &str, help: &str, value: f64) -> fmt::Result {
        self.0.encode_descriptor(name, help, Some(&Unit::Seconds), MetricType::Gauge)?.encode_gauge(&value)
    }

    /// A histogram of seconds without labels; `_seconds` is added to its name.
    pub(super) fn histogram(&mut self, name: &str, help: &str, reading: &Reading) -> fmt::Result {
        let encoder = self.0.encode_descriptor(name, help, Some(&Unit::Seconds), MetricType::Histogram)?;
        reading.encode(encoder)
    }

    /// A counter with labels; `_total` is added to its name.
    pub(super) fn counter<L: EncodeLabelSet>(
        &mut self,
        name: &str,
        help: &str,
        samples: impl IntoIterator<Item = (L, u64)>,
    ) -> fmt::Result {
        self.family((name, help, None, MetricType::Counter), samples, |mut encoder, count| {
            encoder.encode_counter::<NoLabelSet, _, u64>(&count, None)
        })
    }

    /// A gauge with labels.
    pub(super) fn gauge<L: EncodeLabelSet>(
        &mut self,
        name: &str,
        help: &str,
        samples: impl IntoIterator<Item = (L, u64)>,
    ) -> fmt::Result {
        self.family((name, help, None, MetricType::Gauge), samples, |mut encoder, value| {
            encoder.encode_gauge(&value)
        })
    }

    /// Writes the samples of a metric with labels; a unit is added to its name.
    pub(super) fn family<L: EncodeLabelSet, V>(
        &mut self,
        (name, help, unit, kind): (&str, &str, Option<&Unit>, MetricType),
        samples: impl IntoIterator<Item = (L, V)>,
        encode: impl Fn(MetricEncoder<'_>, V) -> fmt::Result,
    ) -> fmt::Result {
        let mut encoder = self.0.encode_descriptor(name, help, unit, kind)?;
        samples.into_iter().try_for_each(|(labels, value)| encode(encoder.encode_family(&labels)?, value))
    }
}

impl Reading {
    pub(super) fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        encoder.encode_histogram::<NoLabelSet>(self.sum, self.count, &self.buckets, None)
    }
}
