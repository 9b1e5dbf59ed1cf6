//! Loads a configuration from a file or a text, or returns all mistakes in it.

use std::fs::File;
use std::io::Read;
use std::net::SocketAddr;
use std::path::Path;

use super::yaml::{Excerpt, Node, Value, YamlFormat};
use ring::digest::{SHA256, digest};
use serde_json::Value as Json;

use super::environment::{LISTEN_VARIABLE, Outside, variable};
use super::errors::{ConfigErrors, Findings};
use super::foreign::{self, MINIMAL};
use super::schema::{defaults_in, schema};
use super::section::Section;
use super::values::ADDRESS;
use super::{Config, FileContent, check, flag, sections};

/// The default address of the HTTP interface, as in the schema.
const DEFAULT_LISTEN: &str = "127.0.0.1:7979";

/// Largest file that is read: some 100,000 overrides.
pub(super) const MAX_FILE_BYTES: usize = 4 << 20;

/// YAML 1.2. A policy's overrides nest 6 deep; files of other limiters, which are recognised, about
/// 15. 100,000 overrides in 1024 policies fit, each of which may use an alias.
pub(super) const FORMAT: YamlFormat =
    YamlFormat { is_yaml_1_1: false, max_depth: 24, max_values: 250_000, max_aliases: 2048 };

impl Config {
    /// Reads a file and `--policy` texts, whose policies follow those of the file. Without both,
    /// and without other limits, there is a default policy.
    pub(crate) fn from_sources(
        file: Option<&Path>,
        texts: &[String],
        outside: &Outside,
    ) -> Result<Self, ConfigErrors> {
        let config = match file {
            Some(file) => Self::load(file, outside)?,
            None if texts.is_empty() && !outside.has_other_limits => {
                Self::parse_with(MINIMAL, "default", outside)?
            }
            None => {
                let outside = Outside { has_other_limits: true, ..outside.clone() };
                Self::parse_with("", "command line", &outside)?
            }
        };
        outside.check_sharing(config.shared.is_some())?;
        let policies = flag::add(&config.policies, texts)?;
        let hash = if file.is_some() { config.file.hash } else { sha256("") };
        Ok(Self { policies, file: FileContent { hash, ..config.file }, ..config })
    }

    /// Reads a file.
    pub(super) fn load(path: &Path, outside: &Outside) -> Result<Self, ConfigErrors> {
        Self::parse_with(&read(path)?, &path.display().to_string(), outside)
    }

    /// Reads a text without the environment; errors name it `name`.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn parse(text: &str, name: &str) -> Result<Self, ConfigErrors> {
        Self::parse_with(text, name, &Outside::default())
    }

    /// Reads a text; errors name it `name`.
    pub(super) fn parse_with(text: &str, name: &str, outside: &Outside) -> Result<Self, ConfigErrors> {
        let root = values(text, name)?;
        if let Some((line, message)) = foreign::recognise(&root) {
            return Err(ConfigErrors::one(format_args!("{name}:{line}"), message));
        }
        if let Some(Node { value: Value::Null, is_rejected, .. }) = root.get("policies") {
            // Not an error if limits come from elsewhere.
            is_rejected.set(outside.has_other_limits);
        }
        let findings = Findings::default();
        let top = Section::new(&root, String::new(), &findings);
        let read = check::read(&top, schema(), |json| apply(outside, json));
        let config = read.map(|(file, json): (sections::File, _)| {
            file.build(&top, outside, FileContent { json, hash: sha256(text) })
        });
        findings.none_or_errors(name)?;
        Ok(config.expect("a file without mistakes was read"))
    }
}

/// Puts the values of the command line and the environment into the checked JSON of a file.
fn apply(outside: &Outside, file: &mut Json) {
    for (path, value) in &outside.settings {
        let (section, key) = path.rsplit_once('/').expect("a path has a section");
        // Only an address, a URL or a path adds a section; the others need an existing one.
        let creates = matches!(key, "redis" | "endpoint" | "path") || *path == "/resp/listen";
        if file.pointer(section).is_none() && creates {
            let parts: Vec<_> = section.split('/').skip(1).collect();
            let schema = parts.iter().fold(schema(), |schema, part| &schema["properties"][part]);
            let parent = parts.iter().fold(&mut *file, |parent, part| &mut parent[part]);
            *parent = defaults_in(schema).into();
        }
        if let Some(section) = file.pointer_mut(section) {
            section[key] = value.clone();
        }
    }
    if let Some(tokens) = file.pointer_mut("/admin/tokens").and_then(Json::as_array_mut) {
        tokens.extend(outside.tokens.iter().cloned());
    }
}

/// The text of a file. One that is too large is cut after the largest size.
fn read(path: &Path) -> Result<String, ConfigErrors> {
    let name = path.display();
    let mut bytes = Vec::new();
    File::open(path).and_then(|file| file.take(MAX_FILE_BYTES as u64 + 1).read_to_end(&mut bytes)).map_err(
        |error| {
            let message = format!("cannot be read: {error}; check the path and its permissions");
            ConfigErrors::one(&name, message)
        },
    )?;
    String::from_utf8(bytes).map_err(|error| {
        let good = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = 1 + good.iter().filter(|byte| **byte == b'\n').count();
        ConfigErrors::one(
            format_args!("{name}:{line}"),
            "this line is not UTF-8; save the file in that encoding",
        )
    })
}

/// The values of a text; errors name it `name`.
fn values(text: &str, name: &str) -> Result<Node, ConfigErrors> {
    if text.len() > MAX_FILE_BYTES {
        let message =
            format!("larger than {MAX_FILE_BYTES} bytes, which is the most; leave out what is not needed");
        return Err(ConfigErrors::one(name, message));
    }
    FORMAT.read(text).map_err(|error| {
        ConfigErrors::one(format_args!("{name}:{}:{}", error.line, error.column), error.message)
    })
}

