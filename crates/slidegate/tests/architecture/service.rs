//! The service: which of its modules may import which.

use super::source_tree::SourceTree;

/// The modules of the service, each with the modules it may import, from the bottom up.
///
/// Nothing imports upwards but the two that wire: `app/changes` changes what `app` decides by, and
/// `telemetry/routes` reads what the app holds; neither is used by what it uses.
const MODULES: &[(&str, &[&str])] = &[
    ("lib", &[]),
    ("main", &[]),
    // Basics: they know no part of the service.
    ("caller", &[]),
    ("debounce", &[]),
    ("http_client", &[]),
    ("limits", &[]),
    ("log_limit", &[]),
    ("routes", &[]),
    ("service_manager", &["log_limit"]),
    ("shutdown", &[]),
    ("fields", &[]),
    ("cli/failure", &[]),
    ("malformed", &["caller", "log_limit"]),
    ("shares", &[]),
    ("request", &["limits", "log_limit", "malformed"]),
    ("key_text", &["request"]),
    ("problem", &["request"]),
    ("query", &["limits", "problem", "request"]),
    ("listener", &["log_limit"]),
    ("json_body", &["listener", "problem"]),
    ("ports", &["listener"]),
    // Configuration and access.
    ("envoy/rule", &[]),
    ("config", &["envoy/rule", "http_client", "limits", "listener", "request"]),
    ("envoy", &["config", "debounce", "listener"]),
    ("access/attempts", &["caller", "log_limit"]),
    ("access", &["access/attempts", "caller", "config", "listener", "problem", "query"]),
    // Recording decisions, and making them.
    ("app/explanation", &["key_text"]),
    (
        "telemetry",
        &[
            "app/explanation",
            "caller",
            "config",
            "envoy",
            "http_client",
            "key_text",
            "log_limit",
            "malformed",
            "shares",
        ],
    ),
    ("app/store", &["config", "log_limit"]),
    (
        "app",
        &["access", "caller", "config", "envoy", "key_text", "listener", "log_limit", "request", "telemetry"],
    ),
    ("app/changes", &["app", "app/store", "key_text", "limits", "log_limit", "telemetry"]),
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
            "key_text",
            "limits",
            "listener",
            "problem",
            "query",
            "request",
            "routes",
        ],
    ),
    ("auth", &["app", "caller", "config", "fields", "log_limit", "problem", "query", "request"]),
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
            "listener",
            "log_limit",
            "malformed",
            "ports",
            "request",
        ],
    ),
    (
        "admin",
        &[
            "access",
            "app",
            "app/changes",
            "caller",
            "config",
            "json_body",
            "key_text",
            "limits",
            "listener",
            "ports",
            "problem",
            "query",
            "request",
            "routes",
            "telemetry",
        ],
    ),
    ("dashboard", &["problem", "routes"]),
    (
        "telemetry/routes",
        &[
            "access",
            "access/attempts",
            "app",
            "app/changes",
            "app/explanation",
            "app/store",
            "caller",
            "envoy",
            "key_text",
            "listener",
            "malformed",
            "problem",
            "query",
            "routes",
            "shares",
            "telemetry",
        ],
    ),
    // Wiring: the only modules that know all protocols.
    (
        "grpc",
        &[
            "access",
            "app",
            "app/explanation",
            "caller",
            "config",
            "envoy",
            "limits",
            "listener",
            "log_limit",
            "malformed",
            "ports",
        ],
    ),
    ("protocol", &["access", "app", "auth", "config", "http", "listener", "routes"]),
    ("protocols", &["app", "config", "envoy", "grpc", "listener", "ports", "resp", "telemetry"]),
    (
        "cli",
        &[
            "access",
            "admin",
            "app",
            "app/changes",
            "app/explanation",
            "app/store",
            "caller",
            "config",
            "dashboard",
            "debounce",
            "envoy",
            "grpc",
            "http_client",
            "limits",
            "listener",
            "log_limit",
            "ports",
            "protocol",
            "protocols",
            "request",
            "routes",
            "service_manager",
            "shutdown",
            "telemetry",
        ],
    ),
];

/// The protocols. Each is a folder, and none of them may use another or a store.
const PROTOCOLS: &[&str] = &["http", "auth", "resp", "grpc"];

/// A protocol that decides by itself, or a basic module that knows the app, cannot be replaced
/// alone.
#[test]
fn modules_of_the_service_import_what_the_table_allows() {
    assert_eq!(SourceTree::read("slidegate-server", MODULES).violations(), [""; 0]);
}

/// A protocol with its own limiter would count separately from the others.
#[test]
fn protocols_know_no_store_and_not_each_other() {
    for (module, uses) in MODULES.iter().filter(|(module, _)| PROTOCOLS.contains(module)) {
        let known = uses.iter().filter(|used| **used == "app/store" || PROTOCOLS.contains(used));
        assert_eq!(known.collect::<Vec<_>>(), [&""; 0], "{module}");
    }
}
