//! What users of the kernel's zram rely on, in twenty short scenes, page by page.
//!
//! Most of them are played on the kernel's own zram, too, by the tests with real kernels.

use std::cell::RefCell;

use super::super::backing::WritebackError;
use super::*;
use crate::below::testing::Disk;

struct Rig {
    reactor: Reactor,
    backing: Rc<Disk>,
    zram: Rc<Zram>,
}

fn page_of(seed: u64, random: usize) -> Vec<u8> {
    let rng = &mut fastrand::Rng::with_seed(seed);
    let mut page = noise(rng, random);
    page.resize(PAGE, 0);
    page
}

impl Rig {
    /// A disk of 4096 pages, with a backing device of so many blocks.
    fn new(mem_limit: u64, blocks: Option<usize>) -> Self {
        let reactor = Reactor::new(Box::new(JumpingClock::default()));
        let backing = Disk::new(blocks.unwrap_or(1) * 8);
        let target = Rc::clone(&backing) as Rc<dyn Target>;
        let given = BackingSetup { name: "disk".to_owned(), target, options: BackingOptions::default() };
        let given = blocks.map(|_| given);
        let setup = Setup { sectors: SectorCount(8 * 4096), mem_limit, backing: given, ..Setup::default() };
        let zram = Zram::new(&reactor, &BufferPool::default(), &setup).unwrap();
        Self { reactor, backing, zram }
    }

    fn run(&self, bio: Bio) -> Status {
        self.reactor.run(crate::below::testing::call(&*self.zram, bio)).unwrap().status()
    }

    fn put(&self, page: u64, bytes: &[u8]) {
        assert_eq!(self.run(write(page * 8, bytes)), Status::Ok);
    }

    fn noise(&self, pages: Range<u64>) {
        pages.for_each(|page| self.put(page, &page_of(page, PAGE)));
    }

    fn get(&self, page: u64, pages: usize) -> Vec<u8> {
        let (bio, memory) = read(page * 8, pages * 8);
        assert_eq!(self.run(bio), Status::Ok);
        content(memory)
    }

    /// The errno of an attribute that is not written.
    fn set(&self, name: &str, value: &str) -> Result<(), String> {
        let set = self.reactor.run(self.zram.set(name, value)).unwrap();
        set.map_err(|error| error.to_string().rsplit(['(', ')']).nth(1).unwrap_or_default().to_owned())
    }

    fn numbers(&self, name: &str) -> Vec<u64> {
        let text = self.zram.get(name).unwrap();
        text.split_whitespace().map(|word| word.parse().unwrap()).collect()
    }

    fn write_all_back(&self) -> Result<(), String> {
        self.set("idle", "all").unwrap();
        self.set("writeback", "idle")
    }
}

fn errno(name: &str) -> Result<(), String> {
    Err(name.to_owned())
}

#[test]
fn behaviour_1_a_disk_has_whole_pages_and_keeps_its_size() {
    let rig = Rig::new(0, None);
    assert_eq!(rig.zram.get("disksize").unwrap(), "16777216\n");
    assert_eq!((rig.set("disksize", "0"), rig.set("disksize", "1G")), (errno("EINVAL"), errno("EBUSY")));
    // One byte becomes a page in the kernel; a table line says how long it is, in whole pages.
    let setup = |sectors| Setup { sectors: SectorCount(sectors), ..Setup::default() };
    let made = |sectors| Zram::new(&rig.reactor, &BufferPool::default(), &setup(sectors));
    assert!(made(1).is_err());
    assert_eq!(made(8).unwrap().status().disk_bytes, 4096);
}

#[test]
fn behaviour_2_a_fresh_disk_reads_zeroes_and_holds_nothing() {
    let rig = Rig::new(1 << 20, None);
    assert!(rig.get(17, 3) == [0; 3 * PAGE]);
    assert_eq!(rig.numbers("mm_stat"), [0, 0, 0, 1 << 20, 0, 0, 0, 0, 0]);
}

#[test]
fn behaviour_3_a_hundred_zero_pages_take_no_memory() {
    let rig = Rig::new(0, None);
    rig.put(0, &vec![0; 100 * PAGE]);
    assert_eq!(rig.numbers("mm_stat"), [409_600, 0, 0, 0, 0, 100, 0, 0, 0]);
}

#[test]
fn behaviour_4_a_page_of_one_word_is_the_word() {
    let rig = Rig::new(0, None);
    let page = 0x0123_4567_89ab_cdef_u64.to_le_bytes().repeat(512);
    rig.put(5, &page);
    assert_eq!(rig.numbers("mm_stat"), [4096, 0, 0, 0, 0, 1, 0, 0, 0]);
    assert!(rig.get(5, 1) == page);
}

