//! The devices of a stack: how they are named, and that each is opened once.
//!
//! Two names of one file (links, relative and absolute paths) are one device. Every mention of
//! `ram:SIZE` or `null:SIZE` is a device of its own. An NBD server is connected to once for all who
//! write its URI alike.

use std::cell::RefCell;
use std::fmt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::rc::{Rc, Weak};

use forebay_block::{SectorCount, Target};
use forebay_device::{DeviceError, FileDevice, FileOptions, NbdDevice, NbdOptions, NullDevice, RamDevice};
use forebay_nbd::uri::{Endpoint, Uri, UriError};
use forebay_reactor::{BufferPool, DeviceId, Reactor};
use forebay_target::snapshot::Origin;
use forebay_target::zram::Zram;

/// What a word of a table line names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceName {
    /// A file or block device.
    File(PathBuf),
    /// `ram:SIZE`: memory, gone with the process.
    Ram {
        /// Size, bytes.
        bytes: u64,
    },
    /// `null:SIZE`: keeps nothing, reads as zeroes.
    Null {
        /// Size, bytes.
        bytes: u64,
    },
    /// `nbd://HOST[:PORT]/EXPORT` or `nbd+unix:///EXPORT?socket=PATH`: an export of an NBD server.
    Nbd(Uri),
}

/// Why a word names no device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// The size of a RAM or null device is not one.
    #[error("{0:?} is not a size: write a number of bytes with K, M, G or T behind it, such as ram:64M")]
    Size(String),
    /// Not the URI of an NBD server.
    #[error(transparent)]
    Uri(#[from] UriError),
}

impl DeviceName {
    /// Reads a word; `None` where it names nothing: see [`DeviceName::read`].
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        Self::read(word).ok()
    }

    /// Reads a word. A file whose name begins like another kind of device is written with `./` in front.
    ///
    /// # Errors
    /// [`NameError`], one sentence.
    pub fn read(word: &str) -> Result<Self, NameError> {
        let size = |size| parse_bytes(size).ok_or_else(|| NameError::Size(word.to_owned()));
        if let Some(text) = word.strip_prefix("ram:") {
            return size(text).map(|bytes| Self::Ram { bytes });
        }
        if let Some(text) = word.strip_prefix("null:") {
            return size(text).map(|bytes| Self::Null { bytes });
        }
        if word.starts_with("nbd") && word.contains("://") {
            return Ok(Self::Nbd(word.parse()?));
        }
        Ok(Self::File(PathBuf::from(word)))
    }

    /// Whether both name one file or block device, by whatever paths, or one export of one server, as far as names
    /// tell: a server that is reached by two addresses is not known to be one.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::File(one), Self::File(other)) => {
                identity(one).is_some_and(|known| identity(other) == Some(known)) || place(one) == place(other)
            }
            (Self::Nbd(one), Self::Nbd(other)) => one.export == other.export && is_same_endpoint(&one.endpoint, &other.endpoint),
            _ => false,
        }
    }
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Ram { bytes } => write!(f, "ram:{bytes}"),
            Self::Null { bytes } => write!(f, "null:{bytes}"),
            Self::Nbd(uri) => write!(f, "{uri}"),
        }
    }
}

/// Reads a size in bytes: a whole number, with `K`, `M`, `G` or `T` behind it for powers of 1024.
///
/// ```
/// assert_eq!(forebay::parse_bytes("64M"), Some(64 << 20));
/// assert_eq!(forebay::parse_bytes("512"), Some(512));
/// assert_eq!(forebay::parse_bytes("lots"), None);
/// ```
#[must_use]
pub fn parse_bytes(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|letter: char| !letter.is_ascii_digit());
    let unit = text.get(digits.len()..)?.to_ascii_lowercase();
    let shift = match unit.trim_end_matches('b').trim_end_matches('i') {
        "" if !unit.contains('i') => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        _ => return None,
    };
    let plain = digits.bytes().all(|byte| byte.is_ascii_digit());
    let number: u64 = if plain { digits.parse().ok()? } else { return None };
    number.checked_mul(1 << shift)
}

