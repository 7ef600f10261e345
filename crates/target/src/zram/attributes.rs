//! The kernel's attributes of a compressed RAM disk, by their names and in their formats.
//!
//! ```text
//!   get   initstate disksize comp_algorithm backing_dev mm_stat io_stat bd_stat debug_stat …
//!   set   idle writeback writeback_limit recompress mem_limit mem_used_max compact reset …
//! ```
//!
//! A disk is there as soon as its table is, so whatever the kernel takes only before `disksize` is set
//! belongs into the table line. Each error is one sentence and the kernel's errno.
//!
//! Source: `Documentation/ABI/testing/sysfs-block-zram`, Linux 6.12 and later.

use std::path::Path;

use super::backing::WritebackError;
use super::codec::{Algorithm, CodecError, CodecParams, Codecs, Priority, read_dictionary};
use super::options::size;
use super::pages::Pages;
use super::recompress::{Params, RecompressError, second_algorithm};
use super::{PAGE_BYTES, Zram};

/// Why an attribute was not read or written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AttributeError {
    /// No such attribute.
    #[error("zram has no attribute {0:?} (ENOENT)")]
    Unknown(String),
    /// It can only be written, or only be read.
    #[error("the attribute {name} can only be {can} (EACCES)")]
    OneWay {
        /// Which.
        name: String,
        /// What it can be.
        can: &'static str,
    },
    /// A value that is not one.
    #[error("{value:?} is no {name}: use {hint} (EINVAL)")]
    Value {
        /// Of which attribute.
        name: String,
        /// What was given.
        value: String,
        /// What is taken.
        hint: &'static str,
    },
    /// It belongs into the table line.
    #[error("{0} cannot change while the disk is there: say it in its table line (EBUSY)")]
    Fixed(String),
    /// Something goes on.
    #[error(
        "this disk serves requests, or is written back, compressed again, saved or restored: wait until that is done (EBUSY)"
    )]
    Busy,
    /// A codec that pages depend on.
    #[error("pages are compressed by the codec of priority {0}: reset the disk first (EBUSY)")]
    InUse(u8),
    /// Parameters for a codec that is not there.
    #[error("the disk has no such codec: look at comp_algorithm and recomp_algorithm (EINVAL)")]
    NoCodec,
    /// Parameters that the codec does not take.
    #[error("{0} (EINVAL)")]
    Codec(#[from] CodecError),
    /// A dictionary that cannot be read.
    #[error("the dictionary {path} cannot be read: {reason} (EINVAL)")]
    Dictionary {
        /// Where it should be.
        path: String,
        /// Why not.
        reason: String,
    },
    /// There is nowhere to write to.
    #[error("the disk has no backing device: give it one with backing_dev=DEVICE in its table line (ENODEV)")]
    NoBacking,
    /// Writing back failed.
    #[error(transparent)]
    Writeback(#[from] WritebackError),
    /// Recompression failed.
    #[error(transparent)]
    Recompress(#[from] RecompressError),
}

/// Attributes that can be read.
const READABLE: [&str; 14] = [
    "backing_dev",
    "bd_stat",
    "comp_algorithm",
    "debug_stat",
    "disksize",
    "initstate",
    "io_stat",
    "max_comp_streams",
    "mm_stat",
    "recomp_algorithm",
    "writeback_batch_size",
    "writeback_limit",
    "writeback_limit_enable",
    "block_state",
];
/// Attributes that can only be written.
const WRITE_ONLY: [&str; 8] =
    ["algorithm_params", "compact", "idle", "mem_limit", "mem_used_max", "recompress", "reset", "writeback"];

impl Zram {
    /// Reads an attribute, with the line's end that the kernel gives it.
    ///
    /// # Errors
    /// [`AttributeError`].
    pub fn get(&self, name: &str) -> Result<String, AttributeError> {
        let status = self.status();
        let backing = self.backing.as_ref();
        let number = |number: u64| number.to_string();
        let text = match name {
            "backing_dev" => backing.map_or_else(|| "none".to_owned(), |backing| backing.name.clone()),
            "bd_stat" => status.bd_stat(),
            "comp_algorithm" => algorithms(status.algorithm),
            "debug_stat" => "version: 1\n       0        0".to_owned(),
            "disksize" => number(status.disk_bytes),
            "initstate" | "max_comp_streams" => number(1),
            "io_stat" => status.io_stat(),
            "mm_stat" => status.mm_stat(),
            "recomp_algorithm" => return Ok(self.second_algorithms()),
            "writeback_batch_size" => number(backing.map_or(super::backing::BATCHES, |backing| backing.batches.get()).into()),
            "writeback_limit" => number(backing.map_or(0, |backing| backing.limit.get())),
            "writeback_limit_enable" => number(backing.is_some_and(|backing| backing.limited.get()).into()),
            "block_state" => return Ok(self.pages.borrow().states()),
            _ if WRITE_ONLY.contains(&name) => {
                return Err(AttributeError::OneWay { name: name.to_owned(), can: "written" });
            }
            _ => return Err(AttributeError::Unknown(name.to_owned())),
        };
        Ok(text + "\n")
    }

    /// Writes an attribute, and waits until what it asks for is done.
    ///
    /// # Errors
    /// [`AttributeError`].
    pub async fn set(&self, name: &str, value: &str) -> Result<(), AttributeError> {
        let value = value.trim();
        let wrong = |hint| AttributeError::Value { name: name.to_owned(), value: value.to_owned(), hint };
        match name {
            "writeback" => return Ok(self.writeback(value).await?),
            "recompress" => return Ok(self.recompress(value).await?),
            "recomp_algorithm" => {
                let second = second_algorithm(value).ok_or_else(|| wrong("algo=lz4, zstd or deflate, and priority=1 to 3"))?;
                return self.set_second(second);
            }
            "algorithm_params" => {
                let params = Params::parse(value).ok_or_else(|| wrong("algo=NAME or priority=N, level=N and dict=PATH"))?;
                return self.set_params(params);
            }
            "idle" if value == "all" => self.pages.borrow_mut().mark_idle(None),
            "idle" => {
                let age_s = whole(value).ok_or_else(|| wrong("all, or an age in seconds"))?;
                let age_s = u32::try_from(age_s).unwrap_or(u32::MAX);
                if let Some(before_s) = self.now_s().checked_sub(age_s) {
                    self.pages.borrow_mut().mark_idle(Some(before_s));
                }
            }
            "mem_limit" => {
                let bytes = size(value).ok_or_else(|| wrong("a size such as 256M, or 0 for none"))?;
                self.pages.borrow_mut().frames_limit = (bytes > 0).then(|| bytes.div_ceil(PAGE_BYTES));
                self.tell_of_room();
            }
            "mem_used_max" if value == "0" => {
                let mut pages = self.pages.borrow_mut();
                pages.counts.frames_max = pages.frames_used();
            }
            "mem_used_max" => return Err(wrong("0, which makes the maximum what is used now")),
            "writeback_limit" | "writeback_limit_enable" | "writeback_batch_size" => return self.set_writeback(name, value),
            "compact" | "max_comp_streams" => {}
            "reset" if whole(value).is_none_or(|number| number == 0 || number > 65_535) => return Err(wrong("1")),
            "reset" => return self.reset(),
            "disksize" if size(value).is_none_or(|bytes| bytes == 0) => return Err(wrong("a size such as 1G")),
            "comp_algorithm" if Algorithm::named(value).is_none() => return Err(wrong("lz4, zstd, deflate or store")),
            "disksize" | "comp_algorithm" | "backing_dev" => return Err(AttributeError::Fixed(name.to_owned())),
            _ if READABLE.contains(&name) => return Err(AttributeError::OneWay { name: name.to_owned(), can: "read" }),
            _ => return Err(AttributeError::Unknown(name.to_owned())),
        }
        Ok(())
    }

    fn set_writeback(&self, name: &str, value: &str) -> Result<(), AttributeError> {
        let wrong = |hint| AttributeError::Value { name: name.to_owned(), value: value.to_owned(), hint };
        let number = whole(value).ok_or_else(|| wrong("a whole number"))?;
        let backing = self.backing.as_ref().ok_or(AttributeError::NoBacking)?;
        match name {
            "writeback_limit" => backing.limit.set(number),
            "writeback_limit_enable" if number > 1 => return Err(wrong("0 or 1")),
            "writeback_limit_enable" => backing.limited.set(number == 1),
            _ if number == 0 => return Err(wrong("1 or more")),
            _ => backing.batches.set(u32::try_from(number).unwrap_or(u32::MAX)),
        }
        Ok(())
    }

    /// A line for each codec that compresses again: all algorithms, that codec's in brackets.
    fn second_algorithms(&self) -> String {
        let pages = self.pages.borrow();
        let line = |priority: Priority| {
            pages.codecs.algorithm(priority).map(|algorithm| format!("#{}: {}\n", priority.0, algorithms(algorithm)))
        };
        pages.codecs.seconds().filter_map(line).collect()
    }

    /// Other than the kernel's, this works on a disk in use, as long as no object of that priority is
    /// there.
    fn set_second(&self, (algorithm, priority): (Algorithm, Priority)) -> Result<(), AttributeError> {
        self.exchange(priority, &CodecParams { algorithm, ..CodecParams::default() })
    }

    /// Gives a codec other parameters; those that are not given are the codec's own again.
    fn set_params(&self, params: Params) -> Result<(), AttributeError> {
        let (priority, algorithm) = {
            let pages = self.pages.borrow();
            let priority = params.place(&pages.codecs).ok_or(AttributeError::NoCodec)?;
            (priority, pages.codecs.algorithm(priority).unwrap_or_default())
        };
        let dictionary = match params.dictionary {
            None => None,
            Some(path) => Some(read_dictionary(Path::new(&path)).map_err(|error| {
                let reason = error.to_string();
                AttributeError::Dictionary { path, reason }
            })?),
        };
        self.exchange(priority, &CodecParams { algorithm, level: params.level, dictionary })
    }

    /// Whether a request waits for the backing device, for packers, or for room.
    pub(super) fn is_serving(&self) -> bool {
        self.wide.as_ref().is_some_and(super::Wide::is_busy)
            || self.reads.get().is_some_and(|jobs| jobs.running() > 0)
            || self.changes.get().is_some_and(|jobs| jobs.running() > 0)
    }

    fn exchange(&self, priority: Priority, params: &CodecParams) -> Result<(), AttributeError> {
        let serving = self.is_serving() || !self.door.is_open();
        let mut pages = self.pages.borrow_mut();
        let decoder = |params: &CodecParams| (params.algorithm, params.dictionary.clone());
        let same = pages.codecs.params(priority).is_some_and(|old| decoder(old) == decoder(params));
        if !same && pages.has_object_by(priority) {
            return Err(AttributeError::InUse(priority.0));
        }
        if !same && serving {
            // A read may still unpack an object that is gone from the table, and an image name its codec.
            return Err(AttributeError::Busy);
        }
        pages.codecs.set(priority, params.clone())?;
        if let Some(wide) = self.wide.as_ref().filter(|_| priority == Priority::FIRST) {
            wide.set_params(params);
        }
        pages.unsettle();
        drop(pages);
        self.recompression.rouse();
        Ok(())
    }

    /// Forgets everything that the disk holds, in memory and on the backing device, and what was
    /// counted. The memory limit and the codecs are those of the table line again; the writeback limit stays, as
    /// in the kernel.
    ///
    /// # Errors
    /// [`AttributeError::Busy`].
    ///
    /// # Panics
    /// Never: the codecs were made from the same parameters before.
    pub fn reset(&self) -> Result<(), AttributeError> {
        if self.is_serving()
            || !self.door.is_open()
            || self.recompression.running.get()
            || self.backing.as_ref().is_some_and(super::Backing::is_busy)
        {
            return Err(AttributeError::Busy);
        }
        self.door.count_change();
        let codecs = Codecs::new(&self.codecs).expect("codecs of these parameters were made before");
        let mut pages = self.pages.borrow_mut();
        let blocks = pages.blocks.as_ref().map(super::Blocks::emptied);
        *pages = Pages::new(codecs, self.frames_limit, blocks);
        if let (Some(wide), Some(params)) = (&self.wide, pages.codecs.params(Priority::FIRST)) {
            wide.set_params(params);
        }
        let counts = &self.counts;
        for counter in [&counts.failed_reads, &counts.failed_writes, &counts.freed_pages] {
            counter.set(0);
        }
        if let Some(backing) = &self.backing {
            backing.forget();
        }
        Ok(())
    }
}

/// A decimal number without a sign.
fn whole(text: &str) -> Option<u64> {
    let plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if plain { text.parse().ok() } else { None }
}

/// All algorithms, each followed by a space, the selected one in brackets.
fn algorithms(selected: Algorithm) -> String {
    let word = |algorithm: Algorithm| if algorithm == selected { format!("[{algorithm}] ") } else { format!("{algorithm} ") };
    Algorithm::ALL.into_iter().map(word).collect()
}
