//! The service: which of its modules may import which.

use super::source_tree::SourceTree;

/// The modules of the service, each with the modules it may import, from the bottom up.
///
/// `wire`, `engine` and `record` are the data plane, `control` is the control plane, which starts it. Nothing imports
/// upwards.
const MODULES: &[(&str, &[&str])] = &[
    ("lib", &[]),
    ("main", &[]),
    ("wire", &[]),
    ("control", &[]),
    // Basics: they know no part of the service.
    ("caller", &[]),
    ("clock", &[]),
    ("debounce", &[]),
    ("http_client", &[]),
    ("limits", &[]),
    ("log_limit", &[]),
    ("audit", &["log_limit"]),
    ("wire/routes", &[]),
    ("service_manager", &["log_limit"]),
    ("shutdown", &[]),
    ("wire/fields", &[]),
    ("cli/failure", &[]),
    ("wire/malformed", &["caller", "log_limit"]),
    ("shares", &[]),
    ("wire/request", &["limits", "log_limit", "wire/malformed"]),
    ("wire/key_text", &["wire/request"]),
    ("wire/problem", &["wire/request"]),
    ("wire/query", &["limits", "wire/problem", "wire/request"]),
    ("listener", &["log_limit"]),
    ("wire/json_body", &["listener", "wire/problem"]),
    ("wire/ports", &["listener"]),
    // Configuration and access.
    ("envoy/rule", &[]),
    ("stores", &[]),
    ("config", &["http_client", "limits", "listener", "stores", "wire/request"]),
    ("envoy", &["config", "debounce", "listener"]),
    ("access/attempts", &["caller", "log_limit"]),
    ("access", &["access/attempts", "caller", "config", "listener", "wire/problem", "wire/query"]),
    // Recording decisions, and making them.
    ("engine/explanation", &["wire/key_text"]),
    (
        "record",
        &[
            "engine/explanation",
            "caller",
            "clock",
            "config",
            "envoy",
            "http_client",
            "wire/key_text",
            "log_limit",
            "wire/malformed",
            "shares",
        ],
    ),
    ("engine/store", &["clock", "config", "log_limit", "stores"]),
    (
        "engine",
        &[
            "access",
            "audit",
            "caller",
            "clock",
            "config",
            "envoy",
            "listener",
            "log_limit",
            "record",
            "wire/key_text",
            "wire/request",
        ],
    ),
    (
        "control/changes",
        &["clock", "engine", "engine/store", "wire/key_text", "limits", "log_limit", "record"],
    ),
    ("control/fleet", &["clock", "config", "control/changes", "engine", "engine/store", "record"]),
    ("control/state", &["config", "control/changes", "control/fleet", "engine", "record", "wire/ports"]),
    // Protocols and pages: they know no store and not each other.
    (
        "wire/http",
        &[
            "audit",
            "access",
            "engine",
            "engine/explanation",
            "caller",
            "wire/fields",
            "wire/json_body",
            "wire/key_text",
            "limits",
            "listener",
            "wire/problem",
            "wire/query",
            "wire/request",
            "wire/routes",
        ],
    ),
    (
        "wire/auth",
        &[
            "engine",
            "limits",
            "listener",
            "caller",
            "config",
            "wire/fields",
            "log_limit",
            "wire/problem",
            "wire/query",
            "wire/request",
        ],
    ),
    (
        "wire/resp",
        &[
            "audit",
            "access",
            "access/attempts",
            "engine",
            "engine/explanation",
            "caller",
            "config",
            "limits",
            "listener",
            "log_limit",
            "wire/malformed",
            "wire/ports",
            "wire/request",
        ],
    ),
    (
        "control/admin",
        &[
            "audit",
            "access",
            "caller",
            "clock",
            "config",
            "control/changes",
            "control/fleet",
            "control/pages",
            "control/state",
            "engine",
            "limits",
            "listener",
            "record",
            "wire/json_body",
            "wire/key_text",
            "wire/ports",
            "wire/problem",
            "wire/query",
            "wire/request",
            "wire/routes",
        ],
    ),
    ("control/dashboard", &["wire/problem", "wire/routes"]),
    (
        "control/pages",
        &[
            "access",
            "access/attempts",
            "clock",
            "engine",
            "control/changes",
            "control/fleet",
            "control/state",
            "engine/explanation",
            "engine/store",
            "caller",
            "envoy",
            "log_limit",
            "wire/key_text",
            "listener",
            "wire/malformed",
            "wire/problem",
            "wire/query",
            "wire/routes",
            "shares",
            "record",
        ],
    ),
    // Wiring: the only modules that know all protocols.
    (
        "wire/grpc",
        &[
            "access",
            "engine",
            "engine/explanation",
            "caller",
            "config",
            "envoy",
            "limits",
            "listener",
            "log_limit",
            "wire/malformed",
            "wire/ports",
        ],
    ),
    ("wire/protocol", &["access", "engine", "wire/auth", "config", "wire/http", "listener", "wire/routes"]),
    ("wire/protocols", &["config", "engine", "envoy", "listener", "wire/grpc", "wire/ports", "wire/resp"]),
    (
        "cli",
        &[
            "access",
            "caller",
            "config",
            "control/admin",
            "control/changes",
            "control/dashboard",
            "control/fleet",
            "control/pages",
            "control/state",
            "debounce",
            "engine",
            "engine/explanation",
            "engine/store",
            "envoy",
            "http_client",
            "limits",
            "listener",
            "log_limit",
            "record",
            "service_manager",
            "shutdown",
            "wire/grpc",
            "wire/ports",
            "wire/protocol",
            "wire/protocols",
            "wire/request",
            "wire/routes",
        ],
    ),
];

/// The protocols. Each is a folder, and none of them may use another or a store.
const PROTOCOLS: &[&str] = &["wire/http", "wire/auth", "wire/resp", "wire/grpc"];

/// A protocol that decides by itself, or a basic module that knows the app, cannot be replaced
/// alone.
#[test]
fn modules_of_the_service_import_what_the_table_allows() {
    assert_eq!(SourceTree::read("slidegate-server", MODULES).violations(), [""; 0]);
}

/// Decisions go on without operators, and a data plane that knows its control plane cannot be replaced alone.
#[test]
fn the_data_plane_imports_nothing_of_the_control_plane() {
    let is_control = |module: &str| module == "control" || module.starts_with("control/") || module == "cli";
    for (module, uses) in MODULES.iter().filter(|(module, _)| !is_control(module)) {
        let above: Vec<_> = uses.iter().filter(|used| is_control(used) && **used != "cli/failure").collect();
        assert_eq!(above, [&""; 0], "{module}");
    }
}

/// A protocol with its own limiter would count separately from the others.
#[test]
fn protocols_know_no_store_and_not_each_other() {
    for (module, uses) in MODULES.iter().filter(|(module, _)| PROTOCOLS.contains(module)) {
        let known = uses.iter().filter(|used| **used == "engine/store" || PROTOCOLS.contains(used));
        assert_eq!(known.collect::<Vec<_>>(), [&""; 0], "{module}");
    }
}
