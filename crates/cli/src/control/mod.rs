//! The commands that ask a running server, and the socket on which it answers.
//!
//! ```text
//!   forebay status, message … ──▶ ask ══ control socket ══ socket ──▶ Running
//!                                    protocol            report
//! ```

mod message;
mod protocol;
mod report;
mod show;
mod socket;
mod zram;

use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use self::protocol::{Reply, Request, ServerReport};
pub use self::socket::ControlSocket;
pub use self::zram::status as zram_status;
use crate::failure::{Failure, Outcome, say};
use crate::flags::{DeviceFlags, MessageFlags, StatusFlags, WaitFlags, ZramGetFlags, ZramImageFlags, ZramSetFlags};

/// `forebay status`.
pub fn status(flags: &StatusFlags) -> Outcome {
    let request = Request::Status { device: flags.device.clone() };
    let Reply::Status(report) = ask(&flags.reach.control, &request)? else {
        return Err(misunderstood(&flags.reach.control));
    };
    let text = match (flags.json, flags.line) {
        (true, _) => json(&report),
        (_, true) => show::lines(&report, flags.device.is_none() && report.devices.len() > 1),
        _ => show::people(&report),
    };
    say(&text)?;
    Ok(ExitCode::SUCCESS)
}

fn json(report: &ServerReport) -> String {
    let mut text = serde_json::to_string_pretty(report).expect("a report has only names that JSON knows");
    text.push('\n');
    text
}

/// `forebay message`.
pub fn message(flags: &MessageFlags) -> Outcome {
    let (device, word) = message::split(&flags.words)?;
    match ask(&flags.reach.control, &Request::Message { device, word })? {
        Reply::Done => {}
        Reply::Text(text) => say(&text)?,
        _ => return Err(misunderstood(&flags.reach.control)),
    }
    Ok(ExitCode::SUCCESS)
}

/// `forebay wait`.
pub fn wait(flags: &WaitFlags) -> Outcome {
    let request = Request::Wait { device: flags.device.clone(), events: flags.events };
    let Reply::Events(events) = ask(&flags.reach.control, &request)? else {
        return Err(misunderstood(&flags.reach.control));
    };
    say(&format!("{events}\n"))?;
    Ok(ExitCode::SUCCESS)
}

/// `forebay suspend`.
pub fn suspend(flags: &DeviceFlags) -> Outcome {
    done(&flags.reach.control, &Request::Suspend { device: flags.device.clone() })
}

/// `forebay resume`.
pub fn resume(flags: &DeviceFlags) -> Outcome {
    done(&flags.reach.control, &Request::Resume { device: flags.device.clone() })
}

/// `forebay zram get`.
pub fn zram_get(flags: &ZramGetFlags) -> Outcome {
    let request = Request::ZramGet { device: flags.device.clone(), name: flags.name.clone() };
    let Reply::Text(text) = ask(&flags.reach.control, &request)? else {
        return Err(misunderstood(&flags.reach.control));
    };
    say(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// `forebay zram set`.
pub fn zram_set(flags: &ZramSetFlags) -> Outcome {
    let (device, name) = (flags.device.clone(), flags.name.clone());
    let value = flags.value.join(" ");
    done(&flags.reach.control, &Request::ZramSet { device, name, value })
}

/// `forebay zram save`.
pub fn zram_save(flags: &ZramImageFlags) -> Outcome {
    done(&flags.reach.control, &Request::ZramSave { device: flags.device.clone(), path: whole(&flags.file)? })
}

/// `forebay zram restore`.
pub fn zram_restore(flags: &ZramImageFlags) -> Outcome {
    done(&flags.reach.control, &Request::ZramRestore { device: flags.device.clone(), path: whole(&flags.file)? })
}

/// The path as the server finds it, which may work in another folder.
fn whole(path: &Path) -> Result<PathBuf, Failure> {
    std::path::absolute(path).map_err(|error| Failure::because(format!("looking for {}", path.display()), &error))
}

fn done(control: &Path, request: &Request) -> Outcome {
    match ask(control, request)? {
        Reply::Done => Ok(ExitCode::SUCCESS),
        _ => Err(misunderstood(control)),
    }
}

fn misunderstood(control: &Path) -> Failure {
    let place = control.display();
    Failure::Failed(format!("the server at {place} answered something else than was asked: is it another version?"))
}

/// Asks the server at `control`.
///
/// # Errors
/// When there is none, it does not answer, or it answers with an error.
fn ask(control: &Path, request: &Request) -> Result<Reply, Failure> {
    let place = control.display();
    let mut stream = UnixStream::connect(control).map_err(|error| match error.kind() {
        ErrorKind::NotFound => Failure::Failed(format!(
            "no control socket at {place}: start `forebay serve` in this folder, or say --control PATH as the server did"
        )),
        ErrorKind::ConnectionRefused => Failure::Failed(format!("nobody answers on {place}: the server is gone; start it again")),
        _ => Failure::because(format!("connecting to the control socket {place}"), &error),
    })?;
    let failed = |error| Failure::because(format!("talking to the server at {place}"), &error);
    let mut line = serde_json::to_string(request).expect("a request has only names that JSON knows");
    line.push('\n');
    stream.write_all(line.as_bytes()).map_err(failed)?;
    let mut reply = String::new();
    BufReader::new(stream).read_line(&mut reply).map_err(failed)?;
    if reply.is_empty() {
        return Err(Failure::Failed(format!("the server at {place} hung up: look at its log")));
    }
    match serde_json::from_str(&reply) {
        Ok(Reply::Error(sentence)) => Err(Failure::Failed(sentence)),
        Ok(reply) => Ok(reply),
        Err(_) => Err(misunderstood(control)),
    }
}

#[cfg(test)]
mod tests;
