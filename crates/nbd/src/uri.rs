//! NBD URIs: where a server is found and which of its exports is meant.
//!
//! ```text
//!   nbd://host[:port]/export            TCP, port 10809 where none is given
//!   nbd+unix:///export?socket=/path     unix socket; a path that begins with %00 is abstract
//! ```
//!
//! 1. What is printed parses to the same value.
//! 2. Whatever is not understood is an error, never left out of account: a parameter that asks for
//!    encryption must not be lost.
//! 3. The export is a name, not a path: its slashes mean nothing. The empty name is the default.
//!
//! Source: the NBD URI document (`doc/uri.md` of the `NetworkBlockDevice` project).
#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

use std::ffi::OsString;
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// TCP port of NBD where a URI gives none.
pub const PORT_DEFAULT: u16 = 10809;

/// Where a server is found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// A TCP port.
    Tcp {
        /// Name or address; IPv6 addresses without brackets.
        host: String,
        /// The port.
        port: u16,
    },
    /// A unix socket; a path that begins with NUL is an abstract name.
    Unix(PathBuf),
}

/// Where a server is found and which of its exports is meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Uri {
    /// Where the server is found.
    pub endpoint: Endpoint,
    /// Name of the export; the empty name is the default export.
    pub export: String,
}

/// Why a text is not a usable NBD URI.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a usable NBD URI: {problem}")]
pub struct UriError {
    text: String,
    problem: Problem,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum Problem {
    #[error("it must begin with nbd:// or nbd+unix://")]
    Scheme,
    #[error("TLS is not supported: use nbd:// or nbd+unix://")]
    Tls,
    #[error("the parameter {0:?} is not known: leave it out")]
    Parameter(String),
    #[error("the parameter socket is given twice")]
    SocketTwice,
    #[error("a unix socket needs the parameter socket, as in nbd+unix:///?socket=/run/forebay.sock")]
    NoSocket,
    #[error("a host or port makes no sense with a unix socket: write nbd+unix:/// with three slashes")]
    HostWithSocket,
    #[error("the parameter socket belongs to nbd+unix://")]
    SocketWithHost,
    #[error("the host is missing")]
    NoHost,
    #[error("user names are not supported")]
    User,
    #[error("the port is not a number from 1 to 65535")]
    Port,
    #[error("a percent sign is not followed by two hexadecimal digits")]
    Percent,
    #[error("the name of the export is not UTF-8 or contains NUL")]
    Export,
    #[error("a fragment (#) has no meaning: write %23 for the character")]
    Fragment,
}

impl FromStr for Uri {
    type Err = UriError;

    fn from_str(text: &str) -> Result<Self, UriError> {
        parse(text).map_err(|problem| UriError { text: text.to_owned(), problem })
    }
}

fn parse(text: &str) -> Result<Uri, Problem> {
    let (scheme, rest) = text.split_once("://").ok_or(Problem::Scheme)?;
    let unix = match scheme.to_ascii_lowercase().as_str() {
        "nbd" => false,
        "nbd+unix" => true,
        "nbds" | "nbds+unix" | "nbds+vsock" => return Err(Problem::Tls),
        _ => return Err(Problem::Scheme),
    };
    if rest.contains('#') {
        return Err(Problem::Fragment);
    }
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (authority, name) = rest.split_once('/').unwrap_or((rest, ""));
    let export = String::from_utf8(decode(name)?).map_err(|_| Problem::Export)?;
    if export.contains('\0') {
        return Err(Problem::Export);
    }
    let endpoint = match (unix, socket(query)?) {
        (true, _) if !authority.is_empty() => return Err(Problem::HostWithSocket),
        (true, None) => return Err(Problem::NoSocket),
        (true, Some(path)) => Endpoint::Unix(path),
        (false, Some(_)) => return Err(Problem::SocketWithHost),
        (false, None) => host_and_port(authority)?,
    };
    Ok(Uri { endpoint, export })
}

/// The path of the parameter `socket`; every other parameter is an error.
fn socket(query: &str) -> Result<Option<PathBuf>, Problem> {
    let mut path = None;
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        if key.starts_with("tls-") {
            return Err(Problem::Tls);
        }
        if key != "socket" {
            return Err(Problem::Parameter(key.to_owned()));
        }
        let value = decode(value)?;
        if value.is_empty() {
            return Err(Problem::NoSocket);
        }
        if path.replace(PathBuf::from(OsString::from_vec(value))).is_some() {
            return Err(Problem::SocketTwice);
        }
    }
    Ok(path)
}

fn host_and_port(authority: &str) -> Result<Endpoint, Problem> {
    if authority.contains('@') {
        return Err(Problem::User);
    }
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => {
            let (host, after) = rest.split_once(']').ok_or(Problem::NoHost)?;
            let port = if after.is_empty() { Some("") } else { after.strip_prefix(':') };
            (host, port.ok_or(Problem::Port)?)
        }
        None => authority.split_once(':').unwrap_or((authority, "")),
    };
    let host = String::from_utf8(decode(host)?).map_err(|_| Problem::NoHost)?;
    if host.is_empty() {
        return Err(Problem::NoHost);
    }
    let port = match port {
        "" => PORT_DEFAULT,
        digits if digits.bytes().all(|byte| byte.is_ascii_digit()) => digits.parse().map_err(|_| Problem::Port)?,
        _ => return Err(Problem::Port),
    };
    if port == 0 { Err(Problem::Port) } else { Ok(Endpoint::Tcp { host, port }) }
}

