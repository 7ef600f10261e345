//! What a server says when it is ready: where its devices are found, and what to try next.

use std::fmt::Write as _;

use super::plan::Plan;
use super::running::Running;
use crate::embedded;
use crate::figures;

/// The lines for standard output: each URI on a line of its own.
pub fn ready(running: &Running, plan: &Plan, for_people: bool) -> String {
    let mut text = String::new();
    for (index, stack) in running.stacks().iter().enumerate() {
        let size = figures::bytes(stack.sectors().to_bytes());
        let access = if plan.devices[index].read_only { ", read-only" } else { "" };
        line(&mut text, &format!("{}: {size}{access}, served by {}", stack.name(), running.reactor().backend_name()));
        for cache in stack.status().caches {
            line(&mut text, &format!("{}: write cache on {} in front of {}", stack.name(), cache.fast, cache.origin));
        }
        for (_, uri) in running.uris().iter().filter(|(device, _)| *device == index) {
            line(&mut text, uri);
        }
    }
    if for_people && let Some((_, uri)) = running.uris().first() {
        text.push_str(&try_next(uri, plan));
    }
    text
}

fn line(text: &mut String, line: &str) {
    writeln!(text, "{line}").expect("writing to a string does not fail");
}

fn try_next(uri: &str, plan: &Plan) -> String {
    let status = match &plan.control {
        Some(path) if path.as_os_str() == embedded::CONTROL => "forebay status".to_owned(),
        Some(path) => format!("forebay status --control {}", path.display()),
        None => "forebay serve … --control PATH, then forebay status --control PATH".to_owned(),
    };
    let leaving = if plan.drain { "everything is written back first" } else { "dirty data stays safe in the cache" };
    format!(
        "\nTry in another terminal:\n\
         \x20 nbdinfo '{uri}'\n\
         \x20 nbdcopy disk.img '{uri}'\n\
         \x20 qemu-img info '{uri}'\n\
         \x20 fio --name=try --ioengine=nbd --uri='{uri}' --rw=randwrite --bs=4k --iodepth=32 --size=64M\n\
         \x20 {status}\n\
         Stop with Ctrl-C or `kill {}`: {leaving}.\n\n",
        std::process::id()
    )
}
