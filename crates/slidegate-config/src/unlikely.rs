//! Names and values of a policy that no request has, most likely: they are valid, and never match.
//!
//! One check for every place where a policy has the name or a value of an attribute.

use slidegate::network::Network;
use slidegate::{Fold, request_path::normalized_path};

use crate::overrides::Scope;
use crate::section::{Section, join};
use crate::yaml::{Excerpt, Node};

/// How the text of a value is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Test {
    Equals,
    Prefix,
    Glob,
    Network,
}

type IsOdd = fn(char) -> bool;

/// Characters that editors and chat programs put in the place of plain ones, or that nobody sees.
const ODD: [(&str, IsOdd); 5] = [
    (
        "an invisible character",
        |c| matches!(c, '\u{ad}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}'),
    ),
    ("a control character", char::is_control),
    ("a space that is not the usual one", |c| c.is_whitespace() && c != ' '),
    (
        "a typographic quote",
        |c| matches!(c, '\u{ab}' | '\u{bb}' | '\u{b4}' | '\u{2018}'..='\u{201f}' | '\u{2032}'..='\u{2036}' | '\u{2039}' | '\u{203a}' | '\u{300c}'..='\u{300f}' | '\u{ff02}' | '\u{ff07}'),
    ),
    ("a typographic dash", |c| {
        matches!(c, '\u{2010}'..='\u{2015}' | '\u{2212}' | '\u{fe58}' | '\u{fe63}' | '\u{ff0d}')
    }),
];

/// The methods of HTTP, which are compared with case.
const METHODS: [&str; 9] = ["GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"];

/// What is unlikely in a policy, one line each.
pub(crate) fn of_policy(
    policy: &Section<'_>,
    scope: &Scope<'_>,
    fold_of: &dyn Fn(&str) -> Fold,
    used: &[&str],
) -> Vec<String> {
    let mut found = Vec::new();
    let mut add = |key: &str, why: Option<String>| {
        found.extend(why.map(|why| join(&policy.place, &format!("{key}: {why}"))));
    };
    let limit = policy.child("limit");
    let tiers = limit.get("by").and_then(Node::scalar);
    let anchor = policy.child("anchor");
    let anchor = anchor.get("attribute").and_then(Node::scalar);
    for name in &scope.attributes {
        add("scope", name_of(name));
    }
    for (place, name) in [("limit", tiers), ("anchor", anchor)] {
        add(place, name.and_then(name_of));
    }
    for (key, _) in policy.child("fold").entries() {
        let name = key.scalar().unwrap_or_default();
        let is_unused = !used.contains(&name);
        add(
            "fold",
            is_unused.then(|| format!("`{}` is in no condition, scope or tier of the policy", Excerpt(name))),
        );
    }
    let check = |attribute: &str, test, text: &str| {
        let folds = fold_of(attribute);
        value_of(attribute, test, text, folds, scope.is_address(attribute))
    };
    for (key, node) in policy.child("when").entries() {
        let name = key.scalar().unwrap_or_default();
        add("when", name_of(name));
        for (test, text) in texts(node, Test::Equals) {
            add("when", check(name, test, text));
        }
    }
    let tier_values = limit.child("values");
    for (value, _) in tier_values.entries() {
        let text = value.scalar().unwrap_or_default();
        add("limit", tiers.and_then(|attribute| check(attribute, Test::Equals, text)));
    }
    for (key, _) in policy.child("overrides").entries() {
        let text = key.scalar().unwrap_or_default();
        let of_key = scope.attributes.first().and_then(|attribute| check(attribute, Test::Network, text));
        add("overrides", of_key);
    }
    for one in policy.elements("overrides") {
        let key = one.get("key");
        let parts = key.map_or(&[][..], Node::elements).iter();
        let parts = if key.is_some_and(|key| key.scalar().is_some()) {
            key.into_iter().chain(parts)
        } else {
            None.into_iter().chain(parts)
        };
        for (part, attribute) in parts.zip(&scope.attributes) {
            let text = part.scalar().unwrap_or_default();
            add("overrides", check(attribute, Test::Network, text));
        }
    }
    found
}

