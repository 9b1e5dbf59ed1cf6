//! The workflow of deploy/ci, with its commands run as they are written.

use std::process::Command;

use serde_json::Value;
use slidegate_testkit::TempDir;
use slidegate_testkit::service::{slidegate, text};

fn workflow() -> Value {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/ci/policy-diff.yml");
    let workflow = std::fs::read_to_string(path).expect("the workflow is there");
    serde_saphyr::from_str(&workflow).expect("the workflow is YAML")
}

fn git(folder: &TempDir, arguments: &[&str]) -> String {
    let author = ["-c", "user.name=test", "-c", "user.email=test@example.com", "-c", "commit.gpgsign=false"];
    let output = Command::new("git")
        .args(author)
        .args(arguments)
        .current_dir(folder.path())
        .output()
        .expect("git is installed");
    assert!(output.status.success(), "git {arguments:?}: {}", text(&output.stderr));
    text(&output.stdout).trim().to_owned()
}

/// Who copies a check that cannot fail is worse off than without it.
#[test]
fn the_steps_of_the_workflow_pass_a_harmless_change_and_fail_a_harmful_one() {
    let workflow = workflow();
    assert_eq!(workflow["permissions"]["contents"], "read");
    let steps = workflow["jobs"]["policy-diff"]["steps"].as_array().unwrap().clone();
    let commands: Vec<&str> = steps.iter().filter_map(|step| step["run"].as_str()).collect();
    assert_eq!(commands.len(), 3, "{commands:?}");

    let folder = TempDir::new("policy-diff");
    let scoped = |scope: &str, limit: u64| {
        format!("policies:\n  - name: per-ip\n    scope: [{scope}]\n    limit: {limit}\n    window: 1m\n")
    };
    let config = |limit| scoped("ip", limit);
    let log: String = (0..50)
        .map(|second| {
            format!(
                "192.0.2.7 - - [20/Nov/2026:10:00:{second:02} +0000] \"GET / HTTP/1.1\" 200 5 \"-\" \"-\"\n"
            )
        })
        .collect();
    let log = folder.file("access.log", log);
    git(&folder, &["init", "--quiet", "."]);
    folder.file("slidegate.yaml", config(60));
    git(&folder, &["add", "slidegate.yaml"]);
    git(&folder, &["commit", "--quiet", "-m", "before"]);
    let base = git(&folder, &["rev-parse", "HEAD"]);

    // The binary under test is the `slidegate` of the commands.
    let program = slidegate();
    let binaries = std::path::Path::new(program.get_program()).parent().unwrap().to_owned();
    let path = format!("{}:{}", binaries.display(), std::env::var("PATH").unwrap_or_default());
    let run = |config: String| {
        folder.file("slidegate.yaml", config);
        let summary = folder.file("summary.md", "");
        let codes: Vec<Option<i32>> = commands
            .iter()
            .map(|command| {
                // As GitHub runs them.
                let mut shell = Command::new("bash");
                for name in ["SLIDEGATE_CONFIG", "SLIDEGATE_REDIS"] {
                    shell.env_remove(name);
                }
                shell
                    .args(["-e", "-c", command])
                    .current_dir(folder.path())
                    .env("PATH", &path)
                    .env("BASE", &base)
                    .env("LOG", &log)
                    .env("GITHUB_STEP_SUMMARY", &summary);
                shell.output().expect("bash is there").status.code()
            })
            .collect();
        (codes, std::fs::read_to_string(summary).unwrap())
    };

    let (codes, summary) = run(config(55));
    assert_eq!(codes, [Some(0); 3], "{summary}");
    assert!(
        summary.contains("\nPassed: 0% of the requests are newly denied, at most 0.1% may be.\n"),
        "{summary}"
    );
    let (codes, summary) = run(config(40));
    assert_eq!(codes, [Some(0), Some(0), Some(1)], "{summary}");
    assert!(summary.contains("| **newly denied** | 10 | 20.0% |"), "{summary}");
    assert!(
        summary.contains("| `per-ip` | `192.0.2.7` | 10 | 2026-11-20T10:00:40Z | 2026-11-20T10:00:49Z |"),
        "{summary}"
    );
    assert!(
        summary.contains("\nFailed: 20.0% of the requests are newly denied, more than 0.1%.\n"),
        "{summary}"
    );
    // A typing error in the scope removes the limit, and denies nobody.
    let (codes, summary) = run(scoped("client", 60));
    assert_eq!(codes, [Some(0), Some(0), Some(2)], "{summary}");
    assert!(summary.contains("\nNot passed: "), "{summary}");
}
