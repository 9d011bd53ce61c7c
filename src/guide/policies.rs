//! Which settings for which kind of thing.
//!
//! Four questions decide nearly everything. How wrong may an answer be, and for how long? What does
//! a load cost, and whom? May a caller get an old answer instead of a late one? May it get one
//! instead of an error?
//!
//! | the thing | [`ttl`] | [`stale_while_revalidate`] | [`stale_if_error`] | besides |
//! |---|---|---|---|---|
//! | a product page, a profile | minutes | a fifth of the TTL | an hour | [`workers`]: refreshes run on them |
//! | a price, a stock level | seconds | none | a minute | [`invalidate`](crate::Cache::invalidate) after each write |
//! | a permission | seconds | none | **none** | [`never_stale`](crate::Call::never_stale) costs nothing then |
//! | a report that takes ten seconds | an hour | an hour | a day | [`admission`] of one or two, [`timeout`], [`workers`] |
//! | what may not exist (a user name, a coupon) | as it is | | | a short [`absent_ttl`]; `invalidate` when it is created |
//! | what expires by itself (a token) | per entry: [`Fill::ttl`] | none | none | less than its own life, by what a call takes |
//! | what answers "304 Not Modified" | minutes | some | an hour | [`Load::previous`] and [`Fill::unchanged`] |
//! | what depends on who asks | not at all | | | [`Fill::do_not_store`], or the asker in the key |
//!
//! [`ttl`]: crate::CacheBuilder::ttl
//! [`stale_while_revalidate`]: crate::CacheBuilder::stale_while_revalidate
//! [`stale_if_error`]: crate::CacheBuilder::stale_if_error
//! [`workers`]: crate::CacheBuilder::workers
//! [`admission`]: crate::CacheBuilder::admission
//! [`timeout`]: crate::CacheBuilder::timeout
//! [`absent_ttl`]: crate::CacheBuilder::absent_ttl
//! [`Fill::ttl`]: crate::Fill::ttl
//! [`Fill::unchanged`]: crate::Fill::unchanged
//! [`Fill::do_not_store`]: crate::Fill::do_not_store
//! [`Load::previous`]: crate::Load::previous
//!
//! # Three habits
//!
//! **A TTL is for what you do not hear of.** Where every write passes through your code, invalidate,
//! and let the TTL be the bound for the day on which somebody forgets to. Where writes come from
//! elsewhere, the TTL is how wrong you are.
//!
//! **Stale windows are for latency, not for savings.** An entry that is asked for once an hour is
//! not served stale within a window of a minute: it is simply gone. One that is asked for a
//! thousand times a second is refreshed by one load, and nobody waits for it.
//!
//! **Bound what runs at once, not what is asked.** A cold start with ten thousand keys is ten
//! thousand flights. [`admission`] is how many of them are at the source at once; the others wait,
//! each until its own deadline. Set it to what the source stands, not to what the server has
//! threads.
//!
//! # An example
//!
//! ```
//! use onefill::{Cache, Fill, Load};
//! use std::time::Duration;
//!
//! # #[derive(Clone)] struct Product;
//! # #[derive(Debug)] struct DbError;
//! # struct Db;
//! # impl Db { fn product(&self, id: u64) -> Result<Option<Product>, DbError> { Ok((id < 100).then_some(Product)) } }
//! # let db = Db;
//! let products: Cache<u64, Product, DbError> = Cache::builder("product")
//!     .ttl(Duration::from_secs(300))
//!     .stale_while_revalidate(Duration::from_secs(60)) // nobody waits for what was there a minute ago
//!     .stale_if_error(Duration::from_secs(3_600)) // nor fails because the database does
//!     .absent_ttl(Duration::from_secs(10)) // a product that is created is seen ten seconds later
//!     .capacity(100_000)
//!     .workers(8) // loads run there, and refreshes on two of them at most
//!     .admission(8) // as many as the database has connections for us
//!     .timeout(Duration::from_millis(250)) // of a call that does not say
//!     .loader(move |load: &Load<'_, u64, Product>| {
//!         Ok(match db.product(*load.key())? {
//!             Some(product) => Fill::new(product),
//!             None => Fill::absent(),
//!         })
//!     })
//!     .build()?;
//!
//! assert!(products.get(&7).unwrap().value().is_some());
//! assert!(products.get(&700).unwrap().is_absent());
//! # Ok::<(), onefill::BuildError>(())
//! ```
