//! What processes tell each other, as it is told.

use std::collections::HashMap;
use std::io::Write;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use crossbeam_channel::{Sender, unbounded};
use onefill::fleet::{Event, Fingerprint, Listener, News, Reaction, Table, Tier};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::Failure;
use crate::inspect::plain_keys;
use crate::keys;
use crate::server::{Place, Server};

/// Prints what processes tell each other, one line each, until it is interrupted.
///
/// A notice names its key by a fingerprint only. Of the tables named here, the keys that are stored
/// at the beginning, or when they are filled or put, are printed by their names. What is printed as an
/// unknown key is one of another table, one that is stored under a hash, or one that was not stored
/// when this looked. It begins with the seconds since notices come.
#[derive(Args)]
pub(crate) struct Watch {
    /// Tables whose keys are to be printed by name.
    tables: Vec<String>,
}

/// What the main thread waits for.
enum Heard {
    Event(Event),
    Signal,
}

impl Watch {
    pub(crate) fn run(&self, place: &Place, out: &mut impl Write) -> Result<(), Failure> {
        let mut signals = Signals::new([SIGINT, SIGTERM])?;
        let mut server = place.connect()?;
        let tables = self.tables.iter().map(|name| Table::new(name.as_str()));
        let mut names = Names {
            place,
            tables: tables.collect(),
            known: HashMap::new(),
            began: Instant::now(),
            spent: Duration::ZERO,
        };
        // A server that does not let us in says so here; the ear would go on trying.
        server.epoch(&Table::new(""))?;
        names.look(&mut server)?;
        drop(server);

        let (tell, heard) = unbounded();
        let listener = listener(tell.clone());
        let tier = place.tier()?;
        tier.listen(Arc::downgrade(&listener));
        thread::spawn(move || {
            if signals.forever().next().is_some() {
                // Nobody listens any more if this is over already.
                let _ = tell.send(Heard::Signal);
            }
        });
        // It is told as soon as notices come. If that is not soon, there is a reason.
        let Ok(mut next) = heard.recv_timeout(place.timeout) else {
            let reason = tier.report().deaf.unwrap_or_else(|| "no answer in time".into());
            return Err(Failure::Told(format!("no notices come: {reason}")));
        };
        let began = Instant::now();
        while let Heard::Event(event) = next {
            let time = began.elapsed().as_secs_f64();
            names.look_for(&event);
            writeln!(out, "{time:>10.3}s {}", line(&event, &names))?;
            out.flush()?;
            next = heard.recv().expect("the listener is there, and can tell");
        }
        Ok(())
    }
}

/// The names of what notices have fingerprints of.
struct Names<'p> {
    place: &'p Place,
    tables: Vec<Table>,
    known: HashMap<Fingerprint, String>,
    began: Instant,
    /// How much time went into looking again.
    spent: Duration,
}

impl Names<'_> {
    /// Looks at the names of all keys of the tables.
    fn look(&mut self, server: &mut Server<'_>) -> Result<(), Failure> {
        for table in &self.tables {
            self.known.insert(table.fingerprint(), table.name().escape_debug().to_string());
            for key in plain_keys(server, self.place, table)? {
                self.known.insert(key.fingerprint(), keys::named(&key));
            }
        }
        Ok(())
    }

    /// Looks again if this says that a key is stored, of which the name is not known.
    fn look_for(&mut self, event: &Event) {
        let Event::Notice(notice) = event else { return };
        let (News::Filled { key, .. } | News::Put { key, .. }) = &notice.news else { return };
        // The server goes through all of its names for this, and has more to do; and notices of other
        // tables' keys come as often as they like. So a tenth of the time is for it, and a second more.
        let too_much = self.spent > Duration::from_secs(1) + self.began.elapsed() / 10;
        if self.tables.is_empty() || self.known.contains_key(key) || too_much {
            return;
        }
        let began = Instant::now();
        // A server that does not answer now has its key printed without a name; that is no end.
        let _ = self.place.connect().and_then(|mut server| self.look(&mut server));
        self.spent += began.elapsed();
    }

    fn of(&self, print: &Fingerprint) -> String {
        match self.known.get(print) {
            Some(name) => name.clone(),
            None if self.tables.is_empty() => print.to_string(),
            None => format!("unknown key {print}"),
        }
    }
}

fn listener(tell: Sender<Heard>) -> Arc<dyn Listener> {
    Arc::new(move |event: &Event| {
        // Quickly: the next notice waits for this. Printing is for another thread.
        let _ = tell.send(Heard::Event(event.clone()));
    })
}

fn line(event: &Event, names: &Names<'_>) -> String {
    let notice = match event {
        Event::Up => return "up: notices come from now on".into(),
        Event::Down => return "down: notices may be missed".into(),
        Event::Notice(notice) => notice,
        _ => return "something that is not known to this version".into(),
    };
    let along = |envelope: &Option<Arc<[u8]>>| match envelope {
        Some(envelope) => format!(", {} bytes along", envelope.len()),
        None => String::new(),
    };
    let what = match &notice.news {
        News::Filled { key, version, envelope } => {
            format!("filled {} version {version}{}", names.of(key), along(envelope))
        }
        News::Put { key, version, envelope } => {
            format!("put {} version {version}{}", names.of(key), along(envelope))
        }
        News::Failed { key, token, reaction } => {
            let advice = match reaction {
                Reaction::TakeOver => "take over",
                Reaction::LoadAlone => "load alone",
                Reaction::BackOff => "back off",
                _ => "do as you please",
            };
            format!("failed {} lease {token}, {advice}", names.of(key))
        }
        News::Invalidated { key } => format!("invalidated {}", names.of(key)),
        News::InvalidatedAll { table, epoch } => {
            let table = names.known.get(table).cloned().unwrap_or_else(|| format!("table {table}"));
            format!("invalidated all of {table} epoch {epoch}")
        }
        _ => "did something that is not known to this version".into(),
    };
    format!("{what}, from {}", notice.from)
}
