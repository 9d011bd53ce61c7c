//! What processes tell each other, as it is told.

use std::collections::HashMap;
use std::io::Write;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use clap::Args;
use crossbeam_channel::{Sender, unbounded};
use onefill::fleet::{Event, Fingerprint, Listener, News, Reaction, Table, Tier};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::Failure;
use crate::inspect::plain_keys;
use crate::server::Place;

/// Prints what processes tell each other, one line each, until it is interrupted.
///
/// A notice names its key by a fingerprint only. Of the tables named here, those keys that are stored
/// at the beginning are printed by their names.
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
        let mut names = HashMap::new();
        // A server that does not let us in says so here; the ear would go on trying.
        server.epoch(&Table::new(""))?;
        for table in self.tables.iter().map(|name| Table::new(name.as_str())) {
            names.insert(table.fingerprint(), table.name().escape_debug().to_string());
            for key in plain_keys(&mut server, place, &table)? {
                names.insert(key.fingerprint(), key.to_string());
            }
        }
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
            let line = line(&event, &names);
            writeln!(out, "{:>10.3} {line}", began.elapsed().as_secs_f64())?;
            out.flush()?;
            next = heard.recv().expect("the listener is there, and can tell");
        }
        Ok(())
    }
}

fn listener(tell: Sender<Heard>) -> Arc<dyn Listener> {
    Arc::new(move |event: &Event| {
        // Quickly: the next notice waits for this. Printing is for another thread.
        let _ = tell.send(Heard::Event(event.clone()));
    })
}

fn line(event: &Event, names: &HashMap<Fingerprint, String>) -> String {
    let notice = match event {
        Event::Up => return "up: notices come from now on".into(),
        Event::Down => return "down: notices may be missed".into(),
        Event::Notice(notice) => notice,
        _ => return "something that is not known to this version".into(),
    };
    let name = |print: &Fingerprint| names.get(print).cloned().unwrap_or_else(|| print.to_string());
    let along = |envelope: &Option<Arc<[u8]>>| match envelope {
        Some(envelope) => format!(", {} bytes along", envelope.len()),
        None => String::new(),
    };
    let what = match &notice.news {
        News::Filled { key, version, envelope } => {
            format!("filled {} version {version}{}", name(key), along(envelope))
        }
        News::Put { key, version, envelope } => {
            format!("put {} version {version}{}", name(key), along(envelope))
        }
        News::Failed { key, token, reaction } => {
            let advice = match reaction {
                Reaction::TakeOver => "take over",
                Reaction::LoadAlone => "load alone",
                Reaction::BackOff => "back off",
                _ => "do as you please",
            };
            format!("failed {} lease {token}, {advice}", name(key))
        }
        News::Invalidated { key } => format!("invalidated {}", name(key)),
        News::InvalidatedAll { table, epoch } => {
            format!("invalidated all of {} epoch {epoch}", name(table))
        }
        _ => "did something that is not known to this version".into(),
    };
    format!("{what}, from {}", notice.from)
}
