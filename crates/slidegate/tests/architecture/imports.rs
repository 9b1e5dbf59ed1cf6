//! The graph of imports between the files of a crate, and its cycles.
//!
//! A `mod` line is no import, and neither is a re-export that the file itself does not use: a file
//! that only lists modules has no edges. An import of a re-exported name leads to the file that it
//! comes from.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use super::source_tree::{code, collect_files};

/// The files of a crate by their stems (`store/memory/table`), each with the stems that it imports.
pub(crate) struct Imports(BTreeMap<String, BTreeSet<String>>);

/// A file without comments and tests.
struct SourceFile {
    /// Paths of its `use` lines, lists taken apart.
    uses: Vec<Use>,
    /// The code without `use` and `mod` lines.
    body: String,
}

struct Use {
    path: String,
    /// The name in this file.
    name: String,
    is_public: bool,
}

impl Imports {
    /// Reads every file below `src`.
    pub(crate) fn read(src: &str) -> Self {
        let mut sources = BTreeMap::new();
        for (name, text) in collect_files(Path::new(src)) {
            sources.insert(stem(&name), SourceFile::of(&code(&text)));
        }
        let files = Files(sources);
        let imports = files.0.keys().filter(|file| !is_root(file));
        Self(imports.map(|file| (file.clone(), files.imports(file))).collect())
    }

    /// Groups of files that import each other, directly or through others.
    pub(crate) fn cycles(&self) -> Vec<BTreeSet<String>> {
        let reachable: BTreeMap<&str, BTreeSet<&str>> =
            self.0.keys().map(|file| (file.as_str(), self.reachable(file))).collect();
        let mut cycles = BTreeSet::new();
        for (file, targets) in &reachable {
            let is_mutual = |other: &&&str| reachable.get(**other).is_some_and(|back| back.contains(file));
            let cycle: BTreeSet<String> =
                targets.iter().filter(is_mutual).map(|other| (*other).to_owned()).collect();
            if cycle.len() > 1 {
                cycles.insert(cycle);
            }
        }
        cycles.into_iter().collect()
    }

    fn reachable(&self, from: &str) -> BTreeSet<&str> {
        let (mut found, mut open) = (BTreeSet::new(), vec![from]);
        while let Some(file) = open.pop() {
            for next in self.0.get(file).into_iter().flatten() {
                if found.insert(next.as_str()) {
                    open.push(next);
                }
            }
        }
        found
    }
}

struct Files(BTreeMap<String, SourceFile>);

impl Files {
    fn imports(&self, file: &str) -> BTreeSet<String> {
        let source = &self.0[file];
        let mut paths = Vec::new();
        for used in &source.uses {
            let is_used = used.name == "*" || mentions(&source.body, &used.name);
            match self.absolute(file, &used.path) {
                Some(path) if self.0.contains_key(&path.join("/")) => {
                    let children = qualified(&source.body, &used.name);
                    paths.extend(children.into_iter().map(|rest| [path.clone(), rest].concat()));
                }
                Some(path) if is_used => paths.push(path),
                _ => {}
            }
        }
        for start in ["crate", "super", "self"] {
            for rest in qualified(&source.body, start) {
                paths.extend(self.absolute(file, &format!("{start}::{}", rest.join("::"))));
            }
        }
        let children = self.0.keys().filter_map(|child| child.strip_prefix(&format!("{file}/")));
        for child in children.filter(|child| !child.contains('/')) {
            for rest in qualified(&source.body, child) {
                let path = file.split('/').chain([child]).map(str::to_owned);
                paths.push(path.chain(rest).collect());
            }
        }
        let files = paths.iter().filter_map(|path| self.file_of(path, 0));
        files.filter(|target| target != file && !is_root(target)).collect()
    }

    /// The path from the crate's root, if it is one of this crate.
    fn absolute(&self, file: &str, path: &str) -> Option<Vec<String>> {
        let mut own: Vec<String> = file.split('/').map(str::to_owned).collect();
        let mut parts: Vec<String> = path.split("::").map(str::to_owned).collect();
        match parts.first()?.as_str() {
            "crate" => return Some(parts.split_off(1)),
            "self" => {
                parts.remove(0);
            }
            "super" => {
                while parts.first().is_some_and(|part| part == "super") {
                    parts.remove(0);
                    own.pop()?;
                }
            }
            first if !self.0.contains_key(&format!("{file}/{first}")) => return None,
            _ => {}
        }
        Some([own, parts].concat())
    }

    /// The file that defines what a path names.
    fn file_of(&self, path: &[String], depth: usize) -> Option<String> {
        let length = (1..=path.len()).rev().find(|length| self.0.contains_key(&path[..*length].join("/")))?;
        let file = path[..length].join("/");
        if let Some(name) = path.get(length) {
            let is_re_export = |used: &&Use| used.is_public && used.name == *name;
            let origin = self.0[&file].uses.iter().find(is_re_export);
            // A re-export of a re-export is followed, a circle of them is not.
            if let Some(origin) = origin.and_then(|used| self.absolute(&file, &used.path))
                && depth < 8
            {
                return self.file_of(&origin, depth + 1);
            }
        }
        Some(file)
    }
}

