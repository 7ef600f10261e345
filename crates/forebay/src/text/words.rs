//! Cutting table text into lines of words.
//!
//! ```text
//!   "0 8 linear a\ b 0 ; 8 8 error  # a comment"  ─▶  [0, 8, linear, "a b", 0]  [8, 8, error]
//! ```
//!
//! 1. A line ends at a line break or a semicolon; lines without words are left out, but counted.
//! 2. A backslash makes the next character an ordinary one, as in the kernel's table lines.
//! 3. A `#` at the start of a word makes the rest of the line, up to the line break, a comment.

/// The words of one line.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Line {
    /// Place in the text, from 1.
    pub(super) number: usize,
    /// At least one.
    pub(super) words: Vec<String>,
}

/// Cuts `text` into its lines.
pub(super) fn lines(text: &str) -> Vec<Line> {
    let mut cut = Cut { lines: Vec::new(), words: Vec::new(), word: None, number: 1 };
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        match letter {
            '\n' | ';' => cut.end_line(),
            '\\' => cut.push(letters.next().unwrap_or('\\')),
            '#' if cut.word.is_none() => {
                let _comment = letters.by_ref().take_while(|&letter| letter != '\n').count();
                cut.end_line();
            }
            _ if letter.is_whitespace() => cut.end_word(),
            _ => cut.push(letter),
        }
    }
    cut.end_line();
    cut.lines
}

struct Cut {
    lines: Vec<Line>,
    words: Vec<String>,
    word: Option<String>,
    number: usize,
}

impl Cut {
    fn push(&mut self, letter: char) {
        self.word.get_or_insert_default().push(letter);
    }

    fn end_word(&mut self) {
        self.words.extend(self.word.take());
    }

    fn end_line(&mut self) {
        self.end_word();
        if !self.words.is_empty() {
            let words = std::mem::take(&mut self.words);
            self.lines.push(Line { number: self.number, words });
        }
        self.number += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(text: &str) -> Vec<(usize, Vec<String>)> {
        lines(text).into_iter().map(|line| (line.number, line.words)).collect()
    }

    fn line(number: usize, words: &[&str]) -> (usize, Vec<String>) {
        (number, words.iter().map(|&word| word.to_owned()).collect())
    }

    #[test]
    fn lines_end_at_breaks_and_semicolons() {
        assert_eq!(cut("a b;c\n\n d "), [line(1, &["a", "b"]), line(2, &["c"]), line(4, &["d"])]);
        assert_eq!(cut(" ;\n ; "), []);
    }

    #[test]
    fn a_backslash_keeps_the_next_character() {
        assert_eq!(cut(r"a\ b \# c\;d \\"), [line(1, &["a b", "#", "c;d", r"\"])]);
        assert_eq!(cut(r"end\"), [line(1, &[r"end\"])]);
    }

    #[test]
    fn a_comment_reaches_to_the_line_break() {
        assert_eq!(cut("# all; of it\na#b # c\nd"), [line(2, &["a#b"]), line(3, &["d"])]);
    }
}
