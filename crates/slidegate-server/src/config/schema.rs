//! The JSON Schema of the config file.

use std::sync::{LazyLock, OnceLock};

use serde_json::Value;
use slidegate_config::policy::POLICY_FORMS;
use slidegate_config::schema::schema_of;
use slidegate_config::values::{Form, Text};

use super::admin::{HOST, OwnKey, TokenHash};
use super::auth::{AttributeSource, TRUSTED_PROXY};
use super::listener::SocketMode;
use super::resp::{PASSWORD_FILE, Password};
use super::sections::File;
use super::store::{KEY_FILE, READABLE_FILE};
use super::traces::{ENDPOINT, FIELD, HeaderText};
use super::values::{ADDRESS, ByteSize, NEW_FILE, RedisUrl};
use super::webhook;

/// Every form of text.
pub(super) static FORMS: LazyLock<Vec<Form>> = LazyLock::new(|| {
    let own = [
        ADDRESS,
        SocketMode::FORM,
        HOST,
        TRUSTED_PROXY,
        FIELD,
        ENDPOINT,
        READABLE_FILE,
        KEY_FILE,
        PASSWORD_FILE,
        Password::FORM,
        TokenHash::FORM,
        OwnKey::FORM,
        HeaderText::FORM,
        AttributeSource::FORM,
        RedisUrl::FORM,
        ByteSize::FORM,
        NEW_FILE,
        webhook::URL,
        webhook::SECRET,
        webhook::SECRET_FILE,
    ];
    POLICY_FORMS.into_iter().chain(own).collect()
});

/// The schema as `slidegate schema` prints it.
pub(crate) fn published() -> Value {
    let mut schema = slidegate_config::schema::published(schema());
    // A file may lack policies only if limits come from elsewhere.
    schema["required"] = ["policies"].as_slice().into();
    schema
}

/// The schema that files are validated against.
pub(super) fn schema() -> &'static Value {
    static SCHEMA: OnceLock<Value> = OnceLock::new();
    SCHEMA.get_or_init(|| schema_of::<File>("Configuration of slidegate", &FORMS))
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::{published, schema};

    const CHECKED_IN: &str = include_str!("../../../../docs/slidegate.schema.json");
    const EXAMPLE: &str = include_str!("../../../../docs/slidegate.example.yaml");

    /// Editors read the file that is checked in: it must be what this release accepts.
    #[test]
    fn the_schema_that_is_checked_in_is_current() {
        let current = format!("{:#}\n", published());
        if std::env::var_os("UPDATE_SCHEMA").is_some() {
            std::fs::write(
                concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/slidegate.schema.json"),
                &current,
            )
            .unwrap();
        }
        assert!(CHECKED_IN == current, "run `slidegate schema > docs/slidegate.schema.json`");
    }

    fn is_valid(file: &str) -> bool {
        let file: Value = serde_saphyr::from_str(file).unwrap();
        let validator = jsonschema::validator_for(&published()).unwrap();
        validator.is_valid(&file)
    }

    /// Anyone who starts from the example must not see it underlined, and must see mistakes
    /// underlined.
    #[test]
    fn editors_accept_the_example_and_underline_mistakes() {
        assert!(EXAMPLE.starts_with("# yaml-language-server: $schema=slidegate.schema.json\n"));
        assert!(is_valid(EXAMPLE));
        let uncommented: Vec<_> =
            EXAMPLE.lines().skip_while(|line| !line.starts_with("# What proxies send")).skip(1).collect();
        let uncommented: Vec<_> =
            uncommented.iter().map(|line| line.strip_prefix("# ").unwrap_or(line)).collect();
        assert!(is_valid(&format!("policies: [{{name: p, quota: 1/1s}}]\n{}", uncommented.join("\n"))));
        for policy in [
            "{name: p, windw: 1s}",
            "{quota: 1/1s}",
            "{name: p, quota: five}",
            "{name: p, limit: -1, window: 1s}",
            "{name: p, limit: 1, window: 60}",
            "{name: p, quota: 1/1s, algorithm: magic}",
            "{name: p, quota: 1/1s, ipv6_prefix: 16}",
            "{name: p, quota: 1/1s, when: {path: {regex: x}}}",
        ] {
            assert!(!is_valid(&format!("policies: [{policy}]")), "{policy}");
        }
        assert!(!is_valid("server: {}"));
    }

    /// Programs read the policies of a service's file, whatever else it has.
    #[test]
    fn every_section_is_one_of_policies_or_listed_as_one_of_the_service() {
        use slidegate_config::policies::SERVICE_SECTIONS;
        let schema = schema();
        let mut listed: Vec<&str> = ["attributes", "policies"].into_iter().chain(SERVICE_SECTIONS).collect();
        listed.sort_unstable();
        let mut sections: Vec<&String> = schema["properties"].as_object().unwrap().keys().collect();
        sections.sort_unstable();
        assert_eq!(sections, listed);
    }

    /// A key that no document mentions is one that nobody sets.
    #[test]
    fn every_key_is_in_the_reference_and_in_the_example() {
        const REFERENCE: &str = include_str!("../../../../docs/config.md");
        let schema = schema();
        let rows: Vec<_> = REFERENCE.lines().filter(|line| line.starts_with("| `")).collect();
        for (section, known) in schema["properties"].as_object().unwrap() {
            let known = known["items"]["properties"].as_object().or(known["properties"].as_object()).unwrap();
            for key in known.keys() {
                let is_documented = rows.iter().any(|row| {
                    row.split(" | ").next().is_some_and(|first| first.contains(&format!("`{key}")))
                });
                assert!(is_documented, "{section}: {key} is not in the reference");
                assert!(EXAMPLE.contains(&format!("{key}:")), "{section}: {key} is not in the example");
            }
        }
    }
}
