//! Commands against a server in another thread of the test.
#![expect(clippy::disallowed_methods, reason = "the server needs a thread of its own here")]

use std::io::Read;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::mpsc::channel;
use std::thread::JoinHandle;

use forebay::{BufferPool, Engine, Reactor, engine};

use super::*;
use crate::flags::ServeFlags;
use crate::serve::{Plan, Running};

/// A server with a control socket, in a folder of its own.
struct Served {
    folder: PathBuf,
    control: PathBuf,
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

impl Served {
    fn new(name: &str, table: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("forebay-control-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let control = folder.join("control.sock");
        let export = format!("nbd+unix:///?socket={}", folder.join("nbd.sock").display());
        let (table, path) = (table.to_owned(), control.clone());
        let (stop, stopped) = UnixStream::pair().unwrap();
        let (ready, is_ready) = channel();
        let thread = std::thread::spawn(move || {
            let flags = ServeFlags { table: vec![table], export: vec![export.parse().unwrap()], ..ServeFlags::default() };
            let plan = Plan::new(flags, false).unwrap();
            let reactor = Reactor::new(engine(Engine::Auto).unwrap());
            let pool = BufferPool::new(&reactor);
            let stopped = Rc::new(stopped.into());
            let served = reactor.run(async {
                let running = Rc::new(Running::start(&reactor, &pool, &plan, Vec::new()).await.unwrap());
                let _control = ControlSocket::open(&path, &running, &pool).unwrap();
                ready.send(()).unwrap();
                let _ = reactor.readable(&stopped).await;
                running.stop_serving().await;
                running.close().await.unwrap();
            });
            reactor.clear();
            served.unwrap();
        });
        is_ready.recv().unwrap();
        Self { folder, control, stop: Some(stop), thread: Some(thread) }
    }

    fn ask(&self, request: &Request) -> Result<Reply, Failure> {
        ask(&self.control, request)
    }

    fn report(&self) -> ServerReport {
        match self.ask(&Request::Status { device: None }).unwrap() {
            Reply::Status(report) => *report,
            other => panic!("{other:?}"),
        }
    }

    fn refusal(&self, request: &Request) -> String {
        self.ask(request).unwrap_err().sentence()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        drop(self.stop.take());
        let ended = self.thread.take().map(JoinHandle::join);
        let removed = std::fs::remove_dir_all(&self.folder);
        if !std::thread::panicking() {
            assert!(ended.is_some_and(|ended| ended.is_ok()) && removed.is_ok());
        }
    }
}

fn message(device: Option<&str>, word: &str) -> Request {
    Request::Message { device: device.map(str::to_owned), word: word.to_owned() }
}

#[test]
fn a_cached_device_tells_its_layers_and_takes_messages() {
    let served = Served::new("cached", "0 2048 writecache s ram:1M ram:1M 4096 0");
    let report = served.report();
    let device = &report.devices[0];
    assert_eq!((device.name.as_str(), device.size_bytes, device.suspended), ("disk", 1 << 20, false));
    assert_eq!((device.exports.len(), device.caches.len(), device.disks.len()), (1, 1, 2));
    let numbers: Vec<_> = device.table[0].status.split(' ').collect();
    assert_eq!(numbers.len(), 14, "the kernel's line has 14 numbers");
    assert_eq!(show::lines(&report, false), format!("0 2048 writecache {}\n", device.table[0].status));
    assert!(show::lines(&report, true).starts_with("disk: 0 2048 writecache "));
    let text = show::people(&report);
    assert!(text.contains("cache ram:1048576 in front of ram:1048576") && text.contains("merge ratio"), "{text}");

    for request in [message(None, "flush"), message(Some("disk"), "clear_stats"), message(None, "Cleaner")] {
        assert!(matches!(served.ask(&request), Ok(Reply::Done)), "{request:?}");
    }
    assert!(served.refusal(&message(None, "nonsense")).starts_with("unknown message \"nonsense\""));
    assert!(matches!(served.ask(&Request::Suspend { device: Some("disk".into()) }), Ok(Reply::Done)));
    assert!(served.report().devices[0].suspended);
    assert_eq!(served.refusal(&message(None, "flush")), "the device is suspended: resume it first");
    assert!(matches!(served.ask(&Request::Resume { device: None }), Ok(Reply::Done)));
}

#[test]
fn a_wait_ends_with_the_event_that_is_waited_for() {
    let served = Served::new("events", "0 2048 clone ram:64K ram:1M ram:1M 8 1 no_hydration");
    assert_eq!(served.report().devices[0].events, 0);
    let wait = |events| Request::Wait { device: Some("disk".into()), events };
    // Two who wait, of whom one leaves.
    drop({
        let mut leaving = UnixStream::connect(&served.control).unwrap();
        leaving.write_all(b"{\"command\":\"wait\"}\n").unwrap();
        leaving
    });
    let control = served.control.clone();
    let waiting = std::thread::spawn(move || ask(&control, &wait(0)));
    assert!(matches!(served.ask(&message(None, "enable_hydration")), Ok(Reply::Done)));
    assert!(matches!(waiting.join().unwrap(), Ok(Reply::Events(1))));
    assert!(matches!(served.ask(&wait(0)), Ok(Reply::Events(1))), "it has happened already");
    let report = served.report();
    assert_eq!(report.devices[0].events, 1);
    assert!(show::people(&report).starts_with("disk: 1 MiB, 1 events\n"));

    let mut stream = UnixStream::connect(&served.control).unwrap();
    stream.write_all(b"{\"command\":\"wait\",\"events\":1}\n").unwrap();
    assert_eq!(served.report().devices.len(), 1, "others are answered meanwhile");
    stream.write_all(b"{\"command\":\"resume\"}\n").unwrap();
    let replies: Vec<String> = BufReader::new(stream).lines().take(2).map(Result::unwrap).collect();
    assert_eq!(replies, [r#"{"error":"the wait was given up for what was said next"}"#, r#""done""#]);
}

#[test]
fn what_is_not_there_is_named() {
    let served = Served::new("plain", "0 8 linear ram:4K 0");
    let nobody = Request::Status { device: Some("other".into()) };
    assert_eq!(served.refusal(&nobody), "there is no device \"other\": this server has disk");
    assert_eq!(served.refusal(&message(Some("other"), "flush")), "there is no device \"other\": this server has disk");
    let suspend = Request::Suspend { device: None };
    assert_eq!(served.refusal(&suspend), "disk has no write cache, mirror or clone: suspend holds only these");
    let wait = Request::Wait { device: None, events: 0 };
    assert_eq!(served.refusal(&wait), "disk has no mirror, snapshot or clone: only these raise events");
    let control = served.control.clone();
    drop(served);
    let gone = ask(&control, &nobody).unwrap_err().sentence();
    assert!(gone.starts_with("no control socket at "), "{gone}");
}

#[test]
fn a_client_that_talks_nonsense_is_told_and_one_that_floods_is_cut_off() {
    let served = Served::new("nonsense", "0 8 linear ram:4K 0");
    let mut stream = UnixStream::connect(&served.control).unwrap();
    let mut replies = BufReader::new(stream.try_clone().unwrap());
    for line in ["hello\n", "{\"command\":\"fly\"}\n", "\n"] {
        stream.write_all(line.as_bytes()).unwrap();
        let mut reply = String::new();
        replies.read_line(&mut reply).unwrap();
        assert!(reply.starts_with("{\"error\":\"the request is not understood"), "{reply}");
    }
    stream.write_all(b"{\"command\":\"status\"}\n{\"command\":\"status\"}\n").unwrap();
    for _ in 0..2 {
        let mut reply = String::new();
        replies.read_line(&mut reply).unwrap();
        assert!(reply.starts_with("{\"status\":{"), "{reply}");
    }
    let flood = vec![b'x'; 4 * protocol::LINE_BYTES_MAX];
    // The server hangs up somewhere in here.
    let _ = stream.write_all(&flood);
    let mut rest = Vec::new();
    let _ = replies.read_to_end(&mut rest);
    assert!(rest.is_empty());
    assert_eq!(served.report().devices.len(), 1, "others are served on");
}

#[test]
fn a_living_servers_socket_is_not_taken_over() {
    let served = Served::new("taken", "0 8 linear ram:4K 0");
    let mode = std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(&served.control).unwrap());
    assert_eq!(mode & 0o777, 0o600);
    let reactor = Reactor::new(engine(Engine::Auto).unwrap());
    let pool = BufferPool::new(&reactor);
    let flags = ServeFlags {
        table: vec!["0 8 error".to_owned()],
        export: vec![format!("nbd+unix:///?socket={}", served.folder.join("other.sock").display()).parse().unwrap()],
        ..ServeFlags::default()
    };
    let plan = Plan::new(flags, false).unwrap();
    let failure = reactor.run(async {
        let running = Rc::new(Running::start(&reactor, &pool, &plan, Vec::new()).await.unwrap());
        let failure = ControlSocket::open(&served.control, &running, &pool).err().unwrap();
        running.stop_serving().await;
        running.close().await.unwrap();
        failure
    });
    reactor.clear();
    let failure = failure.unwrap().sentence();
    assert!(failure.starts_with("the control socket cannot be opened: a server answers on "), "{failure}");
    assert_eq!(served.report().devices.len(), 1, "the first server serves on");
}
