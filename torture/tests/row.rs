//! A row of the page, measured anew, and the page itself.

use std::path::Path;
use std::process::Command;

const FOLDER: &str = env!("CARGO_MANIFEST_DIR");

/// Exact means 0, wherever it is measured. `scripts/test --all` builds the program that is started.
#[test]
fn the_exact_log_in_memory_and_over_redis_is_exact() {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("record.json");
    let output = Command::new(env!("CARGO_BIN_EXE_torture"))
        .args(["slidegate", "slidegate-redis", "--suite", "quick", "--json"])
        .arg(&json)
        .output()
        .unwrap();
    assert!(matches!(output.status.code(), Some(0 | 3)), "{output:?}");
    let record: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(json).unwrap()).unwrap();
    let parts = record["rows"].as_array().unwrap().iter().flat_map(|row| row["parts"].as_array().unwrap());
    let judged: Vec<_> = parts.filter_map(|part| part["verdict"].get("judged")).collect();
    assert!(!judged.is_empty(), "the machine is too busy to judge anything: {output:?}");
    for figures in judged {
        assert_eq!(figures["wrong_denials"], 0, "{figures}");
        assert!(figures["most"].as_u64() <= figures["limit"].as_u64(), "{figures}");
    }
}

#[test]
fn the_page_and_its_charts_are_those_of_the_recorded_run() {
    let folder = tempfile::tempdir().unwrap();
    let charts = folder.path().join("charts.svg");
    let output = Command::new(env!("CARGO_BIN_EXE_torture"))
        .current_dir(FOLDER)
        .args(["--page", "recorded/full.json", "--template", "accuracy.md.in", "--charts"])
        .arg(&charts)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let docs = Path::new(FOLDER).join("../docs");
    for (file, generated) in
        [("accuracy.md", output.stdout), ("images/accuracy.svg", std::fs::read(charts).unwrap())]
    {
        let recorded = std::fs::read(docs.join(file)).unwrap();
        assert!(
            recorded == generated,
            "docs/{file} is not that of torture/recorded/full.json; README.md has the command"
        );
    }
}
