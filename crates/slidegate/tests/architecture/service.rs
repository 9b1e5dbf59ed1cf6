//! The service: which of its modules may use which.

use super::house::House;

/// A module of the service and the modules that it may use, from the bottom up.
///
/// Nothing imports upwards but the two that wire: `app/changes` changes what `app` decides by, and
/// `telemetry/routes` reads what the app holds; neither is used by what it uses.
const MODULES: &[(&str, &[&str])] = &[
    ("lib", &[]),
    ("main", &[]),
    // Basics: they know no part of the service.
    ("caller", &[]),
    ("http_client", &[]),
    ("key_text", &[]),
    ("limits", &[]),
    ("log_limit", &[]),
    ("policy_names", &[]),
    ("routes", &[]),
    ("shutdown", &[]),
    ("fields", &[]),
    ("cli/failure", &[]),
    ("request", &["limits"]),
    ("problem", &["request"]),
    ("query", &["limits", "problem"]),
    ("json_body", &["problem"]),
    ("ports", &[]),
    ("listener", &["log_limit"]),
    // Configuration and access.
    ("config", &["limits", "policy_names"]),
    ("access/attempts", &["caller", "log_limit"]),
    ("access", &["access/attempts", "caller", "config", "problem"]),
    // Recording decisions, and making them.
    ("app/explanation", &[]),
    (
        "telemetry",
        &["app/explanation", "caller", "config", "http_client", "key_text", "log_limit", "policy_names"],
    ),
    ("app/store", &["config", "log_limit"]),
    ("app", &["access", "caller", "config", "key_text", "policy_names", "request", "telemetry"]),
    ("app/changes", &["app", "app/store", "config", "key_text", "limits", "policy_names"]),
    // Protocols and pages: they know no store and not each other.
    (
        "http",
        &[
            "access",
            "app",
            "app/explanation",
            "caller",
            "fields",
            "json_body",
            "limits",
            "policy_names",
            "problem",
            "query",
            "routes",
        ],
    ),
    ("auth", &["app", "caller", "config", "fields", "log_limit", "problem", "query"]),
    (
        "resp",
        &[
            "access",
            "access/attempts",
            "app",
            "app/explanation",
            "caller",
            "config",
            "limits",
            "log_limit",
            "policy_names",
            "ports",
        ],
    ),
    (
        "admin",
        &[
            "access",
            "app",
            "app/changes",
            "caller",
            // A quota in JSON is one of the file.
            "config",
            "json_body",
            "key_text",
            "limits",
            "policy_names",
            "ports",
            "problem",
            "query",
            "routes",
            "telemetry",
        ],
    ),
    ("dashboard", &["problem", "routes"]),
    (
        "telemetry/routes",
        &[
            "access/attempts",
            "app",
            "app/changes",
            "app/explanation",
            "app/store",
            "caller",
            "policy_names",
            "problem",
            "query",
            "routes",
            "telemetry",
        ],
    ),
    // Wiring: the only modules that know all protocols.
    ("grpc", &["access", "app", "caller", "log_limit", "ports"]),
    ("protocol", &["access", "app", "auth", "config", "http", "listener", "routes"]),
    ("protocols", &["app", "config", "grpc", "listener", "ports", "resp", "telemetry"]),
    (
        "cli",
        &[
            "access",
            "admin",
            "app",
            "app/changes",
            "app/explanation",
            "app/store",
            "config",
            "dashboard",
            "grpc",
            "http_client",
            "limits",
            "listener",
            "log_limit",
            "ports",
            "protocol",
            "protocols",
            "routes",
            "shutdown",
            "telemetry",
        ],
    ),
];

/// The protocols. Each is a folder, and none of them may use another or a store.
const PROTOCOLS: &[&str] = &["http", "auth", "resp", "grpc"];

fn service() -> House {
    House::read(concat!(env!("CARGO_MANIFEST_DIR"), "/../slidegate-server/src"), MODULES)
}

/// A protocol that decides by itself, or a basic module that knows the app, is one that nobody can replace alone.
#[test]
fn modules_of_the_service_use_what_the_plan_allows_and_nothing_else() {
    assert_eq!(service().forbidden_uses(), [""; 0]);
}

/// A plan that allows more than is needed says nothing.
#[test]
fn the_plan_of_the_service_allows_nothing_that_is_not_used() {
    assert_eq!(service().unused_permissions(), [""; 0]);
}

/// A protocol with a limiter of its own would count apart from the others.
#[test]
fn protocols_know_no_store_and_not_each_other() {
    for (module, uses) in MODULES.iter().filter(|(module, _)| PROTOCOLS.contains(module)) {
        let known = uses.iter().filter(|used| **used == "app/store" || PROTOCOLS.contains(used));
        assert_eq!(known.collect::<Vec<_>>(), [&""; 0], "{module}");
    }
}

/// A file that has grown past what one reads in a sitting wants to be two.
#[test]
fn no_file_of_the_service_is_longer_than_600_lines_before_its_tests() {
    assert_eq!(service().longer_than(600), [""; 0]);
}

/// Who opens a file must read first what it is.
#[test]
fn every_file_of_the_service_opens_by_saying_what_it_is() {
    assert_eq!(service().without_opening(), [""; 0]);
}