#[test]
fn behaviour_5_one_other_word_makes_it_an_object() {
    let rig = Rig::new(0, None);
    let mut page = 7_u64.to_le_bytes().repeat(512);
    page[4088] = 8;
    rig.put(5, &page);
    let stat = rig.numbers("mm_stat");
    assert!((stat[0], stat[2], stat[5]) == (4096, 4096, 0) && stat[1] > 0, "{stat:?}");
    assert!(rig.get(5, 1) == page);
}

#[test]
fn behaviour_6_a_random_page_is_huge() {
    let rig = Rig::new(0, None);
    rig.noise(0..1);
    assert_eq!(rig.numbers("mm_stat"), [4096, 4096, 4096, 0, 4096, 0, 0, 1, 1]);
}

#[test]
fn behaviour_7_objects_of_3624_bytes_are_kept_as_they_are_and_of_3625_as_pages() {
    let rig = Rig::new(0, None);
    let sizes: std::collections::BTreeSet<u64> = (3500..3700)
        .map(|random| {
            rig.put(0, &page_of(7, random));
            rig.numbers("mm_stat")[1]
        })
        .collect();
    assert!(sizes.contains(&3624) && sizes.contains(&4096), "{sizes:?}");
    assert!(!sizes.iter().any(|size| (3625..4096).contains(size)), "{sizes:?}");
}

#[test]
fn behaviour_8_a_huge_page_that_is_overwritten_was_huge_once() {
    let rig = Rig::new(0, None);
    rig.noise(0..1);
    rig.put(0, &[0; PAGE]);
    assert_eq!(rig.numbers("mm_stat"), [4096, 0, 0, 0, 4096, 1, 0, 0, 1]);
}

#[test]
fn behaviour_9_a_limit_of_1_mib_takes_256_random_pages_and_any_zeroes() {
    let rig = Rig::new(1 << 20, None);
    rig.noise(0..256);
    assert_eq!(rig.run(write(300 * 8, &page_of(300, PAGE))), Status::NoSpace);
    rig.put(301, &[0; PAGE]);
    assert_eq!((rig.numbers("io_stat")[1], rig.numbers("mm_stat")[2]), (1, 1 << 20));
}

#[test]
fn behaviour_10_the_maximum_becomes_what_is_used_now() {
    let rig = Rig::new(0, None);
    rig.noise(0..10);
    assert_eq!(rig.run(Bio::discard(extent(0, 64))), Status::Ok);
    assert_eq!((rig.numbers("mm_stat")[2], rig.numbers("mm_stat")[4]), (8192, 40_960));
    assert_eq!((rig.set("mem_used_max", "1"), rig.set("mem_used_max", "0")), (errno("EINVAL"), Ok(())));
    assert_eq!(rig.numbers("mm_stat")[4], 8192);
}

#[test]
fn behaviour_11_a_discard_of_three_and_a_half_pages_frees_three() {
    let rig = Rig::new(0, None);
    rig.noise(0..8);
    assert_eq!(rig.run(Bio::discard(extent(8, 28))), Status::Ok);
    assert_eq!((rig.numbers("io_stat"), rig.numbers("mm_stat")[0]), (vec![0, 0, 0, 3], 5 * 4096));
    assert!(rig.get(4, 1) == page_of(4, PAGE));
}

#[test]
fn behaviour_12_the_backing_device_stays_what_it_is() {
    let rig = Rig::new(0, Some(100));
    assert_eq!(rig.zram.get("backing_dev").unwrap(), "disk\n");
    assert_eq!(rig.set("backing_dev", "/dev/sdb"), errno("EBUSY"));
}

#[test]
fn behaviour_13_writeback_needs_a_device_and_a_word_that_it_knows() {
    let (without, with) = (Rig::new(0, None), Rig::new(0, Some(100)));
    assert_eq!((without.set("writeback", "idle"), with.set("writeback", "sideways")), (errno("ENODEV"), errno("EINVAL")));
    assert_eq!(without.set("writeback", "sideways"), errno("EINVAL"));
    assert_eq!(without.zram.get("backing_dev").unwrap(), "none\n");
}

#[test]
fn behaviour_14_writeback_of_idle_pages_does_nothing_where_none_is() {
    let rig = Rig::new(0, Some(100));
    rig.noise(0..10);
    assert_eq!((rig.set("writeback", "idle"), rig.numbers("bd_stat")), (Ok(()), vec![0, 0, 0]));
}

