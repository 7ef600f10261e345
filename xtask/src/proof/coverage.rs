//! `cargo xtask coverage`: which lines of the product the tests run, by group of files.
//!
//! ```text
//!   instrumented build ─▶ tests of all crates ─▶ seeds of the simulator ─▶ commands by the real binary
//!                                                                                   │
//!   table, and the lines nobody ran ◀─ groups of files ◀─ lines and how often each ran
//! ```
//!
//! 1. A line counts as often as the compiler made code of it: comments, declarations and derived code do not.
//! 2. Tests are not counted, neither files of them nor the module of tests at the end of a file.
//! 3. What a process ran that was killed or that aborted is lost, so figures are rather too low than too high.

use super::groups::{self, GROUPS, Group};
use crate::step::{Count, Step};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

/// Building everything with counters, and running it, takes ten to fifteen minutes on two cores.
const LIMIT_S: u32 = 3600;

/// Seeds of the simulator that are run for each subject: enough that more of them find no further lines.
const SEEDS: [(&str, &str); 7] = [
    ("cache", "0..400"),
    ("zram", "0..300"),
    ("snapshot", "0..200"),
    ("mirror", "0..200"),
    ("clone", "0..200"),
    ("copy", "0..200"),
    ("nbd", "0..40"),
];

/// Tests with the real binary that are quick and need no kernel.
const COMMANDS: [&str; 6] = ["cli", "control", "copy", "mirror", "clone", "side_file"];

/// For each line of a file that has code: how often it ran.
type Lines = BTreeMap<u64, u64>;

/// Runs the tests with counters, prints the table, and holds the groups against their floors.
///
/// # Errors
/// Says which tool is missing, that a test failed, or which groups are below their floor.
pub fn run() -> Result<(), String> {
    provide()?;
    let count = gather()?;
    let found = report()?;
    print!("{}", table(&found));
    if count.failed > 0 {
        return Err("tests failed, so that the figures are too low; see the lines marked FAILED above".to_owned());
    }
    verdict(&found)
}

/// Makes sure that the two tools are there, installing them where that is possible.
fn provide() -> Result<(), String> {
    let llvm = || Command::new("cargo").args(["llvm-cov", "show-env"]).output().is_ok_and(|out| out.status.success());
    if !crate::tools::cargo_has("llvm-cov") {
        Step::new("install cargo-llvm-cov", 900, &["cargo", "install", "cargo-llvm-cov", "--locked"]).run();
    }
    if !llvm() {
        Step::new("install llvm-tools", 300, &["rustup", "component", "add", "llvm-tools"]).run();
    }
    if llvm() {
        return Ok(());
    }
    Err("coverage needs cargo-llvm-cov and the compiler's llvm-tools: cargo install cargo-llvm-cov --locked; \
         rustup component add llvm-tools"
        .to_owned())
}

/// Runs everything that is counted.
fn gather() -> Result<Count, String> {
    let me = std::env::current_exe().map_err(|error| format!("this program does not know where it is: {error}"))?;
    let target = me.ancestors().nth(2).ok_or("this program is in no target folder")?;
    let binary = target.join("llvm-cov-target/release/forebay");
    let binary = binary.to_str().ok_or("the path of the target folder is not text")?;
    let mut count = measured("forget earlier figures", &["clean", "--workspace", "--profraw-only"]).run_as_one();
    // The first builds the binary that the last needs.
    let crates = ["test", "--no-report", "--release", "--workspace", "--exclude", "forebay-tests", "--exclude", "xtask"];
    count.add(measured("tests of all crates, counting lines", &crates).run_counting());
    for (subject, seeds) in SEEDS {
        let sim =
            ["run", "--no-report", "--release", "-p", "forebay-sim", "--bin", "forebay-sim", "--", subject, "--seeds", seeds];
        count.add(measured(&format!("simulator, {subject}, counting lines"), &sim).run_as_one());
    }
    let mut commands = vec!["test", "--no-report", "--release", "-p", "forebay-tests"];
    commands.extend(COMMANDS.iter().flat_map(|test| ["--test", test]));
    count.add(measured("commands by the real binary, counting lines", &commands).env("FOREBAY_BIN", binary).run_counting());
    Ok(count)
}

