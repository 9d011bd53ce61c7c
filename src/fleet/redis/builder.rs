//! [`RedisBuilder`]: settings for a fleet on a server.

use std::fmt;
use std::time::Duration;

use crate::error::BuildError;
use crate::fleet::handle::{Fleet, Terms};
use crate::fleet::key::Namespace;
use crate::sync::Arc;

use super::{Address, Client, Dial, Redis, Settings};

/// Settings for a fleet on Redis or Valkey. Made by [`Fleet::redis`] or [`Redis::over`].
///
/// Building it makes no connection, so it needs no server that is there.
///
/// ```no_run
/// use onefill::fleet::Fleet;
/// use std::time::Duration;
///
/// let fleet = Fleet::redis("redis://app:secret@cache.internal:6379/2")
///     .namespace("shop")
///     .pool_size(32)
///     .lease(Duration::from_secs(3))
///     .build()?;
/// # Ok::<(), onefill::BuildError>(())
/// ```
#[must_use = "a builder does nothing until it builds"]
pub struct RedisBuilder {
    place: Place,
    namespace: Namespace,
    pool: Settings,
    terms: Terms,
}

/// Where the server is.
enum Place {
    /// As a URL says it, or what is wrong with that.
    Url(Result<Address, BuildError>),
    Dial(Arc<dyn Dial>),
}

impl Fleet {
    /// A fleet on Redis or Valkey: where that is, as an [`Address`] has it. See
    /// [`fleet::redis`](crate::fleet::redis), the manual.
    ///
    /// ```
    /// use onefill::fleet::Fleet;
    ///
    /// let fleet = Fleet::redis("redis://cache.internal:6379").build()?;
    /// assert!(!fleet.health().hears); // there is no such server, and that is no error
    ///
    /// let error = Fleet::redis("redis://cache.internal/first").build().unwrap_err();
    /// assert_eq!(error.to_string(), "database of the url is \"first\", but must be a number, as in /0");
    /// # Ok::<(), onefill::BuildError>(())
    /// ```
    pub fn redis(url: &str) -> RedisBuilder {
        RedisBuilder::new(Place::Url(Address::parse(url)))
    }
}

impl Redis {
    /// A tier that reaches its servers as `dial` does: for a client, a proxy or a topology that is
    /// not known here.
    ///
    /// ```
    /// use onefill::fleet::{Fleet, redis::{Redis, Server}};
    ///
    /// let tier = Redis::over(Server::tcp("cache.internal", 6379)).namespace("shop").tier()?;
    /// let fleet = Fleet::on(tier);
    /// assert!(!fleet.health().hears); // there is no such server
    /// # Ok::<(), onefill::BuildError>(())
    /// ```
    pub fn over(dial: impl Dial + 'static) -> RedisBuilder {
        RedisBuilder::new(Place::Dial(Arc::new(dial)))
    }
}

/// More connections than a server takes.
const MOST: u32 = 10_000;

impl RedisBuilder {
    fn new(place: Place) -> RedisBuilder {
        RedisBuilder {
            place,
            namespace: Namespace::new("onefill"),
            pool: Settings::default(),
            terms: Terms::default(),
        }
    }

    /// Whose parser reads what the server says, in a build with both. Of a URL; a dial of one's own
    /// has its own.
    pub fn client(self, client: Client) -> Self {
        self.with_address(|address| address.client(client))
    }

    /// How connections are encrypted, and whom they trust: for a private authority, or a certificate
    /// of one's own. Of a URL, whatever its scheme; a dial of one's own has its own.
    #[cfg(feature = "tls")]
    pub fn tls(self, tls: super::Tls) -> Self {
        self.with_address(|address| address.tls(tls))
    }

    fn with_address(mut self, change: impl FnOnce(Address) -> Address) -> Self {
        self.place = match self.place {
            Place::Url(address) => Place::Url(address.map(change)),
            dial => dial,
        };
        self
    }

    /// What sets the names of this application apart from others' on the same server. Defaults to
    /// `onefill`. Processes share values if they agree in this and in the names of their tables.
    pub fn namespace(mut self, name: &str) -> Self {
        self.namespace = Namespace::new(name);
        self
    }

