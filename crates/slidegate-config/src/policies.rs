//! The sections `policies` and `attributes` of a file.
//!
//! The service reads these sections together with its own, see [`PolicySections`].

use std::collections::{BTreeMap, HashMap};
use std::sync::OnceLock;

use lined_config::{ConfigErrors, Document, List, Node, Schema, Section, Value};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value as Json;
use slidegate::{PolicySet, Quota};

use crate::escalate::Escalation;
use crate::foreign;
use crate::policy::{KeysShown, POLICY_FORMS, PolicySpec};
use crate::unlikely;

/// The smallest valid file.
pub const MINIMAL: &str = "policies: [{name: per-user, scope: [user], limit: 100, window: 60s}]";

/// Sections of the service's file. [`Policies`] ignores them.
pub const SERVICE_SECTIONS: [&str; 9] =
    ["server", "grpc", "store", "resp", "headers", "auth", "admin", "observe", "webhook"];

/// The expected value of `policies`, for errors.
const POLICIES: &str = "a list of at least one policy, for example `policies: [{name: per-user, scope: [user], limit: 100, window: 60s}]`";

/// The policies of a file.
#[derive(Debug, Clone)]
pub struct Policies {
    /// The policies, in the order of the file.
    pub set: PolicySet,
    /// Candidates by the names of their policies: quotas that are evaluated on the same requests and
    /// never deny.
    pub candidates: BTreeMap<String, Quota>,
    /// How keys are shown, by the names of policies. The default is [`KeysShown::Plain`].
    pub keys_shown: HashMap<String, KeysShown>,
    /// When the service blocks keys, by the names of policies with `escalate`. A gate blocks none by
    /// itself.
    pub escalations: HashMap<String, Escalation>,
    /// Attributes that are IP addresses, in no order. Requests must have them as addresses.
    pub addresses: Vec<String>,
    /// Warnings about valid names and values that probably never match, one line each.
    pub warnings: Vec<String>,
}

impl Policies {
    /// Reads a config file of the service, or a file with policies only. `file_name` begins every line
    /// of errors.
    ///
    /// [`SERVICE_SECTIONS`] are ignored. Attributes that only `auth` makes addresses are plain text
    /// here: name them in `attributes: {addresses: [...]}`.
    ///
    /// # Errors
    /// Every mistake, with its line.
    pub fn parse(text: &str, file_name: &str) -> Result<Self, ConfigErrors> {
        Self::read(Document::parse(text, file_name)?)
    }

    /// Reads a JSON object with the keys of a file.
    ///
    /// # Errors
    /// Every mistake.
    pub fn from_json(file: &Json) -> Result<Self, ConfigErrors> {
        Self::read(file.into())
    }

    fn read(mut document: Document) -> Result<Self, ConfigErrors> {
        if let Value::Map(entries) = &mut document.root.value {
            let is_other = |key: &Node| key.scalar().is_some_and(|key| SERVICE_SECTIONS.contains(&key));
            entries.retain(|(key, _)| !is_other(key));
        }
        document.read(
            schema(),
            |_| {},
            |sections: PolicySections, _, top| {
                if !top.has("policies") {
                    report_missing(top);
                }
                sections.build(top, [])
            },
        )
    }
}

/// The schema of a file with policies only.
fn schema() -> &'static Schema {
    static SCHEMA: OnceLock<Schema> = OnceLock::new();
    SCHEMA.get_or_init(|| {
        Schema::of::<PolicySections>("Policies of slidegate", &POLICY_FORMS).with_synonyms(foreign::KEYS)
    })
}

/// Reports that a file has no section `policies`.
pub fn report_missing(file: &Section<'_>) {
    file.report("", format_args!("missing policies: must be {POLICIES}"));
}

/// The sections about policies, to be flattened into the struct of a whole file.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(extend("additionalProperties" = false, "x-example" = MINIMAL))]
pub struct PolicySections {
    /// The limits. Every policy applies whose conditions hold and whose scope the request has.
    #[serde(default)]
    #[schemars(length(min = 1, max = 16384), extend("x-expected" = POLICIES))]
    policies: Vec<PolicySpec>,
    /// Attributes that are not plain text.
    attributes: AttributesSection,
}

/// Attributes that are not plain text.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("x-example" = "addresses: [ip]"))]
struct AttributesSection {
    /// Attributes that are IP addresses, compared and counted as such. Other values count as one client, `unknown`;
    /// over gRPC each as a key of its own.
    #[schemars(extend("default" = ["ip"], "format" = "attribute", "uniqueItems" = true))]
    addresses: List<String>,
}

