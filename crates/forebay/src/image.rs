//! Images of compressed RAM disks as files.
//!
//! ```text
//!   save:     FILE.new ─ lock, sections, header, sync ─▶ rename to FILE ─▶ sync the folder
//!   restore:  FILE ─ header ─▶ sections ─▶ the disk
//! ```
//!
//! 1. A crash, a full disk or an error leaves the file that was there before, or none; what was
//!    written in part is removed, or is in nobody's way under its own name and goes with the next save.
//! 2. What is no regular file is never replaced.
//!
//! Files are read and written on a thread of their own, so that the disk's clients are served
//! meanwhile.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use forebay_reactor::{Helper, Reactor};
use forebay_target::zram::Zram;
use forebay_target::zram::image::ImageError;
use forebay_target::zram::image::format::HEADER_BYTES;
use rustix::fs::FlockOperation;

use crate::side::{sync_folder, unless_missing, with_suffix};

/// Bytes read at once.
const READ_BYTES: usize = 1 << 20;

/// Why an image was not saved or restored: one sentence.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ImageFileError {
    /// The disk cannot be saved now, or not at all.
    #[error("the disk is not saved to {}: {source}", path.display())]
    Cut {
        /// The image.
        path: PathBuf,
        /// Why.
        source: ImageError,
    },
    /// The file cannot be written.
    #[error("the disk is not saved to {}: {reason}; what was there before is still there", path.display())]
    Write {
        /// The image.
        path: PathBuf,
        /// What the system said.
        reason: String,
    },
    /// The file is not an image for this disk.
    #[error("{} is not restored: {source}", path.display())]
    Refill {
        /// The image.
        path: PathBuf,
        /// Why.
        source: ImageError,
    },
    /// The file cannot be read.
    #[error("{} is not restored: {reason}", path.display())]
    Read {
        /// The image.
        path: PathBuf,
        /// What the system said.
        reason: String,
    },
}

/// What the thread of a save is asked.
enum Step {
    Append(Vec<u8>),
    Finish(Box<[u8; HEADER_BYTES]>),
}

/// A file that becomes the image, or goes.
struct Fresh {
    file: File,
    /// Where it is.
    path: PathBuf,
    /// Where it is to be.
    place: PathBuf,
    renamed: bool,
}

