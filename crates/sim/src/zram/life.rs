//! The life of a disk: requests and commands, then the end in which everything is checked.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use fastrand::Rng;
use forebay_block::{Bio, Extent, Sector, SectorCount, Target, call};
use forebay_reactor::{BufferPool, Reactor};
use forebay_target::zram::{BackingSetup, Packers, Zram};

use super::command::{Command, look_at, recompress, write_back};
use super::crew::SimPackers;
use super::damage::Damage;
use super::swarm::Swarm;
use crate::check::Act;
use crate::run::{Ask, Client, Ledger};
use crate::world::World;

/// Number of the backing device.
const BACKING: usize = 0;
/// Sectors read at a time in the end.
const READ_BACK: usize = 256;

pub(super) struct Life {
    swarm: Swarm,
    world: World,
    reactor: Reactor,
    ledger: Rc<Ledger>,
    client: Rc<Client>,
    pool: BufferPool,
    rng: Rng,
    requests: u64,
    /// Blocks were damaged.
    damaged: bool,
    /// What the backing device held at some time.
    earlier: Option<Vec<u8>>,
    /// Damaged pages that were asked for and refused.
    detected: Rc<Cell<u64>>,
    /// Commands that run beside the requests.
    running: Rc<Cell<u32>>,
}

impl Life {
    pub(super) fn new(
        swarm: Swarm,
        world: World,
        reactor: Reactor,
        ledger: Rc<Ledger>,
        client: Rc<Client>,
        pool: BufferPool,
        requests: u64,
    ) -> Self {
        let rng = Rng::with_seed(ledger.seed ^ 0x2A11);
        Self {
            swarm,
            world,
            reactor,
            ledger,
            client,
            pool,
            rng,
            requests,
            damaged: false,
            earlier: None,
            detected: Rc::default(),
            running: Rc::default(),
        }
    }

    /// Where it is counted how many damaged pages were refused in the end.
    pub(super) fn detected(&self) -> Rc<Cell<u64>> {
        Rc::clone(&self.detected)
    }

    pub(super) async fn live(mut self) {
        let target = (self.swarm.blocks > 0).then(|| self.world.disk(&self.reactor, BACKING));
        let options = self.swarm.backing;
        let backing = target.map(|target| BackingSetup { name: "backing".to_owned(), target, options });
        let packers = || Rc::new(SimPackers::new(&self.reactor, self.ledger.seed)) as Rc<dyn Packers>;
        let setup = self.swarm.setup(backing, self.swarm.packers.then(packers));
        let zram = match Zram::new(&self.reactor, &self.pool, &setup) {
            Ok(zram) => zram,
            Err(error) => return self.ledger.fail(error.to_string()),
        };
        self.world.set_faults(self.swarm.faults);
        if self.swarm.expects_errors() {
            self.client.expect_errors();
        }
        self.load(&zram).await;
        self.client.idle().await;
        self.world.heal();
        while self.running.get() > 0 && !self.ledger.failed() {
            self.reactor.sleep(Duration::from_millis(1)).await;
        }
        zram.close().await;
        if !self.ledger.failed() {
            self.end(&zram).await;
        }
    }

    async fn load(&mut self, zram: &Rc<Zram>) {
        let mut last = 0;
        while !self.ledger.failed() && self.ledger.requests.get() < self.requests {
            if self.rng.u32(0..1000) < self.swarm.load.pauses_per_mille {
                let time = Duration::from_micros(self.rng.u64(0..self.swarm.load.pause_max_ms * 1000));
                self.reactor.sleep(time).await;
            }
            if self.rng.u32(0..1000) < self.swarm.commands_per_mille {
                let command = Command::draw(&mut self.rng, self.swarm.sectors as u64 / 8);
                if self.world.takes() {
                    self.command(zram, command).await;
                }
                continue;
            }
            if self.client.in_flight() >= self.swarm.load.depth {
                self.client.change().await;
                continue;
            }
            let ask = self.swarm.load.ask(&mut self.rng);
            let sectors = self.swarm.load.sectors(&mut self.rng, last);
            last = sectors.end;
            if self.world.takes() {
                self.client.send(&**zram, ask, sectors);
            } else {
                self.ledger.pass_over();
            }
        }
    }

    async fn command(&mut self, zram: &Rc<Zram>, command: Command) {
        self.world.note(&[11], || format!("command: {command:?}"));
        let faults = self.swarm.faults;
        let done = match command {
            Command::Set(name, value) => {
                // Without a backing device some of them are refused, which is as well.
                let _ = zram.set(name, &value).await;
                Ok(())
            }
            Command::WriteBack(words) => {
                self.beside(write_back(Rc::clone(zram), words, faults));
                Ok(())
            }
            Command::Recompress(words) => {
                self.beside(recompress(Rc::clone(zram), words));
                Ok(())
            }
            Command::WriteBackHere(words) => self.write_back_here(zram, words).await,
            Command::Reset => self.reset(zram).await,
            Command::Damage => {
                self.damage();
                Ok(())
            }
            Command::LookAt => look_at(zram, self.swarm.backing.packed),
        };
        if let Err(reason) = done {
            self.ledger.fail(reason);
        }
        // Nothing is ever lost that was acknowledged: to the model, every command is a flush.
        let op = self.ledger.model.borrow_mut().begin(Act::Flush, 0..0);
        self.ledger.model.borrow_mut().end(op, true);
    }