/// A device in use, with what is asked about it later.
#[derive(Clone)]
pub(crate) struct OpenDevice {
    pub(crate) name: String,
    pub(crate) target: Rc<dyn Target>,
    pub(crate) id: DeviceId,
    /// Whether it is file I/O that goes past the page cache.
    pub(crate) direct: bool,
}

/// Tells files apart whatever they are called: their device and inode, or for a block device its
/// own number.
type Identity = (u64, u64);

struct Opened {
    identity: Option<Identity>,
    /// The server that it is.
    server: Option<Rc<NbdDevice>>,
    read_only: bool,
    device: OpenDevice,
}

/// The devices that the stacks of one reactor have open.
pub struct Devices {
    reactor: Reactor,
    options: FileOptions,
    /// Most connections to a server.
    connections: usize,
    opened: RefCell<Vec<Opened>>,
    /// Those of which there are snapshots.
    origins: RefCell<Vec<(DeviceId, Weak<Origin>)>>,
    /// Stores of snapshots, as long as somebody has them.
    stores: RefCell<Vec<(DeviceId, Weak<()>)>>,
    /// Compressed RAM disks, with what is theirs alone: a backing device, an image.
    disks: RefCell<Vec<Disk>>,
}

/// A compressed RAM disk, its backing device, and its image.
type Disk = (Weak<Zram>, Option<DeviceId>, Option<PathBuf>);

impl Devices {
    /// None yet. `options` say how files are opened; whether for reading only is decided stack by
    /// stack.
    #[must_use]
    pub fn new(reactor: &Reactor, options: FileOptions) -> Self {
        let connections = NbdOptions::default().connections;
        let (opened, origins, stores, disks) = (RefCell::default(), RefCell::default(), RefCell::default(), RefCell::default());
        Self { reactor: reactor.clone(), options, connections, opened, origins, stores, disks }
    }

    /// Changes how many connections a server gets at most, where it allows several; 4 by default.
    #[must_use]
    pub fn with_connections(self, connections: usize) -> Self {
        Self { connections, ..self }
    }

    pub(crate) fn reactor(&self) -> &Reactor {
        &self.reactor
    }

    /// Connects to the server that `name` names, if it is one: waits that [`Devices::open`] does not have.
    ///
    /// # Errors
    /// [`DeviceError`], one sentence.
    pub async fn connect(&self, pool: &BufferPool, name: &DeviceName, read_only: bool) -> Result<(), DeviceError> {
        let DeviceName::Nbd(uri) = name else { return Ok(()) };
        if self.find_server(uri, read_only).is_some() {
            return Ok(());
        }
        let options = NbdOptions { read_only, connections: self.connections, ..NbdOptions::default() };
        let server = NbdDevice::connect(&self.reactor, pool, uri, options).await?;
        let device = OpenDevice { name: name.to_string(), id: server.id(), target: server.share(), direct: false };
        self.opened.borrow_mut().push(Opened { identity: None, server: Some(server), read_only, device });
        Ok(())
    }

    /// Opens what `name` names, or gives what is open already.
    ///
    /// # Panics
    /// For a server that [`Devices::connect`] has not connected to.
    pub(crate) fn open(&self, name: &DeviceName, read_only: bool) -> Result<OpenDevice, DeviceError> {
        let (device, identity) = match name {
            DeviceName::Ram { bytes } => {
                let ram = RamDevice::new(&self.reactor, SectorCount(bytes / 512))?;
                let id = ram.id();
                (OpenDevice { name: name.to_string(), target: ram, id, direct: false }, None)
            }
            DeviceName::Null { bytes } => {
                let null = NullDevice::new(&self.reactor, SectorCount(bytes / 512))?;
                let id = null.id();
                (OpenDevice { name: name.to_string(), target: null, id, direct: false }, None)
            }
            DeviceName::Nbd(uri) => {
                return Ok(self.find_server(uri, read_only).expect("servers are connected to before they are opened"));
            }
            DeviceName::File(path) => {
                let identity = identity(path);
                if let Some(device) = self.find(identity, read_only) {
                    return Ok(device);
                }
                let file = FileDevice::open(&self.reactor, path, &FileOptions { read_only, ..self.options.clone() })?;
                let (id, direct) = (file.id(), file.is_direct());
                (OpenDevice { name: name.to_string(), target: file, id, direct }, identity)
            }
        };
        self.opened.borrow_mut().push(Opened { identity, server: None, read_only, device: device.clone() });
        Ok(device)
    }

