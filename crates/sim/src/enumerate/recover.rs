//! What a restart makes of a set of disks, found out once for each.
//!
//! A recovery that is cut off is tried at each of its own steps: whatever that leaves must be recovered to the same
//! content, however often.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use forebay_block::{Bio, Sector, Target, call};
use forebay_reactor::BufferPool;

use super::{SEED, Tiny, images};
use crate::check::{Found, POISON, SECTOR, inspect};
use crate::world::Digest;

/// The content of the device under test, or why it does not open.
type Content = Result<Vec<Found>, String>;

/// What was found out so far.
#[derive(Default)]
pub(super) struct Recovered {
    known: BTreeMap<u64, Content>,
    pool: BufferPool,
}

impl Recovered {
    /// How many sets of disks were recovered.
    pub(super) fn distinct(&self) -> u64 {
        self.known.len() as u64
    }

    /// What a restart brings back from `disks`.
    pub(super) fn find(&mut self, tiny: &Tiny, disks: &[Vec<u8>]) -> Result<&[Found], &str> {
        let key = fingerprint(disks);
        if !self.known.contains_key(&key) {
            let (content, left) = recover(tiny, disks, &self.pool);
            self.known.insert(key, content.clone());
            for disks in left {
                if self.find(tiny, &disks) != content.as_deref().map_err(String::as_str) {
                    let reason = "a cut while this was recovered changes what is found".to_owned();
                    self.known.insert(key, Err(reason));
                }
            }
        }
        self.known[&key].as_deref().map_err(String::as_str)
    }
}

fn fingerprint(disks: &[Vec<u8>]) -> u64 {
    let mut digest = Digest::default();
    for word in disks.iter().flat_map(|disk| disk.as_chunks::<8>().0) {
        digest.add(u64::from_le_bytes(*word));
    }
    digest.0
}

/// What is found, and the different sets of disks that a cut in between leaves.
fn recover(tiny: &Tiny, disks: &[Vec<u8>], pool: &BufferPool) -> (Content, Vec<Vec<Vec<u8>>>) {
    let world = (tiny.world)();
    for (at, disk) in disks.iter().enumerate() {
        world.preset(at, |bytes| bytes.copy_from_slice(disk));
    }
    let left = Rc::new(RefCell::new(BTreeMap::new()));
    let seen = Rc::clone(&left);
    world.observe(Box::new(move |remains| {
        images::each(&remains, |disks, _| {
            seen.borrow_mut().entry(fingerprint(disks)).or_insert_with(|| disks.to_vec());
        });
    }));
    let reactor = world.restart();
    let opening = tiny.subject.open(&world, &reactor, pool);
    let bytes = tiny.model.len() * SECTOR;
    let root = async {
        let opened = opening.await?;
        let found = read(opened.target(), bytes, pool).await?;
        if tiny.drained_again {
            // What cuts leave from here on is what those of scripts leave.
            world.observe(Box::new(|_| {}));
            opened.drain().await?;
            if read(opened.target(), bytes, pool).await? != found {
                return Err("draining changes what is found".to_owned());
            }
        }
        Ok(found)
    };
    let content = reactor.run(root).unwrap_or_else(|error| Err(error.to_string()));
    reactor.clear();
    let left = left.take().into_values().collect();
    (content, left)
}

/// What the first `bytes` of `target` hold.
async fn read(target: &dyn Target, bytes: usize, pool: &BufferPool) -> Content {
    let mut buffer = pool.take(bytes);
    buffer.bytes_mut()[..bytes].fill(POISON);
    let length = u32::try_from(bytes).expect("a tiny device");
    let status = call(target, Bio::read(Sector(0), Rc::clone(buffer.segments()), 0, length)).await.status();
    if !status.is_ok() {
        return Err(format!("reading back ended with {status:?}"));
    }
    Ok(buffer.bytes_mut()[..bytes].chunks_exact(SECTOR).map(|sector| inspect(sector, SEED)).collect())
}
