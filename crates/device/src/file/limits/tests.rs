//! What is made of a queue's folder in sysfs.

use super::*;

/// A device's folder with a queue of these numbers, removed again on drop.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str, numbers: &[(&str, &str)]) -> Self {
        let folder = std::env::temp_dir().join(format!("forebay-limits-{name}-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("queue")).unwrap();
        for (file, text) in numbers {
            std::fs::write(folder.join("queue").join(file), format!("{text}\n")).unwrap();
        }
        Self(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).unwrap();
    }
}

const DIRECT: Option<Alignment> = Some(Alignment { memory: 4, offset: 512 });

#[test]
fn a_drive_is_described_by_its_queue() {
    let numbers = [
        ("logical_block_size", "512"),
        ("physical_block_size", "4096"),
        ("max_sectors_kb", "1280"),
        ("max_segments", "127"),
        ("max_segment_size", "4294967295"),
        ("virt_boundary_mask", "4095"),
        ("chunk_sectors", "256"),
        ("optimal_io_size", "131072"),
        ("discard_granularity", "4096"),
        ("discard_max_bytes", "2199023255040"),
        ("write_zeroes_max_bytes", "131072"),
    ];
    let folder = Folder::new("drive", &numbers);
    let expected = Limits {
        logical_bytes: 512,
        physical_bytes: 4096,
        preferred_bytes: 131_072,
        memory_align: 4,
        max_sectors: 2560,
        max_segments: 127,
        max_segment_bytes: u32::MAX,
        by_page: true,
        gap_mask: 4095,
        chunk_sectors: 256,
        discard_grain_bytes: 4096,
        ..Limits::unlimited()
    };
    let found = Queue::at(&folder.0).limits(DIRECT, false);
    assert_eq!(found, expected);
    let read_only = Queue::at(&folder.0).limits(DIRECT, true);
    assert_eq!((read_only.discard, read_only.write_zeroes, read_only.discard_grain_bytes), (Ability::No, Ability::No, 0));
    let buffered = Queue::at(&folder.0).limits(None, false);
    let memory = (buffered.memory_align, buffered.gap_mask, buffered.by_page);
    assert_eq!(memory, (1, 0, false), "the page cache takes any memory");
}

#[test]
fn a_partition_has_the_queue_of_its_disk() {
    let disk = Folder::new("disk", &[("logical_block_size", "4096"), ("max_segments", "5000")]);
    let partition = disk.0.join("disk1");
    std::fs::create_dir_all(&partition).unwrap();
    std::fs::write(partition.join("partition"), "1\n").unwrap();
    let found = Queue::at(&partition).limits(DIRECT, false);
    assert_eq!((found.logical_bytes, found.physical_bytes, found.max_segments), (4096, 4096, 1024));
}

#[test]
fn what_the_kernel_leaves_out_or_gets_wrong_still_makes_valid_limits() {
    for numbers in [&[][..], &[("logical_block_size", "x"), ("physical_block_size", "3000"), ("max_sectors_kb", "0")]] {
        let folder = Folder::new("odd", numbers);
        let found = Queue::at(&folder.0).limits(None, false);
        assert!(found.is_valid(), "{found:?}");
        assert_eq!((found.logical_bytes, found.discard, found.write_zeroes), (512, Ability::No, Ability::Emulate));
    }
}

#[test]
fn no_request_is_longer_than_what_the_kernel_takes_in_one_call() {
    for (kib, sectors) in [("2147483647", 1 << 21), ("1048576", 1 << 21), ("1048575", (1 << 21) - 2), ("4", 8)] {
        let folder = Folder::new("endless", &[("max_sectors_kb", kib)]);
        assert_eq!(Queue::at(&folder.0).limits(DIRECT, false).max_sectors, sectors, "{kib} KiB");
    }
}
