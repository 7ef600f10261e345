//! Where `unsafe` may stand, and how many blocks of it there may be.

/// `NAME` stands for the file `NAME.rs` and everything in the folder `NAME/`; `unsafe` anywhere else is refused.
const ALLOWED: [&str; 4] =
    ["crates/block/src/bvec", "crates/reactor/src/pool", "crates/reactor/src/threads", "crates/reactor/src/uring"];

/// Blocks, functions and impls in the whole tree. Lower it when one goes; raise it only with a reason in the commit.
pub const BLOCKS_MAX: usize = 41;

/// A `SAFETY` comment stands on one of this many lines above its block, or on the same line.
const COMMENT_WITHIN: usize = 6;

/// Adds a breach for every `unsafe` that is not allowed or not argued; returns how many there are.
pub fn inspect(path: &str, text: &str, breaches: &mut Vec<String>) -> usize {
    let allowed = ALLOWED.iter().any(|stem| {
        let rest = path.strip_prefix(stem);
        rest.is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
    });
    let mut argued_at = None;
    let mut blocks = 0;
    for (number, line) in text.lines().enumerate() {
        if line.contains("SAFETY:") || line.contains("# Safety") {
            argued_at = Some(number);
        }
        let code = line.split("//").next().unwrap_or("");
        let found = ["unsafe {", "unsafe fn", "unsafe impl", "unsafe trait", "unsafe extern"];
        let found: usize = found.iter().map(|word| code.matches(word).count()).sum();
        if found == 0 || code.contains(QUOTED) || code.trim_start().starts_with('#') {
            continue;
        }
        blocks += found;
        if !allowed {
            breaches.push(format!("{path}:{}: unsafe stands only in {}", number + 1, ALLOWED.join(", ")));
        } else if argued_at.is_none_or(|at| number - at > COMMENT_WITHIN) {
            breaches.push(format!("{path}:{}: say in a SAFETY comment just above why this is sound", number + 1));
        }
    }
    blocks
}

/// A line that only quotes the word, as this file does; the reasons in attributes do so, too.
const QUOTED: &str = "\"unsafe ";
