//! Tiny snapshots of which every crash and every error is tried.
//!
//! Scripts begin where a prelude ended: with so many entries in the store that the next ones go over a border, of a
//! unit that tears or of an area, or with something to be merged.

use std::ops::Range;
use std::rc::Rc;

use forebay_block::{Ability, Limits};
use forebay_reactor::BufferPool;

use super::views::{Kind, ORIGIN, Views};
use crate::check::{Model, stamp};
use crate::enumerate::{Operation, SEED, Tiny};
use crate::run::{Ask, Client, Ledger, Subject};
use crate::world::{Cut, DiskOptions, FaultOptions, World, WorldOptions};

/// What is tried.
struct Variant {
    kind: Kind,
    /// Of a view.
    sectors: usize,
    /// Of the first store and the second one, sectors.
    chunks: [u64; 2],
    /// Sizes of both, sectors: no more areas than the script needs, and some room, since crashes lose chunks.
    stores: [u64; 2],
    /// What the prelude writes: to the origin, or to the snapshot that is merged.
    before: Range<usize>,
}

const VARIANTS: [Variant; 5] = [
    Variant { kind: Kind::Beside, sectors: 8, chunks: [1, 1], stores: [34, 0], before: 0..0 },
    // 30 entries of 32 that an area has.
    Variant { kind: Kind::Beside, sectors: 40, chunks: [1, 1], stores: [68, 0], before: 8..38 },
    // 30 entries of 32 that a unit has which does not tear; the metadata block is two of them.
    Variant { kind: Kind::Beside, sectors: 72, chunks: [2, 2], stores: [132, 0], before: 8..68 },
    Variant { kind: Kind::Merging, sectors: 8, chunks: [1, 2], stores: [34, 66], before: 1..6 },
    // 34 entries: two areas are cleared.
    Variant { kind: Kind::Merging, sectors: 40, chunks: [1, 2], stores: [68, 80], before: 2..36 },
];

/// The alphabet where a view has so many sectors, which are its blocks.
fn operations(sectors: usize) -> Vec<Operation> {
    let first = |ask, at, count| Operation::Send(ask, at, count);
    let second = |ask, at, count| Operation::Send(ask, sectors + at, count);
    vec![
        first(Ask::Write, 0, 1),
        first(Ask::Write, 1, 3),
        first(Ask::WriteFua, 2, 1),
        second(Ask::Write, 0, 1),
        second(Ask::Write, 1, 4),
        second(Ask::Trim, 0, 2),
        first(Ask::Read, 0, 2 * sectors),
        first(Ask::Flush, 0, 0),
        Operation::Settle,
        Operation::Drain,
    ]
}

/// A tiny origin with a snapshot, or with two of which one is merged, in its variant number `variant`.
#[must_use]
pub fn tiny(variant: usize) -> Option<Tiny> {
    let variant = VARIANTS.get(variant)?;
    let (kind, sectors) = (variant.kind, variant.sectors);
    let (model, disks) = prelude(variant);
    let world = move || {
        let world = empty(variant);
        for (at, disk) in disks.iter().enumerate() {
            world.preset(at, |bytes| bytes.copy_from_slice(disk));
        }
        world
    };
    Some(Tiny {
        world: Box::new(world),
        subject: Box::new(Views { kind, sectors: sectors as u64, chunks: variant.chunks }),
        model,
        block_sectors: 1,
        operations: operations(sectors),
        drained_again: kind == Kind::Merging,
    })
}

fn empty(variant: &Variant) -> World {
    let limits = Limits { memory_align: 512, discard: Ability::Native, write_zeroes: Ability::Native, ..Limits::unlimited() };
    let disk = |at: usize| DiskOptions {
        name: ["origin", "store", "second"][at],
        sectors: if at == ORIGIN { variant.sectors as u64 } else { variant.stores[at - 1] },
        limits,
        latency_ns: (10_000, 10_000),
        tear_bytes: 512,
        faults: FaultOptions::default(),
    };
    let disks = (0..if variant.kind == Kind::Beside { 2 } else { 3 }).map(disk).collect();
    World::new(WorldOptions { seed: SEED, disks, yield_always: false, early_effect: false, trace: false })
}

/// What the disks hold when scripts begin, and what both views may show then.
fn prelude(variant: &Variant) -> (Model, Vec<Vec<u8>>) {
    let kind = if variant.kind == Kind::Beside { Kind::Beside } else { Kind::Two };
    let sectors = variant.sectors;
    let subject = Views { kind, sectors: sectors as u64, chunks: variant.chunks };
    let (world, pool) = (empty(variant), BufferPool::default());
    world.preset(ORIGIN, |bytes| stamp(bytes, SEED, 0, 0));
    let ledger = Rc::new(Ledger::new(SEED, Model::new(SEED, 2 * sectors, false).of_views(sectors)));
    // Where nothing was written before, there is no store, and opening makes one.
    if !variant.before.is_empty() {
        let reactor = world.restart();
        let (opening, client) = (subject.open(&world, &reactor, &pool), Client::new(&world, &ledger, &pool));
        let root = async {
            let opened = opening.await.expect("a healthy origin opens");
            client.send(opened.target(), Ask::Write, variant.before.clone());
            client.idle().await;
            client.send(opened.target(), Ask::Flush, 0..0);
            client.idle().await;
            opened.leave().await.expect("a healthy origin can be left");
        };
        reactor.run(root).expect("a healthy world goes on");
        reactor.clear();
    }
    assert!(!ledger.failed(), "{:?}", ledger.failure.borrow());
    ledger.model.borrow_mut().cut(Cut::Power);
    let images = (0..world.disks()).map(|disk| world.look(disk, <[u8]>::to_vec)).collect();
    let model = ledger.model.borrow().clone();
    (model, images)
}
