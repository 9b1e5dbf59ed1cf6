//! A whole config: its values with their lines, and its name for errors.

use serde::de::DeserializeOwned;
use serde_json::Value as Json;

use crate::errors::{ConfigErrors, Findings};
use crate::schema::Schema;
use crate::section::Section;
use crate::yaml::{Node, YamlFormat};

/// A parsed config, not yet validated.
#[derive(Debug)]
pub struct Document {
    /// The values. Values that are removed are not validated.
    pub root: Node,
    /// The name that begins errors; `None` if values have no lines.
    name: Option<String>,
}

impl Document {
    /// Largest text that is parsed, in bytes.
    pub const MAX_BYTES: usize = 4 << 20;

    /// YAML 1.2, which includes JSON. 100,000 keys with a value each fit.
    pub const FORMAT: YamlFormat =
        YamlFormat { is_yaml_1_1: false, max_depth: 24, max_values: 250_000, max_aliases: 2048 };

    /// Parses a text. `name` begins every line of errors.
    ///
    /// # Errors
    /// The text is larger than [`MAX_BYTES`](Self::MAX_BYTES), or not of this
    /// [`FORMAT`](Self::FORMAT).
    pub fn parse(text: &str, name: &str) -> Result<Self, ConfigErrors> {
        if text.len() > Self::MAX_BYTES {
            let message = format!(
                "larger than {} bytes, which is the most; leave out what is not needed",
                Self::MAX_BYTES
            );
            return Err(ConfigErrors::one(name, message));
        }
        let root = Self::FORMAT.read(text);
        let root = root.map_err(|error| ConfigErrors::at_character(name, error.position, error.message))?;
        Ok(Self { root, name: Some(name.to_owned()) })
    }

    /// Validates the document, reads it as a `T` and returns what `build` makes of it.
    ///
    /// `change` may edit the valid values, to which defaults were added. `build` may report more
    /// mistakes. It also runs after mistakes, unless a required key is missing.
    ///
    /// # Errors
    /// The first 20 mistakes, in the order of the file.
    ///
    /// # Panics
    /// Never: a document without mistakes was read.
    pub fn read<T: DeserializeOwned, U>(
        &self,
        schema: &Schema,
        change: impl FnOnce(&mut Json),
        build: impl FnOnce(T, Json, &Section<'_>) -> U,
    ) -> Result<U, ConfigErrors> {
        let findings = Findings::default();
        let top = Section::new(&self.root, String::new(), &findings);
        let built = top.read(schema, change).map(|(value, json)| build(value, json, &top));
        findings.none_or_errors(self.name.as_deref())?;
        Ok(built.expect("a document without mistakes was read"))
    }
}

/// A value from the program. Its errors have no lines.
impl From<&Json> for Document {
    fn from(json: &Json) -> Self {
        Self { root: json.into(), name: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, serde::Deserialize, schemars::JsonSchema)]
    #[schemars(extend("additionalProperties" = false))]
    struct Config {
        #[serde(rename = "x")]
        _x: u64,
    }

    fn read(text: &str) -> Result<Config, ConfigErrors> {
        Document::parse(text, "app.yaml")?.read(&Schema::of::<Config>("", &[]), |_| {}, |config, _, _| config)
    }

    /// The only line about a text.
    fn error(text: &str) -> String {
        let errors = read(text).unwrap_err();
        assert_eq!(errors.lines().len(), 1, "{errors}");
        errors.to_string()
    }

    fn values(text: &str) -> Vec<(u64, String)> {
        let root = Document::FORMAT.read(text).unwrap_or_else(|error| panic!("{error:?}"));
        let shown = |node: &Node| node.scalar().unwrap_or("(empty)").to_owned();
        root.entries().iter().map(|(_, value)| (value.position.line, shown(value))).collect()
    }

