//! The native module, built for servers that load it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::process::run;

/// If set to anything, every test server loads the module, which then replaces scripts.
pub(super) const EVERYWHERE: &str = "SLIDEGATE_TEST_MODULE";

/// The library that servers load. Built once by cargo; instant if nothing has changed.
pub fn module() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let mut cargo = Command::new(option_env!("CARGO").unwrap_or("cargo"));
        // The profile of the tests, so that its dependencies are not compiled again.
        let build = ["build", "--profile", "test", "--quiet", "--locked", "--package", "slidegate-module"];
        cargo.current_dir(&workspace).args(build);
        run(cargo, "cargo");
        let target =
            std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| workspace.join("target"), PathBuf::from);
        let library = target.join("debug/libslidegate_module.so");
        library.canonicalize().unwrap_or_else(|error| panic!("{}: {error}", library.display()))
    })
}
