//! `record:` the file in which the service records what it decides on, for `slidegate replay`.

use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::Deserialize;

use super::values::{ByteSize, Form, Parsed, only_if};

/// The file in which the service records what it decides on.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("x-example" = "path: /var/lib/slidegate/requests.jsonl"))]
pub(super) struct RecordSection {
    /// The file. Its directory must exist and be writable. Older files have `.1`, `.2` and so on
    /// added to their names.
    #[schemars(extend("format" = "record-path"))]
    path: String,
    /// Most bytes of one file.
    #[schemars(extend("default" = "256MiB"))]
    max_bytes: Parsed<ByteSize>,
    /// Most files, with the one being written. The oldest is deleted.
    #[schemars(range(min = 1, max = 1000), extend("default" = 8))]
    files: usize,
    /// The share of keys whose requests are recorded, 0 to 1. All requests of a key are recorded,
    /// or none.
    #[schemars(range(min = 0, max = 1), extend("default" = 1))]
    sample: f64,
}

/// Where and how much is recorded.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Record {
    pub(crate) path: PathBuf,
    /// At least one MiB.
    pub(crate) max_bytes: u64,
    /// At least one.
    pub(crate) files: usize,
    /// From 0 to 1.
    pub(crate) sample: f64,
}

impl RecordSection {
    pub(super) fn build(self) -> Record {
        let Self { path, max_bytes, files, sample } = self;
        Record { path: path.into(), max_bytes: max_bytes.0.0 as u64, files, sample }
    }
}

/// The path of a file that is yet to be written.
pub(super) const RECORD_PATH: Form = Form::new(
    "record-path",
    "the path of a file, for example `path: /var/lib/slidegate/requests.jsonl`",
    |path| {
        let names_file = !path.ends_with('/') && Path::new(path).file_name().is_some();
        only_if(names_file && !path.contains('\0'), path)
    },
);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    const POLICIES: &str = "\npolicies: [{name: p, quota: 1/1s}]";

    /// A recording that fills another disk, or none, is found out when it is needed.
    #[test]
    fn every_setting_arrives() {
        let read = |text: &str| Config::parse(&format!("{text}{POLICIES}"), "f").unwrap().record;
        assert_eq!(read(""), None);
        let bare = read("record: {path: a.jsonl}").unwrap();
        assert_eq!(bare, Record { path: "a.jsonl".into(), max_bytes: 256 << 20, files: 8, sample: 1.0 });
        let full = read("record: {path: /v/a, max_bytes: 2 MiB, files: 3, sample: 0.25}").unwrap();
        assert_eq!(full, Record { path: "/v/a".into(), max_bytes: 2 << 20, files: 3, sample: 0.25 });
    }
}
