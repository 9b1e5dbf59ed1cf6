//! `record:` the file in which the service records what it decides on, for `slidegate replay`.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Deserialize;
use slidegate_config::values::Parsed;

use super::values::{ByteSize, bytes};

/// The file in which the service records what it decides on.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("x-example" = "path: /var/lib/slidegate/requests.jsonl"))]
pub(crate) struct Record {
    /// The file. Its directory must exist and be writable. Older files have `.1`, `.2` and so on
    /// added to their names.
    #[schemars(extend("format" = "new-file"))]
    pub(crate) path: PathBuf,
    /// Most bytes of one file, at least 1 MiB.
    #[serde(deserialize_with = "bytes")]
    #[schemars(with = "Parsed<ByteSize>", extend("default" = "256MiB"))]
    pub(crate) max_bytes: u64,
    /// Most files, with the one being written. The oldest is deleted.
    #[schemars(range(min = 1, max = 1000), extend("default" = 8))]
    pub(crate) files: usize,
    /// The share of keys whose requests are recorded, 0 to 1. All requests of a key are recorded,
    /// or none.
    #[schemars(range(min = 0, max = 1), extend("default" = 1))]
    pub(crate) sample: f64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tests::parse;

    /// A recording that fills another disk, or none, is found out when it is needed.
    #[test]
    fn every_setting_arrives() {
        let read = |text: &str| parse(text).record;
        assert_eq!(read(""), None);
        let bare = read("record: {path: a.jsonl}").unwrap();
        assert_eq!(bare, Record { path: "a.jsonl".into(), max_bytes: 256 << 20, files: 8, sample: 1.0 });
        let full = read("record: {path: /v/a, max_bytes: 2 MiB, files: 3, sample: 0.25}").unwrap();
        assert_eq!(full, Record { path: "/v/a".into(), max_bytes: 2 << 20, files: 3, sample: 0.25 });
    }
}
