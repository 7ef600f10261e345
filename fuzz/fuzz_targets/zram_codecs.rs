//! Objects of a compressed RAM disk as a hostile backing device or image may have them.
//!
//! The first byte chooses the codec, the rest is the object. Laws: nothing panics, nothing is read or
//! written outside of the object and the page (the sanitizer looks), an object either is a whole page
//! or an error, the same codec still works afterwards, and what it then makes of the page comes back.
//! The object's pages are lent without a byte to spare, so that reading too far is seen.
#![no_main]

use std::cell::RefCell;

use forebay_target::zram::{Algorithm, Codec, CodecParams, PACKED_MAX};
use libfuzzer_sys::fuzz_target;

thread_local! {
    static CODECS: RefCell<Vec<Codec>> = RefCell::new(codecs());
}

fn codecs() -> Vec<Codec> {
    let plain = Algorithm::ALL.map(|algorithm| CodecParams { algorithm, ..CodecParams::default() });
    let dictionary = Some(b"a line of a log that is like the next ".repeat(30));
    let zstd = CodecParams { algorithm: Algorithm::Zstd, level: Some(1), dictionary };
    let made = plain.iter().chain([&zstd]).map(Codec::new);
    made.map(|codec| codec.unwrap_or_else(|error| panic!("{error}"))).collect()
}

fuzz_target!(|data: &[u8]| {
    let Some((choice, object)) = data.split_first() else { return };
    CODECS.with_borrow_mut(|codecs| {
        let count = codecs.len();
        let codec = &mut codecs[usize::from(*choice) % count];
        // Memory of exactly these sizes, whose ends the sanitizer guards.
        let (object, mut page) = (object.to_vec().into_boxed_slice(), Box::new([0xEE; 4096]));
        let came = codec.decompress(&object, &mut page).is_ok();
        if !came {
            page.fill(object.first().copied().unwrap_or(1));
            let count = object.len().min(4096);
            page[..count].copy_from_slice(&object[..count]);
        }
        let mut packed = Box::new([0; PACKED_MAX]);
        if let Some(bytes) = codec.compress(&page, &mut packed) {
            let exact = packed[..bytes].to_vec().into_boxed_slice();
            let mut again = Box::new([0; 4096]);
            assert!(codec.decompress(&exact, &mut again).is_ok() && again == page);
        }
    });
});
