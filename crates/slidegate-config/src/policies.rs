//! `policies:` and `attributes:` of a file, and the policies that they make.
//!
//! The service reads these sections together with its own, see [`PolicySections`].

use std::collections::{BTreeMap, HashMap};
use std::sync::OnceLock;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value as Json;
use slidegate::{PolicySet, Quota};

use crate::check;
use crate::errors::{ConfigErrors, Findings};
use crate::escalate::Escalation;
use crate::policy::{Built, KeysShown, POLICY_FORMS, PolicySpec};
use crate::schema::schema_of;
use crate::section::Section;
use crate::unlikely;
use crate::values::List;
use crate::yaml::{Node, Value, YamlFormat};

/// The smallest valid file.
pub const MINIMAL: &str = "policies: [{name: per-user, scope: [user], limit: 100, window: 60s}]";

/// Largest file that is read: some 100,000 overrides.
pub const MAX_FILE_BYTES: usize = 4 << 20;

/// YAML 1.2. A policy's overrides nest 6 deep; files of other limiters, which the service recognises,
/// about 15. 100,000 overrides in 1024 policies fit, each of which may use an alias.
pub const FORMAT: YamlFormat =
    YamlFormat { is_yaml_1_1: false, max_depth: 24, max_values: 250_000, max_aliases: 2048 };

/// Sections of the service's file. [`Policies`] ignores them.
pub const SERVICE_SECTIONS: [&str; 9] =
    ["server", "grpc", "store", "resp", "headers", "auth", "admin", "observe", "webhook"];

/// What `policies` must be.
const POLICIES: &str = "a list of at least one policy, for example `policies: [{name: per-user, scope: [user], limit: 100, window: 60s}]`";

/// The policies of a file.
#[derive(Debug, Clone)]
pub struct Policies {
    /// The policies, in the order of the file.
    pub set: PolicySet,
    /// Candidates by the names of their policies: quotas that are evaluated on the same requests, but
    /// never deny.
    pub candidates: BTreeMap<String, Quota>,
    /// How keys are shown, by the names of policies. The default is [`KeysShown::Plain`].
    pub keys_shown: HashMap<String, KeysShown>,
    /// Which keys the service blocks, by the names of policies with `escalate`. A gate does not block any
    /// by itself.
    pub escalations: HashMap<String, Escalation>,
    /// Attributes whose text is an IP address, in no order. Requests must have them as addresses.
    pub addresses: Vec<String>,
    /// Names and values that probably no request has, one line each: they are valid, and never match.
    pub warnings: Vec<String>,
}

impl Policies {
    /// Reads a file of the service, or one that has its policies only. `file_name` begins every line
    /// of errors.
    ///
    /// [`SERVICE_SECTIONS`] are ignored. Attributes that only `auth` makes addresses are plain text
    /// here: name them in `attributes: {addresses: [...]}`.
    ///
    /// # Errors
    /// Every mistake, with its line.
    pub fn parse(text: &str, file_name: &str) -> Result<Self, ConfigErrors> {
        let findings = Findings::default();
        let policies = Self::read(document(text, file_name)?, &findings);
        findings.none_or_errors(file_name)?;
        Ok(policies.expect("a file without mistakes was read"))
    }

    /// Reads the same as JSON: an object with the keys of a file.
    ///
    /// # Errors
    /// Every mistake.
    pub fn from_json(file: &Json) -> Result<Self, ConfigErrors> {
        let findings = Findings::default();
        let policies = Self::read(Node::from(file), &findings);
        findings.none_or_messages()?;
        Ok(policies.expect("a file without mistakes was read"))
    }

    fn read(mut root: Node, findings: &Findings) -> Option<Self> {
        if let Value::Map(entries) = &mut root.value {
            let is_other = |key: &Node| key.scalar().is_some_and(|key| SERVICE_SECTIONS.contains(&key));
            entries.retain(|(key, _)| !is_other(key));
        }
        let top = Section::new(&root, String::new(), findings);
        let (sections, _): (PolicySections, _) = check::read(&top, schema(), &POLICY_FORMS, |_| {})?;
        if !lists_policies(&top) {
            report_missing(&top);
        }
        Some(sections.build(&top, []))
    }
}

/// The schema of a file with policies only.
fn schema() -> &'static Json {
    static SCHEMA: OnceLock<Json> = OnceLock::new();
    SCHEMA.get_or_init(|| schema_of::<PolicySections>("Policies of slidegate", &POLICY_FORMS))
}

