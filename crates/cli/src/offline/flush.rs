//! `forebay cache flush`: everything in a cache goes home, without a server.
//!
//! An end in the middle, by a signal or a power cut, harms nothing: what was not written back is
//! still in the cache.

use std::io::IsTerminal;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use forebay::block::{SectorCount, Target};
use forebay::cache::options::{CacheArgs, CacheOptions};
use forebay::{BufferPool, DeviceError, DeviceName, Devices, DrainProgress, FileOptions, Reactor, Stack, TableText};

use super::media::{Found, look, not_a_cache};
use super::{LOCK_WAIT, open, run, side};
use crate::failure::{Failure, Outcome, say};
use crate::flags::FlushFlags;
use crate::serve::progress_line;

/// Time between two lines of progress: on a terminal, and elsewhere.
const PROGRESS_EVERY: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(5)];

/// Writes everything in a cache back to its origin.
pub fn flush(flags: &FlushFlags) -> Outcome {
    // What is only looked at is closed again before it is opened for writing.
    let mut table = None;
    run(async |reactor, pool| {
        let origin = Box::pin(origin_sectors(reactor, pool, &flags.origin)).await?;
        let name = flags.place.cache.display();
        match look(reactor, pool, &flags.place.cache, flags.place.start_sector).await? {
            Found::Fresh => {}
            Found::Damaged(error) => return Err(not_a_cache(&name, &error)),
            Found::Cache(cache) => table = Some(table_of(flags, cache.geometry.block_bytes(), origin)?),
        }
        Ok(ExitCode::SUCCESS)
    })?;
    let Some(table) = table else {
        let text = format!("{}: there is no cache yet, so there is nothing to write back\n", flags.place.cache.display());
        say(if flags.place.json { "{\"written_back_bytes\":0}\n" } else { &text })?;
        return Ok(ExitCode::SUCCESS);
    };
    run(async |reactor, pool| {
        let devices = Devices::new(reactor, FileOptions { lock_wait: LOCK_WAIT, ..FileOptions::default() });
        let name = flags.place.cache.display().to_string();
        let stack = Stack::open_on(&devices, pool, &name, &table, false).await.map_err(|error| Failure::of(&error))?;
        let drained = Box::pin(drain(&stack, flags.place.json)).await;
        let closed = stack.close().await.map_err(|error| Failure::of(&error));
        drained.and(closed).map(|()| ExitCode::SUCCESS)
    })
}

/// Size of an origin: a path, or an NBD server.
async fn origin_sectors(reactor: &Reactor, pool: &BufferPool, origin: &Path) -> Result<SectorCount, Failure> {
    let failed = |error: DeviceError| Failure::of(&error);
    let Some(name @ DeviceName::Nbd(_)) = origin.to_str().and_then(DeviceName::parse) else {
        return Ok(open(reactor, origin).map_err(failed)?.sectors());
    };
    let devices = Devices::new(reactor, FileOptions::default());
    devices.connect(pool, &name, true).await.map_err(failed)?;
    Ok(devices.target(&name, true).map_err(failed)?.sectors())
}

/// The table of the cached device: the whole origin, in whole blocks.
fn table_of(flags: &FlushFlags, block_bytes: u32, origin: SectorCount) -> Result<TableText, Failure> {
    let side = side::path(&flags.place).map(|path| utf8(&path).map(str::to_owned)).transpose()?;
    let options = CacheOptions { start_sector: Some(flags.place.start_sector), side, ..CacheOptions::default() };
    let (origin_word, fast) = (word(&flags.origin)?, word(&flags.place.cache)?);
    let args = CacheArgs { origin: origin_word, fast, block_bytes, options };
    let sectors = origin.0 - origin.0 % u64::from(block_bytes / 512);
    TableText::parse(&line(sectors, &args)).map_err(|error| Failure::of(&error))
}

/// The line of a cache. What ends a line or begins a comment elsewhere is an ordinary character in a
/// path.
fn line(sectors: u64, args: &CacheArgs) -> String {
    format!("0 {sectors} writecache {}", args.to_table().replace(';', "\\;").replace('#', "\\#"))
}

/// A path, or the URI of a server, as a word of a table.
fn word(path: &Path) -> Result<String, Failure> {
    let text = utf8(path)?;
    let plain = matches!(DeviceName::parse(text), Some(DeviceName::File(_) | DeviceName::Nbd(_)));
    // Words like ram:1M mean something else in a table.
    let front = if plain { "" } else { "./" };
    Ok(format!("{front}{text}"))
}

fn utf8(path: &Path) -> Result<&str, Failure> {
    path.to_str().ok_or_else(|| Failure::Usage(format!("{} is not UTF-8: give another name to it", path.display())))
}

async fn drain(stack: &Stack, json: bool) -> Result<(), Failure> {
    let terminal = std::io::stdout().is_terminal();
    let [often, seldom] = PROGRESS_EVERY;
    let mut last = DrainProgress::default();
    let report = |progress: DrainProgress| {
        last = progress;
        let line = progress_line(stack.name(), progress);
        let text = match (json, terminal, progress.left_bytes) {
            (true, ..) => String::new(),
            (_, true, 0) => format!("\r{line}\x1b[K\n"),
            (_, true, _) => format!("\r{line}\x1b[K"),
            (_, false, _) => format!("{line}\n"),
        };
        // Progress that nobody reads does not stop the work.
        let _ = say(&text);
    };
    let drained = stack.drain(if terminal { often } else { seldom }, report).await;
    drained.map_err(|error| Failure::Failed(format!("{} is not empty: {error}", stack.name())))?;
    if json { say(&format!("{{\"written_back_bytes\":{}}}\n", last.at_start_bytes)) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_path_is_one_word_of_a_table() {
        for path in ["a", "/dev/sdb", "a b", "a;b", "#a", "ram:1M", "ram:x", "a\\b"] {
            let word = word(Path::new(path)).unwrap();
            let args = CacheArgs { origin: word, fast: "fast".into(), block_bytes: 512, options: CacheOptions::default() };
            let table = TableText::parse(&line(8, &args)).unwrap();
            let forebay::text::TargetText::Writecache { origin, .. } = &table.rows()[0].target else { panic!("no cache") };
            assert_eq!(origin.to_string().trim_start_matches("./"), path);
        }
    }
}
