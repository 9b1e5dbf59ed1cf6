//! Tables of the documentation whose rows are proved by tests: the fault matrix, whose tests are listed
//! in `fault_matrix.rs`, and the threat model, with those in `threat_model.rs`.

use std::fs;
use std::path::{Path, PathBuf};

use crate::fault_matrix::FAULT_TESTS;
use crate::threat_model::THREAT_TESTS;

/// Where the tests of a name's first part are, in the fault matrix.
const FOLDERS: [(&str, &str); 3] = [
    ("redis", "crates/slidegate-redis/tests/redis"),
    ("on_redis", "crates/slidegate-server/tests/on_redis"),
    ("service", "crates/slidegate-server/tests/service"),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The rows of the table in a section, as cells. Rows that begin with a bold cell are headings.
fn rows(page: &str, section: &str, end: &str) -> Vec<Vec<String>> {
    let text = fs::read_to_string(root().join(page)).unwrap();
    let (_, section) = text.split_once(section).unwrap();
    let (section, _) = section.split_once(end).unwrap();
    let rows = section.lines().filter(|line| line.starts_with("| ")).skip(1);
    let cells = |row: &str| row.trim_matches('|').split(" | ").map(|cell| cell.trim().to_owned()).collect();
    rows.map(cells).filter(|cells: &Vec<String>| !cells[0].starts_with("**")).collect()
}

/// Asserts that a file has this test, and that it runs by default.
fn assert_runs(file: &Path, name: &str) {
    let source = fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let begins = source.find(&format!("fn {name}(")).unwrap_or_else(|| panic!("no test `{name}`"));
    let attributes = source[..begins].rsplit("\n\n").next().unwrap_or_default();
    assert!(attributes.contains("test"), "`{name}` is no test");
    assert!(!attributes.contains("#[ignore"), "`{name}` is not run by itself");
}

/// An operator relies on a row as far as its tests exist: one that was renamed or deleted proves
/// nothing.
#[test]
fn every_row_of_the_fault_matrix_has_tests_that_exist() {
    let rows = rows("docs/failures.md", "\n## Fault matrix\n", "\n###");
    let documented: Vec<_> = rows.iter().map(|cells| cells[0].as_str()).collect();
    let proved: Vec<_> = FAULT_TESTS.iter().map(|(failure, _)| *failure).collect();
    assert_eq!(documented, proved, "the rows of docs/failures.md, and those of fault_matrix.rs");
    for (failure, tests) in FAULT_TESTS {
        assert!(!tests.is_empty(), "no test proves: {failure}");
        for test in *tests {
            let path: Vec<_> = test.split("::").collect();
            let [folder, file, name] = path.as_slice() else { panic!("no test: {test} of {failure}") };
            let (_, folder) = FOLDERS.iter().find(|(first, _)| first == folder).unwrap();
            assert_runs(&root().join(folder).join(format!("{file}.rs")), name);
        }
    }
}

/// A defence without a test is a hope.
#[test]
fn every_row_of_the_threat_model_has_tests_that_exist() {
    let rows = rows("SECURITY.md", "\n## Threat model\n", "\n## ");
    let documented: Vec<_> = rows.iter().map(|cells| cells[1].as_str()).collect();
    let proved: Vec<_> = THREAT_TESTS.iter().map(|(threat, _)| *threat).collect();
    assert_eq!(documented, proved, "the rows of SECURITY.md, and those of threat_model.rs");
    for (threat, tests) in THREAT_TESTS {
        assert!(!tests.is_empty(), "no test proves: {threat}");
        for test in *tests {
            let (file, name) = test.split_once("::").unwrap();
            assert_runs(&root().join("crates").join(file), name);
        }
    }
}