/// A file to start from: the default policy, and all other keys with their defaults as comments, as
/// in the example.
pub(crate) fn starting_file() -> String {
    const EXAMPLE: &str = include_str!("../../../../docs/slidegate.example.yaml");
    const DEFAULTS: &str = "# Everything else, with the defaults:\n";
    let defaults = EXAMPLE.split_once(DEFAULTS).map_or("", |(_, defaults)| defaults);
    format!(
        "# The default configuration of slidegate. Commented lines show the defaults of other keys.\n\
         # Check this file with `slidegate validate`, which describes every policy in words.\n\
         \n\
         policies:\n  \
           # Each user may use 100 in any 60 seconds. The default algorithm is the exact sliding log.\n  \
           - name: per-user\n    \
             scope: [user]\n    \
             limit: 100\n    \
             window: 60s\n\n\
         {DEFAULTS}{defaults}"
    )
}

/// The address of the HTTP listener of a service with this file: from the environment, the file or
/// the default. The rest of the file may be invalid.
///
/// # Errors
/// The file is not readable YAML, or the address is invalid.
pub(crate) fn http_address(file: Option<&Path>) -> Result<SocketAddr, ConfigErrors> {
    let (place, text) = match variable(LISTEN_VARIABLE)? {
        Some(text) => (LISTEN_VARIABLE.to_owned(), text),
        None => http_setting(file, "listen")?.unwrap_or_else(|| (String::new(), DEFAULT_LISTEN.to_owned())),
    };
    text.parse().map_err(|_| {
        let message = format!("invalid listen `{}`: must be {}", Excerpt(&text), ADDRESS.expected);
        ConfigErrors::one(place, message)
    })
}

/// The place and the text of a key of the section `server`, whatever else is invalid in the file.
pub(crate) fn http_setting(file: Option<&Path>, key: &str) -> Result<Option<(String, String)>, ConfigErrors> {
    let Some(path) = file else { return Ok(None) };
    let name = path.display().to_string();
    let root = values(&read(path)?, &name)?;
    let node = root.get("server").and_then(|server| server.get(key));
    let text = |node: &Node| Some((format!("{name}:{}: server", node.line), node.scalar()?.to_owned()));
    Ok(node.and_then(text))
}

/// The SHA-256 of a text, in hexadecimal digits.
fn sha256(text: &str) -> String {
    digest(&SHA256, text.as_bytes()).as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tests::error;

    fn values(text: &str) -> Vec<(u64, String)> {
        let root = FORMAT.read(text).unwrap_or_else(|error| panic!("{error:?}"));
        let shown = |node: &Node| node.scalar().unwrap_or("(empty)").to_owned();
        root.entries().iter().map(|(_, value)| (value.line, shown(value))).collect()
    }

    /// A limit that is printed as another number than was written sends its writer looking in the
    /// wrong place.
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

    /// Anyone who starts from the file must have what a service without one has.
    #[test]
    fn the_file_to_start_from_is_the_default_configuration() {
        use crate::config::{Storage, describe};
        let text = starting_file();
        let (file, default) = (Config::parse(&text, "f").unwrap(), crate::config::tests::default());
        let described = |config: &Config| -> Vec<_> {
            config.policies.iter().map(|policy| describe(policy, Storage::Memory)).collect()
        };
        assert_eq!(described(&file), described(&default));
        assert_eq!((file.listen, file.shared.is_some(), &file.record), (default.listen, false, &None));
        assert!(
            text.contains("# record:\n#   path: ") && text.contains("# observe:\n#   metrics: true"),
            "{text}"
        );
    }

    /// Policies that share an anchor are corrected where they stand.
    #[test]
    fn what_an_alias_repeats_has_its_line_and_its_text() {
        assert_eq!(values("a: &x 1_0\n\nb: *x\n"), [(1, "1_0".to_owned()), (3, "1_0".to_owned())]);
        let root = FORMAT.read("a: &x {limit: 5}\nb:\n  <<: *x\n  name: n\n").unwrap();
        let limit = root.get("b").and_then(|b| b.get("limit")).unwrap();
        assert_eq!((limit.line, limit.scalar()), (3, Some("5")));
    }

    /// A configuration may come from anyone who may edit it, and must not take the service down.
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
            ("- a\n".repeat(FORMAT.max_values), much),
        ] {
            let error = error(&bomb);
            assert!(
                error.starts_with("slidegate.yaml:") && error.ends_with(&format!(": {expected}")),
                "{error}"
            );
        }
        for bomb in ["\0", "\"", "!", ":", "&a ", "? ", "#\n", "---\n", "a\n", "\n", " ", "|", "'", "%"] {
            assert!(
                crate::config::Config::parse(&bomb.repeat((1 << 20) / bomb.len()), "").is_err(),
                "{bomb:?}"
            );
        }
    }

    /// Errors repeat what was written, and a line has an end.
    #[test]
    fn a_long_text_is_refused_and_a_longish_one_is_cut() {
        let long = "x".repeat(1025);
        let way_out = "a text of 1025 bytes is too long; at most 1024 are allowed";
        assert_eq!(error(&format!("a:\n  b: [{long}]\n")), format!("slidegate.yaml:2:7: {way_out}"));
        assert_eq!(error(&format!("a:\n  ? {long}\n  : 1\n")).split_once(": ").unwrap().1, way_out);
        let cut = format!("unknown key `{}...`: must be", "x".repeat(60));
        assert!(
            error(&format!("policies: [{{name: p, quota: 1/1s}}]\n? {}\n: 1\n", "x".repeat(1000)))
                .contains(&cut)
        );
    }
}
