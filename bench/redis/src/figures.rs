//! Aggregates the figures of several rounds.

/// The median; NaN if empty.
pub(crate) fn median(figures: impl IntoIterator<Item = f64>) -> f64 {
    let mut sorted: Vec<f64> = figures.into_iter().collect();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => f64::NAN,
        n if n.is_multiple_of(2) => f64::midpoint(sorted[middle - 1], sorted[middle]),
        _ => sorted[middle],
    }
}

/// The median of the ratios of `ours` to `theirs`, round by round.
pub(crate) fn ratio(ours: impl IntoIterator<Item = f64>, theirs: impl IntoIterator<Item = f64>) -> f64 {
    median(ours.into_iter().zip(theirs).map(|(ours, theirs)| ours / theirs))
}

/// A count as a float.
#[allow(clippy::cast_precision_loss)]
pub(crate) fn float(count: u64) -> f64 {
    count as f64
}
