//! Writes the versions of Cargo.lock to `versions.rs`: the adapter reports them.

use std::path::Path;

fn main() {
    println!("cargo::rerun-if-changed=Cargo.lock");
    let lock = std::fs::read_to_string("Cargo.lock").expect("the lock file is committed");
    let value = |line: &str| line.split('"').nth(1).map(str::to_owned);
    let mut versions = Vec::new();
    let mut lines = lock.lines();
    while let Some(line) = lines.next() {
        if line.starts_with("name = ") {
            versions.push((value(line), lines.next().and_then(value)));
        }
    }
    let versions: Vec<_> =
        versions.into_iter().filter_map(|(name, version)| Some((name?, version?))).collect();
    let path = Path::new(&std::env::var_os("OUT_DIR").expect("cargo sets it")).join("versions.rs");
    // Sorted by name, then by version, as in the lock file.
    std::fs::write(path, format!("&{versions:?}")).expect("the output folder can be written");
}