/// The values of a text; errors name it `name`.
///
/// # Errors
/// The text is larger than [`MAX_FILE_BYTES`], or not of this [`FORMAT`].
pub fn document(text: &str, name: &str) -> Result<Node, ConfigErrors> {
    if text.len() > MAX_FILE_BYTES {
        let message =
            format!("larger than {MAX_FILE_BYTES} bytes, which is the most; leave out what is not needed");
        return Err(ConfigErrors::one(name, message));
    }
    FORMAT.read(text).map_err(|error| ConfigErrors::at_character(name, error.position, error.message))
}

/// Whether a file has the section `policies`, valid or not.
#[must_use]
pub fn lists_policies(file: &Section<'_>) -> bool {
    file.get("policies").is_some() || file.has_rejected(&["policies"])
}

/// Reports that a file has no section `policies`.
pub fn report_missing(file: &Section<'_>) {
    file.report("", format_args!("missing policies: must be {POLICIES}"));
}

/// The sections of a file that are about policies, to be flattened into the struct of the whole file.
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
    /// The policies of the section of a whole file. `more_addresses` are attributes that are addresses
    /// besides those of the file. Mistakes are reported.
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
            keys_shown.extend(spec.keys_shown.map(|shown| (name.clone(), shown)));
            let Built { policy, candidate, escalation, warnings: unlikely } =
                spec.build(&section, &addresses);
            warnings.extend(unlikely);
            candidates.extend(candidate.map(|candidate| (name.clone(), candidate)));
            escalations.extend(escalation.map(|escalation| (name.clone(), escalation)));
            if let Some(first) = lines.insert(name.clone(), node.position.line) {
                let other = match first {
                    0 => "by an earlier policy".to_owned(),
                    line => format!("in line {line}"),
                };
                section.report("", format_args!("invalid name `{name}`: also used {other}; choose another"));
            }
            policies.push(policy);
        }
        // Mistakes in one policy were reported with their lines; this is about all policies together.
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

    /// Programs and the service beside them enforce the same limits by one file.
    #[test]
    fn a_file_of_the_service_is_read_without_its_other_sections() {
        const EXAMPLE: &str = include_str!("../../../docs/slidegate.example.yaml");
        let example = Policies::parse(EXAMPLE, "slidegate.example.yaml").unwrap();
        assert_eq!(example.set.iter().len(), 12);
        // Even if they are invalid: they may be of another release.
        let others = SERVICE_SECTIONS.map(|section| format!("{section}: {{nonsense: true}}\n")).concat();
        let policies = Policies::parse(&format!("{others}{MINIMAL}"), "f").unwrap();
        assert_eq!(policies.set.by_name("per-user").unwrap().quota().to_string(), "100/1m");
        assert_eq!((policies.addresses, policies.keys_shown.len()), (vec!["ip".to_owned()], 0));
    }

    /// A policy that is silently missing admits everything.
    #[test]
    fn a_misspelt_or_missing_section_is_reported() {
        let missing = format!("missing policies: must be {POLICIES}");
        assert_eq!(error("server: {}"), format!("slidegate.yaml:1: {missing}"));
        assert_eq!(error(""), format!("slidegate.yaml:1: {missing}"));
        assert_eq!(
            error(&format!("{MINIMAL}\natributes: {{addresses: [ip, proxy]}}")),
            "slidegate.yaml:2: unknown key `atributes`: did you mean `attributes`?"
        );
        assert_eq!(error("polices: []"), "slidegate.yaml:1: unknown key `polices`: did you mean `policies`?");
    }

    /// Users of other languages write policies as values of theirs.
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
        // Without the sets' own tables, whose order is random.
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

    fn values(text: &str) -> Vec<(u64, String)> {
        let root = FORMAT.read(text).unwrap_or_else(|error| panic!("{error:?}"));
        let shown = |node: &Node| node.scalar().unwrap_or("(empty)").to_owned();
        root.entries().iter().map(|(_, value)| (value.position.line, shown(value))).collect()
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

    /// Policies that share an anchor are corrected where they stand.
    #[test]
    fn what_an_alias_repeats_has_its_line_and_its_text() {
        assert_eq!(values("a: &x 1_0\n\nb: *x\n"), [(1, "1_0".to_owned()), (3, "1_0".to_owned())]);
        let root = FORMAT.read("a: &x {limit: 5}\nb:\n  <<: *x\n  name: n\n").unwrap();
        let limit = root.get("b").and_then(|b| b.get("limit")).unwrap();
        assert_eq!((limit.position.line, limit.scalar()), (3, Some("5")));
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
            assert!(Policies::parse(&bomb.repeat((1 << 20) / bomb.len()), "").is_err(), "{bomb:?}");
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