#[test]
fn behaviour_15_pages_that_were_written_back_take_no_memory_and_read_the_same() {
    let rig = Rig::new(0, Some(1000));
    rig.noise(0..200);
    (200..210).for_each(|page| rig.put(page, &page_of(page, 1000)));
    let (before, all) = (rig.numbers("mm_stat"), rig.get(0, 210));
    assert_eq!(rig.set("writeback", "huge"), Ok(()));
    let after = rig.numbers("mm_stat");
    assert_eq!(rig.numbers("bd_stat"), [200, 0, 200]);
    assert_eq!((after[0], before[1] - after[1]), (before[0], 200 * 4096));
    assert!(rig.get(0, 210) == all);
    assert_eq!(rig.numbers("bd_stat"), [200, 200, 200]);
}

#[test]
fn behaviour_16_a_page_that_is_rewritten_gives_its_block_back() {
    let rig = Rig::new(0, Some(1000));
    rig.noise(0..20);
    assert_eq!(rig.write_all_back(), Ok(()));
    rig.put(7, &page_of(70, PAGE));
    assert_eq!(rig.numbers("bd_stat"), [19, 0, 20]);
    assert!(rig.get(7, 1) == page_of(70, PAGE));
}

#[test]
fn behaviour_17_a_limit_of_1002_pages_is_1002_pages() {
    let rig = Rig::new(0, Some(4096));
    rig.noise(0..2560);
    rig.set("writeback_limit_enable", "1").unwrap();
    rig.set("writeback_limit", "1002").unwrap();
    assert_eq!(rig.write_all_back(), errno("EIO"));
    assert_eq!((rig.numbers("bd_stat"), rig.numbers("writeback_limit")), (vec![1002, 0, 1002], vec![0]));
    assert_eq!((rig.write_all_back(), rig.numbers("bd_stat")), (errno("EIO"), vec![1002, 0, 1002]));
}

#[test]
fn behaviour_18_a_device_of_100_blocks_takes_99_pages() {
    let rig = Rig::new(0, Some(100));
    rig.noise(0..150);
    let all = rig.get(0, 150);
    assert_eq!((rig.write_all_back(), rig.numbers("bd_stat")), (errno("ENOSPC"), vec![99, 0, 99]));
    assert!(rig.get(0, 150) == all);
}

#[test]
fn behaviour_19_who_rewrites_a_page_on_its_way_wins() {
    for seed in 0..20 {
        let rng = &mut fastrand::Rng::with_seed(seed);
        let rig = Rig::new(0, Some(200));
        rig.noise(0..60);
        rig.set("idle", "all").unwrap();
        rig.backing.hold.set(true);
        let ended: Rc<RefCell<Option<Result<(), WritebackError>>>> = Rc::default();
        let (zram, place) = (Rc::clone(&rig.zram), Rc::clone(&ended));
        rig.reactor.spawn(async move { *place.borrow_mut() = Some(zram.writeback("idle").await) });
        let turns = || (0..8).for_each(|_| rig.reactor.turn(false).unwrap());
        turns();
        let rewritten: Vec<u64> = (0..60).filter(|_| rng.u32(0..3) == 0).collect();
        rewritten.iter().for_each(|page| rig.put(*page, &page_of(page + 1000, PAGE)));
        rig.backing.hold.set(false);
        (0..rig.backing.take_seen().len()).for_each(|_| rig.backing.end_held(0));
        turns();
        assert_eq!(ended.take(), Some(Ok(())), "seed {seed}");
        let away = rig.zram.get("block_state").unwrap().lines().filter(|line| line.contains('w')).count() as u64;
        assert_eq!((rig.numbers("bd_stat")[0], away), (60 - rewritten.len() as u64, 60 - rewritten.len() as u64));
        for page in 0..60 {
            let seed = if rewritten.contains(&page) { page + 1000 } else { page };
            assert!(rig.get(page, 1) == page_of(seed, PAGE), "page {page}");
        }
    }
}

#[test]
fn behaviour_20_a_block_that_cannot_be_written_keeps_its_page_in_memory() {
    let rig = Rig::new(0, Some(200));
    rig.noise(0..50);
    rig.backing.bad_sector.set(Some(9 * 8));
    assert_eq!((rig.write_all_back(), rig.numbers("bd_stat")), (errno("EIO"), vec![49, 0, 49]));
    assert_eq!(rig.numbers("mm_stat")[2], 4096);
    rig.backing.bad_sector.set(None);
    (0..50).for_each(|page| assert!(rig.get(page, 1) == page_of(page, PAGE)));
    assert_eq!((rig.set("reset", "0"), rig.set("reset", "1")), (errno("EINVAL"), Ok(())));
    assert_eq!((rig.numbers("bd_stat")[0], rig.numbers("mm_stat")[2]), (0, 0));
}