/// The name of an attribute that no request has.
pub(crate) fn name_of(name: &str) -> Option<String> {
    let why = odd(name).or_else(|| {
        let quote = name.chars().find(|c| matches!(c, '"' | '\'' | '='))?;
        Some(format!("has `{quote}`, which belongs to no name"))
    });
    why.map(|why| {
        let plain: String = name.chars().filter(|c| !is_odd(*c) && !matches!(c, '"' | '\'' | '=')).collect();
        let fix = if plain.is_empty() { String::new() } else { format!("; did you mean `{plain}`?") };
        format!("attribute `{}` {why}, so probably no request has it{fix}", Excerpt(name))
    })
}

/// Every text in a condition, with how it is compared.
fn texts(node: &Node, test: Test) -> Vec<(Test, &str)> {
    let own = node.scalar().map(|text| (test, text));
    let listed = node.elements().iter().flat_map(|one| texts(one, test));
    let tests = node.entries().iter().flat_map(|(key, value)| match key.scalar() {
        Some("prefix") => texts(value, Test::Prefix),
        Some("glob") => texts(value, Test::Glob),
        Some("in") => texts(value, Test::Network),
        Some("present") => Vec::new(),
        _ => texts(value, test),
    });
    own.into_iter().chain(listed).chain(tests).collect()
}

/// A value that no request has in this attribute.
fn value_of(attribute: &str, test: Test, text: &str, fold: Fold, is_address: bool) -> Option<String> {
    let shown = Excerpt(text);
    if is_address {
        let network = text.parse::<Network>().ok().filter(|_| text.contains('/'))?;
        let (given, read) = (text.split_once('/')?.0.parse(), network.to_string());
        let start = read.split_once('/')?.0.parse::<std::net::IpAddr>();
        return (given != start)
            .then(|| format!("{attribute} `{shown}` is the network `{read}`; write that"));
    }
    if let Some(why) = odd(text) {
        return Some(format!(
            "{attribute} `{shown}` {why}, so only a request with this very character matches"
        ));
    }
    let begins_with_space = text.starts_with(' ');
    if begins_with_space || text.ends_with(' ') && test != Test::Prefix {
        let side = if begins_with_space { "begins" } else { "ends" };
        return Some(format!(
            "{attribute} `{shown}` {side} with a space, which requests hardly have; take it out"
        ));
    }
    let folds_case = fold == Fold::CASE || fold == Fold::CASE.and(Fold::SLASH);
    match attribute {
        "path" => path(text, test).map(|why| format!("path `{shown}` {why}")),
        "method" if test != Test::Glob && !folds_case => {
            let upper = text.to_ascii_uppercase();
            let is_method = METHODS.contains(&&*upper) && text != upper;
            is_method.then(|| format!("method `{shown}` never matches: requests have `{upper}`; write that"))
        }
        "host" if matches!(test, Test::Equals | Test::Network) => {
            let host = text.split_once("://").map_or(text, |(_, rest)| rest);
            let host = host.split(['/', '?', '#']).next().unwrap_or_default().to_ascii_lowercase();
            let port = |host: &str| {
                host.rsplit_once(':').is_some_and(|(_, port)| port.bytes().all(|c| c.is_ascii_digit()))
            };
            let is_v6 = host.matches(':').count() > 1 && !host.contains(']');
            let bare = if port(&host) && !is_v6 {
                host.rsplit_once(':').map_or("", |(host, _)| host)
            } else {
                &host
            };
            let bare = bare.trim_end_matches('.');
            let says = "over HTTP a host has no upper case, scheme, port, path or dot at its end";
            (bare != text).then(|| format!("host `{shown}` hardly matches: {says}; write `{bare}`"))
        }
        _ => None,
    }
}