    /// The origin on a device: one for all who name that device.
    pub(crate) fn origin(&self, device: &OpenDevice, pool: &BufferPool) -> Rc<Origin> {
        let mut origins = self.origins.borrow_mut();
        origins.retain(|(_, origin)| origin.strong_count() > 0);
        let known = origins.iter().find(|(id, _)| *id == device.id).and_then(|(_, origin)| origin.upgrade());
        known.unwrap_or_else(|| {
            let origin = Origin::new(&self.reactor, pool, Rc::clone(&device.target));
            origins.push((device.id, Rc::downgrade(&origin)));
            origin
        })
    }

    /// Takes a device for the store of a snapshot of `origin`, until what is returned is gone; `None` where
    /// it is taken, or one of the two is a store and an origin at once.
    pub(crate) fn take_store(&self, origin: DeviceId, store: DeviceId) -> Option<Rc<()>> {
        let is_origin = |(id, origin): &(DeviceId, Weak<Origin>)| *id == store && origin.strong_count() > 0;
        let mut stores = self.stores.borrow_mut();
        stores.retain(|(_, taken)| taken.strong_count() > 0);
        if self.origins.borrow().iter().any(is_origin) || stores.iter().any(|(id, _)| [origin, store].contains(id)) {
            return None;
        }
        let taken = Rc::new(());
        stores.push((store, Rc::downgrade(&taken)));
        Some(taken)
    }

    /// Whether a disk has pages on this device.
    pub(crate) fn is_backing(&self, device: DeviceId) -> bool {
        self.disks.borrow().iter().any(|(disk, backing, _)| disk.strong_count() > 0 && *backing == Some(device))
    }

    /// Notes what is `disk`'s alone; false where another disk has that image, by whatever path.
    pub(crate) fn note_disk(&self, disk: &Rc<Zram>, backing: Option<DeviceId>, image: Option<&Path>) -> bool {
        let image = image.map(place);
        let mut disks = self.disks.borrow_mut();
        disks.retain(|(disk, ..)| disk.strong_count() > 0);
        let is_free = image.is_none() || disks.iter().all(|(_, _, other)| *other != image);
        disks.push((Rc::downgrade(disk), backing, image));
        is_free
    }

    /// Opens what `name` names as a target by itself, or gives what is open already.
    ///
    /// # Panics
    /// For a server that [`Devices::connect`] has not connected to.
    ///
    /// # Errors
    /// [`DeviceError`], one sentence.
    pub fn target(&self, name: &DeviceName, read_only: bool) -> Result<Rc<dyn Target>, DeviceError> {
        self.open(name, read_only).map(|device| device.target)
    }

    /// Bytes behind the last whole block of a server that is connected, which are out of reach; 0 for all others.
    #[must_use]
    pub fn left_bytes(&self, name: &DeviceName) -> u64 {
        let DeviceName::Nbd(uri) = name else { return 0 };
        let opened = self.opened.borrow();
        let mut servers = opened.iter().filter_map(|open| open.server.as_ref());
        servers.find(|server| server.uri() == uri).map_or(0, |server| server.left_bytes())
    }

    /// A server that is connected already, for this kind of access at least: for another user of it, who is told
    /// by himself what it may have lost.
    fn find_server(&self, uri: &Uri, read_only: bool) -> Option<OpenDevice> {
        let opened = self.opened.borrow();
        let fit = opened.iter().filter(|open| read_only || !open.read_only);
        let mut servers = fit.filter_map(|open| Some((open, open.server.as_ref()?)));
        let (open, server) = servers.find(|(_, server)| server.uri() == uri)?;
        Some(OpenDevice { target: server.share(), ..open.device.clone() })
    }

