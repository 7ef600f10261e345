//! The log of a mirror with any bytes in it.
//!
//! The input is two bytes that choose how many regions the mirror has and whether new ones are clean, then the log.
//! Laws: nothing panics, regions that the log tells of are as it says, all others as was chosen, and what is made of it
//! is a log that says the same.
#![no_main]

use forebay_target::mirror::log::format::{Image, decode};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((&[size, fresh], log)) = data.split_first_chunk::<2>() else { return };
    let (regions, fresh) = (1 + 17 * u64::from(size), fresh % 2 == 1);
    let Ok(Some(header)) = decode(log) else { return };
    let old = log.get(1024..).unwrap_or_default();
    let mut image = Image::new(regions, 512);
    image.adopt(&header, old, fresh);
    for region in 0..regions {
        let told = old.get(region as usize / 8).is_some_and(|byte| byte >> (region % 8) & 1 == 1);
        assert_eq!(image.is_clean(region), if region < header.regions { told } else { fresh });
    }
    let dirty: u64 = image.dirty().map(|run| run.end - run.start).sum();
    let clean = (0..regions).filter(|&region| image.is_clean(region)).count() as u64;
    assert_eq!(dirty + clean, regions);
    image.record(header.behind);
    let again = decode(image.bytes()).expect("a version that is known").expect("a log");
    assert_eq!((again.regions, again.behind), (regions, header.behind));
    let mut same = Image::new(regions, 512);
    same.adopt(&again, &image.bytes()[1024..], !fresh);
    assert_eq!(same.bytes()[1024..], image.bytes()[1024..]);
});
