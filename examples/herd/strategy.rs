//! The ways to answer a herd: the columns of every table.

use std::borrow::Cow;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use onefill::fleet::memory::Memory;
use onefill::fleet::{Codec, Fleet};
use onefill::{Cache, CodecError, Group};

use crate::lease::Lease;
use crate::link::{Asked, Link};

/// A way to come by the value of a key, in one instance.
pub(crate) trait Strategy: Sync {
    /// The value of `key`, by `load` unless another caller's load will do.
    fn get(&self, key: usize, load: &dyn Fn() -> Row) -> Result<Row, Fault>;
}

/// Why there is no value.
pub(crate) type Fault = Box<dyn std::error::Error>;

/// What is loaded. It carries its key, so that a caller can see that it got its own.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Row {
    pub(crate) key: usize,
}

/// A way to answer a herd, in all instances.
pub(crate) struct Column {
    /// Its heading.
    pub(crate) name: &'static str,
    pub(crate) promise: Promise,
    pub(crate) instances: Vec<Box<dyn Strategy>>,
    /// What each instance asks the shared tier for, if there is one.
    pub(crate) asked: Vec<Arc<Asked>>,
}

/// What a strategy promises; each includes those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Promise {
    Nothing,
    /// No two loads of one key run at once in one instance.
    Coalesces,
    /// One load of a key is enough for all instances, and for whoever comes later.
    Shares,
    /// No two callers of an instance ask for the lease of one key.
    ClaimsOnce,
}

/// The heading of the library's way.
pub(crate) const BOTH: &str = "both";

/// For how long a shared tier keeps a row: no herd goes on for that long.
pub(crate) const KEPT: Duration = Duration::from_secs(24 * 60 * 60);

/// Within one process. The first is what the others are compared with.
pub(crate) fn one_process() -> Vec<Column> {
    vec![
        Column::apart("without", Promise::Nothing, 1, || Box::new(EachForItself)),
        Column::apart("with Group", Promise::Coalesces, 1, || Box::new(Group::new())),
    ]
}

/// Over so many instances, which stand for processes: all they have in common is a shared tier, to
/// which each has its own connection.
pub(crate) fn fleet(instances: usize, load: Duration) -> Vec<Column> {
    // Nobody is to give up on a load, or on the tier: here a thousand threads share a core, and
    // what takes long is their turn.
    let patience = load.saturating_mul(2).saturating_add(Duration::from_secs(60));
    vec![
        Column::apart("none", Promise::Nothing, instances, || Box::new(EachForItself)),
        Column::apart("coalescing", Promise::Coalesces, instances, || Box::new(Group::new())),
        Column::linked("lease", Promise::Shares, instances, |link| {
            Box::new(Lease::new(link, patience))
        }),
        Column::linked(BOTH, Promise::ClaimsOnce, instances, |link| {
            let fleet = Fleet::builder(link).lease_cap(patience).budget(patience).build();
            // Room for few rows: there may be ten thousand instances, and the rows of a round are one.
            let cache = Cache::builder("row").ttl(KEPT).loser_wait(patience).capacity(100);
            Box::new(cache.fleet(&fleet, Digits).build().expect("the settings mean something"))
        }),
    ]
}

impl Column {
    /// Instances that have nothing in common.
    fn apart(
        name: &'static str,
        promise: Promise,
        instances: usize,
        instance: impl Fn() -> Box<dyn Strategy>,
    ) -> Column {
        let instances = std::iter::repeat_with(instance).take(instances).collect();
        Column { name, promise, instances, asked: Vec::new() }
    }

    /// Instances that have a tier in common.
    fn linked(
        name: &'static str,
        promise: Promise,
        instances: usize,
        instance: impl Fn(Link) -> Box<dyn Strategy>,
    ) -> Column {
        let memory = Memory::new();
        let links = std::iter::repeat_with(|| Link::to(&memory)).take(instances);
        let linked = links.map(|link| (link.asked(), instance(link)));
        let (asked, instances) = linked.unzip();
        Column { name, promise, instances, asked }
    }
}

pub(crate) struct EachForItself;

impl Strategy for EachForItself {
    fn get(&self, _: usize, load: &dyn Fn() -> Row) -> Result<Row, Fault> {
        Ok(load())
    }
}

/// Those who ask at once share a load.
impl Strategy for Group<usize, Row, Infallible> {
    fn get(&self, key: usize, load: &dyn Fn() -> Row) -> Result<Row, Fault> {
        Ok(self.run(&key, || Ok(load()))?)
    }
}

/// Coalescing outside, the lease inside, and the row is kept.
impl Strategy for Cache<usize, Row, Infallible> {
    fn get(&self, key: usize, load: &dyn Fn() -> Row) -> Result<Row, Fault> {
        let answer = self.get_with(&key, |_| Ok(load()))?;
        answer.into_value().ok_or_else(|| "a row that was loaded is said not to exist".into())
    }
}

/// A row as bytes: the digits of its key.
pub(crate) struct Digits;

impl Codec<Row> for Digits {
    fn format(&self) -> Cow<'static, str> {
        "decimal digits".into()
    }

    fn encode(&self, row: &Row, out: &mut Vec<u8>) -> Result<(), CodecError> {
        out.extend_from_slice(row.key.to_string().as_bytes());
        Ok(())
    }

    fn decode(&self, bytes: &[u8]) -> Result<Row, CodecError> {
        let digits = std::str::from_utf8(bytes).map_err(CodecError::decode)?;
        Ok(Row { key: digits.parse().map_err(CodecError::decode)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_the_same_after_its_journey() {
        for key in [0, 7, usize::MAX] {
            let mut bytes = Vec::new();
            Digits.encode(&Row { key }, &mut bytes).expect("digits can be written");
            assert_eq!(Digits.decode(&bytes).expect("they can be read"), Row { key });
        }
        assert!(Digits.decode(b"seven").is_err());
    }

    #[test]
    fn every_strategy_answers_in_every_instance() {
        let load = Duration::ZERO;
        let columns = one_process().into_iter().chain(fleet(3, load));
        for Column { name, promise, instances, asked } in columns {
            let rows = instances.iter().map(|instance| instance.get(7, &|| Row { key: 7 }));
            let rows = rows.collect::<Result<Vec<_>, _>>();
            assert!(rows.is_ok_and(|rows| rows.iter().all(|row| row.key == 7)), "{name}");
            let links = if promise >= Promise::Shares { instances.len() } else { 0 };
            assert_eq!(asked.len(), links, "{name}");
        }
    }
}
