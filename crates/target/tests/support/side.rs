//! A side file in memory, with a note of what it said at which step of the tape.

use std::cell::{Cell, RefCell};
use std::io::{self, ErrorKind};
use std::rc::Rc;

use forebay_target::cache::SideStore;
use forebay_target::cache::disk::side::Record;

use super::tape::Tape;

/// A side file and the names that its user gives to the devices.
#[derive(Default)]
pub struct SideFile {
    pub content: RefCell<Option<Vec<u8>>>,
    pub origin: RefCell<String>,
    pub cache: RefCell<String>,
    pub tape: Rc<RefCell<Tape>>,
    /// Every content so far, with the number of steps on the tape when it came.
    pub changes: RefCell<Vec<(usize, Option<Vec<u8>>)>>,
    /// How writing fails.
    pub refuses: Cell<Option<ErrorKind>>,
    pub keeps: Cell<bool>,
}

impl SideFile {
    /// One that does not exist yet.
    pub fn new(tape: &Rc<RefCell<Tape>>) -> Rc<Self> {
        let file = Self { tape: Rc::clone(tape), ..Self::default() };
        file.origin.replace("origin".into());
        file.cache.replace("cache".into());
        Rc::new(file)
    }

    /// What it says.
    pub fn record(&self) -> Record {
        Record::decode(self.content.borrow().as_deref().expect("there is a side file")).expect("it can be read")
    }

    /// What it held in front of step `cut`: the last content, or also one that came right there.
    pub fn at(&self, cut: usize, also_now: bool) -> Option<Vec<u8>> {
        let changes = self.changes.borrow();
        let before = changes.iter().rfind(|(at, _)| *at < cut || (also_now && *at == cut));
        before.and_then(|(_, content)| content.clone())
    }

    fn set(&self, content: Option<Vec<u8>>) {
        self.changes.borrow_mut().push((self.tape.borrow().steps.len(), content.clone()));
        *self.content.borrow_mut() = content;
    }
}

impl SideStore for SideFile {
    fn name(&self) -> String {
        "cache.side".to_owned()
    }

    fn read(&self) -> io::Result<Option<Vec<u8>>> {
        Ok(self.content.borrow().clone())
    }

    fn replace(&self, content: &[u8]) -> io::Result<()> {
        if let Some(kind) = self.refuses.get() {
            return Err(kind.into());
        }
        self.set(Some(content.to_vec()));
        Ok(())
    }

    fn remove(&self) -> io::Result<()> {
        if self.keeps.get() {
            return Err(ErrorKind::PermissionDenied.into());
        }
        self.set(None);
        Ok(())
    }
}
