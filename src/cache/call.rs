//! [`Call`]: options for one call.

use std::hash::Hash;
use std::time::Duration;

use crate::deadline::Deadline;
use crate::error::Error;

use super::ladder::Terms;
use super::{Answer, Cache, Fill, Load};

/// Options for one call, made by [`Cache::with`]. What is not set is as the cache has it.
///
/// # Example
///
/// ```
/// # use onefill::Cache;
/// # use std::time::Duration;
/// # let products: Cache<u64, u64, std::io::Error> = Cache::builder("product")
/// #     .ttl(Duration::from_secs(300)).loader(|load: &onefill::Load<'_, u64, u64>| Ok(*load.key())).build()?;
/// // The shop window: whatever there is, but soon.
/// let shown = products.with().timeout(Duration::from_millis(80)).get(&42);
/// // The till: nothing stale.
/// let sold = products.with().never_stale().get(&42);
/// # let _ = (shown.unwrap(), sold.unwrap());
/// # Ok::<(), onefill::BuildError>(())
/// ```
#[must_use = "options do nothing until a call is made with them"]
pub struct Call<'c, K, V, E> {
    cache: &'c Cache<K, V, E>,
    terms: Terms,
}

impl<'c, K, V, E> Call<'c, K, V, E> {
    pub(super) fn new(cache: &'c Cache<K, V, E>, terms: Terms) -> Self {
        Call { cache, terms }
    }

    /// Waits no longer than this from now, over all the steps of the call together.
    pub fn timeout(self, timeout: Duration) -> Self {
        self.deadline_at(Deadline::after(timeout))
    }

    /// Waits until then at most: an [`Instant`](std::time::Instant), or a deadline that was made
    /// when the request came in.
    pub fn deadline(self, deadline: impl Into<Deadline>) -> Self {
        self.deadline_at(deadline.into())
    }

    /// Takes no value past its freshness, whatever happens.
    pub fn never_stale(self) -> Self {
        self.stale_while_revalidate(Duration::ZERO).stale_if_error(Duration::ZERO)
    }

    /// Takes a value up to this long past its freshness, at once, while it is refreshed behind.
    /// No entry is kept for longer than the cache's own windows make it.
    pub fn stale_while_revalidate(mut self, window: Duration) -> Self {
        self.terms.windows.stale_while_revalidate = window;
        self
    }

    /// Takes a value up to this long past its freshness, if loading it anew fails. No entry is
    /// kept for longer than the cache's own windows make it.
    pub fn stale_if_error(mut self, window: Duration) -> Self {
        self.terms.windows.stale_if_error = window;
        self
    }

    fn deadline_at(mut self, deadline: Deadline) -> Self {
        self.terms.deadline = deadline;
        self
    }
}

impl<K, V, E> Call<'_, K, V, E>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    E: Send + Sync + 'static,
{
    /// [`Cache::get`] with these options.
    ///
    /// # Errors
    ///
    /// As [`Cache::get`].
    pub fn get(self, key: &K) -> Result<Answer<V>, Error<E>> {
        self.cache.get_on(key, || self.terms)
    }

    /// [`Cache::get_with`] with these options.
    ///
    /// # Errors
    ///
    /// As [`Cache::get`].
    pub fn get_with<F, R>(self, key: &K, loader: F) -> Result<Answer<V>, Error<E>>
    where
        F: FnOnce(&Load<'_, K, V>) -> Result<R, E>,
        R: Into<Fill<V>>,
    {
        self.cache.get_with_on(key, || self.terms, loader)
    }
}

impl<K, V, E> Clone for Call<'_, K, V, E> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K, V, E> Copy for Call<'_, K, V, E> {}

impl<K, V, E> std::fmt::Debug for Call<'_, K, V, E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Call").field(&self.terms).finish()
    }
}
