//! Every rule refuses what it is there to refuse, and the tree's own kind of file passes.

use super::*;

fn breaches(path: &str, text: &str) -> Vec<String> {
    inspect(&[Source { path: path.to_owned(), text: text.to_owned() }]).0
}

#[test]
fn an_ordinary_module_passes() {
    assert_eq!(breaches("crates/block/src/unit.rs", "//! Units.\nfn f() {}\n"), Vec::<String>::new());
}

#[test]
fn a_module_without_a_header_is_refused() {
    assert!(breaches("a.rs", "fn f() {}\n")[0].contains("a.rs:1: a module opens"));
}

#[test]
fn a_file_of_501_lines_is_refused_and_one_of_500_is_not() {
    let text = |lines: usize| format!("//! Long.\n{}", "\n".repeat(lines - 1));
    assert!(breaches("a.rs", &text(500)).is_empty());
    assert!(breaches("a.rs", &text(501))[0].contains("501 lines"));
}

#[test]
fn a_folder_of_ten_sources_is_refused_and_other_files_do_not_count() {
    let file = |i: usize, extension: &str| Source { path: format!("d/{i}.{extension}"), text: "//! A.\n".to_owned() };
    let mut sources: Vec<Source> = (0..9).map(|i| file(i, "rs")).collect();
    sources.push(file(9, "md"));
    assert!(inspect(&sources).0.is_empty());
    sources.push(file(9, "sh"));
    assert_eq!(inspect(&sources).0, ["d/: 10 source files; make sub-folders, 9 is the most"]);
}

#[test]
fn banned_words_are_found_with_their_line() {
    let text = format!("//! A.\nfn f() {{ {}) }}\n", concat!("todo", "!("));
    assert!(breaches("a.rs", &text)[0].starts_with("a.rs:2: "));
    let text = format!("see {}x\n", concat!("/wo", "rk/"));
    assert!(breaches("README.md", &text)[0].starts_with("README.md:1: "));
    assert!(breaches("README.md", concat!("XX", "X is fine in text\n")).is_empty());
}

#[test]
fn unsafe_is_refused_outside_the_allowed_files_and_without_a_reason() {
    let block = concat!("unsa", "fe { f() }");
    let argued = format!("//! A.\n// SAFETY: f is fine.\n{block}\n");
    assert!(breaches("crates/device/src/ram.rs", &argued)[0].contains("ram.rs:3: unsafe stands only in"));
    let bare = format!("//! A.\n{block}\n");
    assert!(breaches("crates/block/src/bvec.rs", &bare)[0].contains("SAFETY comment"));
    let far = format!("//! A.\n// SAFETY: f is fine.\n{}{block}\n", "\n".repeat(6));
    assert!(breaches("crates/block/src/bvec.rs", &far)[0].contains("SAFETY comment"));
    let mut none = Vec::new();
    assert_eq!(unsafety::inspect("crates/reactor/src/uring/ring.rs", &argued, &mut none), 1);
    assert!(none.is_empty());
}

#[test]
fn the_number_of_unsafe_blocks_cannot_grow_unseen() {
    let line = format!("// SAFETY: fine.\n{}\n", concat!("unsa", "fe { f() }"));
    let text = format!("//! A.\n{}", line.repeat(unsafety::BLOCKS_MAX + 1));
    let (breaches, blocks) = inspect(&[Source { path: "crates/block/src/bvec.rs".to_owned(), text }]);
    assert_eq!(blocks, unsafety::BLOCKS_MAX + 1);
    assert!(breaches.iter().any(|breach| breach.contains("is the most: do without")));
}
