//! [`Untold`]: what this process has put or invalidated and could not tell the shared tier.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::fleet::{Fingerprint, Key};
use crate::sync::Mutex;

/// What the tier has yet to be told of a table: it may have what is out of date.
pub(super) struct Untold(Mutex<Book>);

#[derive(Default)]
struct Book {
    /// How many times it could not be told something.
    failures: u64,
    /// The keys that it was not told of, each with the last failure that was about it.
    keys: HashMap<Fingerprint, (Key, u64)>,
    /// The last failure that was about the table, if it was not told of that since.
    table: Option<u64>,
    /// Whether somebody is telling it of the table.
    telling: bool,
    /// Before this moment it is not told of keys that nobody asks for.
    rest_until: Option<Instant>,
}

/// What the tier is to be told next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Due {
    Nothing,
    /// Of the key that is asked for.
    Key,
    /// Of one that is not.
    Another(Key),
}

/// Of so many keys it is remembered that the tier was not told of them, if they are no longer than
/// this together. With more, it is as if the whole table had been invalidated.
const MOST_KEYS: usize = 4096;
const MOST_BYTES: usize = 1 << 20;

/// How long after a failure it is told of a key that nobody asks for: not as long as it is in
/// trouble, perhaps with that key alone.
const REST: Duration = Duration::from_secs(1);

impl Untold {
    pub(super) fn new() -> Self {
        Untold(Mutex::new(Book::default()))
    }

    /// How many times it could not be told something, until now.
    pub(super) fn failures(&self) -> u64 {
        self.0.lock().failures
    }

    /// It could not be told of `key`.
    pub(super) fn note(&self, key: &Key) {
        let book = &mut *self.0.lock();
        book.failures += 1;
        book.rest_until = Some(Instant::now() + REST);
        book.keys.insert(key.fingerprint(), (key.clone(), book.failures));
        let bytes = || book.keys.values().map(|(key, _)| key.bytes().len()).sum::<usize>();
        if book.table.is_some() || book.keys.len() > MOST_KEYS || bytes() > MOST_BYTES {
            book.keys.clear();
            book.table = Some(book.failures);
        }
    }

    /// It could not be told of the table.
    pub(super) fn note_the_table(&self) {
        let mut book = self.0.lock();
        book.failures += 1;
        book.table = Some(book.failures);
    }

    /// It was told of `key`, by an attempt that began after `since` failures: those that came later
    /// it knows nothing of.
    pub(super) fn told(&self, key: &Key, since: u64) {
        let mut book = self.0.lock();
        if book.keys.get(&key.fingerprint()).is_some_and(|(_, failure)| *failure <= since) {
            book.keys.remove(&key.fingerprint());
        }
    }

    /// The same of the table, and so of all its keys.
    pub(super) fn told_of_the_table(&self, since: u64) {
        let mut book = self.0.lock();
        book.keys.retain(|_, (_, failure)| *failure > since);
        book.table = book.table.filter(|failure| *failure > since);
    }

    pub(super) fn is_the_table_due(&self) -> bool {
        self.0.lock().table.is_some()
    }

    /// What it is to be told when `key` is asked for, but for the table.
    pub(super) fn due(&self, key: &Key) -> Due {
        let book = self.0.lock();
        if book.keys.is_empty() {
            return Due::Nothing;
        }
        if book.keys.contains_key(&key.fingerprint()) {
            return Due::Key;
        }
        let rests = book.rest_until.is_some_and(|until| Instant::now() < until);
        let another = book.keys.values().next().filter(|_| !rests);
        another.map_or(Due::Nothing, |(key, _)| Due::Another(key.clone()))
    }

    /// The right to tell it of the table; `None` if somebody has it.
    pub(super) fn turn(&self) -> Option<Turn<'_>> {
        let mut book = self.0.lock();
        (!std::mem::replace(&mut book.telling, true)).then(|| Turn(self))
    }
}

/// Given back when dropped.
pub(super) struct Turn<'a>(&'a Untold);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.0.lock().telling = false;
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::fleet::Table;

    fn key(id: u64) -> Key {
        Key::new(&Table::new("t"), &id)
    }

    #[test]
    fn what_could_not_be_told_is_due_until_it_is_told() {
        let untold = Untold::new();
        assert_eq!(untold.due(&key(1)), Due::Nothing);
        untold.note(&key(1));
        assert_eq!(untold.due(&key(1)), Due::Key);
        assert_eq!(untold.due(&key(2)), Due::Nothing, "not so soon");
        untold.0.lock().rest_until = Some(Instant::now());
        assert_eq!(untold.due(&key(2)), Due::Another(key(1)));
        untold.told(&key(1), untold.failures());
        assert_eq!(untold.due(&key(1)), Due::Nothing);
    }

    #[test]
    fn an_attempt_says_nothing_of_what_failed_since_it_began() {
        let untold = Untold::new();
        untold.note(&key(1));
        let since = untold.failures();
        untold.note(&key(1));
        untold.told(&key(1), since);
        untold.told_of_the_table(since);
        assert_eq!(untold.due(&key(1)), Due::Key);

        for of_a_key in [false, true] {
            untold.note_the_table();
            let since = untold.failures();
            if of_a_key {
                untold.note(&key(2))
            } else {
                untold.note_the_table()
            }
            untold.told_of_the_table(since);
            assert!(untold.is_the_table_due());
        }
        untold.told_of_the_table(untold.failures());
        assert!(!untold.is_the_table_due());
        assert_eq!(untold.due(&key(1)), Due::Nothing);
    }

    #[test]
    fn more_than_can_be_remembered_is_the_whole_table() {
        let untold = Untold::new();
        for id in 0..MOST_KEYS as u64 {
            untold.note(&key(id));
            untold.note(&key(id));
        }
        assert!(!untold.is_the_table_due());
        untold.note(&key(u64::MAX));
        assert!(untold.is_the_table_due());
        assert_eq!(untold.due(&key(0)), Due::Nothing);

        let untold = Untold::new();
        untold.note(&Key::new(&Table::new("t"), &*"k".repeat(MOST_BYTES)));
        assert!(untold.is_the_table_due());
    }

    #[test]
    fn one_at_a_time_tells_of_the_table() {
        let untold = Untold::new();
        let turn = untold.turn();
        assert!(turn.is_some() && untold.turn().is_none());
        drop(turn);
        assert!(untold.turn().is_some());
    }
}
