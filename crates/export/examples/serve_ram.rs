//! Serves memory as an NBD disk: `serve_ram SOCKET [MIB] [SECONDS] [uring|threads]`.
//!
//! For trying clients and for measuring the server alone. Prints the URI, and at the end what it
//! counted.

use std::error::Error;
use std::time::Duration;

use forebay_block::SectorCount;
use forebay_device::RamDevice;
use forebay_export::serve::{Listen, Offer, ServeLimits, Server};
use forebay_reactor::{Backend, BufferPool, Reactor, Threads, Uring};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let socket = arguments.next().ok_or("usage: serve_ram SOCKET [MIB] [SECONDS] [uring|threads]")?;
    let mib: u64 = arguments.next().map_or(Ok(1024), |text| text.parse())?;
    let seconds = arguments.next().map_or(Ok(60), |text| text.parse())?;
    let backend: Box<dyn Backend> = match arguments.next().as_deref() {
        Some("threads") => Box::new(Threads::new()?),
        _ => Box::new(Uring::new()?),
    };

    let reactor = Reactor::new(backend);
    let device = RamDevice::new(&reactor, SectorCount(mib << 11))?;
    let server = Server::new(&reactor, &BufferPool::new(&reactor), ServeLimits::default());
    server.add_export(&Offer::new("ram").described("memory, lost at exit").as_default(), device)?;
    println!("{}", server.listen(Listen::Unix(socket.into()))?);
    reactor.run(reactor.sleep(Duration::from_secs(seconds)))?;
    reactor.run(server.shutdown())?;
    for (name, counts) in server.counts() {
        println!("{name}: {counts:?}");
    }
    println!("{:?}", reactor.counts());
    Ok(())
}
