//! Invalidates, as a process of the fleet would.

use std::io::Write;

use clap::{ArgGroup, Args};
use onefill::fleet::{Epoch, Origin, Table, Tier};

use crate::Failure;
use crate::keys::{self, TypedKey};
use crate::server::{Place, failure};

/// Has all processes forget a key, or a whole table, and whoever is loading it store nothing.
#[derive(Args)]
#[command(group(ArgGroup::new("what").required(true).args(["key", "all"])))]
pub(crate) struct Invalidate {
    /// A table: the name of a cache.
    table: String,
    #[command(flatten)]
    key: TypedKey,
    /// Instead of a key: all of them. The source is asked for each of them anew.
    #[arg(long, conflicts_with = "kind")]
    all: bool,
}

impl Invalidate {
    pub(crate) fn run(&self, place: &Place, out: &mut impl Write) -> Result<(), Failure> {
        let table = Table::new(self.table.as_str());
        // A server that does not let us in says so here, and not to a pool, which would try again.
        place.connect()?.epoch(&table)?;
        let (tier, from) = (place.tier()?, Origin::random());
        match self.key.of(&table).map_err(Failure::Told)? {
            Some(key) => {
                tier.invalidate(&key, from, place.deadline()).map_err(failure)?;
                writeln!(out, "invalidated {}", keys::named(&key))?;
            }
            None => {
                let epoch = Epoch::random();
                let told = tier.invalidate_all(&table, epoch, from, place.deadline());
                told.map_err(failure)?;
                writeln!(out, "invalidated all of {:?}: epoch {epoch} begins", table.name())?;
            }
        }
        Ok(())
    }
}
