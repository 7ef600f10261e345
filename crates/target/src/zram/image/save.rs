//! From the disk to an image, section by section.
//!
//! Pages in memory are copied as they stand; a run of pages that are away is read as any client would
//! read it, and compressed again. Whether a page leaves memory or comes back meanwhile makes no
//! difference: its content cannot change.

use std::ops::Range;
use std::rc::Rc;

use forebay_block::{Bio, Sector, call};

use super::super::codec::{Codecs, PACKED_MAX, Priority};
use super::super::memory::{HUGE_BYTES, PAGE};
use super::super::table::mark;
use super::super::{PAGE_SECTORS, Zram};
use super::format::{CodecMark, Content, Entry, HEADER_BYTES, Writer};
use super::{ImageError, Shut, Work, marks_of};

/// Pages that are away and read at once.
const FETCH_MAX: u64 = 64;

/// The disk as it was when the cut was made; changes wait until it is dropped.
pub struct Cut {
    shut: Shut,
    writer: Writer,
    codecs: Codecs,
    /// What they are, by priority.
    marks: Vec<CodecMark>,
    /// Pages below are in sections.
    next: u64,
}

/// Why gathering stopped.
enum Stop {
    Full,
    Away(Range<u64>),
    End,
}

impl Zram {
    /// Holds changes back, and begins an image of the disk as it is now.
    ///
    /// # Errors
    /// [`ImageError::Busy`].
    pub fn cut(&self) -> Result<Cut, ImageError> {
        let shut = Shut::new(self, Work::Saving)?;
        let pages = self.pages.borrow();
        let (codecs, marks) = (pages.codecs.again()?, marks_of(&pages.codecs));
        Ok(Cut { shut, writer: Writer::default(), codecs, marks, next: 0 })
    }
}

impl Cut {
    /// The next section of the image, at most 1 MiB; `None` behind the last.
    ///
    /// # Errors
    /// [`ImageError::Unreadable`] when the backing device lost a page.
    pub async fn section(&mut self) -> Result<Option<Vec<u8>>, ImageError> {
        loop {
            match self.gather() {
                Stop::Full | Stop::End => return Ok(self.writer.section()),
                Stop::Away(pages) => self.fetch(pages).await?,
            }
        }
    }

    /// The header, which stands before all sections, once they are made.
    #[must_use]
    pub fn header(&self) -> [u8; HEADER_BYTES] {
        self.writer.header(self.shut.0.page_count(), self.marks.clone()).encode()
    }

    /// Adds what is in memory, until a page is not.
    fn gather(&mut self) -> Stop {
        let pages = self.shut.0.pages.borrow();
        let mut buffer = [0; PAGE];
        while let Some(page) = pages.next_present(self.next) {
            self.next = page;
            let slot = pages.table.get(page);
            if !self.writer.has_room() {
                return Stop::Full;
            }
            if slot.has(mark::WRITTEN) {
                let is_away = |page: &u64| pages.table.get(*page).has(mark::WRITTEN);
                let count = (page..page + FETCH_MAX).take_while(is_away).count() as u64;
                return Stop::Away(page..page + count.min(self.writer.room() as u64));
            }
            if !slot.is_free() {
                let content = if slot.has(mark::SAME) {
                    Content::Same(slot.value)
                } else {
                    content(pages.object(slot, &mut buffer), slot.priority())
                };
                self.writer.push(&Entry { page: number(page), away: false, content });
            }
            self.next = page + 1;
        }
        Stop::End
    }

    /// Adds pages that are away.
    async fn fetch(&mut self, pages: Range<u64>) -> Result<(), ImageError> {
        let zram = Rc::clone(&self.shut.0);
        let bytes = usize::try_from(pages.end - pages.start).expect("few pages") * PAGE;
        let mut buffer = zram.pool.take(bytes);
        let length = u32::try_from(bytes).expect("few pages");
        let bio = Bio::read(Sector(pages.start * PAGE_SECTORS), Rc::clone(buffer.segments()), 0, length);
        if !call(&*zram, bio).await.status().is_ok() {
            return Err(ImageError::Unreadable(pages.start));
        }
        let (contents, _) = buffer.bytes_mut().as_chunks::<PAGE>();
        let mut packed = [0; PACKED_MAX];
        for (page, whole) in pages.clone().zip(contents) {
            // What was stored packed was made by this codec; of what was stored whole, the first is named.
            let priority = zram.pages.borrow().table.get(page).priority();
            let codec = self.codecs.of(priority);
            let bytes = codec.and_then(|codec| codec.compress(whole, &mut packed)).filter(|bytes| *bytes < HUGE_BYTES);
            let object = bytes.map_or(&whole[..], |bytes| &packed[..bytes]);
            self.writer.push(&Entry { page: number(page), away: true, content: content(object, priority) });
        }
        self.next = pages.end;
        Ok(())
    }
}

/// What an object is in an image.
fn content(object: &[u8], priority: Priority) -> Content<'_> {
    match object.try_into() {
        Ok(whole) => Content::Whole(whole),
        Err(_) => Content::Packed { codec: priority.0, object },
    }
}

fn number(page: u64) -> u32 {
    u32::try_from(page).expect("a disk has at most 2^32 pages")
}
