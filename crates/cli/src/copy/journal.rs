//! The file that holds the journal of a copy, and which copy it belongs to.
//!
//! A copy is named by a fingerprint of its ends: their names, identities and sizes, and when the source was
//! changed last. What lies in the file and when it is written: `forebay_target::copy`.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use forebay::block::Target;
use forebay::{Direct, FileOptions, Reactor};
use forebay_device::FileDevice;
use forebay_target::copy::{Found, JOURNAL_BYTES, Journal, Settled};
use twox_hash::XxHash3_64;

use super::ends::{self, Destination, LOCK_WAIT, Source};
use crate::failure::Failure;

/// A fingerprint of the ends of a copy.
fn fingerprint(source: &Source, destinations: &[Destination]) -> u64 {
    let mut words = vec![format!("{}\0{}\0{:?}", source.name, source.bytes, source.seen)];
    words.extend(destinations.iter().map(|to| format!("{}\0{:?}", to.name, to.seen.map(|seen| (seen.identity, seen.bytes)))));
    XxHash3_64::oneshot(words.join("\n").as_bytes())
}

/// The file of a journal, locked.
pub struct JournalFile {
    path: PathBuf,
    target: Rc<dyn Target>,
    /// What was in it.
    pub found: Option<Settled>,
}

impl JournalFile {
    /// Opens the file, which is made where it is missing.
    pub async fn open(reactor: &Reactor, path: &Path) -> Result<Self, Failure> {
        let failed = |error| Failure::because(format!("opening {}", path.display()), &error);
        let file = File::options().write(true).create(true).truncate(false).open(path).map_err(failed)?;
        let bytes = file.metadata().map_err(failed)?.len();
        if bytes == 0 {
            let made = file.set_len(JOURNAL_BYTES).and_then(|()| file.sync_all()).and_then(|()| ends::sync_folder(path));
            made.map_err(failed)?;
        }
        let other = || Failure::Failed(format!("{} is not the journal of a copy: name another file", path.display()));
        if bytes != 0 && bytes != JOURNAL_BYTES {
            return Err(other());
        }
        let options = FileOptions { lock_wait: LOCK_WAIT, direct: Direct::Off, ..FileOptions::default() };
        let target: Rc<dyn Target> = FileDevice::open(reactor, path, &options).map_err(|error| Failure::of(&error))?;
        let found = match Journal::find(&*target).await {
            Ok(Found::Nothing) => None,
            Ok(Found::Journal(settled)) => Some(settled),
            Ok(Found::Other) => return Err(other()),
            Err(status) => return Err(Failure::Failed(format!("reading {} failed: {}", path.display(), super::words(status)))),
        };
        Ok(Self { path: path.to_owned(), target, found })
    }

    fn of_another(&self) -> Failure {
        let what = "is the journal of another copy, or the source or a destination has changed since";
        Failure::Failed(format!("{} {what}: remove it to copy everything", self.path.display()))
    }

    /// Makes sure that nothing is settled yet: a destination is missing or empty, so that what was settled is
    /// gone. A new file may well have the identity of the one that is gone.
    pub fn begins(&self) -> Result<(), Failure> {
        if self.found.is_some_and(|found| found.settled > 0) { Err(self.of_another()) } else { Ok(()) }
    }

    /// The journal of this copy: the one that was found, or a new one. `zero` is whether the destinations
    /// are zero.
    pub async fn journal(&self, source: &Source, destinations: &[Destination], zero: bool) -> Result<Journal, Failure> {
        let copy = fingerprint(source, destinations);
        let path = self.path.display();
        let Some(found) = self.found else {
            let state = Settled { copy, bytes: source.bytes, zero, ..Settled::default() };
            let failed = |status| Failure::Failed(format!("writing {path} failed: {}", super::words(status)));
            return Journal::begin(Rc::clone(&self.target), state).await.map_err(failed);
        };
        if found.copy != copy || found.bytes != source.bytes {
            return Err(self.of_another());
        }
        Ok(Journal::resume(Rc::clone(&self.target), found))
    }

    /// The copy is over.
    pub fn remove(self) -> Result<(), Failure> {
        let removed = std::fs::remove_file(&self.path).and_then(|()| ends::sync_folder(&self.path));
        removed.map_err(|error| Failure::because(format!("removing {}", self.path.display()), &error))
    }
}
