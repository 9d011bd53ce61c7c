//! [`Counted`]: the server as it is reached anyhow, with a count of what is sent to it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use onefill::fleet::redis::{Command, Dial, Reply, Subscription, Wire};
use onefill::{Deadline, TierError};

#[derive(Debug)]
pub(super) struct Counted {
    pub(super) dial: Arc<dyn Dial>,
    pub(super) commands: Arc<AtomicU64>,
}

struct CountedWire {
    wire: Box<dyn Wire>,
    commands: Arc<AtomicU64>,
}

impl Dial for Counted {
    fn dial(&self, deadline: Deadline) -> Result<Box<dyn Wire>, TierError> {
        let wire = self.dial.dial(deadline)?;
        Ok(Box::new(CountedWire { wire, commands: Arc::clone(&self.commands) }))
    }

    fn subscribe(
        &self,
        channels: &[&[u8]],
        deadline: Deadline,
    ) -> Result<Box<dyn Subscription>, TierError> {
        self.dial.subscribe(channels, deadline)
    }
}

impl Wire for CountedWire {
    fn call(
        &mut self,
        commands: &[Command<'_>],
        deadline: Deadline,
    ) -> Result<Vec<Reply>, TierError> {
        self.commands.fetch_add(commands.len() as u64, Ordering::Relaxed);
        self.wire.call(commands, deadline)
    }
}