    /// How many connections there may be, besides the one that notices come over. Defaults to 16,
    /// and must be from 1 to 10,000. They are made as they are needed, and closed when they have been
    /// idle for 60 s. As many calls can be in the tier at once; those of one key are one call.
    pub fn pool_size(mut self, connections: u32) -> Self {
        self.pool.size = connections;
        self
    }

    /// How long a call waits for a connection. Defaults to 50 ms.
    pub fn pool_wait(mut self, wait: Duration) -> Self {
        self.pool.wait = wait;
        self
    }

    /// How long a connection may take to be made, encryption and credentials included. Defaults to
    /// 200 ms.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.pool.connect = timeout;
        self
    }

    /// How long a call waits for its answer, once it has a connection. Defaults to 100 ms. A
    /// connection over which none came in time is closed.
    pub fn io_timeout(mut self, timeout: Duration) -> Self {
        self.pool.io = timeout;
        self
    }

    /// As [`FleetBuilder::lease`](crate::fleet::FleetBuilder::lease): defaults to 10 s.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.terms.lease = lease;
        self
    }

    /// As [`FleetBuilder::lease_cap`](crate::fleet::FleetBuilder::lease_cap): defaults to 60 s.
    pub fn lease_cap(mut self, cap: Duration) -> Self {
        self.terms.lease_cap = cap;
        self
    }

    /// As [`FleetBuilder::budget`](crate::fleet::FleetBuilder::budget): defaults to 150 ms. It is
    /// spent on waiting for a connection and for answers alike.
    pub fn budget(mut self, budget: Duration) -> Self {
        self.terms.budget = budget;
        self
    }

    /// Makes the fleet. One for each process will do, whatever caches are on it.
    ///
    /// # Errors
    ///
    /// If a setting means nothing, the URL for one. A server that cannot be reached is no error.
    pub fn build(self) -> Result<Fleet, BuildError> {
        let terms = self.terms;
        let mut fleet = Fleet::builder(self.tier()?);
        fleet.terms = terms;
        Ok(fleet.build())
    }

    /// Makes the tier alone, to put something around it. What is set of the fleet is not used.
    ///
    /// # Errors
    ///
    /// As [`build`](RedisBuilder::build).
    pub fn tier(self) -> Result<Redis, BuildError> {
        // Room is made for all of them at once.
        if !(1..=MOST).contains(&self.pool.size) {
            return Err(BuildError::new("pool_size", self.pool.size, "from 1 to 10000"));
        }
        let dial = match self.place {
            Place::Url(address) => address?.into_dial(),
            Place::Dial(dial) => dial,
        };
        Ok(Redis::new(dial, self.namespace, self.pool))
    }
}

impl fmt::Debug for RedisBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("RedisBuilder");
        // Neither shows a password.
        match &self.place {
            Place::Url(address) => debug.field("address", address),
            Place::Dial(dial) => debug.field("dial", dial),
        };
        debug
            .field("namespace", &self.namespace)
            .field("pool", &self.pool)
            .field("terms", &self.terms)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_means_nothing_is_refused() {
        let error = Fleet::redis("redis://h").pool_size(0).build().unwrap_err();
        assert_eq!(error.to_string(), "pool_size is 0, but must be from 1 to 10000");
        assert!(Fleet::redis("redis://h").pool_size(u32::MAX).build().is_err());
        let error = Fleet::redis("amqp://h").client(Client::default()).build().unwrap_err();
        assert!(error.to_string().starts_with("scheme of the url is \"amqp\""), "{error}");
    }

    #[test]
    fn nothing_shows_the_password() {
        let builder = Fleet::redis("redis://me:sesame@h").namespace("shop");
        let shown = format!("{builder:?} {builder:#?}");
        assert!(shown.contains("shop") && !shown.contains("sesame"), "{shown}");
        let fleet = builder.build().unwrap();
        assert!(!format!("{fleet:?} {fleet:#?}").contains("sesame"));
    }
}
