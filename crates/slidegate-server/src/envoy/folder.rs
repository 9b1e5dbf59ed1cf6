//! The config folder: its files, their contents, and a fingerprint to detect changes. envoyproxy/ratelimit
//! reads every file, whatever its extension. Here a file without a YAML extension must have a `domain`;
//! otherwise, for example a README, it is skipped with a warning.
//!
//! Changes are detected by polling, not by file system events. Kubernetes swaps a link two levels above the
//! files, and other tools swap the link to the folder itself: events would need a watch on every part of the
//! path, lost with each swap. A poll costs one `stat` per file.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Maximum files: one per domain, each of which needs a policy.
const MAX_FILES: usize = 1024;
/// Maximum nesting of folders. Links to folders are followed; this bounds a link to a parent.
const MAX_DEPTH: usize = 8;
/// Maximum bytes of a file: about 40,000 descriptors.
const MAX_FILE_BYTES: u64 = 4 << 20;
/// Maximum bytes of all files.
const MAX_TOTAL_BYTES: usize = 32 << 20;

/// The location of config files.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Folder {
    pub(crate) path: PathBuf,
    /// Whether files whose names begin with a dot are ignored. Names that begin with two dots always are:
    /// Kubernetes keeps a volume's old and new state there.
    pub(crate) ignores_dotfiles: bool,
}

/// A file's path relative to the folder, and its text.
pub(super) type FileText = (String, String);

/// The state of all files, to compare with the next poll.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FolderState(Vec<FileState>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct FileState {
    name: String,
    path: PathBuf,
    bytes: u64,
    modified: Option<SystemTime>,
    /// The path with all links resolved. A swapped link changes it even if size and time are equal.
    real: PathBuf,
}

impl Folder {
    /// The state of the files now, sorted by name.
    pub(super) fn fingerprint(&self) -> Result<FolderState, String> {
        let mut files = Vec::new();
        self.collect(&self.path, "", 0, &mut files)?;
        files.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(FolderState(files))
    }

    fn collect(
        &self,
        folder: &Path,
        prefix: &str,
        depth: usize,
        files: &mut Vec<FileState>,
    ) -> Result<(), String> {
        let failed = |path: &Path, error| {
            format!("{}: cannot be read: {error}; check the path and its permissions", path.display())
        };
        if depth > MAX_DEPTH {
            return Err(format!(
                "{}: folders nest deeper than {MAX_DEPTH}; remove links to parent folders",
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
                self.collect(&path, &format!("{name}/"), depth + 1, files)?;
            } else if metadata.is_file() {
                if files.len() == MAX_FILES {
                    return Err(format!("{}: more than {MAX_FILES} files; merge some", self.path.display()));
                }
                let real = fs::canonicalize(&path).map_err(|error| failed(&path, error))?;
                let (bytes, modified) = (metadata.len(), metadata.modified().ok());
                files.push(FileState { name, path, bytes, modified, real });
            }
        }
        Ok(())
    }
}

fn is_yaml(name: &str) -> bool {
    [".yaml", ".yml"].iter().any(|ending| name.ends_with(ending))
}

/// Whether to read a file, rather than skip it.
pub(super) fn is_config(name: &str, text: &str) -> bool {
    let mut after_domain = text.split("domain").skip(1);
    is_yaml(name) || after_domain.any(|rest| rest.trim_start_matches(['"', '\'', ' ', '\t']).starts_with(':'))
}

impl FolderState {
    /// The texts of the files, sorted by name. Requires at least one to read.
    pub(super) fn read(&self, folder: &Folder) -> Result<Vec<FileText>, String> {
        let mut texts = Vec::with_capacity(self.0.len());
        let mut total = 0;
        for file in &self.0 {
            let mut bytes = Vec::new();
            File::open(&file.path)
                .and_then(|open| open.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes))
                .map_err(|error| format!("{}: cannot be read: {error}; check its permissions", file.name))?;
            if bytes.len() as u64 > MAX_FILE_BYTES && is_yaml(&file.name) {
                return Err(format!("{}: larger than {MAX_FILE_BYTES} bytes; split it", file.name));
            }
            if bytes.len() as u64 > MAX_FILE_BYTES {
                bytes.clear();
            }
            total += bytes.len();
            if total > MAX_TOTAL_BYTES {
                return Err(format!(
                    "{}: with it, all files together are larger than {MAX_TOTAL_BYTES} bytes; remove some",
                    file.name
                ));
            }
            let text = match String::from_utf8(bytes) {
                Ok(text) => text,
                Err(error) if !is_config(&file.name, &String::from_utf8_lossy(error.as_bytes())) => {
                    String::new()
                }
                Err(_) => {
                    return Err(format!("{}: error loading config file: yaml: this is not UTF-8", file.name));
                }
            };
            texts.push((file.name.clone(), text));
        }
        if !texts.iter().any(|(name, text)| is_config(name, text)) {
            return Err(format!(
                "{}: contains no .yaml or .yml file; give the folder with the config files",
                folder.path.display()
            ));
        }
        Ok(texts)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use slidegate_testkit::TempDir;

    use super::*;

    fn folder(temp: &TempDir, ignores_dotfiles: bool) -> Folder {
        Folder { path: temp.path().to_owned(), ignores_dotfiles }
    }

