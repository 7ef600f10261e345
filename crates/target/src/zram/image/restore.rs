//! From an image to an empty disk, in whatever pieces the image comes.
//!
//! Every object is unpacked. It is kept as it is where the disk has the codec that made it, and as a
//! write would keep it otherwise: a disk may be restored with other codecs. What was on the backing device goes there again, in large writes, and so
//! does what passes the memory limit.

use super::super::Zram;
use super::super::backing::{WritebackError, give_way};
use super::super::codec::{Codec, CodecParams, Priority};
use super::super::memory::HUGE_BYTES;
use super::super::pages::{PageError, repeated_word};
use super::super::table::mark;
use super::format::{CodecMark, Content, Entry, Flaw, Header, Reader};
use super::{ALGORITHMS, ImageError, Shut, Work, mark_of};

/// Pages that come from the backing device and are in memory at once.
const AWAY_MAX: u64 = 4096;

/// A disk that is being restored; all requests wait until it is dropped. It is empty then, unless it
/// was finished.
pub struct Refill {
    reader: Reader,
    codecs: Vec<Decoder>,
    /// What came of a section whose end is missing.
    rest: Vec<u8>,
    /// Pages that are to leave memory again.
    away: u64,
    /// They cannot.
    full: bool,
    finished: bool,
    /// Opened last.
    shut: Shut,
}

/// What unpacks objects of an image.
struct Decoder {
    codec: Codec,
    /// Which codec of the disk it is, if it is one.
    priority: Option<Priority>,
}

impl Drop for Refill {
    fn drop(&mut self) {
        if !self.finished {
            let mut pages = self.shut.0.pages.borrow_mut();
            let mut next = pages.next_present(0);
            while let Some(page) = next {
                pages.free(page);
                next = pages.next_present(page + 1);
            }
        }
    }
}

impl Zram {
    /// Holds requests back, and begins to restore the disk from an image with that header, in a file of
    /// `bytes` bytes.
    ///
    /// # Errors
    /// [`ImageError`]; the disk is as it was.
    pub fn refill(&self, header: &[u8], bytes: u64) -> Result<Refill, ImageError> {
        let header = Header::decode(header, bytes)?;
        if header.pages > self.page_count() {
            return Err(ImageError::TooLong { saved: header.pages * 8, found: self.sectors.0 });
        }
        let codecs = header.codecs.iter().map(|mark| self.decoder(*mark)).collect::<Result<_, _>>()?;
        if self.pages.borrow().counts.stored > 0 {
            return Err(ImageError::NotEmpty);
        }
        let shut = Shut::new(self, Work::Restoring)?;
        let reader = Reader::new(header);
        Ok(Refill { reader, codecs, rest: Vec::new(), away: 0, full: self.backing.is_none(), finished: false, shut })
    }

    fn decoder(&self, mark: CodecMark) -> Result<Decoder, ImageError> {
        let known = ALGORITHMS.iter().find(|(number, _)| *number == mark.algorithm);
        let (_, algorithm) = known.ok_or(ImageError::Algorithm(mark.algorithm))?;
        let pages = self.pages.borrow();
        let params = |priority: Priority| pages.codecs.params(priority).filter(|params| mark_of(params) == mark);
        let priority = Priority::ALL.into_iter().find(|priority| params(*priority).is_some());
        let params = match priority.and_then(params) {
            Some(params) => params.clone(),
            None if mark.dictionary != 0 => return Err(ImageError::Dictionary),
            None => CodecParams { algorithm: *algorithm, ..CodecParams::default() },
        };
        Ok(Decoder { codec: Codec::new(&params)?, priority })
    }
}

impl Refill {
    /// Takes the next bytes behind the header, in any pieces.
    ///
    /// # Errors
    /// [`ImageError`]; nothing more can be taken then.
    pub async fn take(&mut self, bytes: &[u8]) -> Result<(), ImageError> {
        let mut rest = std::mem::take(&mut self.rest);
        rest.extend(bytes);
        let mut unread = &rest[..];
        while let Some((entries, length)) = self.reader.section(unread)? {
            for entry in &entries {
                self.put(entry).await?;
            }
            unread = &unread[length..];
            give_way().await;
        }
        self.rest = unread.to_vec();
        Ok(())
    }

    /// Ends what was taken in whole; the pages that the disk holds.
    ///
    /// # Errors
    /// When something is missing.
    pub async fn finish(mut self) -> Result<u64, ImageError> {
        self.reader.finish()?;
        self.leave().await;
        self.finished = true;
        let zram = &self.shut.0;
        zram.door.count_change();
        if let Some(policy) = &zram.policy {
            policy.work.raise();
        }
        Ok(self.reader.header().held)
    }

    async fn put(&mut self, entry: &Entry<'_>) -> Result<(), ImageError> {
        if let Err(error) = self.keep(entry)? {
            debug_assert_eq!(error, PageError::NoSpace, "only memory can be missing");
            self.spill().await?;
            self.keep(entry)?.map_err(|_| ImageError::NoSpace)?;
        }
        if entry.away && !self.full {
            let mut pages = self.shut.0.pages.borrow_mut();
            if pages.table.get(entry.page.into()).in_memory() {
                pages.table.used_mut(entry.page.into()).set(mark::IDLE);
                self.away += 1;
            }
        }
        if self.away >= AWAY_MAX {
            self.leave().await;
        }
        Ok(())
    }

    /// Makes the page, and writes it.
    fn keep(&mut self, entry: &Entry<'_>) -> Result<Result<(), PageError>, Flaw> {
        let zram = &self.shut.0;
        let (mut pages, now_s) = (zram.pages.borrow_mut(), zram.now_s());
        match entry.content {
            Content::Same(word) => pages.page.as_chunks_mut::<8>().0.fill(word.to_le_bytes()),
            Content::Whole(whole) => pages.page.copy_from_slice(whole),
            Content::Packed { codec, object } => {
                let Decoder { codec, priority } = &mut self.codecs[usize::from(codec)];
                codec.decompress(object, &mut pages.page).map_err(|_| Flaw::Page(entry.page.into()))?;
                if let Some(priority) = priority.filter(|_| object.len() < HUGE_BYTES && repeated_word(&pages.page).is_none()) {
                    return Ok(pages.adopt(entry.page.into(), object, priority, now_s));
                }
            }
        }
        Ok(pages.write(entry.page.into(), now_s))
    }

    /// Has pages leave memory that were on the backing device; where that is full, they stay.
    async fn leave(&mut self) {
        if self.away > 0 {
            self.away = 0;
            self.full = self.write_back().await.is_err();
        }
    }

    /// Has everything leave memory.
    async fn spill(&mut self) -> Result<(), ImageError> {
        if self.shut.0.backing.is_none() {
            return Err(ImageError::NoSpace);
        }
        self.shut.0.pages.borrow_mut().mark_idle(None);
        self.away = 0;
        self.write_back().await.map_err(ImageError::Spill)
    }

    async fn write_back(&self) -> Result<(), WritebackError> {
        let zram = &self.shut.0;
        loop {
            match zram.writeback("idle").await {
                Err(WritebackError::Busy) => zram.wait_for_writeback().await,
                ended => return ended,
            }
        }
    }
}
