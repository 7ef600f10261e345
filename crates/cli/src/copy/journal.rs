//! The file that holds the journal of a copy, and which copy it belongs to.
//!
//! A copy is named by a fingerprint of its ends: their names, identities, sizes and times of birth, and when the source
//! was changed last. Servers and block devices tell little of that: what is settled there is read back by who resumes.
//! What lies in the file and when it is written: `forebay_target::copy`.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use forebay::block::Target;
use forebay::{DeviceName, Direct, FileOptions, Reactor};
use forebay_device::FileDevice;
use forebay_target::copy::{Found, JOURNAL_BYTES, Journal, Leg, NotNoted, Settled};
use twox_hash::XxHash3_64;

use super::ends::{self, Destination, End, LOCK_WAIT, Seen, Source};
use super::words;
use crate::failure::Failure;

/// A fingerprint of the ends of a copy.
fn fingerprint(source: &Source, destinations: &[Destination]) -> u64 {
    let mut words = vec![format!("{}\0{}\0{:?}", source.name, source.bytes, source.seen)];
    let to = |to: &Destination| format!("{}\0{:?}", to.name, to.seen.map(|seen| (seen.identity, seen.bytes, seen.born)));
    words.extend(destinations.iter().map(to));
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
    /// Opens the file, which is made where it is missing, for a copy from `source` to destinations that were looked at.
    pub async fn open(reactor: &Reactor, path: &Path, source: &Source, looked: &[Destination]) -> Result<Self, Failure> {
        let here = ends::look(path)?.map(|seen| seen.identity);
        let is_here = |end: &End, seen: Option<Seen>| {
            let by_name =
                matches!(end, End::Path(end) if DeviceName::File(end.clone()).is_same(&DeviceName::File(path.to_owned())));
            by_name || (here.is_some() && seen.map(|seen| seen.identity) == here)
        };
        if is_here(&source.end, source.seen) || looked.iter().any(|to| is_here(&to.end, to.seen)) {
            return Err(Failure::Failed(format!("{} cannot be the journal of its own copy: name another", path.display())));
        }
        let file = Self::open_file(reactor, path).await?;
        // What was settled is gone where a destination is missing or empty. A new file may well have the identity of
        // the one that is gone.
        let begins = looked.iter().any(|to| to.made);
        if begins && file.found.is_some_and(|found| found.settled > 0) { Err(file.of_another()) } else { Ok(file) }
    }

    async fn open_file(reactor: &Reactor, path: &Path) -> Result<Self, Failure> {
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
            Err(status) => return Err(Failure::Failed(format!("reading {} failed: {}", path.display(), words(status)))),
        };
        Ok(Self { path: path.to_owned(), target, found })
    }

    /// Why what was found is of no use.
    pub fn of_another(&self) -> Failure {
        let what = "is the journal of another copy, or the source or a destination has changed since";
        Failure::Failed(format!("{} {what}: remove it to copy everything", self.path.display()))
    }

    /// The journal of this copy: the one that was found, or a new one. `zero` is whether the destinations
    /// are zero.
    pub async fn journal(&self, source: &Source, destinations: &[Destination], zero: bool) -> Result<Journal, Failure> {
        let copy = fingerprint(source, destinations);
        let path = self.path.display();
        let Some(found) = self.found else {
            let state = Settled { copy, bytes: source.bytes, zero, ..Settled::default() };
            let failed = |status| Failure::Failed(format!("writing {path} failed: {}", words(status)));
            return Journal::begin(Rc::clone(&self.target), state).await.map_err(failed);
        };
        if found.copy != copy || found.bytes != source.bytes {
            return Err(self.of_another());
        }
        Ok(Journal::resume(Rc::clone(&self.target), found))
    }

    /// Why it could not be noted how far the copy is durable, which was known of its first `settled` bytes. `legs` are its
    /// ends by their names.
    pub fn not_noted(&self, why: NotNoted, legs: &[(String, Leg)], settled: u64) -> Failure {
        let names: Vec<&str> = legs.iter().map(|(name, _)| name.as_str()).collect();
        Failure::Failed(sentence(&self.path, why, &names, settled))
    }

    /// The copy is over.
    pub fn remove(self) -> Result<(), Failure> {
        let removed = std::fs::remove_file(&self.path).and_then(|()| ends::sync_folder(&self.path));
        removed.map_err(|error| Failure::because(format!("removing {}", self.path.display()), &error))
    }
}

fn sentence(journal: &Path, why: NotNoted, names: &[&str], settled: u64) -> String {
    let again = format!("and give the same command again, which goes on at byte {settled}");
    match why {
        NotNoted::Flush { leg, status } => {
            let (name, why) = (names.get(leg).unwrap_or(&"a destination"), words(status));
            format!("flushing {name} failed: {why}; what was written to it behind byte {settled} may be lost: mend it, {again}")
        }
        NotNoted::Journal(status) => {
            let (path, why) = (journal.display(), words(status));
            format!("writing the journal {path} failed: {why}; mend the device that it is on, {again}")
        }
    }
}

#[cfg(test)]
mod tests {
    use forebay::block::Status;

    use super::*;

    #[test]
    fn who_failed_is_named_with_what_to_do() {
        let told = |why| sentence(Path::new("copy.journal"), why, &["a.img", "b.img"], 4096);
        let flush = told(NotNoted::Flush { leg: 1, status: Status::NoSpace });
        assert!(flush.starts_with("flushing b.img failed: no space left; what was written to it behind byte 4096"), "{flush}");
        let journal = told(NotNoted::Journal(Status::IoError));
        assert!(journal.starts_with("writing the journal copy.journal failed: input/output error; mend"), "{journal}");
        assert!([flush, journal].iter().all(|told| told.ends_with("the same command again, which goes on at byte 4096")));
    }
}
