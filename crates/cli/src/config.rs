//! The TOML file of a server with several devices.
//!
//! ```toml
//! control = "/run/forebay/control.sock"       # optional, as all but `device`
//! engine = "auto"
//! threads = 2
//! drain = false
//! allow_path = ["/srv/images"]
//!
//! [[device]]
//! name = "disk"
//! table = "0 2097152 writecache s /dev/sdb /dev/nvme0n1 4096 0"
//! export = ["nbd+unix:///disk?socket=/run/forebay/nbd.sock"]
//! read_only = false
//! ```
//!
//! Paths are relative to the folder in which the server starts. Pure: text to values; fuzzed.

use std::num::NonZero;
use std::path::PathBuf;

use forebay::Engine;
use serde::{Deserialize, Deserializer};

/// A server.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Control socket.
    pub control: Option<PathBuf>,
    /// What carries out I/O.
    #[serde(default, deserialize_with = "engine")]
    pub engine: Option<Engine>,
    /// Most threads that serve clients.
    pub threads: Option<NonZero<u8>>,
    /// Whether everything is written back before leaving.
    #[serde(default)]
    pub drain: bool,
    /// Where the process id goes.
    pub pid_file: Option<PathBuf>,
    /// Whether addresses that other machines reach are allowed.
    #[serde(default)]
    pub allow_remote: bool,
    /// Whether the server keeps what it does not need.
    #[serde(default)]
    pub no_sandbox: bool,
    /// Folders beyond those named elsewhere that messages may name.
    #[serde(default)]
    pub allow_path: Vec<PathBuf>,
    /// What is served.
    pub device: Vec<DeviceConfig>,
}

/// A device.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceConfig {
    /// Its name in status and messages.
    pub name: String,
    /// Its table; several lines, or separated by semicolons.
    pub table: String,
    /// Where it is served, as NBD URIs.
    #[serde(default)]
    pub export: Vec<String>,
    /// Whether clients may only read.
    #[serde(default)]
    pub read_only: bool,
}

/// The words for [`Engine`].
#[derive(Deserialize)]
#[serde(remote = "Engine", rename_all = "lowercase")]
enum EngineWord {
    Auto,
    Uring,
    Threads,
}

fn engine<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Engine>, D::Error> {
    EngineWord::deserialize(from).map(Some)
}

impl Config {
    /// Reads a configuration.
    ///
    /// # Errors
    /// The line that is not what it should be, and why.
    pub fn parse(text: &str) -> Result<Self, String> {
        let config: Self = toml::from_str(text).map_err(|error| sentence(text, &error))?;
        if config.device.is_empty() {
            return Err("there is no [[device]]: add one with name, table and export".to_owned());
        }
        Ok(config)
    }
}

/// What is wrong and in which line, without the picture that the parser draws.
fn sentence(text: &str, error: &toml::de::Error) -> String {
    let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
    let line = before.matches('\n').count() + 1;
    format!("line {line}: {}", error.message().replace('\n', ": "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_whole_configuration_is_read() {
        let config = Config::parse(
            "control = \"c.sock\"\nengine = \"threads\"\ndrain = true\n\n[[device]]\nname = \"a\"\ntable = '''\n0 8 error\n\
             8 8 error'''\nexport = [\"nbd+unix:///a?socket=s\"]\n\n[[device]]\nname = \"b\"\ntable = \"0 8 error\"\nread_only = true\n",
        )
        .unwrap();
        assert_eq!((config.control, config.engine, config.drain), (Some("c.sock".into()), Some(Engine::Threads), true));
        let devices: Vec<_> = config.device.iter().map(|d| (d.name.as_str(), d.export.len(), d.read_only)).collect();
        assert_eq!(devices, [("a", 1, false), ("b", 0, true)]);
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line() {
        for (text, part) in [
            ("", "missing field `device`"),
            ("device = []", "there is no [[device]]"),
            ("[[device]]\nname = \"a\"\n", "line 1: missing field `table`"),
            ("[[device]]\nname = \"a\"\ntable = \"\"\nsize = 3", "line 4: unknown field `size`"),
            ("engine = \"quick\"", "line 1: unknown variant `quick`"),
            ("[[device]", "line 1: "),
        ] {
            let problem = Config::parse(text).unwrap_err();
            assert!(problem.contains(part) && !problem.contains('\n'), "{text:?} gives {problem:?}");
        }
    }
}