fn decode(text: &str) -> Result<Vec<u8>, Problem> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte == b'%' {
            let digits = (bytes.next().and_then(digit), bytes.next().and_then(digit));
            let (Some(high), Some(low)) = digits else { return Err(Problem::Percent) };
            out.push(high << 4 | low);
        } else {
            out.push(byte);
        }
    }
    Ok(out)
}

fn digit(byte: u8) -> Option<u8> {
    char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok())
}

/// Bytes with everything but plain characters and slashes written as `%` and two digits.
struct Encoded<'a>(&'a [u8]);

impl fmt::Display for Encoded<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for &byte in self.0 {
            if byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte) {
                write!(f, "{}", char::from(byte))?;
            } else {
                write!(f, "%{byte:02x}")?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for Uri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let export = Encoded(self.export.as_bytes());
        match &self.endpoint {
            Endpoint::Unix(path) => {
                write!(f, "nbd+unix:///{export}?socket={}", Encoded(path.as_os_str().as_bytes()))
            }
            Endpoint::Tcp { host, port } => {
                f.write_str("nbd://")?;
                if host.contains(':') {
                    write!(f, "[{host}]")?;
                } else {
                    write!(f, "{}", Encoded(host.as_bytes()))?;
                }
                if *port != PORT_DEFAULT {
                    write!(f, ":{port}")?;
                }
                write!(f, "/{export}")
            }
        }
    }
}

impl Uri {
    /// The export called `export` at a unix socket.
    #[must_use]
    pub fn unix(path: &Path, export: &str) -> Self {
        Self { endpoint: Endpoint::Unix(path.to_owned()), export: export.to_owned() }
    }

    /// Another export of the same server.
    #[must_use]
    pub fn with_export(&self, export: &str) -> Self {
        Self { endpoint: self.endpoint.clone(), export: export.to_owned() }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn tcp(host: &str, port: u16, export: &str) -> Uri {
        Uri { endpoint: Endpoint::Tcp { host: host.into(), port }, export: export.into() }
    }

    #[test]
    fn the_forms_of_the_document_parse() {
        for (text, uri) in [
            ("nbd://localhost", tcp("localhost", 10809, "")),
            ("nbd://localhost/", tcp("localhost", 10809, "")),
            ("NBD://localhost:1/a/b", tcp("localhost", 1, "a/b")),
            ("nbd://[::1]:10810/disk%20one", tcp("::1", 10810, "disk one")),
            ("nbd://[::1]", tcp("::1", 10809, "")),
            ("nbd://127.0.0.1//x", tcp("127.0.0.1", 10809, "/x")),
            ("nbd+unix:///?socket=/tmp/a.sock", Uri::unix(Path::new("/tmp/a.sock"), "")),
            ("nbd+unix:///disk?socket=a%3fb", Uri::unix(Path::new("a?b"), "disk")),
            ("nbd+unix:///?socket=%00abstract", Uri::unix(Path::new("\0abstract"), "")),
        ] {
            assert_eq!(text.parse(), Ok(uri), "{text}");
        }
    }

    #[test]
    fn what_is_not_understood_is_told() {
        for (text, problem) in [
            ("disk", Problem::Scheme),
            ("http://localhost", Problem::Scheme),
            ("nbds://localhost", Problem::Tls),
            ("nbd://localhost?tls-certificates=x", Problem::Tls),
            ("nbd://localhost?x-fast=1", Problem::Parameter("x-fast".into())),
            ("nbd+unix:///?socket=/a&sockets=/b", Problem::Parameter("sockets".into())),
            ("nbd+unix:///?socket=/a&socket=/b", Problem::SocketTwice),
            ("nbd+unix:///disk", Problem::NoSocket),
            ("nbd+unix:///disk?socket=", Problem::NoSocket),
            ("nbd+unix://disk?socket=/a", Problem::HostWithSocket),
            ("nbd://host?socket=/a", Problem::SocketWithHost),
            ("nbd:///x", Problem::NoHost),
            ("nbd://[::1/x", Problem::NoHost),
            ("nbd://me@host/x", Problem::User),
            ("nbd://host:0/x", Problem::Port),
            ("nbd://host:+1/x", Problem::Port),
            ("nbd://[::1]x/x", Problem::Port),
            ("nbd://host:65536/x", Problem::Port),
            ("nbd://host/%4", Problem::Percent),
            ("nbd://host/%zz", Problem::Percent),
            ("nbd://host/%ff", Problem::Export),
            ("nbd://host/%00", Problem::Export),
            ("nbd://host/a#b", Problem::Fragment),
        ] {
            assert_eq!(text.parse::<Uri>(), Err(UriError { text: text.into(), problem }));
        }
    }

    proptest! {
        #[test]
        fn what_is_printed_parses_to_the_same(export in "[^\0]{0,40}", path in "\\PC{1,40}", port in 1..=u16::MAX) {
            for uri in [Uri::unix(Path::new(&path), &export), tcp("::1", port, &export), tcp("host.example", port, &export)] {
                prop_assert_eq!(uri.to_string().parse(), Ok(uri));
            }
        }

        #[test]
        fn no_text_makes_the_parser_panic(text in "\\PC{0,60}", tail in "\\PC{0,60}") {
            let _ = text.parse::<Uri>();
            let _ = format!("nbd://{tail}").parse::<Uri>();
            let _ = format!("nbd+unix://{tail}").parse::<Uri>();
        }
    }
}
