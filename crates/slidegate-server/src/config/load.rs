//! Loads the config from a file or a text.

use std::fs::File;
use std::io::Read;
use std::net::SocketAddr;
use std::path::Path;

use lined_config::{ConfigErrors, Document, Excerpt, Node, Position, Value, defaults_in};
use ring::digest::{SHA256, digest};
use serde_json::Value as Json;
use slidegate_config::policies::MINIMAL;

use super::environment::{LISTEN_VARIABLE, Outside, check_names, variable};
use super::schema::schema;
use super::values::ADDRESS;
use super::{Config, FileContent, Preset, flag, secret_files, sections};

/// The default address of the HTTP interface, as in the schema.
const DEFAULT_LISTEN: &str = "127.0.0.1:7979";

impl Config {
    /// Reads a file or preset, and `--policy` texts, whose policies follow. Without any, and without
    /// other limits, there is a default policy.
    pub(crate) fn from_sources(
        file: Option<&Path>,
        texts: &[String],
        outside: &Outside,
    ) -> Result<Self, ConfigErrors> {
        let config = match (file, outside.preset.map(Preset::file)) {
            (Some(file), _) => Self::load(file, outside)?,
            (None, Some((name, text))) => Self::parse_with(text, &format!("preset {name}"), outside)?,
            (None, None) if texts.is_empty() && !outside.has_other_limits => {
                Self::parse_with(MINIMAL, "default", outside)?
            }
            (None, None) => {
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
        let (text, name) = (read(path)?, path.display().to_string());
        let mut config = Self::parse_with(&text, &name, outside)?;
        config.exposed.extend(secret_files::inline(path, &Document::parse(&text, &name)?.root));
        Ok(config)
    }

    /// Reads a text without the environment. `name` begins errors.
    pub(crate) fn parse(text: &str, name: &str) -> Result<Self, ConfigErrors> {
        Self::parse_with(text, name, &Outside::default())
    }

    /// Reads a text. `name` begins errors.
    pub(super) fn parse_with(text: &str, name: &str, outside: &Outside) -> Result<Self, ConfigErrors> {
        let document = Document::parse(text, name)?;
        if let (Some(domain), Some(_)) = (document.root.get("domain"), document.root.get("descriptors")) {
            let message = format!(
                "this is a file of envoyproxy/ratelimit; give its folder as `--envoy-config`; write for example `{MINIMAL}`"
            );
            return Err(ConfigErrors::at(name, domain.position, message));
        }
        if let Some(Node { value: Value::Null, is_rejected, .. }) = document.root.get("policies") {
            // Valid if there are other limits.
            is_rejected.set(outside.has_other_limits);
        }
        let change = |json: &mut Json| apply(outside, json);
        document.read(schema(), change, |file: sections::File, json, top| {
            file.build(top, outside, FileContent { json, hash: sha256(text) })
        })
    }
}

/// Overrides the validated JSON of a file with the command line and the environment.
fn apply(outside: &Outside, file: &mut Json) {
    for (path, value) in &outside.settings {
        let (section, key) = path.rsplit_once('/').expect("a path has a section");
        // Only an address, a URL or a path creates a section; other keys need an existing one.
        let creates = matches!(key, "redis" | "endpoint" | "path") || *path == "/resp/listen";
        if file.pointer(section).is_none() && creates {
            let parts: Vec<_> = section.split('/').skip(1).collect();
            let schema = parts.iter().fold(&schema().json, |schema, part| &schema["properties"][part]);
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

/// Reads a file, at most one byte more than is allowed.
fn read(path: &Path) -> Result<String, ConfigErrors> {
    let name = path.display().to_string();
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| file.take(Document::MAX_BYTES as u64 + 1).read_to_end(&mut bytes))
        .map_err(|error| {
            let message = format!("cannot be read: {error}; check the path and its permissions");
            ConfigErrors::one(&name, message)
        })?;
    String::from_utf8(bytes).map_err(|error| {
        let good = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let lines = good.iter().filter(|byte| **byte == b'\n').count() as u64;
        let position = Position { line: 1 + lines, column: 1 };
        ConfigErrors::at(&name, position, "this line is not UTF-8; save the file in that encoding")
    })
}

/// A file to start from: the default policy, and all other keys with their defaults as comments.
pub(crate) fn starting_file() -> String {
    // A symbolic link, because the package has no `docs`.
    const EXAMPLE: &str = include_str!("../../slidegate.example.yaml");
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

/// The HTTP address of a service with this file, from the environment, the file or the default. The
/// rest of the file may be invalid.
///
/// # Errors
/// The file is not readable YAML, the address is invalid, or a variable is unknown.
pub(crate) fn http_address(file: Option<&Path>) -> Result<SocketAddr, ConfigErrors> {
    check_names()?;
    let (place, text) = match variable(LISTEN_VARIABLE)? {
        Some(text) => (LISTEN_VARIABLE.to_owned(), text),
        None => http_setting(file, "listen")?.unwrap_or_else(|| (String::new(), DEFAULT_LISTEN.to_owned())),
    };
    text.parse().map_err(|_| {
        let message = format!("invalid listen `{}`: must be {}", Excerpt(&text), ADDRESS.expected);
        ConfigErrors::one(place, message)
    })
}

/// The place and the text of a key of the section `server`. The rest of the file may be invalid.
pub(crate) fn http_setting(file: Option<&Path>, key: &str) -> Result<Option<(String, String)>, ConfigErrors> {
    let Some(path) = file else { return Ok(None) };
    let name = path.display().to_string();
    let document = Document::parse(&read(path)?, &name)?;
    let node = document.root.get("server").and_then(|server| server.get(key));
    let text =
        |node: &Node| Some((format!("{name}:{}: server", node.position.line), node.scalar()?.to_owned()));
    Ok(node.and_then(text))
}

/// The SHA-256 of a text, in hexadecimal digits.
fn sha256(text: &str) -> String {
    digest(&SHA256, text.as_bytes()).as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The starting file must mean the same as no file.
    #[test]
    fn the_file_to_start_from_is_the_default_configuration() {
        use crate::config::{Storage, describe};
        let text = starting_file();
        let (file, default) = (Config::parse(&text, "f").unwrap(), crate::config::tests::default());
        let described = |config: &Config| -> Vec<_> {
            config.policies.iter().map(|policy| describe(policy, Storage::Memory)).collect()
        };
        assert_eq!(described(&file), described(&default));
        assert_eq!((file.listen, file.shared.is_some()), (default.listen, false));
        assert!(
            text.contains("# webhook:\n#   url: ") && text.contains("# observe:\n#   metrics: true"),
            "{text}"
        );
    }
}