impl Drop for Fresh {
    fn drop(&mut self) {
        if !self.renamed {
            // A part of an image is of no use; the first error is the one to tell.
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl Fresh {
    /// Makes the file beside the image, and keeps others from doing the same.
    fn new(image: &Path) -> io::Result<Self> {
        // A link stays a link, to the new image.
        let place = fs::canonicalize(image).unwrap_or_else(|_| image.to_owned());
        if unless_missing(fs::metadata(&place))?.is_some_and(|metadata| !metadata.is_file()) {
            return Err(io::Error::other("it is no regular file: name another"));
        }
        let path = with_suffix(&place, ".new");
        if let Some(left) = unless_missing(OpenOptions::new().write(true).open(&path))? {
            // Left by a crash, unless somebody holds it.
            lock(&left, &path)?;
            fs::remove_file(&path)?;
        }
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        let mut fresh = Self { file, path, place, renamed: false };
        lock(&fresh.file, &fresh.path)?;
        // The header is written when it is known.
        fresh.file.seek(SeekFrom::Start(HEADER_BYTES as u64))?;
        Ok(fresh)
    }

    fn step(&mut self, step: Step) -> io::Result<()> {
        match step {
            Step::Append(section) => self.file.write_all(&section),
            Step::Finish(header) => {
                self.file.write_all_at(&header[..], 0)?;
                self.file.sync_all()?;
                fs::rename(&self.path, &self.place)?;
                self.renamed = true;
                sync_folder(&self.place)
            }
        }
    }
}

fn lock(file: &File, path: &Path) -> io::Result<()> {
    rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive)
        .map_err(|_| io::Error::new(ErrorKind::ResourceBusy, format!("{} is being written by another save", path.display())))
}

/// A disk that is kept in a file from one start to the next.
pub(crate) struct Kept {
    path: PathBuf,
    zram: Rc<Zram>,
    /// Changes of the disk that are in the file.
    changes: u64,
}

impl Kept {
    /// Restores `zram` from the file at `path` where there is one.
    pub(crate) async fn restore(reactor: &Reactor, zram: &Rc<Zram>, path: &Path) -> Result<Self, ImageFileError> {
        let there = path.try_exists().map_err(|error| not_read(path, &error))?;
        // What cannot be written in the end is refused in the beginning; the file made for that goes again.
        Fresh::new(path).map_err(|error| ImageFileError::Write { path: path.to_owned(), reason: error.to_string() })?;
        if there {
            Box::pin(restore(reactor, zram, path)).await?;
        }
        Ok(Self { path: path.to_owned(), zram: Rc::clone(zram), changes: zram.changes() })
    }

    /// Saves the disk again, if anything changed: a server that could not begin to serve leaves the file
    /// alone.
    pub(crate) async fn save(&self, reactor: &Reactor) -> Result<(), ImageFileError> {
        if self.zram.changes() > self.changes {
            Box::pin(save(reactor, &self.zram, &self.path)).await?;
        }
        Ok(())
    }
}

/// Saves `zram` to the file at `path`; the bytes of the image.
///
/// # Errors
/// [`ImageFileError`]; the file is what it was then.
pub(crate) async fn save(reactor: &Reactor, zram: &Zram, path: &Path) -> Result<u64, ImageFileError> {
    let cut_failed = |source| ImageFileError::Cut { path: path.to_owned(), source };
    let write_failed = |error: io::Error| ImageFileError::Write { path: path.to_owned(), reason: error.to_string() };
    let mut cut = zram.cut().map_err(cut_failed)?;
    let writer = Helper::<Step, io::Result<()>>::new("forebay-image");
    let work = || Fresh::new(path).map(|mut fresh| move |step| fresh.step(step));
    let mut bytes = HEADER_BYTES as u64;
    let mut under_way = None;
    while let Some(section) = cut.section().await.map_err(cut_failed)? {
        bytes += section.len() as u64;
        settle(under_way.take()).await.map_err(write_failed)?;
        under_way = Some(writer.ask(reactor, Step::Append(section), work).map_err(write_failed)?);
    }
    settle(under_way).await.map_err(write_failed)?;
    let finish = writer.ask(reactor, Step::Finish(Box::new(cut.header())), work).map_err(write_failed)?;
    settle(Some(finish)).await.map_err(write_failed)?;
    Ok(bytes)
}

/// Waits for the step under way.
async fn settle(answer: Option<forebay_reactor::mailbox::Mailbox<io::Result<()>>>) -> io::Result<()> {
    match answer {
        None => Ok(()),
        Some(mut answer) => answer.receive().await.unwrap_or_else(|| Err(io::Error::other("the thread is gone"))),
    }
}

/// An image that is read, front to back.
struct Image {
    file: File,
    /// Its size, told with the first bytes.
    bytes: u64,
}

impl Image {
    fn open(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(io::Error::other("it is no regular file: name one that `forebay zram save` made"));
        }
        Ok(Self { file, bytes: metadata.len() })
    }

    fn read(&mut self, most: usize) -> io::Result<(Vec<u8>, u64)> {
        let mut bytes = Vec::with_capacity(most);
        (&self.file).take(most as u64).read_to_end(&mut bytes)?;
        Ok((bytes, self.bytes))
    }
}

fn not_read(path: &Path, error: &io::Error) -> ImageFileError {
    ImageFileError::Read { path: path.to_owned(), reason: error.to_string() }
}

/// Restores `zram`, which is empty, from the file at `path`; the pages that it holds then.
///
/// # Errors
/// [`ImageFileError`]; the disk is empty then.
pub(crate) async fn restore(reactor: &Reactor, zram: &Zram, path: &Path) -> Result<u64, ImageFileError> {
    let refill_failed = |source| ImageFileError::Refill { path: path.to_owned(), source };
    let read_failed = |error| not_read(path, &error);
    let reader = Helper::<usize, io::Result<(Vec<u8>, u64)>>::new("forebay-image");
    let work = || Image::open(path).map(|mut image| move |most| image.read(most));
    let ask = |most: usize| reader.ask(reactor, most, work).map_err(read_failed);
    let gone = || Err(io::Error::other("the thread is gone"));
    let (header, bytes) = ask(HEADER_BYTES)?.receive().await.unwrap_or_else(gone).map_err(read_failed)?;
    let mut refill = zram.refill(&header, bytes).map_err(refill_failed)?;
    let mut next = ask(READ_BYTES)?;
    loop {
        let (piece, _) = next.receive().await.unwrap_or_else(gone).map_err(read_failed)?;
        if piece.is_empty() {
            return refill.finish().await.map_err(refill_failed);
        }
        // The next piece is read while this one becomes pages.
        next = ask(READ_BYTES)?;
        refill.take(&piece).await.map_err(refill_failed)?;
    }
}