/// Why no normalized path equals this, begins with it, or looks like it.
fn path(text: &str, test: Test) -> Option<String> {
    if matches!(test, Test::Equals | Test::Network) {
        let normalized = String::from_utf8_lossy(&normalized_path(text.as_bytes())).into_owned();
        return (normalized != text)
            .then(|| format!("never matches: requests have it as `{normalized}`; write that"));
    }
    let is_escape =
        |at: usize| text.get(at + 1..at + 3).is_some_and(|two| two.bytes().all(|c| c.is_ascii_hexdigit()));
    let is_glob = test == Test::Glob;
    let begins_as_path = text.starts_with('/') || is_glob && text.starts_with(['*', '?', '\\']);
    let why = if !text.is_empty() && !begins_as_path {
        "does not begin with `/`"
    } else if text.contains("//") {
        "has `//`, which is one `/` in requests"
    } else if ["/./", "/../"].iter().any(|dots| text.contains(dots)) {
        "has `.` or `..`, which is resolved in requests"
    } else if text.contains('#') || !is_glob && text.contains('?') {
        "has a query or fragment, which is not in the path"
    } else if text.match_indices('%').any(|(at, _)| is_escape(at)) {
        "has a percent-encoded character, which is decoded in requests"
    } else {
        return None;
    };
    Some(format!("{why}, so it never matches; write it as it is in requests"))
}

fn is_odd(c: char) -> bool {
    ODD.iter().any(|(_, is)| is(c))
}

/// What is odd in a text.
fn odd(text: &str) -> Option<String> {
    let of = |c: char| ODD.iter().find(|(_, is)| is(c)).map(|(what, _)| (c, what));
    let (c, what) = text.chars().find_map(of)?;
    Some(format!("has {what} (U+{:04X})", u32::from(c)))
}

#[cfg(test)]
mod tests {
    use crate::policies::Policies;

    /// A limit that can never apply looks like one that does, until somebody needs it.
    #[test]
    fn what_no_request_has_is_told_wherever_it_stands() {
        let paths = |path: &str| format!("when: {{path: '{path}'}}, quota: 1/1m");
        for (keys, said) in [
            // Names.
            (
                "scope: [“user”], quota: 1/1m".to_owned(),
                "scope: attribute `“user”` has a typographic quote (U+201C), so probably no request has it; did you mean `user`?",
            ),
            ("scope: [\"us\u{200b}er\"], quota: 1/1m".to_owned(), "did you mean `user`?"),
            (
                "scope: [\"'user'\"], quota: 1/1m".to_owned(),
                "has `'`, which belongs to no name, so probably no request has it; did you mean `user`?",
            ),
            (
                "when: {“path”: /login}, quota: 1/1m".to_owned(),
                "when: attribute `“path”` has a typographic quote",
            ),
            (
                "scope: user, window: 1m, limit: {by: ‘plan’, values: {pro: 5}, default: 1}".to_owned(),
                "limit: attribute `‘plan’` has a typographic quote",
            ),
            (
                "scope: user, limit: 1, window: month, anchor: {attribute: billing–day}".to_owned(),
                "anchor: attribute `billing–day` has a typographic dash (U+2013)",
            ),
            (
                "scope: user, quota: 1/1m, fold: {usr: case}".to_owned(),
                "fold: `usr` is in no condition, scope or tier of the policy",
            ),
            // Values, wherever they are.
            (
                "when: {plan: “pro”}, quota: 1/1m".to_owned(),
                "when: plan `“pro”` has a typographic quote (U+201C), so only a request with this very character matches",
            ),
            (
                "when: {plan: [pro, \"free\u{a0}\"]}, quota: 1/1m".to_owned(),
                "has a space that is not the usual one (U+00A0)",
            ),
            ("when: {plan: {not: ' pro'}}, quota: 1/1m".to_owned(), "when: plan ` pro` begins with a space"),
            (
                "scope: user, window: 1m, limit: {by: plan, values: {\"pro\u{feff}\": 5}, default: 1}"
                    .to_owned(),
                "limit: plan",
            ),
            (
                "scope: user, quota: 1/1m, overrides: {“alice”: 5}".to_owned(),
                "overrides: user `“alice”` has a typographic quote",
            ),
            (
                "scope: [user, path], quota: 1/1m, overrides: [{key: [alice, login], limit: 5}]".to_owned(),
                "overrides: path `login` never matches: requests have it as `/login`; write that",
            ),
            // Paths that normalization never yields.
            (paths("//x"), "when: path `//x` never matches: requests have it as `/x`; write that"),
            (paths("/a/../b"), "requests have it as `/b`"),
            (paths("/%6cogin"), "requests have it as `/login`"),
            (paths("login"), "requests have it as `/login`"),
            (paths("/login#top"), "requests have it as `/login`"),
            (paths("https://example.org/login"), "requests have it as `/login`"),
            (paths("/login "), "ends with a space"),
            (
                "when: {path: {equals: '/login?next=/'}}, quota: 1/1m".to_owned(),
                "requests have it as `/login`",
            ),
            (
                "when: {path: {prefix: api/}}, quota: 1/1m".to_owned(),
                "path `api/` does not begin with `/`, so it never matches",
            ),
            ("when: {path: {prefix: /a//b}}, quota: 1/1m".to_owned(), "has `//`"),
            ("when: {path: {glob: '/%61/*'}}, quota: 1/1m".to_owned(), "has a percent-encoded character"),
            ("when: {path: {not: {prefix: '/a?b'}}}, quota: 1/1m".to_owned(), "has a query or fragment"),
            // Methods and hosts.
            (
                "when: {method: get}, quota: 1/1m".to_owned(),
                "method `get` never matches: requests have `GET`; write that",
            ),
            ("when: {method: {one_of: [GET, Post]}}, quota: 1/1m".to_owned(), "requests have `POST`"),
            ("when: {host: API.example.com}, quota: 1/1m".to_owned(), "write `api.example.com`"),
            ("when: {host: 'api.example.com:443'}, quota: 1/1m".to_owned(), "write `api.example.com`"),
            (
                "scope: host, quota: 1/1m, overrides: {api.example.com.: 5}".to_owned(),
                "overrides: host `api.example.com.` hardly matches",
            ),
            ("when: {host: 'https://api.example.com/x'}, quota: 1/1m".to_owned(), "write `api.example.com`"),
            // Networks.
            (
                "when: {ip: {in: [10.1.2.3/8]}}, quota: 1/1m".to_owned(),
                "when: ip `10.1.2.3/8` is the network `10.0.0.0/8`; write that",
            ),
            (
                "scope: ip, quota: 1/1m, overrides: {10.1.2.3/8: 5}".to_owned(),
                "overrides: ip `10.1.2.3/8` is the network `10.0.0.0/8`",
            ),
        ] {
            let text = format!("policies: [{{name: p, {keys}}}]");
            let warnings =
                Policies::parse(&text, "f").unwrap_or_else(|errors| panic!("{keys}: {errors}")).warnings;
            assert_eq!(warnings.len(), 1, "{keys}: {warnings:?}");
            assert!(
                warnings[0].starts_with("policy `p`: ") && warnings[0].contains(said),
                "{warnings:?}: {said}"
            );
        }
        let address = "policies: [{name: p, quota: 1/1m}]\nattributes: {addresses: [ip, “peer”]}";
        assert_eq!(Policies::parse(address, "f").unwrap().warnings.len(), 1);
    }

