//! Snapshots: a whole file may still hold anything, as a checksum is no signature. It is restored, or rejected.

#![no_main]

use std::fs;
use std::path::PathBuf;
use std::process;
use std::sync::LazyLock;
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use slidegate::store::SnapshotFile;
use slidegate::{Algorithm, Gate, MemoryStore, Policy, PolicySet, Quota, Request};

/// A name of this process's own in the folder for temporary files.
static PATH: LazyLock<PathBuf> =
    LazyLock::new(|| std::env::temp_dir().join(format!("slidegate-fuzz-{}.snapshot", process::id())));

/// A policy of each algorithm.
fn policies() -> PolicySet {
    let rates = Algorithm::ALL.map(|one| (one.to_string(), Quota::per_minute(5).with_algorithm(one)));
    let permits = ("in-flight".to_owned(), Quota::in_flight(5, Duration::from_secs(60)).unwrap());
    let policy = |(name, quota)| Policy::new(name, quota).unwrap().with_scope(["user"]);
    PolicySet::new(rates.into_iter().chain([permits]).map(policy)).unwrap()
}

fuzz_target!(|blocks: &[u8]| {
    let mut file = [b"slidgate", &2_u32.to_le_bytes()[..], blocks, &[0; 8]].concat();
    let checksum = crc32fast::hash(&file).to_le_bytes();
    file.extend(checksum);
    fs::write(&*PATH, file).unwrap();
    let mut snapshot = SnapshotFile::open(PATH.clone()).unwrap();
    let restored = snapshot.read().and_then(|is_there| {
        assert!(is_there);
        let gate = Gate::with_memory(policies(), MemoryStore::builder().for_snapshot(&snapshot).build());
        let restored = gate.restore(&mut snapshot)?;
        let _ = gate.check(&Request::new().with("user", "alice"));
        let _ = gate.refund(&Request::new().with("user", "alice"));
        Ok(restored)
    });
    if let Err(error) = restored {
        let text = error.to_string();
        assert!(!text.is_empty() && !text.contains('\n'), "{text:?}");
    }
});
