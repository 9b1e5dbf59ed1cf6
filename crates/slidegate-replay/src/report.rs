//! Reports: an outcome as terminal text, JSON, an HTML page, or Markdown.

mod charts;
pub(crate) mod diff;
mod html;
mod json;
mod markup;
mod text;

pub use diff::{ChangedKey, DiffOutcome, DiffPolicy, DiffPolicySide, DiffReport, Threshold, Thresholds};
pub use html::PageAssets;
pub use text::{TextReport, TextStyle};
