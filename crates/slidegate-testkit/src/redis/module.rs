//! The native module, built for servers that load it.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::process::{cargo_build, run};

/// If set to anything, every test server loads the module, which then replaces scripts.
pub(super) const EVERYWHERE: &str = "SLIDEGATE_TEST_MODULE";

/// The library that servers load. Built once by cargo; instant if nothing has changed.
pub fn module() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let mut cargo = cargo_build();
        cargo.current_dir(&workspace).args(["--package", "slidegate-module"]);
        run(cargo, "cargo");
        let target =
            std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| workspace.join("target"), PathBuf::from);
        let library = target.join("debug/libslidegate_module.so");
        library.canonicalize().unwrap_or_else(|error| panic!("{}: {error}", library.display()))
    })
}
