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

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// A folder of its own, which goes with the value.
    struct Place(PathBuf);

    impl Place {
        fn new(test: &str) -> Self {
            let path = std::env::temp_dir().join(format!("slidegate-folder-{test}-{}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }

        fn file(&self, name: &str, text: impl AsRef<[u8]>) {
            let path = self.0.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        fn folder(&self, ignores_dotfiles: bool) -> Folder {
            Folder { path: self.0.clone(), ignores_dotfiles }
        }

        fn texts(&self, ignores_dotfiles: bool) -> Result<Vec<Text>, String> {
            let folder = self.folder(ignores_dotfiles);
            folder.look().and_then(|seen| seen.read(&folder))
        }
    }

    impl Drop for Place {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    /// The files of a volume of Kubernetes must be read once, whether dot files are left out or not.
    #[test]
    fn files_are_read_in_the_order_of_names_and_those_of_kubernetes_once() {
        let place = Place::new("order");
        place.file("..2026_01_01/b.yaml", "b");
        symlink("..2026_01_01", place.0.join("..data")).unwrap();
        symlink("..data/b.yaml", place.0.join("b.yaml")).unwrap();
        place.file("sub/c.yml", "c");
        symlink("sub", place.0.join("linked")).unwrap();
        place.file("a.yaml", "a");
        place.file(".hidden.yaml", "h");
        place.file("readme.md", "r");
        let names = |ignores_dotfiles| {
            let texts = place.texts(ignores_dotfiles).unwrap().into_iter();
            texts.map(|(name, text)| format!("{name}={text}")).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(names(true), "a.yaml=a b.yaml=b linked/c.yml=c sub/c.yml=c");
        assert_eq!(names(false), ".hidden.yaml=h a.yaml=a b.yaml=b linked/c.yml=c sub/c.yml=c");
    }

    /// A swap that puts files of one size and one time in each other's place is a change all the same.
    #[test]
    fn a_link_to_another_file_is_another_state() {
        let place = Place::new("swap");
        place.file("..1/a.yaml", "1");
        let time = fs::metadata(place.0.join("..1/a.yaml")).unwrap().modified().unwrap();
        place.file("..2/a.yaml", "2");
        let second = File::options().write(true).open(place.0.join("..2/a.yaml")).unwrap();
        second.set_modified(time).unwrap();
        symlink("..1/a.yaml", place.0.join("a.yaml")).unwrap();
        let before = place.folder(true).look().unwrap();
        assert_eq!(before, place.folder(true).look().unwrap());
        symlink("..2/a.yaml", place.0.join("new")).unwrap();
        fs::rename(place.0.join("new"), place.0.join("a.yaml")).unwrap();
        assert_ne!(before, place.folder(true).look().unwrap());
    }

    /// What is too much must be said, not read until memory is full.
    #[test]
    fn a_folder_has_bounds() {
        let place = Place::new("bounds");
        place.file("a.yaml", "x".repeat(usize::try_from(MAX_FILE_BYTES).unwrap() + 1));
        assert_eq!(
            place.texts(true).unwrap_err(),
            "a.yaml: larger than 4194304 bytes, which is the most; split it"
        );
        place.file("a.yaml", b"\xff");
        assert_eq!(
            place.texts(true).unwrap_err(),
            "a.yaml: error loading config file: yaml: this is not UTF-8"
        );
        place.file("a.yaml", "");
        let shown = place.0.display().to_string();
        symlink(&place.0, place.0.join("up")).unwrap();
        let told = place.texts(true).unwrap_err();
        assert_eq!(
            told,
            format!("{shown}{}: folders nest deeper than 8; does a link lead back up?", "/up".repeat(9))
        );
        fs::remove_file(place.0.join("up")).unwrap();
        (0..MAX_FILES).for_each(|n| place.file(&format!("f{n}.yaml"), ""));
        assert_eq!(place.texts(true).unwrap_err(), format!("{shown}: more than 1024 files; join some"));
        let many = Place::new("bytes");
        (0..9).for_each(|n| many.file(&format!("{n}.yaml"), vec![b' '; 4 << 20]));
        assert_eq!(
            many.texts(true).unwrap_err(),
            "8.yaml: with it, the files are larger than 33554432 bytes, which is the most"
        );
    }
}