impl SourceFile {
    fn of(code: &str) -> Self {
        let (mut uses, mut body) = (Vec::new(), String::new());
        let mut lines = code.lines();
        while let Some(line) = lines.next() {
            let item = without_visibility(line.trim());
            let is_public = item.len() < line.trim().len();
            if item.starts_with("mod ") && item.ends_with(';') {
                continue;
            }
            let Some(list) = item.strip_prefix("use ") else {
                body.push_str(line);
                body.push('\n');
                continue;
            };
            let mut list = list.to_owned();
            while !list.contains(';') {
                let Some(more) = lines.next() else { break };
                list.push_str(more.trim());
            }
            for path in taken_apart(list.trim_end_matches(';').trim()) {
                let (path, renamed) = path.split_once(" as ").unwrap_or((&path, ""));
                let path = path.trim_end_matches("::self");
                let last = path.rsplit("::").next().unwrap_or(path);
                let name = if renamed.is_empty() { last } else { renamed }.to_owned();
                uses.push(Use { path: path.to_owned(), name, is_public });
            }
        }
        Self { uses, body }
    }
}

fn stem(name: &str) -> String {
    name.trim_end_matches(".rs").to_owned()
}

/// The roots list all modules of the crate.
fn is_root(file: &str) -> bool {
    file == "lib" || file == "main"
}

fn without_visibility(item: &str) -> &str {
    let Some(rest) = item.strip_prefix("pub") else { return item };
    let rest =
        rest.strip_prefix('(').map_or(rest, |inner| inner.split_once(')').map_or(rest, |(_, rest)| rest));
    rest.strip_prefix(' ').unwrap_or(item)
}

/// The paths of a `use` list: `a::{b, c::{d}}` is `a::b` and `a::c::d`.
fn taken_apart(path: &str) -> Vec<String> {
    let Some((prefix, list)) = path.split_once('{') else { return vec![path.trim().to_owned()] };
    let list = list.rsplit_once('}').map_or(list, |(list, _)| list);
    let (mut items, mut depth, mut item) = (Vec::new(), 0, String::new());
    for c in list.chars() {
        match c {
            ',' if depth == 0 => items.push(std::mem::take(&mut item)),
            _ => {
                depth += i32::from(c == '{') - i32::from(c == '}');
                item.push(c);
            }
        }
    }
    items.push(item);
    let items = items.iter().map(|item| item.trim()).filter(|item| !item.is_empty());
    items.flat_map(taken_apart).map(|item| format!("{}{item}", prefix.trim())).collect()
}

/// Whether a name stands in the code as a word.
fn mentions(body: &str, name: &str) -> bool {
    body.match_indices(name).any(|(at, _)| is_word(body, at, name))
}

fn is_word(body: &str, at: usize, word: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    !body[..at].ends_with(is_part) && !body[at + word.len()..].starts_with(is_part)
}

/// What follows `name::` in the code, as the parts of paths.
fn qualified(body: &str, name: &str) -> Vec<Vec<String>> {
    let mut found = BTreeSet::new();
    for (at, _) in body.match_indices(name) {
        let Some(rest) = body[at + name.len()..].strip_prefix("::") else { continue };
        if !is_word(body, at, name) || body[..at].ends_with("::") {
            continue;
        }
        let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_' && c != ':').unwrap_or(rest.len());
        let parts = rest[..end].split("::").filter(|part| !part.is_empty()).map(str::to_owned);
        found.insert(parts.collect());
    }
    found.into_iter().collect()
}

/// Every file below `src` that belongs to this crate, for tests of the reader.
#[cfg(test)]
mod tests {
    use super::*;

    /// A reader that sees no imports finds no cycles.
    #[test]
    fn cycles_are_found_through_re_exports_and_paths_in_code() {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("imports-{}", std::process::id()));
        let file = |name: &str, text: &str| {
            let path = folder.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        file("lib.rs", "mod a;\nmod b;\nmod c;\npub use a::A;\n");
        file("a.rs", "mod inner;\npub(crate) use inner::A;\n");
        file("a/inner.rs", "use crate::b::B;\npub(crate) struct A(B);\n");
        file("b.rs", "pub(crate) struct B;\nfn b() { let _ = crate::a::A::new(); }\n");
        file("c.rs", "// use crate::a::A;\nuse crate::b::{self, B};\nfn c(_: B) { b::b() }\n");
        let cycles = Imports::read(folder.to_str().unwrap()).cycles();
        fs::remove_dir_all(&folder).unwrap();
        let expected: BTreeSet<String> = ["a/inner".to_owned(), "b".to_owned()].into();
        assert_eq!(cycles, [expected]);
    }
}
