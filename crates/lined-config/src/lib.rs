#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod document;

mod check;
mod schema;
mod section;

mod errors;
mod form;
mod text;
mod words;
mod yaml;

pub use document::Document;
pub use errors::{ConfigErrors, Findings, Mistake};
pub use form::{Form, List, Scalar, only_if};
pub use schema::{Schema, defaults_in, without_null};
pub use section::Section;
pub use text::{Excerpt, one_line, quoted};
pub use words::{element, nearest, plain};
pub use yaml::{Node, Position, SyntaxError, Value, YamlFormat};
