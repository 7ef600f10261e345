//! The disks of a cache, a mirror, a clone or a snapshot, and the requests to it, changed together.
//!
//! The first byte chooses the target, the second its variant; six bytes each are a request, a crash, a fault or damage.
//! The laws are those of `forebay_sim::pair`: damage is refused in a sentence or opens, and whatever is read then is
//! kept by requests, crashes and restarts as everything is; nothing panics or hangs.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Err(reason) = forebay_sim::pair::play(data) {
        panic!("{reason}");
    }
});
