//! Where the server listens, and what it does to what is there already.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "tests start servers on threads and wait for them")]

mod common;

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use common::client::{Client, Framing};
use common::targets::Memory;
use common::{Bed, Engine, directory};
use forebay_export::serve::{Listen, Offer, ServeError, Server};
use forebay_export::uri::{Endpoint, Uri};

fn bed(engine: Engine) -> Bed {
    Bed::new(engine, |_, server| {
        server.add_export(&Offer::new("disk"), Rc::new(Memory::new(1 << 20))).unwrap();
    })
}

/// Listens at one more place, and tells the URI or the error.
fn listen(bed: &Bed, at: Listen) -> Result<Uri, String> {
    bed.ask(move |_, _, server: &Server| server.listen(at).map_err(|error: ServeError| error.to_string()))
}

fn serves(path: &Path) {
    let mut client = Client::enter(path, "disk", Framing::Structured, true);
    client.write(512, &[1; 512]);
    assert_eq!(client.read(512, 512), [1; 512]);
}

#[test]
fn a_socket_is_open_to_its_owner_only_and_removed_at_the_end() {
    let bed = bed(Engine::Uring);
    let found = std::fs::symlink_metadata(&bed.path).unwrap();
    assert!(found.file_type().is_socket());
    assert_eq!(found.permissions().mode() & 0o777, 0o600);
    assert_eq!(bed.uri.parse::<Uri>().unwrap(), Uri::unix(&bed.path, ""));
    serves(&bed.path);
    assert!(bed.shutdown().recv().unwrap());
    assert!(!bed.path.exists());
}

#[test]
fn a_socket_on_which_nobody_answers_is_replaced() {
    let bed = bed(Engine::Threads);
    let directory = directory();
    let path = directory.join("stale.sock");
    drop(UnixListener::bind(&path).unwrap());
    listen(&bed, Listen::Unix(path.clone())).unwrap();
    serves(&path);
    assert!(bed.shutdown().recv().unwrap());
    std::fs::remove_dir(directory).expect("the socket is gone, nothing else is there");
}

/// The kernel closes the socket of a killed server only when it is done with the last of its requests.
#[test]
fn a_socket_whose_owner_is_about_to_be_gone_is_replaced() {
    let bed = bed(Engine::Threads);
    let directory = directory();
    let path = directory.join("dying.sock");
    let dying = UnixListener::bind(&path).unwrap();
    std::thread::scope(|threads| {
        threads.spawn(|| {
            std::thread::sleep(Duration::from_millis(300));
            drop(dying);
        });
        listen(&bed, Listen::Unix(path.clone())).unwrap();
    });
    serves(&path);
    assert!(bed.shutdown().recv().unwrap());
    std::fs::remove_dir(directory).expect("the socket is gone, nothing else is there");
}

#[test]
fn a_living_server_is_left_alone() {
    let bed = bed(Engine::Uring);
    let problem = listen(&bed, Listen::Unix(bed.path.clone())).unwrap_err();
    assert!(problem.contains("answers on") && problem.contains("nbd.sock"), "{problem}");
    serves(&bed.path);
    // Also one that is too busy to take anybody.
    let directory = directory();
    let path = directory.join("busy.sock");
    let busy = UnixListener::bind(&path).unwrap();
    let waiting: Vec<_> = (0..4).map(|_| std::os::unix::net::UnixStream::connect(&path).unwrap()).collect();
    assert!(listen(&bed, Listen::Unix(path.clone())).unwrap_err().contains("answers on"));
    assert!(path.exists());
    drop((busy, waiting));
    std::fs::remove_dir_all(directory).unwrap();
}

