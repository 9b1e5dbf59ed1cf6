//! Resolves inputs to logs: files, directories, patterns, and `-` for standard input.

use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};

/// Maximum logs per run: their names and first times are kept in memory.
pub(crate) const MAX_LOGS: usize = 100_000;

/// A log to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FoundLog {
    /// `None` for standard input.
    pub(crate) path: Option<PathBuf>,
    /// Index of its input: a directory or pattern has several logs.
    pub(crate) input: usize,
}

/// Finds the logs of all inputs. A repeated log is read once. Of a directory, its files are read,
/// except those whose name begins with a dot, but not its subdirectories.
///
/// # Errors
/// An input does not exist, cannot be read, or there are too many logs.
pub(crate) fn find(inputs: &[PathBuf]) -> io::Result<Vec<FoundLog>> {
    let mut found = Vec::new();
    let mut known = HashSet::new();
    for (input, path) in inputs.iter().enumerate() {
        let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
        if path == Path::new("-") {
            if known.insert(PathBuf::from("-")) {
                found.push(FoundLog { path: None, input });
            }
            continue;
        }
        for file in files_of(path).map_err(named)? {
            let identity = file.canonicalize().map_err(named)?;
            if known.insert(identity) {
                found.push(FoundLog { path: Some(file), input });
            }
            if found.len() > MAX_LOGS {
                return Err(io::Error::other(format!(
                    "too many logs: expected at most {MAX_LOGS}; replay some of them"
                )));
            }
        }
    }
    Ok(found)
}

/// The files of one input, sorted by name.
fn files_of(path: &Path) -> io::Result<Vec<PathBuf>> {
    match path.metadata() {
        Ok(metadata) if metadata.is_dir() => {
            let mut files = Vec::new();
            for entry in path.read_dir()? {
                let entry = entry?;
                let is_hidden = entry.file_name().as_encoded_bytes().starts_with(b".");
                if !is_hidden && entry.path().metadata().is_ok_and(|metadata| metadata.is_file()) {
                    files.push(entry.path());
                }
            }
            files.sort();
            if files.is_empty() {
                return Err(io::Error::new(io::ErrorKind::NotFound, "the directory has no files"));
            }
            Ok(files)
        }
        Ok(_) => Ok(vec![path.to_owned()]),
        Err(error) => match path.to_str().filter(|text| text.contains(['*', '?', '['])) {
            Some(pattern) => matches_of(pattern),
            None => Err(error),
        },
    }
}

fn matches_of(pattern: &str) -> io::Result<Vec<PathBuf>> {
    let invalid = |error: glob::PatternError| {
        io::Error::new(io::ErrorKind::InvalidInput, format!("invalid pattern: {error}"))
    };
    let mut files = Vec::new();
    for file in glob::glob(pattern).map_err(invalid)? {
        let file = file?;
        if file.metadata().is_ok_and(|metadata| metadata.is_file()) {
            files.push(file);
        }
    }
    if files.is_empty() {
        return Err(io::Error::new(io::ErrorKind::NotFound, "no file matches the pattern"));
    }
    Ok(files)
}