    /// An error that shows another number than was written sends its reader to the wrong place.
    #[test]
    fn numbers_and_flags_stay_as_they_were_written() {
        let text = "a: 1_000\nb: 007\nc: 0x1F\nd: 1e3\ne: -5\nf: 18446744073709551616\ng: True\nh: 1.10\n";
        let written = ["1_000", "007", "0x1F", "1e3", "-5", "18446744073709551616", "True", "1.10"];
        for ((line, value), (at, written)) in values(text).iter().zip(written.iter().enumerate()) {
            assert_eq!((*line, value.as_str()), (at as u64 + 1, *written));
        }
        let text = "a: \"5\"\nb: yes\nc: off\nd: NO\ne: .inf\nf: 12:30\ng: !!str 5\nh:\n";
        let shown = ["5", "yes", "off", "NO", ".inf", "12:30", "5", "(empty)"];
        assert_eq!(values(text).iter().map(|(_, value)| value.as_str()).collect::<Vec<_>>(), shown);
    }

    /// Values that share an anchor are corrected where they stand.
    #[test]
    fn what_an_alias_repeats_has_its_line_and_its_text() {
        assert_eq!(values("a: &x 1_0\n\nb: *x\n"), [(1, "1_0".to_owned()), (3, "1_0".to_owned())]);
        let root = Document::FORMAT.read("a: &x {limit: 5}\nb:\n  <<: *x\n  name: n\n").unwrap();
        let limit = root.get("b").and_then(|b| b.get("limit")).unwrap();
        assert_eq!((limit.position.line, limit.scalar()), (3, Some("5")));
    }

    /// A config may come from anyone who may edit it, and must not take the program down.
    #[test]
    fn bombs_are_refused_before_they_go_off() {
        let deep = "lists and maps nest deeper than 24; nest fewer";
        let much = "the file is too large: at most 250000 values, 2048 aliases and 8388608 bytes of text are allowed, \
                    including repetitions by aliases; write less or repeat less";
        let nested: String = (0..2000).map(|n| format!("{}a:\n", " ".repeat(n))).collect();
        let laughs = (1..12).fold("a0: &a0 [x]\n".to_owned(), |text, n| {
            text + &format!("a{n}: &a{n} [{}]\n", vec![format!("*a{}", n - 1); 10].join(", "))
        });
        let merges = (1..22).fold("a0: &a0 {x0: 1}\n".to_owned(), |text, n| {
            text + &format!("a{n}: &a{n} {{<<: [*a{0}, *a{0}], x{n}: 1}}\n", n - 1)
        });
        let long = format!("a: &a [{}]\nb: [{}]\n", "x, ".repeat(2000), "*a, ".repeat(2000));
        let copies =
            format!("a: &a [{}]\nb: [{}]\n", format!("{:x<1000}, ", "").repeat(1000), "*a, ".repeat(200));
        for (bomb, expected) in [
            ("[".repeat(4 << 20), deep),
            ("{a: ".repeat(1 << 20), deep),
            ("- ".repeat(2 << 20), deep),
            (nested, deep),
            (laughs, much),
            (merges, much),
            (long, much),
            (copies, much),
            ("- a\n".repeat(Document::FORMAT.max_values), much),
        ] {
            let error = error(&bomb);
            assert!(error.starts_with("app.yaml:") && error.ends_with(&format!(": {expected}")), "{error}");
        }
        for bomb in ["\0", "\"", "!", ":", "&a ", "? ", "#\n", "---\n", "a\n", "\n", " ", "|", "'", "%"] {
            assert!(read(&bomb.repeat((1 << 20) / bomb.len())).is_err(), "{bomb:?}");
        }
    }

    /// Errors repeat what was written, and must stay readable.
    #[test]
    fn a_long_text_is_refused_and_a_longish_one_is_cut() {
        let long = "x".repeat(1025);
        let way_out = "a text of 1025 bytes is too long; at most 1024 are allowed";
        assert_eq!(error(&format!("a:\n  b: [{long}]\n")), format!("app.yaml:2:7: {way_out}"));
        assert_eq!(error(&format!("a:\n  ? {long}\n  : 1\n")).split_once(": ").unwrap().1, way_out);
        let cut = format!("unknown key `{}...`: must be", "x".repeat(60));
        assert!(error(&format!("x: 1\n? {}\n: 1\n", "x".repeat(1000))).contains(&cut));
    }
}
