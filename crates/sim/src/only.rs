//! A part of a seed: some of its lives, and of these some of the operations, so that a failure can be made small.
//!
//! ```text
//!   seed ─▶ life 0: a b c d     what is left out is drawn all the same, so that everything
//!           life 1: e f    ─▶   else is drawn as before;    written  0:1,3/2:0  or with  @SALT
//!           life 2: g h i
//! ```
//!
//! 1. Lives and operations are counted from 0, operations in each life anew.
//! 2. A life that is not in the selection is not lived; behind the last one that is, only the final checks follow.
//! 3. With a salt other than 0 the world draws its times, faults and cuts anew.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

/// What of a seed is carried out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Only {
    /// The operations of each life that is lived.
    pub lives: BTreeMap<u32, BTreeSet<u32>>,
    /// Another chance for the world.
    pub salt: u64,
}

impl Only {
    /// How many operations are left.
    #[must_use]
    pub fn operations(&self) -> usize {
        self.lives.values().map(BTreeSet::len).sum()
    }
}

impl fmt::Display for Only {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (life, operations)) in self.lives.iter().enumerate() {
            write!(f, "{}{life}:", if at == 0 { "" } else { "/" })?;
            for (at, operation) in operations.iter().enumerate() {
                write!(f, "{}{operation}", if at == 0 { "" } else { "," })?;
            }
        }
        if self.salt == 0 { Ok(()) } else { write!(f, "@{}", self.salt) }
    }
}

impl FromStr for Only {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("\"{text}\" does not say which operations of which lives, like 0:1,3/2:0");
        let (selection, salt) = text.split_once('@').unwrap_or((text, "0"));
        let mut only = Self { salt: salt.parse().map_err(|_| wrong())?, ..Self::default() };
        for life in selection.split('/').filter(|life| !life.is_empty()) {
            let (life, operations) = life.split_once(':').ok_or_else(wrong)?;
            let operations = operations.split(',').filter(|operation| !operation.is_empty()).map(u32::from_str);
            let operations: Result<BTreeSet<u32>, _> = operations.collect();
            only.lives.insert(life.parse().map_err(|_| wrong())?, operations.map_err(|_| wrong())?);
        }
        Ok(only)
    }
}

/// How a seed is run.
#[derive(Clone, Debug, Default)]
pub struct How {
    /// Print every event.
    pub trace: bool,
    /// What of it; everything when this is `None`.
    pub only: Option<Only>,
}

/// Counts what is drawn, and tells what is carried out.
#[derive(Debug, Default)]
pub(crate) struct Selection {
    only: Option<Only>,
    /// Operations drawn in each life.
    drawn: Vec<u32>,
}

impl Selection {
    pub(crate) fn new(only: Option<Only>) -> Self {
        Self { only, drawn: Vec::new() }
    }

    /// Counts a life; whether it is lived.
    pub(crate) fn begin_life(&mut self) -> bool {
        let life = narrow(self.drawn.len());
        self.drawn.push(0);
        self.only.as_ref().is_none_or(|only| only.lives.contains_key(&life))
    }

    /// Counts an operation of the present life; whether it is carried out.
    pub(crate) fn takes(&mut self) -> bool {
        let life = narrow(self.drawn.len().saturating_sub(1));
        let Some(drawn) = self.drawn.last_mut() else { return true };
        let operation = *drawn;
        *drawn += 1;
        let carried_out = |only: &Only| only.lives.get(&life).is_some_and(|operations| operations.contains(&operation));
        self.only.as_ref().is_none_or(carried_out)
    }

    /// Whether no further life is to be lived.
    pub(crate) fn is_over(&self) -> bool {
        let last = |only: &Only| only.lives.keys().next_back().map_or(0, |life| life + 1);
        self.only.as_ref().is_some_and(|only| narrow(self.drawn.len()) >= last(only))
    }

    /// Operations drawn in each life so far.
    pub(crate) fn drawn(&self) -> &[u32] {
        &self.drawn
    }
}

fn narrow(number: usize) -> u32 {
    u32::try_from(number).expect("a seed has a few hundred lives")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        for text in ["", "0:", "0:1,3/2:0", "7:/9:4@12"] {
            assert_eq!(text.parse::<Only>().map(|only| only.to_string()), Ok(text.to_owned()));
        }
        for text in ["0", "a:1", "0:1,x", "0:1@", "1:2;3"] {
            assert!(text.parse::<Only>().is_err(), "{text}");
        }
    }

    #[test]
    fn lives_and_operations_are_counted_whether_they_are_taken_or_not() {
        let mut selection = Selection::new("1:0,2".parse().ok());
        assert!(!selection.begin_life() && !selection.takes() && !selection.is_over());
        assert!(selection.begin_life());
        assert_eq!([(); 4].map(|()| selection.takes()), [true, false, true, false]);
        assert!(selection.is_over());
        assert_eq!(selection.drawn(), [1, 4]);
        let mut all = Selection::new(None);
        assert!(all.begin_life() && all.takes() && !all.is_over());
    }
}
