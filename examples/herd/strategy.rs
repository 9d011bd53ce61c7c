//! The ways to answer a herd: the columns of every table.

use std::convert::Infallible;

use onefill::{Error, Group};

/// A way to come by the value of a key.
pub(crate) trait Strategy: Sync {
    /// The heading of its column.
    fn name(&self) -> &'static str;

    /// Whether it promises that no two loads of one key run at once.
    fn coalesces(&self) -> bool;

    /// The value of `key`, by `load` unless another caller's load will do.
    fn get(&self, key: usize, load: &dyn Fn() -> Row) -> Result<Row, Error<Infallible>>;
}

/// What is loaded. It carries its key, so that a caller can see that it got its own.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) key: usize,
}

/// All of them; the first is what the others are compared with.
pub(crate) fn all() -> Vec<Box<dyn Strategy>> {
    vec![Box::new(EachForItself), Box::new(Coalescing(Group::new()))]
}

struct EachForItself;

impl Strategy for EachForItself {
    fn name(&self) -> &'static str {
        "without"
    }

    fn coalesces(&self) -> bool {
        false
    }

    fn get(&self, _: usize, load: &dyn Fn() -> Row) -> Result<Row, Error<Infallible>> {
        Ok(load())
    }
}

struct Coalescing(Group<usize, Row, Infallible>);

impl Strategy for Coalescing {
    fn name(&self) -> &'static str {
        "with Group"
    }

    fn coalesces(&self) -> bool {
        true
    }

    fn get(&self, key: usize, load: &dyn Fn() -> Row) -> Result<Row, Error<Infallible>> {
        self.0.run(&key, || Ok(load()))
    }
}
