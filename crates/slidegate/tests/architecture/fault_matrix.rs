//! The fault matrix of the documentation: each row names the tests that prove it.

use std::fs;
use std::path::Path;

/// Where the tests of a name's first part are.
const FOLDERS: [(&str, &str); 3] = [
    ("redis", "crates/slidegate/tests/redis"),
    ("on_redis", "crates/slidegate-server/tests/on_redis"),
    ("service", "crates/slidegate-server/tests/service"),
];

/// An operator relies on a row as far as its test exists: one that was renamed or deleted proves
/// nothing.
#[test]
fn every_row_of_the_fault_matrix_names_tests_that_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let text = fs::read_to_string(root.join("docs/operations.md")).unwrap();
    let (_, matrix) = text.split_once("\n## Fault matrix\n").unwrap();
    let (matrix, _) = matrix.split_once("\n###").unwrap();
    let mut named = 0;
    for row in matrix.lines().filter(|line| line.starts_with("| ")).skip(1) {
        let cells: Vec<_> = row.trim_matches('|').split(" | ").map(str::trim).collect();
        if cells[0].starts_with("**") {
            continue;
        }
        let [.., tests] = cells.as_slice() else { panic!("{row}") };
        assert_eq!(cells.len(), 6, "{row}");
        for test in tests.split(", ") {
            let path: Vec<_> = test.trim_matches('`').split("::").collect();
            let [folder, file, name] = path.as_slice() else { panic!("no test: {test} in {row}") };
            let (_, folder) = FOLDERS.iter().find(|(first, _)| first == folder).unwrap();
            let source = fs::read_to_string(root.join(folder).join(format!("{file}.rs"))).unwrap();
            let begins = source.find(&format!("fn {name}(")).unwrap_or_else(|| panic!("no test `{test}`"));
            let attributes = source[..begins].rsplit("\n\n").next().unwrap_or_default();
            assert!(attributes.contains("test"), "`{test}` is no test");
            assert!(!attributes.contains("#[ignore"), "`{test}` is not run by itself");
            named += 1;
        }
    }
    assert!(named >= 40, "only {named} tests are named");
}
