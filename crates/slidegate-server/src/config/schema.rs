//! The JSON Schema of the config file.

use std::sync::OnceLock;

use lined_config::{Form, Schema};
use serde_json::Value;
use slidegate_config::foreign::KEYS;
use slidegate_config::policy::POLICY_FORMS;
use slidegate_config::values::Text;

use super::admin::{HOST, OwnKey, TokenHash};
use super::auth::{AttributeSource, TRUSTED_PROXY};
use super::listener::SocketMode;
use super::resp::{PASSWORD_FILE, Password};
use super::sections::File;
use super::store::{KEY_FILE, READABLE_FILE};
use super::traces::{ENDPOINT, FIELD, HeaderText};
use super::values::{ADDRESS, ByteSize, NEW_FILE, RedisUrl};
use super::webhook;

/// The forms of the texts in sections of the service.
const FORMS: [Form; 20] = [
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

/// The schema as `slidegate generate schema` prints it.
pub(crate) fn published() -> Value {
    let mut schema = self::schema().published();
    // A file may lack policies only if limits come from elsewhere.
    schema["required"] = ["policies"].as_slice().into();
    without_links(&mut schema);
    schema
}

/// Replaces links in descriptions by their text. Their targets are relative to docs/config.md.
fn without_links(schema: &mut Value) {
    if let Some(Value::String(text)) = schema.get_mut("description") {
        while let Some((middle, end)) =
            text.find("](").and_then(|middle| Some((middle, middle + text[middle..].find(')')?)))
        {
            text.replace_range(middle..=end, "");
            let start = text[..middle].rfind('[').expect("a link begins");
            text.remove(start);
        }
    }
    match schema {
        Value::Object(map) => map.values_mut().for_each(without_links),
        Value::Array(list) => list.iter_mut().for_each(without_links),
        _ => {}
    }
}

/// The schema that files are validated against.
pub(super) fn schema() -> &'static Schema {
    static SCHEMA: OnceLock<Schema> = OnceLock::new();
    SCHEMA.get_or_init(|| {
        let forms = [&POLICY_FORMS[..], &FORMS].concat();
        Schema::of::<File>("Configuration of slidegate", &forms).with_synonyms(KEYS)
    })
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::{published, schema};

    const EXAMPLE: &str = include_str!("../../../../docs/slidegate.example.yaml");

    /// Editors use the checked-in schema, which must match this release.
    #[test]
    fn the_schema_is_as_in_the_golden_file() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/slidegate.schema.json");
        let golden = std::fs::read_to_string(path).unwrap();
        crate::config::tests::compare(path, &golden, &format!("{:#}\n", published()));
    }

    fn is_valid(file: &str) -> bool {
        let file: Value = serde_saphyr::from_str(file).unwrap();
        let validator = jsonschema::validator_for(&published()).unwrap();
        validator.is_valid(&file)
    }

    /// Editors must accept the example and underline mistakes.
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

    /// Programs read the policies of a service's file and ignore its other sections.
    #[test]
    fn every_section_is_one_of_policies_or_listed_as_one_of_the_service() {
        use slidegate_config::policies::SERVICE_SECTIONS;
        let schema = &schema().json;
        let mut listed: Vec<&str> = ["attributes", "policies"].into_iter().chain(SERVICE_SECTIONS).collect();
        listed.sort_unstable();
        let mut sections: Vec<&String> = schema["properties"].as_object().unwrap().keys().collect();
        sections.sort_unstable();
        assert_eq!(sections, listed);
    }

    /// Users find keys in the example.
    #[test]
    fn every_key_is_in_the_example() {
        for (section, known) in schema().json["properties"].as_object().unwrap() {
            let known = known["items"]["properties"].as_object().or(known["properties"].as_object()).unwrap();
            for key in known.keys() {
                assert!(EXAMPLE.contains(&format!("{key}:")), "{section}: {key} is not in the example");
            }
        }
    }
}
