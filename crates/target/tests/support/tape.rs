//! What reached the disks, in order, and the images that a power cut may leave of it.

use super::Seen;

/// Which of the two disks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disk {
    Fast,
    Origin,
}

/// One operation that a disk carried out.
#[derive(Clone, Debug)]
pub struct Step {
    pub disk: Disk,
    pub seen: Seen,
    /// Payload of a write.
    pub bytes: Vec<u8>,
}

impl Step {
    /// Whether it changes the disk.
    pub fn writes(&self) -> bool {
        matches!(self.seen, Seen::Write(..) | Seen::Zero(..) | Seen::Discard(..))
    }
}

#[derive(Default)]
pub struct Tape {
    pub steps: Vec<Step>,
}

impl Tape {
    pub fn on(&self, disk: Disk) -> impl Iterator<Item = &Step> {
        self.steps.iter().filter(move |step| step.disk == disk)
    }

    pub fn flushes(&self, disk: Disk) -> usize {
        self.on(disk).filter(|step| step.seen == Seen::Flush).count()
    }

    /// Where the steps lie for which `holds`.
    pub fn places(&self, disk: Disk, holds: impl Fn(&Step) -> bool) -> Vec<usize> {
        (0..self.steps.len()).filter(|&at| self.steps[at].disk == disk && holds(&self.steps[at])).collect()
    }

    /// The content of `disk` after a power cut in front of step `cut`: what a flush covered or came
    /// durably is there, of the rest only what `keep` keeps, sector by sector.
    pub fn image(&self, disk: Disk, base: &[u8], cut: usize, mut keep: impl FnMut() -> bool) -> Vec<u8> {
        let mut image = base.to_vec();
        let flushed = self.steps[..cut].iter().rposition(|step| step.disk == disk && step.seen == Seen::Flush).unwrap_or(0);
        for (at, step) in self.steps[..cut].iter().enumerate().filter(|(_, step)| step.disk == disk) {
            match step.seen {
                Seen::Write(sector, _, fua) => {
                    let start = usize::try_from(sector).unwrap() * 512;
                    for (number, bytes) in step.bytes.chunks(512).enumerate() {
                        if fua || at < flushed || keep() {
                            let at = start + number * 512;
                            image[at..at + 512].copy_from_slice(bytes);
                        }
                    }
                }
                Seen::Zero(sector, count) => {
                    let range = usize::try_from(sector * 512).unwrap()..usize::try_from((sector + count) * 512).unwrap();
                    if at < flushed || keep() {
                        image[range].fill(0);
                    }
                }
                Seen::Read(..) | Seen::Flush | Seen::Discard(..) => {}
            }
        }
        image
    }
}