    /// A warning about what works makes people overlook the others.
    #[test]
    fn what_requests_may_have_is_not_told() {
        for keys in [
            "when: {path: /, method: GET, host: api.example.com}, scope: [user, größe, x-user], quota: 1/1m",
            "when: {path: {prefix: /.well-known/}, method: {not: [OPTIONS, PURGE]}}, quota: 1/1m",
            "when: {path: {glob: '*.php?'}, host: '[2001:db8::1]'}, quota: 1/1m",
            "when: {path: /login;x, user: 'Zoë Müller-Lüdenscheidt'}, quota: 1/1m",
            "when: {agent: {prefix: 'curl '}, percent: '%6c'}, quota: 1/1m",
            "when: {method: get}, fold: {method: case}, quota: 1/1m",
            "when: {path: /Login/}, fold: {path: [case, slash]}, quota: 1/1m",
            "when: {ip: ['::FFFF:10.0.0.1', '2001:DB8::1']}, scope: ip, quota: 1/1m, overrides: {10.0.0.0/8: 5, '2001:db8::/32': unlimited}",
        ] {
            let text = format!("policies: [{{name: p, {keys}}}]");
            let policies = Policies::parse(&text, "f").unwrap_or_else(|errors| panic!("{keys}: {errors}"));
            assert_eq!(policies.warnings, [""; 0], "{keys}");
        }
    }
}
