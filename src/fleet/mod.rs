//! The shared tier: values that many processes load once between them.
//!
//! A [`Tier`] keeps, for each [`Key`], two things: the bytes of a value, for so long; and a
//! *lease*, the right to fill the key, held by whoever can name its [`Token`], and never for
//! longer than its time. What it must do in one step, and what becomes of a value whose lease was
//! lost, is all in that trait. `redis` is one on a server, with a feature of that name; [`memory`]
//! is one within a process, for tests and for caches that share no more than that. Anyone can write
//! another.
//!
//! Around it: how a key becomes bytes ([`FleetKey`]) and bytes become names ([`Namespace`]); how
//! values become bytes ([`codec`]) and what is stored of them ([`envelope`]); and what the
//! processes tell each other ([`Event`]).
//!
//! # Example
//!
//! A cache does this for each key that it does not have; here it is done by hand.
//!
//! ```
//! use onefill::Deadline;
//! use onefill::fleet::{
//!     Acquired, Committed, Entry, Key, Lease, Origin, Table, Tier, Token, memory::Memory,
//! };
//! use std::time::Duration;
//!
//! let tier = Memory::new();
//! let (me, soon) = (Origin::random(), Deadline::after(Duration::from_millis(150)));
//! let key = Key::new(&Table::new("product"), &42);
//!
//! if tier.lookup(&key, soon)?.is_none() {
//!     let lease = Lease::new(Token::random(), Duration::from_secs(10));
//!     match tier.acquire(&key, lease, None, soon)? {
//!         Acquired::Hit(_) => (),          // somebody was faster
//!         Acquired::Held { .. } => (),     // somebody is at it
//!         Acquired::Won => {
//!             let bytes = b"an envelope, usually";
//!             let entry = Entry::new(lease.token, bytes, Duration::from_secs(300));
//!             let committed = tier.commit(&key, entry, me, soon)?;
//!             assert_eq!(committed, Committed::Stored);
//!         }
//!     }
//! }
//! let stored = tier.lookup(&key, soon)?.unwrap();
//! assert_eq!(stored.bytes, b"an envelope, usually");
//! assert!(stored.left.unwrap() <= Duration::from_secs(300));
//! # Ok::<(), onefill::TierError>(())
//! ```

mod breaker;
pub mod codec;
pub mod envelope;
mod event;
pub(crate) mod handle;
mod key;
mod lease;
pub mod memory;
#[cfg(any(feature = "r2d2_redis", feature = "redis"))]
pub mod redis;
mod tier;
mod token;

pub use codec::Codec;
pub use event::{Event, Listener, News, Notice, Reaction};
pub use handle::{Fleet, FleetBuilder, Health, Troubles};
pub(crate) use handle::{Heard, Mark};
pub use key::{Fingerprint, FleetKey, Key, KeyEncoder, Names, Namespace, Table};
pub(crate) use lease::Held;
pub use tier::{Acquired, Committed, Entry, Lease, Ownership, Report, Seen, Stored, Tier};
pub use token::{Epoch, Origin, Token};