impl PolicySections {
    /// Builds the policies and reports mistakes. `more_addresses` are attributes that are addresses, as
    /// are those of the file.
    #[must_use]
    pub fn build<'a>(
        self,
        file: &Section<'_>,
        more_addresses: impl IntoIterator<Item = &'a str>,
    ) -> Policies {
        let mut addresses = self.attributes.addresses.0;
        let odd = addresses.iter().filter_map(|name| unlikely::name_of(name));
        let mut warnings: Vec<_> = odd.map(|why| format!("attributes: addresses: {why}")).collect();
        for name in more_addresses {
            if !addresses.iter().any(|known| known == name) {
                addresses.push(name.to_owned());
            }
        }
        let mut policies = Vec::with_capacity(self.policies.len());
        let (mut candidates, mut keys_shown, mut escalations) =
            (BTreeMap::new(), HashMap::new(), HashMap::new());
        let mut lines = HashMap::new();
        let nodes = file.elements("policies").iter();
        for (spec, node) in self.policies.into_iter().zip(nodes.filter(|node| !node.is_rejected.get())) {
            let name = spec.name.clone();
            let section = file.element(node, format!("policy `{name}`"));
            let (added, unlikely) = spec.build(&section, &addresses);
            warnings.extend(unlikely);
            candidates.extend(added.candidate.map(|candidate| (name.clone(), candidate)));
            escalations.extend(added.escalation.map(|escalation| (name.clone(), escalation)));
            if added.keys_shown != KeysShown::Plain {
                keys_shown.insert(name.clone(), added.keys_shown);
            }
            if let Some(first) = lines.insert(name.clone(), node.position.line) {
                let other = match first {
                    0 => "by an earlier policy".to_owned(),
                    line => format!("in line {line}"),
                };
                section.report("", format_args!("invalid name `{name}`: also used {other}; choose another"));
            }
            policies.push(added.policy);
        }
        // Each policy was checked with its lines; this is about all policies together.
        let set = PolicySet::new(policies).unwrap_or_else(|error| {
            if file.is_valid_so_far() {
                file.report("policies", error);
            }
            PolicySet::default()
        });
        Policies { set, candidates, keys_shown, escalations, addresses, warnings }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use serde_json::json;
    use slidegate::Policy;

    use super::*;

    /// The policy `p` with these keys.
    pub(crate) fn policy(keys: &str) -> Policy {
        let text = format!("policies: [{{name: p, {keys}}}]");
        let policies = Policies::parse(&text, "f").unwrap_or_else(|errors| panic!("{errors}"));
        policies.set.by_name("p").unwrap().clone()
    }

    /// The only line about a text.
    fn error(text: &str) -> String {
        let errors = Policies::parse(text, "slidegate.yaml").unwrap_err();
        assert_eq!(errors.lines().len(), 1, "{errors}");
        errors.to_string()
    }

    /// Programs and the service enforce the same limits by one file.
    #[test]
    fn a_file_of_the_service_is_read_without_its_other_sections() {
        const EXAMPLE: &str = include_str!("../../../docs/slidegate.example.yaml");
        let example = Policies::parse(EXAMPLE, "slidegate.example.yaml").unwrap();
        assert_eq!(example.set.iter().len(), 12);
        // Even invalid ones, which may come from another release.
        let others = SERVICE_SECTIONS.map(|section| format!("{section}: {{nonsense: true}}\n")).concat();
        let policies = Policies::parse(&format!("{others}{MINIMAL}"), "f").unwrap();
        assert_eq!(policies.set.by_name("per-user").unwrap().quota().to_string(), "100/1m");
        assert_eq!((policies.addresses, policies.keys_shown.len()), (vec!["ip".to_owned()], 0));
    }

    /// The bindings pass policies as JSON.
    #[test]
    fn json_means_the_same_as_yaml_and_its_errors_have_no_lines() {
        let keys = json!({
            "policies": [
                { "name": "a", "scope": ["user"], "quota": "5/1m", "candidate": "7/1h", "keys_shown": "hashed" },
                { "name": "b", "when": { "proxy": { "in": ["10.0.0.0/8"] } }, "limit": 3, "window": "1s" },
            ],
            "attributes": { "addresses": ["ip", "proxy"] },
            "server": { "listen": "127.0.0.1:80" },
        });
        let read = Policies::from_json(&keys).unwrap();
        assert_eq!(read.addresses, ["ip", "proxy"]);
        assert_eq!(
            (read.candidates["a"].to_string(), read.keys_shown["a"]),
            ("7/1h".into(), KeysShown::Hashed)
        );
        // JSON is YAML.
        let parsed = Policies::parse(&keys.to_string(), "f").unwrap();
        // Without the tables of the sets, whose order is random.
        let shown = |one: &Policies| {
            let policies: Vec<_> = one.set.iter().collect();
            format!("{policies:?} {:?} {:?} {:?}", one.candidates, one.keys_shown, one.addresses)
        };
        assert_eq!(shown(&read), shown(&parsed));
        let wrong = json!({ "policies": [
            { "name": "a", "limit": 0.5, "window": "1s" },
            { "name": "b", "quota": "1/1s" },
            { "name": "b", "quota": "1/1s" },
        ] });
        assert_eq!(
            Policies::from_json(&wrong).unwrap_err().lines(),
            [
                "policy `a`: invalid limit `0.5`: must be a whole number from 0 to 18446744073709551615, without quotes",
                "policy `b`: invalid name `b`: also used by an earlier policy; choose another",
            ]
        );
        for nothing in [json!(null), json!({}), json!({ "attributes": {} })] {
            let missing = format!("missing policies: must be {POLICIES}");
            assert_eq!(Policies::from_json(&nothing).unwrap_err().lines(), [missing]);
        }
        for other in
            [json!([]), json!(1), json!("policies"), json!({ "policies": 1 }), json!({ "policies": [] })]
        {
            assert!(Policies::from_json(&other).is_err(), "{other}");
        }
        let many: Vec<_> = (0..30).map(|n| json!({ "name": format!("p{n}"), "quota": "x" })).collect();
        let errors = Policies::from_json(&json!({ "policies": many })).unwrap_err();
        assert_eq!(errors.lines().len(), 21);
        assert_eq!(errors.lines()[20], "10 more errors; correct these first");
    }

    /// Each policy costs memory in every thread.
    #[test]
    fn too_many_policies_are_refused() {
        let many: String = (0..16_385).map(|n| format!("  - {{name: p{n}, quota: 1/1s}}\n")).collect();
        assert_eq!(
            error(&format!("\npolicies:\n{many}")),
            "slidegate.yaml:3: invalid policies: must be at most 16384, not 16385; remove some"
        );
    }
}
