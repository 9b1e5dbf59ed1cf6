//! Valid names and values of a policy that probably match no request.
//!
//! One check for every place where a policy names an attribute or one of its values.

use lined_config::{Excerpt, Node, Section};
use slidegate::network::Network;
use slidegate::{Fold, Policy, request_path::normalized_path};

use crate::overrides::Scope;

/// How the text of a value is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Comparison {
    Equals,
    Prefix,
    Glob,
    Network,
}

type IsOdd = fn(char) -> bool;

/// Invisible characters, and those that editors and chat programs put in place of plain ones.
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

/// The methods of HTTP, which are case-sensitive.
const METHODS: [&str; 9] = ["GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"];

/// Warnings about a policy, one line each.
pub(crate) fn of_policy(section: &Section<'_>, scope: &Scope<'_>, policy: &Policy) -> Vec<String> {
    let used: Vec<_> = policy.attributes().collect();
    let value = |attribute: &str, test, text: &str| {
        let fold = policy.options().folds.iter().find(|(known, _)| known == attribute);
        value_of(
            attribute,
            test,
            text,
            fold.map_or(Fold::NONE, |(_, fold)| *fold),
            scope.is_address(attribute),
        )
    };
    let mut found = Vec::new();
    let mut add = |key: &str, why: Option<String>| {
        found.extend(why.map(|why| format!("{}: {key}: {why}", section.place)));
    };
    for name in scope.attributes {
        add("scope", name_of(name));
    }
    let tiers = section.child("limit").get("by").and_then(Node::scalar);
    let anchor = section.child("anchor").get("attribute").and_then(Node::scalar);
    add("limit", tiers.and_then(name_of));
    add("anchor", anchor.and_then(name_of));
    for name in keys(&section.child("fold")).filter(|name| !used.contains(name)) {
        add("fold", Some(format!("`{}` is in no condition, scope or tier of the policy", Excerpt(name))));
    }
    for (key, node) in section.child("when").entries() {
        let name = key.scalar().unwrap_or_default();
        add("when", name_of(name));
        for (test, text) in texts(node, Comparison::Equals) {
            add("when", value(name, test, text));
        }
    }
    for text in keys(&section.child("limit").child("values")) {
        add("limit", tiers.and_then(|attribute| value(attribute, Comparison::Equals, text)));
    }
    for (attribute, text) in override_values(section, scope) {
        add("overrides", value(attribute, Comparison::Network, text));
    }
    found
}

fn keys<'n>(section: &Section<'n>) -> impl Iterator<Item = &'n str> + use<'n> {
    section.entries().iter().map(|(key, _)| key.scalar().unwrap_or_default())
}

/// The values in the keys of overrides, each with its attribute.
fn override_values<'s>(policy: &Section<'s>, scope: &Scope<'s>) -> Vec<(&'s str, &'s str)> {
    let map = keys(&policy.child("overrides")).zip(std::iter::repeat(scope.attributes));
    let map = map.filter_map(|(text, attributes)| Some((attributes.first()?.as_str(), text)));
    let listed = policy.elements("overrides").iter().filter_map(|one| one.get("key")).flat_map(|key| {
        let parts = if key.scalar().is_some() { std::slice::from_ref(key) } else { key.elements() };
        let parts = parts.iter().map(|part| part.scalar().unwrap_or_default());
        scope.attributes.iter().map(String::as_str).zip(parts)
    });
    map.chain(listed).collect()
}

/// Why probably no request has an attribute of this name.
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
fn texts(node: &Node, test: Comparison) -> Vec<(Comparison, &str)> {
    let own = node.scalar().map(|text| (test, text));
    let listed = node.elements().iter().flat_map(|one| texts(one, test));
    let tests = node.entries().iter().flat_map(|(key, value)| match key.scalar() {
        Some("prefix") => texts(value, Comparison::Prefix),
        Some("glob") => texts(value, Comparison::Glob),
        Some("in") => texts(value, Comparison::Network),
        Some("present") => Vec::new(),
        _ => texts(value, test),
    });
    own.into_iter().chain(listed).chain(tests).collect()
}