/// A run of cargo-llvm-cov. Processes of the same program add to one file of figures, of which there are few.
fn measured(name: &str, words: &[&str]) -> Step {
    Step::new(name, LIMIT_S, &[&["cargo", "llvm-cov"], words].concat()).env("LLVM_PROFILE_FILE_NAME", "forebay-%4m.profraw")
}

/// The lines of each file of a group, by its path from the root.
fn report() -> Result<BTreeMap<String, Lines>, String> {
    let root = crate::root().canonicalize().map_err(|error| format!("the repository's root cannot be found: {error}"))?;
    let out = Command::new("cargo").args(["llvm-cov", "report", "--release", "--lcov"]).current_dir(&root).output();
    let out = out.map_err(|error| format!("cargo llvm-cov does not start: {error}"))?;
    if !out.status.success() {
        return Err(format!("cargo llvm-cov report failed: {}", String::from_utf8_lossy(&out.stderr).trim()));
    }
    let mut found = parse(&String::from_utf8_lossy(&out.stdout), &root);
    for (path, lines) in &mut found {
        let text = std::fs::read_to_string(root.join(path)).map_err(|error| format!("{path} cannot be read: {error}"))?;
        lines.split_off(&first_line_of_tests(&text));
    }
    Ok(found)
}

/// Reads a report in lcov's format: `SF:` begins a file, `DA:LINE,COUNT` is a line.
fn parse(text: &str, root: &Path) -> BTreeMap<String, Lines> {
    let mut found: BTreeMap<String, Lines> = BTreeMap::new();
    let mut path = None;
    for line in text.lines() {
        if let Some(file) = line.strip_prefix("SF:") {
            path = Path::new(file).strip_prefix(root).ok().and_then(Path::to_str).filter(|path| groups::of(path).is_some());
        } else if let (Some(path), Some((number, count))) = (path, line.strip_prefix("DA:").and_then(|rest| rest.split_once(',')))
        {
            let (Ok(number), Ok(count)) = (number.parse(), count.parse::<u64>()) else { continue };
            let ran = found.entry(path.to_owned()).or_default().entry(number).or_insert(0);
            *ran = (*ran).max(count);
        }
    }
    found
}

/// Where the module of tests begins that stands at the end of a file.
fn first_line_of_tests(text: &str) -> u64 {
    let mut numbered = (1..).zip(text.lines()).peekable();
    while let Some((number, line)) = numbered.next() {
        if line == "#[cfg(test)]" && numbered.peek().is_some_and(|(_, next)| next.starts_with("mod ") && next.ends_with('{')) {
            return number;
        }
    }
    u64::MAX
}

/// Lines with code, and how many of them ran.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sum {
    lines: u64,
    covered: u64,
}

impl Sum {
    fn of(found: &BTreeMap<String, Lines>, wanted: impl Fn(&str) -> bool) -> Self {
        let mut sum = Self::default();
        for count in found.iter().filter(|(path, _)| wanted(path)).flat_map(|(_, lines)| lines.values()) {
            sum.lines += 1;
            sum.covered += u64::from(*count > 0);
        }
        sum
    }

    fn of_group(found: &BTreeMap<String, Lines>, group: &Group) -> Self {
        Self::of(found, |path| groups::of(path).is_some_and(|own| own.name == group.name))
    }

    /// In tenths of a percent, rounded down; nothing at all is not covered.
    fn per_mille(self) -> u64 {
        (self.covered * 1000).checked_div(self.lines).unwrap_or(0)
    }

    fn row(self, name: &str) -> String {
        let share = self.per_mille();
        format!("| {name} | {} | {} | {}.{} |\n", self.lines, self.covered, share / 10, share % 10)
    }
}

