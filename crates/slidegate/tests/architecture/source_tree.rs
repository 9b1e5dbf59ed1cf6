//! The source files of a crate, checked against the table of its modules.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The folder of all crates.
pub(crate) const CRATES_FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// Maximum lines of a file, without its tests.
const MAX_LINES: usize = 600;

/// Modules, each with the modules it may import; named by path, `store/memory`.
pub(crate) type Table = [(&'static str, &'static [&'static str])];

pub(crate) struct SourceTree {
    table: &'static Table,
    files: Vec<File>,
}

struct File {
    /// From `src`, with slashes: `store/memory/table.rs`.
    name: String,
    text: String,
}

impl SourceTree {
    /// Reads every source file of a crate, except tests.
    pub(crate) fn read(name: &str, table: &'static Table) -> Self {
        let src = format!("{CRATES_FOLDER}/{name}/src");
        let files =
            collect_files(Path::new(&src)).into_iter().filter(|(name, _)| !name.ends_with("/tests.rs"));
        let files: Vec<_> = files.map(|(name, text)| File { name, text }).collect();
        assert!(files.len() > 1, "{src} has sources");
        Self { table, files }
    }

    /// Everything that breaks the rules of all crates, one line each.
    pub(crate) fn violations(&self) -> Vec<String> {
        [self.forbidden_imports(), self.unused_permissions(), self.long_files(), self.without_opening()]
            .concat()
    }

    /// Imports that the table does not allow, files that it does not list, and paths that the
    /// reader cannot follow.
    fn forbidden_imports(&self) -> Vec<String> {
        let mut found = Vec::new();
        for file in &self.files {
            let Some(module) = self.module_of(&file.stem()) else {
                found.push(format!("{}: not in the table; add its module", file.name));
                continue;
            };
            if module == "lib" || module == "main" {
                continue;
            }
            let allowed = self.allowed(module);
            for used in uses(&file.text) {
                match self.module_of(&used.replace("::", "/")) {
                    Some(used) if used == module || allowed.contains(&used) => {}
                    Some(used) => {
                        found.push(format!("{}: uses `{used}`, which `{module}` may not", file.name));
                    }
                    None => {
                        found.push(format!("{}: uses `crate::{used}`; name the module it is in", file.name));
                    }
                }
            }
            // At the top `super` is the whole crate, and two of them lead out of the file's folder.
            let path = if file.name.contains('/') { "super::super" } else { "super::" };
            if code(&file.text).contains(path) {
                found.push(format!("{}: uses `{path}`; write `crate::` and the module", file.name));
            }
        }
        found
    }

    /// Permissions that no file needs.
    fn unused_permissions(&self) -> Vec<String> {
        let mut unused = Vec::new();
        for (module, allowed) in self.table {
            let own: Vec<_> =
                self.files.iter().filter(|file| self.module_of(&file.stem()) == Some(module)).collect();
            let used: BTreeSet<_> = own.iter().flat_map(|file| uses(&file.text)).collect();
            let used: BTreeSet<_> =
                used.iter().filter_map(|used| self.module_of(&used.replace("::", "/"))).collect();
            let superfluous = allowed.iter().filter(|allowed| !own.is_empty() && !used.contains(*allowed));
            unused.extend(superfluous.map(|allowed| format!("`{module}` may use `{allowed}` and does not")));
        }
        unused
    }

    /// Names of the files whose code, tests aside, has one of these words.
    pub(crate) fn mentions(&self, words: &[&str]) -> Vec<&str> {
        let mentions = |file: &&File| words.iter().any(|word| code(&file.text).contains(word));
        self.files.iter().filter(mentions).map(|file| file.name.as_str()).collect()
    }

    fn long_files(&self) -> Vec<String> {
        let length = |file: &File| before_tests(&file.text).lines().count();
        let long = self.files.iter().filter(|file| length(file) > MAX_LINES);
        long.map(|file| format!("{}: {} lines before its tests; split it", file.name, length(file))).collect()
    }

    /// Files that do not begin with their description.
    fn without_opening(&self) -> Vec<String> {
        // Or with the page of the crate.
        let speaks = |text: &str| text.starts_with("//! ") || text.starts_with("#![doc = include_str!");
        let silent = self.files.iter().filter(|file| !speaks(&file.text));
        silent.map(|file| format!("{}: the first line must describe the file", file.name)).collect()
    }

    /// The module of a path: the longest one in the table that is a prefix of it.
    fn module_of(&self, path: &str) -> Option<&'static str> {
        let within = |module: &&str| {
            path.strip_prefix(*module).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        self.table.iter().map(|(module, _)| *module).filter(within).max_by_key(|module| module.len())
    }

    fn allowed(&self, module: &str) -> &'static [&'static str] {
        self.table.iter().find(|(name, _)| *name == module).map_or(&[], |(_, allowed)| *allowed)
    }
}

impl File {
    fn stem(&self) -> String {
        self.name.trim_end_matches(".rs").to_owned()
    }
}

/// Every source file below a folder, with its name from there, in the order of their names; but not
/// the entry points of fuzz targets and modules for tests, which may use everything.
pub(crate) fn collect_files(src: &Path) -> Vec<(String, String)> {
    let mut files = Vec::new();
    collect(src, src, &mut files);
    files.sort();
    let of_tests: Vec<_> = files.iter().flat_map(|(name, text)| test_modules(name, text)).collect();
    files.retain(|(name, _)| !of_tests.contains(name));
    files
}

/// The files that a file declares for tests only.
fn test_modules(name: &str, text: &str) -> Vec<String> {
    let folder = if name == "lib.rs" { String::new() } else { name.replace(".rs", "/") };
    let declared = text.split("#[cfg(test)]\nmod ").skip(1);
    let names = declared.filter_map(|rest| rest.split_once(';').map(|(name, _)| name));
    names.filter(|name| !name.contains('{')).map(|name| format!("{folder}{name}.rs")).collect()
}

fn collect(src: &Path, folder: &Path, files: &mut Vec<(String, String)>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path: PathBuf = entry.unwrap().path();
        if path.is_dir() {
            collect(src, &path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") && !path.ends_with("fuzzing.rs")
        {
            let name = path.strip_prefix(src).unwrap().to_str().unwrap().replace('\\', "/");
            files.push((name, fs::read_to_string(&path).unwrap()));
        }
    }
}

/// A file without its tests, which may use everything.
fn before_tests(text: &str) -> &str {
    let tests = ["\nmod tests {", "\npub(crate) mod tests {"].iter().find_map(|start| text.find(start));
    let tests = tests.and_then(|at| text[..at].rfind("#[cfg(test)]"));
    tests.map_or(text, |at| &text[..at])
}

/// The code before the tests: lines without what follows `//`.
pub(crate) fn code(text: &str) -> String {
    let lines = before_tests(text).lines().map(|line| line.split("//").next().unwrap_or_default());
    lines.collect::<Vec<_>>().join("\n")
}

/// The paths after `crate::` in the code, up to a type or constant: `store::memory`, `quota`.
pub(crate) fn uses(text: &str) -> Vec<String> {
    let code = code(text);
    let mut found = BTreeSet::new();
    let is_path = |at: &usize| !code[..*at].ends_with('$'); // a macro's own paths lead back to it
    for at in code.match_indices("crate::").map(|(at, _)| at).filter(is_path) {
        let path = &code[at + "crate::".len()..];
        if let Some(list) = path.strip_prefix('{') {
            found.extend(items(list).map(module_path));
        } else {
            found.insert(module_path(path));
        }
    }
    found.into_iter().collect()
}

/// The items of a `use` list up to its closing brace, inner lists left as they are.
fn items(list: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0;
    let end = list.find(|c| {
        depth += i32::from(c == '{') - i32::from(c == '}');
        depth < 0
    });
    let mut depth = 0;
    let items = list[..end.unwrap_or(list.len())].split(move |c| {
        depth += i32::from(c == '{') - i32::from(c == '}');
        c == ',' && depth == 0
    });
    items.map(str::trim).filter(|item| !item.is_empty())
}

/// The leading part of a path that may name modules: these begin in lower case.
fn module_path(mut path: &str) -> String {
    let mut modules = Vec::new();
    loop {
        let end = path.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(path.len());
        let (part, rest) = path.split_at(end);
        if part.is_empty() || !modules.is_empty() && part.starts_with(char::is_uppercase) {
            break;
        }
        modules.push(part);
        match rest.strip_prefix("::") {
            Some(rest) => path = rest,
            None => break,
        }
    }
    modules.join("::")
}