/// Why probably no request has this value of the attribute.
fn value_of(attribute: &str, test: Comparison, text: &str, fold: Fold, is_address: bool) -> Option<String> {
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
    if begins_with_space || text.ends_with(' ') && test != Comparison::Prefix {
        let side = if begins_with_space { "begins" } else { "ends" };
        return Some(format!(
            "{attribute} `{shown}` {side} with a space, which requests hardly have; take it out"
        ));
    }
    let folds_case = fold == Fold::CASE || fold == Fold::CASE.and(Fold::SLASH);
    match attribute {
        "path" => path(text, test).map(|why| format!("path `{shown}` {why}")),
        "method" if test != Comparison::Glob && !folds_case => {
            let upper = text.to_ascii_uppercase();
            let is_method = METHODS.contains(&&*upper) && text != upper;
            is_method.then(|| format!("method `{shown}` never matches: requests have `{upper}`; write that"))
        }
        "host" if matches!(test, Comparison::Equals | Comparison::Network) => {
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

/// Why no normalized path matches this.
fn path(text: &str, test: Comparison) -> Option<String> {
    if matches!(test, Comparison::Equals | Comparison::Network) {
        let normalized = String::from_utf8_lossy(&normalized_path(text.as_bytes())).into_owned();
        return (normalized != text)
            .then(|| format!("never matches: requests have it as `{normalized}`; write that"));
    }
    let is_escape =
        |at: usize| text.get(at + 1..at + 3).is_some_and(|two| two.bytes().all(|c| c.is_ascii_hexdigit()));
    let is_glob = test == Comparison::Glob;
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

/// Why a text looks odd.
fn odd(text: &str) -> Option<String> {
    let of = |c: char| ODD.iter().find(|(_, is)| is(c)).map(|(what, _)| (c, what));
    let (c, what) = text.chars().find_map(of)?;
    Some(format!("has {what} (U+{:04X})", u32::from(c)))
}

#[cfg(test)]
mod tests {
    use crate::policies::Policies;

    /// The keys of a policy, and a part of the warning about them.
    const UNLIKELY: &str = r#"
scope: [“user”] => scope: attribute `“user”` has a typographic quote (U+201C), so probably no request has it; did you mean `user`?
scope: ["us\u200ber"] => did you mean `user`?
scope: ["'user'"] => has `'`, which belongs to no name, so probably no request has it; did you mean `user`?
when: {“path”: /login} => when: attribute `“path”` has a typographic quote
scope: user, window: 1m, limit: {by: ‘plan’, values: {pro: 5}, default: 1} => limit: attribute `‘plan’` has a typographic quote
scope: user, limit: 1, window: month, anchor: {attribute: billing–day} => anchor: attribute `billing–day` has a typographic dash (U+2013)
scope: user, fold: {usr: case} => fold: `usr` is in no condition, scope or tier of the policy
when: {plan: “pro”} => when: plan `“pro”` has a typographic quote (U+201C), so only a request with this very character matches
when: {plan: [pro, "free\u00a0"]} => has a space that is not the usual one (U+00A0)
when: {plan: {not: ' pro'}} => when: plan ` pro` begins with a space
scope: user, window: 1m, limit: {by: plan, values: {"pro\ufeff": 5}, default: 1} => limit: plan
scope: user, overrides: {“alice”: 5} => overrides: user `“alice”` has a typographic quote
scope: [user, path], overrides: [{key: [alice, login], limit: 5}] => overrides: path `login` never matches: requests have it as `/login`; write that
when: {path: '//x'} => when: path `//x` never matches: requests have it as `/x`; write that
when: {path: '/a/../b'} => requests have it as `/b`
when: {path: '/%6cogin'} => requests have it as `/login`
when: {path: 'login'} => requests have it as `/login`
when: {path: '/login#top'} => requests have it as `/login`
when: {path: 'https://example.org/login'} => requests have it as `/login`
when: {path: '/login '} => ends with a space
when: {path: {equals: '/login?next=/'}} => requests have it as `/login`
when: {path: {prefix: api/}} => path `api/` does not begin with `/`, so it never matches
when: {path: {prefix: /a//b}} => has `//`
when: {path: {glob: '/%61/*'}} => has a percent-encoded character
when: {path: {not: {prefix: '/a?b'}}} => has a query or fragment
when: {method: get} => method `get` never matches: requests have `GET`; write that
when: {method: {one_of: [GET, Post]}} => requests have `POST`
when: {host: API.example.com} => write `api.example.com`
when: {host: 'api.example.com:443'} => write `api.example.com`
when: {host: 'https://api.example.com/x'} => write `api.example.com`
scope: host, overrides: {api.example.com.: 5} => overrides: host `api.example.com.` hardly matches
when: {ip: {in: [10.1.2.3/8]}} => when: ip `10.1.2.3/8` is the network `10.0.0.0/8`; write that
scope: ip, overrides: {10.1.2.3/8: 5} => overrides: ip `10.1.2.3/8` is the network `10.0.0.0/8`"#;

    /// The keys of policies that may be meant.
    const LIKELY: &str = r"
when: {path: /, method: GET, host: api.example.com}, scope: [user, größe, x-user]
when: {path: {prefix: /.well-known/}, method: {not: [OPTIONS, PURGE]}}
when: {path: {glob: '*.php?'}, host: '[2001:db8::1]'}
when: {path: /login;x, user: 'Zoë Müller-Lüdenscheidt'}
when: {agent: {prefix: 'curl '}, percent: '%6c'}
when: {method: get}, fold: {method: case}
when: {path: /Login/}, fold: {path: [case, slash]}
when: {ip: ['::FFFF:10.0.0.1', '2001:DB8::1']}, scope: ip, overrides: {10.0.0.0/8: 5, '2001:db8::/32': unlimited}";

    fn warnings(keys: &str) -> Vec<String> {
        let quota = if keys.contains("window:") { "" } else { "quota: 1/1m, " };
        let text = format!("policies: [{{name: p, {quota}{keys}}}]");
        Policies::parse(&text, "f").unwrap_or_else(|errors| panic!("{keys}: {errors}")).warnings
    }

    /// A limit that never applies goes unnoticed until it is needed.
    #[test]
    fn what_no_request_has_is_told_wherever_it_stands() {
        for (keys, said) in UNLIKELY.lines().skip(1).map(|line| line.split_once(" => ").unwrap()) {
            let warnings = warnings(keys);
            assert_eq!(warnings.len(), 1, "{keys}: {warnings:?}");
            let is_said = warnings[0].starts_with("policy `p`: ") && warnings[0].contains(said);
            assert!(is_said, "{warnings:?}: {said}");
        }
        let address = "policies: [{name: p, quota: 1/1m}]\nattributes: {addresses: [ip, “peer”]}";
        assert_eq!(Policies::parse(address, "f").unwrap().warnings.len(), 1);
    }

    /// Warnings about working policies make people overlook the others.
    #[test]
    fn what_requests_may_have_is_not_told() {
        for keys in LIKELY.lines().skip(1) {
            assert_eq!(warnings(keys), [""; 0], "{keys}");
        }
    }
}
