//! Words that have no place in the tree. They are spelled in parts so that this file does not hold them.

/// What is looked for, in which kind of file (an extension, or "" for any text), and what to do instead.
const BANNED: [(&str, &str, &str); 9] = [
    (concat!("todo", "!("), "rs", "finish it"),
    (concat!("unimplemented", "!("), "rs", "finish it"),
    (concat!("FIX", "ME"), "rs", "mend it"),
    (concat!("XX", "X"), "rs", "mend it"),
    (concat!("#[", "ignore"), "rs", "a test that does not run proves nothing"),
    (concat!("mod ut", "ils"), "rs", "name the module for what it does"),
    (concat!("mod ut", "il;"), "rs", "name the module for what it does"),
    (concat!("/wo", "rk/"), "", "no paths of one machine"),
    (concat!("/ro", "ot/"), "", "no paths of one machine"),
];

/// Adds a breach for every line of `text` that holds a banned word.
pub fn inspect(path: &str, text: &str, breaches: &mut Vec<String>) {
    for (word, extension, advice) in BANNED {
        let applies = extension.is_empty() || path.rsplit_once('.').is_some_and(|(_, found)| found == extension);
        if !applies || !text.contains(word) {
            continue;
        }
        for (number, _) in text.lines().enumerate().filter(|(_, line)| line.contains(word)) {
            breaches.push(format!("{path}:{}: \"{word}\": {advice}", number + 1));
        }
    }
}