    fn texts(temp: &TempDir, ignores_dotfiles: bool) -> Result<Vec<FileText>, String> {
        let folder = folder(temp, ignores_dotfiles);
        folder.fingerprint().and_then(|files| files.read(&folder))
    }

    /// The files of a Kubernetes volume must be read once, whether or not dot files are ignored.
    #[test]
    fn files_are_read_in_the_order_of_names_and_those_of_kubernetes_once() {
        let temp = TempDir::new("order");
        temp.file("..2026_01_01/b.yaml", "b");
        symlink("..2026_01_01", temp.path().join("..data")).unwrap();
        symlink("..data/b.yaml", temp.path().join("b.yaml")).unwrap();
        temp.file("sub/c.yml", "c");
        symlink("sub", temp.path().join("linked")).unwrap();
        temp.file("a.yaml", "a");
        temp.file(".hidden.yaml", "h");
        temp.file("limits.conf", "domain: l");
        temp.file("plain", "p");
        temp.file("image", b"\xff");
        std::os::unix::net::UnixListener::bind(temp.path().join("socket")).unwrap();
        let names = |ignores_dotfiles| {
            let texts = texts(&temp, ignores_dotfiles).unwrap().into_iter();
            texts.map(|(name, text)| format!("{name}={text}")).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(
            names(true),
            "a.yaml=a b.yaml=b image= limits.conf=domain: l linked/c.yml=c plain=p sub/c.yml=c"
        );
        assert_eq!(
            names(false),
            ".hidden.yaml=h a.yaml=a b.yaml=b image= limits.conf=domain: l linked/c.yml=c plain=p sub/c.yml=c"
        );
    }

    /// A file whose limits do not apply is noticed only under load, but a README must not prevent the start.
    #[test]
    fn any_file_with_a_domain_is_read() {
        for (name, text, expected) in [
            ("a.yaml", "", true),
            ("a.yml", "# domain", true),
            ("a.conf", "domain: a", true),
            ("a", "# limits\n\ndomain : a\n", true),
            ("a.yaml.bak", "domain: [", true),
            ("a.json", "{\"domain\": \"a\"}", true),
            ("a.json", "{\"domain\" : \"a\"}", true),
            ("README.md", "The domain of these limits is one.", false),
            ("a.txt", "not a config file", false),
            (".gitkeep", "", false),
        ] {
            assert_eq!(is_config(name, text), expected, "{name}: {text}");
        }
        let temp = TempDir::new("no-config");
        temp.file("README.md", "nothing");
        let error = texts(&temp, true).unwrap_err();
        assert!(error.contains("contains no .yaml or .yml file"), "{error}");
    }

    /// Swapping a link to a file of the same size and time is a change too.
    #[test]
    fn a_link_to_another_file_is_another_state() {
        let temp = TempDir::new("swap");
        temp.file("..1/a.yaml", "1");
        let time = fs::metadata(temp.path().join("..1/a.yaml")).unwrap().modified().unwrap();
        temp.file("..2/a.yaml", "2");
        let second = File::options().write(true).open(temp.path().join("..2/a.yaml")).unwrap();
        second.set_modified(time).unwrap();
        symlink("..1/a.yaml", temp.path().join("a.yaml")).unwrap();
        let before = folder(&temp, true).fingerprint().unwrap();
        assert_eq!(before, folder(&temp, true).fingerprint().unwrap());
        symlink("..2/a.yaml", temp.path().join("new")).unwrap();
        fs::rename(temp.path().join("new"), temp.path().join("a.yaml")).unwrap();
        assert_ne!(before, folder(&temp, true).fingerprint().unwrap());
    }

    /// Too many or too large files must be reported, not read until memory is full.
    #[test]
    fn a_folder_has_bounds() {
        let temp = TempDir::new("bounds");
        temp.file("a.yaml", "x".repeat(usize::try_from(MAX_FILE_BYTES).unwrap() + 1));
        assert_eq!(texts(&temp, true).unwrap_err(), "a.yaml: larger than 4194304 bytes; split it");
        temp.file("a.yaml", b"\xff");
        assert_eq!(
            texts(&temp, true).unwrap_err(),
            "a.yaml: error loading config file: yaml: this is not UTF-8"
        );
        temp.file("a.yaml", "");
        let shown = temp.path().display().to_string();
        symlink(temp.path(), temp.path().join("up")).unwrap();
        let error = texts(&temp, true).unwrap_err();
        assert_eq!(
            error,
            format!("{shown}{}: folders nest deeper than 8; remove links to parent folders", "/up".repeat(9))
        );
        fs::remove_file(temp.path().join("up")).unwrap();
        (0..MAX_FILES).for_each(|n| drop(temp.file(&format!("f{n}.yaml"), "")));
        assert_eq!(texts(&temp, true).unwrap_err(), format!("{shown}: more than 1024 files; merge some"));
        let many = TempDir::new("bytes");
        (0..9).for_each(|n| drop(many.file(&format!("{n}.yaml"), vec![b' '; 4 << 20])));
        assert_eq!(
            texts(&many, true).unwrap_err(),
            "8.yaml: with it, all files together are larger than 33554432 bytes; remove some"
        );
    }
}
