//! [`Lease`]: the lease of a shared tier by hand, as one would use it who knows no more than that.
//!
//! Every caller asks the tier for itself. The first is given the lease, loads and commits; the
//! others wait for the notice of it, then read. What a cache does besides is not here: no
//! coalescing, no renewal, nothing kept in the instance.

use std::sync::Arc;
use std::time::Duration;

use onefill::fleet::{
    self, Acquired, Codec, Entry, Event, Key, Listener, Origin, Stored, Table, Tier, Token,
};
use onefill::{CodecError, Deadline};
use parking_lot::{Condvar, Mutex};

use crate::link::Link;
use crate::strategy::{Digits, Fault, KEPT, Row, Strategy};

/// When to look again if nothing is heard: a notice can be lost. A cache does so about as often.
const POLL: Duration = Duration::from_millis(250);

pub(crate) struct Lease {
    tier: Link,
    table: Table,
    origin: Origin,
    /// For how long the lease is taken: longer than a load, as nobody renews it.
    ttl: Duration,
    ear: Arc<Ear>,
}

/// What the instance has heard of the tier.
#[derive(Default)]
struct Ear {
    heard: Mutex<u64>,
    changed: Condvar,
}

impl Lease {
    pub(crate) fn new(tier: Link, ttl: Duration) -> Lease {
        let ear = Arc::new(Ear::default());
        let listener: Arc<dyn Listener> = Arc::clone(&ear) as Arc<dyn Listener>;
        tier.listen(Arc::downgrade(&listener));
        Lease { tier, table: Table::new("row"), origin: Origin::random(), ttl, ear }
    }
}

impl Strategy for Lease {
    fn get(&self, key: usize, load: &dyn Fn() -> Row) -> Result<Row, Fault> {
        let key = Key::new(&self.table, &key);
        loop {
            if let Some(stored) = self.tier.lookup(&key, Deadline::NEVER)? {
                return Ok(read(&stored)?);
            }
            // Before the lease is asked for: the notice may come in between.
            let heard = self.ear.heard();
            let lease = fleet::Lease::new(Token::random(), self.ttl);
            match self.tier.acquire(&key, lease, None, Deadline::NEVER)? {
                Acquired::Hit(stored) => return Ok(read(&stored)?),
                Acquired::Won => {
                    let row = load();
                    let mut bytes = Vec::new();
                    Digits.encode(&row, &mut bytes)?;
                    let entry = Entry::new(lease.token, &bytes, KEPT);
                    // Should the lease have run out meanwhile, the row is good all the same.
                    self.tier.commit(&key, entry, self.origin, Deadline::NEVER)?;
                    return Ok(row);
                }
                Acquired::Held { left, .. } => self.ear.wait(heard, left.min(POLL)),
            }
        }
    }
}

fn read(stored: &Stored) -> Result<Row, CodecError> {
    Digits.decode(&stored.bytes)
}

impl Ear {
    fn heard(&self) -> u64 {
        *self.heard.lock()
    }

    /// Waits until more is heard than that.
    fn wait(&self, heard: u64, at_most: Duration) {
        let mut now = self.heard.lock();
        self.changed.wait_while_for(&mut now, |now| *now == heard, at_most);
    }
}

impl Listener for Ear {
    /// Wakes all who wait, whatever it is about: they look for themselves.
    fn hear(&self, _: &Event) {
        *self.heard.lock() += 1;
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::thread;

    use onefill::fleet::memory::Memory;

    use super::*;

    const TTL: Duration = Duration::from_secs(60);

    #[test]
    fn what_one_instance_loaded_another_reads() {
        let memory = Memory::new();
        let loads = Cell::new(0);
        for _ in 0..2 {
            let instance = Lease::new(Link::to(&memory), TTL);
            let row = instance.get(7, &|| {
                loads.set(loads.get() + 1);
                Row { key: 7 }
            });
            assert_eq!(row.expect("the memory is well").key, 7);
        }
        assert_eq!((loads.get(), memory.leases()), (1, 0));
    }

    #[test]
    fn who_finds_the_lease_held_waits_and_reads() {
        let memory = Memory::new();
        let holder = Lease::new(Link::to(&memory), TTL);
        let link = Link::to(&memory);
        let asked = link.asked();
        let loser = Lease::new(link, TTL);
        thread::scope(|scope| {
            let held = || {
                let waiting = scope.spawn(|| {
                    let row = loser.get(7, &|| panic!("another instance has the lease"));
                    assert_eq!(row.expect("the memory is well").key, 7);
                });
                while asked.claims() == 0 && !waiting.is_finished() {
                    thread::yield_now();
                }
                Row { key: 7 }
            };
            holder.get(7, &held).expect("the memory is well");
        });
        assert!(asked.claims() > 0);
    }
}
