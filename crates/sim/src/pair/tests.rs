//! Random bytes: what a fuzzer begins with.

use fastrand::Rng;

use super::play;
use super::record::RECORD_BYTES;

/// Bytes for target `name` in some variant, with so many records.
fn input(rng: &mut Rng, name: u8, records: usize) -> Vec<u8> {
    let mut bytes = vec![name, rng.u8(..)];
    bytes.extend((0..records * RECORD_BYTES).map(|_| rng.u8(..)));
    bytes
}

#[test]
fn any_bytes_are_survived_by_all_targets() {
    let mut rng = Rng::with_seed(14);
    let mut failures = Vec::new();
    for name in 0..4 {
        for _ in 0..250 {
            let records = rng.usize(0..40);
            let bytes = input(&mut rng, name, records);
            failures.extend(play(&bytes).err().map(|reason| (name, reason, bytes)));
        }
    }
    assert!(failures.is_empty(), "{} failures, the first: {:?}", failures.len(), failures.first());
}

#[test]
fn seeds_of_the_fuzz_corpus_are_survived() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/pair");
    let mut played = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        assert_eq!(play(&std::fs::read(&path).unwrap()), Ok(()), "{}", path.display());
        played += 1;
    }
    assert!(played > 50, "{played} seeds");
}