#[test]
fn what_is_not_a_socket_is_left_alone() {
    let bed = bed(Engine::Uring);
    let directory = directory();
    let path = directory.join("notes.txt");
    std::fs::write(&path, "kept").unwrap();
    assert!(listen(&bed, Listen::Unix(path.clone())).unwrap_err().contains("not a socket"));
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "kept");
    let missing = directory.join("missing/nbd.sock");
    assert!(listen(&bed, Listen::Unix(missing)).unwrap_err().contains("missing/nbd.sock"));
    std::fs::remove_dir_all(directory).unwrap();
}

#[test]
fn a_file_that_took_the_sockets_place_is_not_removed() {
    let bed = bed(Engine::Uring);
    std::fs::remove_file(&bed.path).unwrap();
    std::fs::write(&bed.path, "kept").unwrap();
    assert!(bed.shutdown().recv().unwrap());
    assert_eq!(std::fs::read_to_string(&bed.path).unwrap(), "kept");
}

#[test]
fn tcp_is_for_this_machine_unless_told_otherwise() {
    for engine in Engine::ALL {
        let bed = bed(engine);
        let everywhere: SocketAddr = "0.0.0.0:0".parse().unwrap();
        let problem = listen(&bed, Listen::Tcp { address: everywhere, beyond_loopback: false }).unwrap_err();
        assert!(problem.contains("reachable from other machines"), "{problem}");
        let address: SocketAddr = "127.0.0.1:0".parse().unwrap();
        let uri = listen(&bed, Listen::Tcp { address, beyond_loopback: false }).unwrap();
        let Endpoint::Tcp { host, port } = uri.endpoint.clone() else { panic!("{uri}") };
        assert_eq!(uri.with_export("disk").to_string(), format!("nbd://127.0.0.1:{port}/disk"));
        let stream = TcpStream::connect((host.as_str(), port)).unwrap();
        let mut client = Client::over(Box::new(stream), "disk", Framing::Extended, true).unwrap();
        client.write(0, &vec![7; 100 << 10]);
        assert!(client.read(0, 100 << 10) == vec![7; 100 << 10]);
        let again = listen(&bed, Listen::Tcp { address: (std::net::Ipv4Addr::LOCALHOST, port).into(), beyond_loopback: false });
        assert!(again.unwrap_err().contains(&port.to_string()));
    }
}

#[test]
fn inherited_sockets_are_served_and_left_to_their_owner() {
    for engine in Engine::ALL {
        let bed = bed(engine);
        let directory = directory();
        let path = directory.join("activated.sock");
        let socket = UnixListener::bind(&path).unwrap();
        let uri = listen(&bed, Listen::Inherited(socket.try_clone().unwrap().into())).unwrap();
        assert_eq!(uri, Uri::unix(&path, ""));
        serves(&path);
        let tcp = TcpListener::bind("[::1]:0").unwrap();
        let uri = listen(&bed, Listen::Inherited(tcp.try_clone().unwrap().into())).unwrap();
        let port = tcp.local_addr().unwrap().port();
        assert_eq!(uri.to_string(), format!("nbd://[::1]:{port}/"));
        assert!(bed.shutdown().recv().unwrap());
        assert!(path.exists());
        drop(std::os::unix::net::UnixStream::connect(&path).expect("the owner still listens"));
        std::fs::remove_dir_all(directory).unwrap();
    }
}

#[test]
fn what_does_not_listen_is_no_inherited_socket() {
    let bed = bed(Engine::Uring);
    let (one, _other) = std::os::unix::net::UnixStream::pair().unwrap();
    for wrong in [one.into(), std::fs::File::open("/dev/null").unwrap().into()] {
        assert!(listen(&bed, Listen::Inherited(wrong)).unwrap_err().contains("not a listening"));
    }
}

#[test]
fn an_export_needs_a_name_of_its_own() {
    let bed = bed(Engine::Uring);
    let problem =
        bed.ask(|_, _, server| server.add_export(&Offer::new("disk"), Rc::new(Memory::new(512))).unwrap_err().to_string());
    assert!(problem.contains("\"disk\""), "{problem}");
}