/// The figures of all groups, and of those with a floor the lines that nobody ran.
fn table(found: &BTreeMap<String, Lines>) -> String {
    let mut text = String::new();
    let listed: BTreeSet<&str> = GROUPS.iter().filter(|group| group.floor_percent.is_some()).map(|group| group.name).collect();
    for (path, lines) in found.iter().filter(|(path, _)| groups::of(path).is_some_and(|group| listed.contains(group.name))) {
        let missed: Vec<String> = lines.iter().filter(|(_, count)| **count == 0).map(|(number, _)| number.to_string()).collect();
        if !missed.is_empty() {
            let _ = writeln!(text, "not run: {path}: {}", missed.join(" "));
        }
    }
    text.push_str("| group | lines | covered | % |\n|---|---|---|---|\n");
    for group in &GROUPS {
        text.push_str(&Sum::of_group(found, group).row(group.name));
    }
    text.push_str(&Sum::of(found, |_| true).row("all"));
    text
}

/// Holds each group against its floor.
fn verdict(found: &BTreeMap<String, Lines>) -> Result<(), String> {
    let mut low = Vec::new();
    for group in &GROUPS {
        let Some(floor) = group.floor_percent else { continue };
        let share = Sum::of_group(found, group).per_mille();
        if share < floor * 10 {
            low.push(format!("{} has {}.{} % of its lines covered", group.name, share / 10, share % 10));
        }
    }
    if low.is_empty() {
        return Ok(());
    }
    Err(format!(
        "{}: too little, xtask/src/proof/groups.rs has the floors; test the lines marked \"not run\" above",
        low.join("; ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: &str = "SF:/r/crates/nbd/src/wire.rs\nFN:1,name\nDA:1,7\nDA:2,0\nDA:3,1\nLF:3\nLH:2\nend_of_record\n\
                          SF:/elsewhere/lib.rs\nDA:1,1\nend_of_record\n\
                          SF:/r/crates/nbd/src/client/session/tests.rs\nDA:1,1\nend_of_record\n";

    #[test]
    fn a_report_is_read_by_line_and_only_for_files_of_groups() {
        let found = parse(REPORT, Path::new("/r"));
        let lines = Lines::from([(1, 7), (2, 0), (3, 1)]);
        assert_eq!(found, BTreeMap::from([("crates/nbd/src/wire.rs".to_owned(), lines)]));
        assert_eq!(Sum::of(&found, |_| true), Sum { lines: 3, covered: 2 });
        assert!(table(&found).starts_with("not run: crates/nbd/src/wire.rs: 2\n"));
        assert!(table(&found).contains("| wire: NBD server and client | 3 | 2 | 66.6 |\n"));
    }

    #[test]
    fn a_group_below_its_floor_is_named_with_its_share() {
        let at = |covered: u64| {
            let lines = (0..100).map(|line| (line, u64::from(line < covered))).collect::<Lines>();
            let first = |group: &Group| {
                let folder = group.paths.iter().find(|path| path.ends_with('/'));
                folder.map_or_else(|| group.paths[0].to_owned(), |folder| format!("{folder}x.rs"))
            };
            verdict(&GROUPS.iter().map(|group| (first(group), lines.clone())).collect())
        };
        assert_eq!(at(95), Ok(()));
        let reason = at(94).expect_err("94 is below 95");
        assert!(reason.contains("block has 94.0 % of its lines covered"), "{reason}");
        assert!(!reason.contains("reactor"), "{reason}");
        assert!(verdict(&BTreeMap::new()).is_err(), "a report of nothing proves nothing");
    }

    #[test]
    fn the_tests_at_the_end_of_a_file_are_not_counted() {
        assert_eq!(first_line_of_tests("fn f() {}\n\n#[cfg(test)]\nmod tests {\n}\n"), 3);
        assert_eq!(first_line_of_tests("#[cfg(test)]\nmod tests;\nfn f() {}\n"), u64::MAX);
        assert_eq!(first_line_of_tests("#[cfg(test)]\nuse x;\n"), u64::MAX);
    }
}
