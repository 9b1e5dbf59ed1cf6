//! What `slidegate --version` prints besides the version: revision, target and features.

use std::env;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-env-changed=SLIDEGATE_REVISION");
    let given = env::var("SLIDEGATE_REVISION").ok().filter(|revision| !revision.is_empty());
    let revision = given.or_else(of_checkout).unwrap_or_else(|| "unknown".to_owned());
    println!("cargo::rustc-env=SLIDEGATE_REVISION={revision}");
    println!("cargo::rustc-env=SLIDEGATE_TARGET={}", env::var("TARGET").unwrap_or_default());
    let features =
        env::vars().filter_map(|(name, _)| name.strip_prefix("CARGO_FEATURE_").map(str::to_lowercase));
    let features = features.collect::<Vec<_>>().join(", ");
    let features = if features.is_empty() { "none" } else { &features };
    println!("cargo::rustc-env=SLIDEGATE_FEATURES={features}");
}

/// The commit of the checkout that this package is part of. `None` without one, as in a package of a registry, even if
/// that is unpacked within a repository of something else.
fn of_checkout() -> Option<String> {
    git(&["ls-files", "--error-unmatch", "build.rs"])?;
    // It gets a line with each commit and checkout.
    println!("cargo::rerun-if-changed={}", git(&["rev-parse", "--git-path", "logs/HEAD"])?);
    git(&["rev-parse", "HEAD"])
}

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}
