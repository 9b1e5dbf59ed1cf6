//! Reports: an outcome as text for a terminal, JSON, a page for a browser, and Markdown.

mod charts;
pub(crate) mod diff;
mod html;
mod json;
mod markup;
mod text;

pub use diff::{ChangedKey, DiffOutcome, DiffPolicy, DiffPolicySide, DiffReport, Threshold, Thresholds};
pub use html::PageAssets;
pub use text::{TextReport, TextStyle};