    /// A file that is open already, for the same kind of access.
    fn find(&self, identity: Option<Identity>, read_only: bool) -> Option<OpenDevice> {
        let opened = self.opened.borrow();
        let same = |open: &&Opened| identity.is_some() && open.identity == identity && open.read_only == read_only;
        opened.iter().find(same).map(|open| open.device.clone())
    }
}

fn is_same_endpoint(one: &Endpoint, other: &Endpoint) -> bool {
    match (one, other) {
        (Endpoint::Unix(one), Endpoint::Unix(other)) => one == other || place(one) == place(other),
        (Endpoint::Tcp { host: one, port }, Endpoint::Tcp { host: other, port: other_port }) => {
            one.eq_ignore_ascii_case(other) && port == other_port
        }
        _ => false,
    }
}

/// Where a file is that may not be there yet, whatever links lead to it.
fn place(path: &Path) -> PathBuf {
    let beside = |folder: PathBuf| path.file_name().map(|name| folder.join(name));
    let folder = || std::fs::canonicalize(path.parent().filter(|folder| *folder != Path::new("")).unwrap_or(Path::new("."))).ok();
    std::fs::canonicalize(path).ok().or_else(|| folder().and_then(beside)).unwrap_or_else(|| path.to_owned())
}

fn identity(path: &Path) -> Option<Identity> {
    let metadata = std::fs::metadata(path).ok()?;
    let block_device = metadata.file_type().is_block_device();
    Some(if block_device { (u64::MAX, metadata.rdev()) } else { (metadata.dev(), metadata.ino()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        for (text, bytes) in [
            ("0", Some(0)),
            ("7", Some(7)),
            ("1k", Some(1024)),
            ("2KiB", Some(2048)),
            ("3MB", Some(3 << 20)),
            ("4G", Some(4 << 30)),
            ("5t", Some(5 << 40)),
            ("", None),
            ("M", None),
            ("1i", None),
            ("1 M", None),
            ("-1", None),
            ("1.5G", None),
            ("99999999999T", None),
        ] {
            assert_eq!(parse_bytes(text), bytes, "{text}");
        }
    }

    #[test]
    fn one_export_by_two_spellings_is_the_same_and_another_is_not() {
        let name = |word: &str| DeviceName::parse(word).unwrap();
        for (one, other, same) in [
            ("nbd://Host/disk", "nbd://host:10809/disk", true),
            ("nbd://host/disk", "nbd://host/other", false),
            ("nbd://host/disk", "nbd://host:1/disk", false),
            ("nbd+unix:///d?socket=/tmp/no.sock", "nbd+unix:///d?socket=/tmp/../tmp/no.sock", true),
            ("nbd+unix:///d?socket=/tmp/no.sock", "nbd+unix:///e?socket=/tmp/no.sock", false),
            ("/tmp/no-file", "/tmp/../tmp/no-file", true),
            ("ram:1M", "ram:1M", false),
        ] {
            assert_eq!(name(one).is_same(&name(other)), same, "{one} {other}");
        }
    }

    #[test]
    fn names_are_read_and_written() {
        assert_eq!(DeviceName::parse("ram:1M"), Some(DeviceName::Ram { bytes: 1 << 20 }));
        assert_eq!(DeviceName::parse("null:512").map(|name| name.to_string()), Some("null:512".to_owned()));
        assert_eq!(DeviceName::parse("./ram:1M"), Some(DeviceName::File("./ram:1M".into())));
        assert_eq!(DeviceName::parse("ram:"), None);
        let uri = "nbd+unix:///disk?socket=/run/a.sock";
        assert_eq!(DeviceName::parse(uri).map(|name| name.to_string()), Some(uri.to_owned()));
        assert_eq!(DeviceName::parse("nbds://host/disk"), None);
        assert_eq!(DeviceName::parse("./nbd://host/disk"), Some(DeviceName::File("./nbd://host/disk".into())));
    }
}