    /// Has a command run beside the requests.
    fn beside(&self, command: impl Future<Output = Result<(), String>> + 'static) {
        let (ledger, running) = (Rc::clone(&self.ledger), Rc::clone(&self.running));
        running.set(running.get() + 1);
        self.reactor.spawn(async move {
            if let Err(reason) = command.await {
                ledger.fail(reason);
            }
            running.set(running.get() - 1);
        });
    }

    /// Writes pages back and holds the limit against what was written.
    async fn write_back_here(&self, zram: &Rc<Zram>, words: String) -> Result<(), String> {
        let limit = || zram.get("writeback_limit").ok().and_then(|text| text.trim().parse::<u64>().ok()).unwrap_or(0);
        let limited = zram.get("writeback_limit_enable").is_ok_and(|text| text.starts_with('1'));
        let (limit_before, writes_before) = (limit(), zram.status().backing_writes);
        let alone = self.running.get() == 0 && !self.swarm.backing.rules.are_any();
        write_back(Rc::clone(zram), words, self.swarm.faults).await?;
        let written = zram.status().backing_writes - writes_before;
        let charged = if limited { limit_before - limit() } else { written };
        if alone && written != charged {
            return Err(format!("{written} blocks were written and {charged} charged"));
        }
        Ok(())
    }

    async fn reset(&self, zram: &Rc<Zram>) -> Result<(), String> {
        self.client.idle().await;
        let op = self.ledger.model.borrow_mut().begin(Act::Zeroes, 0..self.swarm.sectors);
        let done = zram.reset();
        self.ledger.model.borrow_mut().end(op, done.is_ok());
        let status = zram.status();
        let empty = status.original_bytes == 0 && status.used_bytes == 0 && status.backing_blocks == 0;
        if done.is_ok() && !empty { Err(format!("a reset left something: {status:?}")) } else { Ok(()) }
    }

    /// Damages a block, or notes what the device holds, for later.
    fn damage(&mut self) {
        if !self.swarm.damage && !self.swarm.damage_last {
            return;
        }
        let (rng, earlier) = (&mut self.rng, &mut self.earlier);
        let (block, damage) = (rng.usize(0..self.swarm.blocks), Damage::draw(rng));
        self.damaged |= self.swarm.damage;
        self.world.damage(BACKING, |bytes| {
            let earlier = earlier.get_or_insert_with(|| bytes.to_vec());
            if self.swarm.damage {
                damage.befall(rng, bytes, block, earlier);
            }
        });
    }

    /// Damages every block, and asks for every page that is away: what comes from the device is refused.
    async fn damage_all(&mut self, zram: &Rc<Zram>, client: &Rc<Client>) {
        let packed = self.swarm.backing.packed;
        let (rng, damage) = (&mut self.rng, Damage::draw(&mut Rng::with_seed(self.ledger.seed)));
        let earlier = self.earlier.take();
        self.world.damage(BACKING, |bytes| {
            let earlier = earlier.unwrap_or_else(|| vec![0; bytes.len()]);
            damage.befall_all(rng, bytes, &earlier, packed);
        });
        client.expect_errors();
        let states = zram.get("block_state").unwrap_or_default();
        let away = states.lines().filter(|line| line[25..].contains('w'));
        for page in away.filter_map(|line| line.split_whitespace().next()?.parse::<usize>().ok()) {
            let before = zram.status().backing_read_requests;
            client.errors.set(0);
            client.send(&**zram, Ask::Read, page * 8..page * 8 + 8);
            client.idle().await;
            let refused = client.errors.get() > 0;
            self.detected.set(self.detected.get() + u64::from(refused));
            // What was read ahead before does not come from the device.
            let asked = zram.status().backing_read_requests > before;
            if asked && !refused && damage.is_everywhere(packed) {
                return self.ledger.fail(format!("page {page} was {damage:?} on the device and is read all the same"));
            }
        }
    }

    /// Reads and counts everything, and lets it go.
    async fn end(&mut self, zram: &Rc<Zram>) {
        let client = Client::new(&self.world, &self.ledger, &self.pool);
        if self.damaged {
            client.expect_errors();
        }
        for first in (0..self.swarm.sectors).step_by(READ_BACK) {
            let sectors = first..(first + READ_BACK).min(self.swarm.sectors);
            client.send(&**zram, Ask::Read, sectors);
            client.idle().await;
        }
        if let Err(reason) = look_at(zram, self.swarm.backing.packed) {
            return self.ledger.fail(reason);
        }
        let away = zram.get("block_state").map_or(0, |states| states.lines().filter(|line| line[25..].contains('w')).count());
        let (blocks, away) = (zram.status().backing_blocks, away as u64);
        // An object may lie in two blocks.
        let right = if self.swarm.backing.packed { blocks <= 2 * away && (blocks > 0) == (away > 0) } else { blocks == away };
        if !right {
            return self.ledger.fail(format!("{blocks} blocks are in use for {away} pages"));
        }
        // What was damaged before might be put right by this.
        if self.swarm.damage_last && !self.damaged {
            self.damage_all(zram, &client).await;
        }
        let all = Extent::new(Sector(0), SectorCount(self.swarm.sectors as u64));
        let bio = call(&**zram as &dyn Target, Bio::discard(all)).await;
        let status = zram.status();
        let empty = status.original_bytes == 0 && status.used_bytes == 0 && status.backing_blocks == 0;
        if !bio.status().is_ok() || !empty {
            self.ledger.fail(format!("a discard of everything left something: {status:?}"));
        }
    }
}
