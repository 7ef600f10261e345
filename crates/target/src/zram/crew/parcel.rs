//! Parcels: pages on their way to a packer and back. Plain memory, which a thread can own.

use std::sync::Arc;

use super::super::codec::{Codec, CodecParams, PACKED_MAX};
use super::super::memory::{HUGE_BYTES, PAGE};
use super::super::pages::repeated_word;

/// Pages of a parcel.
pub(super) const PARCEL_PAGES: usize = 8;
/// And its bytes.
pub(super) const PARCEL_BYTES: u64 = (PARCEL_PAGES * PAGE) as u64;

/// What a page became.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Became<'a> {
    /// A word that it repeats.
    Same(u64),
    /// An object, or the page itself where it does not shrink.
    Object(&'a [u8]),
    /// Nothing yet: nobody has packed it.
    Nothing(&'a [u8; PAGE]),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Packed {
    /// It repeats one word.
    Same(u64),
    /// Its object has so many bytes.
    Object(usize),
    /// It does not shrink.
    Whole,
}

/// Pages of one write, in a row.
pub struct Parcel {
    /// Which write.
    pub(super) job: u64,
    /// Its first page.
    pub(super) first: u64,
    /// How it is compressed.
    pub(super) params: Arc<CodecParams>,
    pub(super) content: Box<[[u8; PAGE]]>,
    objects: Box<[[u8; PACKED_MAX]]>,
    /// What became of each page; empty until it was packed.
    packed: Vec<Packed>,
}

/// What a packer works with: a codec, made again when parcels want another.
#[derive(Default)]
pub struct Hand(Option<(Arc<CodecParams>, Codec)>);

impl Hand {
    fn codec(&mut self, params: &Arc<CodecParams>) -> Option<&mut Codec> {
        if !self.0.as_ref().is_some_and(|(known, _)| Arc::ptr_eq(known, params)) {
            self.0 = Codec::new(params).ok().map(|codec| (Arc::clone(params), codec));
        }
        self.0.as_mut().map(|(_, codec)| codec)
    }
}

impl Parcel {
    pub(super) fn new(params: &Arc<CodecParams>) -> Self {
        Self {
            job: 0,
            first: 0,
            params: Arc::clone(params),
            content: vec![[0; PAGE]; PARCEL_PAGES].into_boxed_slice(),
            objects: vec![[0; PACKED_MAX]; PARCEL_PAGES].into_boxed_slice(),
            packed: Vec::with_capacity(PARCEL_PAGES),
        }
    }

    /// Makes it a parcel of another write.
    pub(super) fn reuse(&mut self, job: u64, first: u64, params: &Arc<CodecParams>) {
        (self.job, self.first) = (job, first);
        self.params.clone_from(params);
        self.packed.clear();
    }

    /// Compresses its pages. One that cannot be, for want of memory for a codec, stays as it is.
    pub fn pack(&mut self, hand: &mut Hand) {
        let Some(codec) = hand.codec(&self.params) else { return };
        self.packed.clear();
        for (page, object) in self.content.iter().zip(self.objects.iter_mut()) {
            let packed = match repeated_word(page) {
                Some(word) => Packed::Same(word),
                None => match codec.compress(page, object).filter(|&bytes| bytes < HUGE_BYTES) {
                    Some(bytes) => Packed::Object(bytes),
                    None => Packed::Whole,
                },
            };
            self.packed.push(packed);
        }
    }

    /// Each page by its number, and what it became.
    pub(super) fn pages(&self) -> impl Iterator<Item = (u64, Became<'_>)> {
        let became = |at: usize| match (self.packed.get(at), &self.content[at]) {
            (None, page) => Became::Nothing(page),
            (Some(Packed::Same(word)), _) => Became::Same(*word),
            (Some(Packed::Whole), page) => Became::Object(page),
            (Some(Packed::Object(bytes)), _) => Became::Object(&self.objects[at][..*bytes]),
        };
        (self.first..).zip((0..PARCEL_PAGES).map(became))
    }
}
