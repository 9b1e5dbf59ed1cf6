//! The folder: which files there are, what is in them, and whether they have changed.
//!
//! A change is noticed by looking, not by being told. What Kubernetes swaps is a link two levels above the files, what
//! others swap is the link to the folder itself; being told of that takes a watch on every part of the path, which is
//! lost with each swap. A look asks what a reader would find, and costs a `stat` for each file.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Most files: one for each domain, of which each takes a policy.
const MAX_FILES: usize = 1024;
/// Deepest folder within the folder. Links to folders are followed, and one that leads back up ends here.
const MAX_DEPTH: usize = 8;
/// Largest file: some 40,000 descriptors.
const MAX_FILE_BYTES: u64 = 4 << 20;
/// Most bytes of all files.
const MAX_TOTAL_BYTES: usize = 32 << 20;

/// Where files are looked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Folder {
    pub(crate) path: PathBuf,
    /// Whether files whose name begins with a dot are left out. Those that begin with two always are: Kubernetes keeps
    /// the old and the new state of a volume there.
    pub(crate) ignores_dotfiles: bool,
}

/// A file's name from the folder on, and its text.
pub(super) type Text = (String, String);

/// What tells one state of the files from the next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Fingerprint(Vec<Seen>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Seen {
    name: String,
    path: PathBuf,
    bytes: u64,
    modified: Option<SystemTime>,
    /// The file behind all links, which a swap changes even where size and time are the same.
    real: PathBuf,
}

impl Folder {
    /// Which files there are, by name.
    pub(super) fn look(&self) -> Result<Fingerprint, String> {
        let mut seen = Vec::new();
        self.collect(&self.path, "", 0, &mut seen)?;
        seen.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(Fingerprint(seen))
    }

    fn collect(&self, folder: &Path, prefix: &str, depth: usize, seen: &mut Vec<Seen>) -> Result<(), String> {
        let failed = |path: &Path, error| {
            format!("{}: cannot be read: {error}; check the path and who may read it", path.display())
        };
        if depth > MAX_DEPTH {
            return Err(format!(
                "{}: folders nest deeper than {MAX_DEPTH}; does a link lead back up?",
                folder.display()
            ));
        }
        for entry in fs::read_dir(folder).map_err(|error| failed(folder, error))? {
            let path = entry.map_err(|error| failed(folder, error))?.path();
            let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
            if name.starts_with("..") || self.ignores_dotfiles && name.starts_with('.') {
                continue;
            }
            let of_file = |path: &Path| fs::metadata(path).map_err(|error| failed(path, error));
            let metadata = of_file(&path)?;
            let name = format!("{prefix}{name}");
            if metadata.is_dir() {
                self.collect(&path, &format!("{name}/"), depth + 1, seen)?;
            } else if is_yaml(&path) {
                if seen.len() == MAX_FILES {
                    return Err(format!("{}: more than {MAX_FILES} files; join some", self.path.display()));
                }
                let real = fs::canonicalize(&path).map_err(|error| failed(&path, error))?;
                let (bytes, modified) = (metadata.len(), metadata.modified().ok());
                seen.push(Seen { name, path, bytes, modified, real });
            }
        }
        Ok(())
    }
}

fn is_yaml(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "yaml" || extension == "yml")
}

impl Fingerprint {
    /// The files' texts, in the order of their names. At least one.
    pub(super) fn read(&self, folder: &Folder) -> Result<Vec<Text>, String> {
        if self.0.is_empty() {
            return Err(format!(
                "{}: holds no file whose name ends in .yaml or .yml; give the folder that does",
                folder.path.display()
            ));
        }
        let mut texts = Vec::with_capacity(self.0.len());
        let mut total = 0;
        for seen in &self.0 {
            let mut bytes = Vec::new();
            File::open(&seen.path)
                .and_then(|file| file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes))
                .map_err(|error| format!("{}: cannot be read: {error}; check who may read it", seen.name))?;
            if bytes.len() as u64 > MAX_FILE_BYTES {
                return Err(format!(
                    "{}: larger than {MAX_FILE_BYTES} bytes, which is the most; split it",
                    seen.name
                ));
            }
            total += bytes.len();
            if total > MAX_TOTAL_BYTES {
                return Err(format!(
                    "{}: with it, the files are larger than {MAX_TOTAL_BYTES} bytes, which is the most",
                    seen.name
                ));
            }
            let text = String::from_utf8(bytes)
                .map_err(|_| format!("{}: error loading config file: yaml: this is not UTF-8", seen.name))?;
            texts.push((seen.name.clone(), text));
        }
        Ok(texts)
    }
}
