//! `cargo xtask tidy`: the style rules that rustfmt and clippy do not know.
//!
//! 1. A source file has at most 500 lines, a folder at most 9 source files.
//! 2. Every Rust module opens with `//!`.
//! 3. No word of `words::BANNED` anywhere.
//! 4. `unsafe` only in the files of `unsafety::ALLOWED`, each with a `SAFETY` comment close above,
//!    and never more of them than `unsafety::BLOCKS_MAX`.
//!
//! It reads what git tracks or would track, so that build products and ignored files do not count.

mod unsafety;
mod words;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

const LINES_MAX: usize = 500;
const FILES_MAX: usize = 9;
const SOURCE: [&str; 4] = ["rs", "sh", "c", "py"];

/// One file of the tree: its path from the root, with `/`, and its text.
struct Source {
    path: String,
    text: String,
}

/// Reads the tree under `root` and prints the number of unsafe blocks.
///
/// # Errors
/// One line for each breach, or why the tree could not be read.
pub fn run(root: &Path) -> Result<(), String> {
    let sources = read(root)?;
    let (breaches, unsafe_blocks) = inspect(&sources);
    println!("tidy: {} files, {unsafe_blocks} unsafe blocks of at most {}", sources.len(), unsafety::BLOCKS_MAX);
    if breaches.is_empty() { Ok(()) } else { Err(format!("tidy:\n{}", breaches.join("\n"))) }
}

fn read(root: &Path) -> Result<Vec<Source>, String> {
    let args = ["ls-files", "-z", "--cached", "--others", "--exclude-standard"];
    let out = Command::new("git").args(args).current_dir(root).output();
    let out = out.map_err(|error| format!("tidy asks git for the list of files: {error}"))?;
    if !out.status.success() {
        return Err(format!("tidy: git ls-files failed: {}", String::from_utf8_lossy(&out.stderr).trim()));
    }
    let names = String::from_utf8_lossy(&out.stdout).into_owned();
    let mut sources = Vec::new();
    for path in names.split('\0').filter(|path| !path.is_empty()) {
        // Deleted files are still listed, and a fuzz corpus is not text: neither is a source.
        if let Ok(text) = std::fs::read_to_string(root.join(path)) {
            sources.push(Source { path: path.to_owned(), text });
        }
    }
    sources.sort_by(|a, b| a.path.cmp(&b.path));
    sources.dedup_by(|a, b| a.path == b.path);
    Ok(sources)
}

fn inspect(sources: &[Source]) -> (Vec<String>, usize) {
    let mut breaches = Vec::new();
    let mut folders: BTreeMap<&str, usize> = BTreeMap::new();
    let mut unsafe_blocks = 0;
    for Source { path, text } in sources {
        words::inspect(path, text, &mut breaches);
        let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
        let extension = name.rsplit_once('.').map_or("", |(_, extension)| extension);
        if !SOURCE.contains(&extension) {
            continue;
        }
        *folders.entry(folder).or_default() += 1;
        let lines = text.lines().count();
        if lines > LINES_MAX {
            breaches.push(format!("{path}: {lines} lines; split it, {LINES_MAX} is the most"));
        }
        if extension == "rs" {
            if !text.starts_with("//!") {
                breaches.push(format!("{path}:1: a module opens with a `//!` header that says what it is for"));
            }
            unsafe_blocks += unsafety::inspect(path, text, &mut breaches);
        }
    }
    for (folder, files) in folders {
        if files > FILES_MAX {
            breaches.push(format!("{folder}/: {files} source files; make sub-folders, {FILES_MAX} is the most"));
        }
    }
    if unsafe_blocks > unsafety::BLOCKS_MAX {
        breaches.push(format!(
            "{unsafe_blocks} unsafe blocks; {} is the most: do without, or raise the number in xtask and say why",
            unsafety::BLOCKS_MAX
        ));
    }
    (breaches, unsafe_blocks)
}
