//! [`Ear`]: hears what is published, on a thread of its own, and notices when it cannot.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Weak;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::deadline::Deadline;
use crate::error::TierError;
use crate::fleet::event::{Event, Listener, Notice};
use crate::fleet::tier::Report;
use crate::sync::{Arc, Condvar, Mutex, spawn};
use crate::telemetry;

use super::refusal::refused;
use super::{Message, Pool, Reply};

/// How long the thread waits for a message before it looks around: whether it is still wanted, and
/// whether there is somebody new.
const TICK: Duration = Duration::from_millis(250);
/// After so long without a message the connection has to prove itself: one that was cut off
/// somewhere between is as silent as one over which nothing is to be said.
const SILENCE: Duration = Duration::from_secs(5);
/// For so long what it sent itself may take to come back.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long to wait before the first new attempt. Each time one fails, twice as long.
const SHORTEST: Duration = Duration::from_millis(100);
/// But no longer than this.
const LONGEST: Duration = Duration::from_secs(5);

/// Tells listeners what is published, on a thread that is started for the first of them and ends
/// soon after this is dropped.
#[derive(Debug)]
pub(super) struct Ear {
    inner: Arc<Inner>,
}

/// What the thread holds. Nothing in it keeps the tier alive.
#[derive(Debug)]
struct Inner {
    pool: Weak<Pool>,
    /// Where notices are published.
    notices: Vec<u8>,
    /// Where this one publishes to hear itself.
    heartbeats: Vec<u8>,
    state: Mutex<State>,
    /// It was closed.
    changed: Condvar,
    strange: AtomicU64,
    heard: AtomicU64,
}

#[derive(Default)]
struct State {
    rows: Vec<Row>,
    started: bool,
    closed: bool,
    /// Why nothing is heard.
    deaf: Option<String>,
}

/// A listener, and whether it knows that notices come. Events are delivered by one thread only, so
/// that no listener is told of an end before it is told of the beginning.
struct Row {
    listener: Weak<dyn Listener>,
    up: bool,
}

/// Why a session ended.
struct Lost {
    why: String,
    /// Whether there is no use in trying again soon.
    for_long: bool,
}

impl From<TierError> for Lost {
    fn from(error: TierError) -> Lost {
        Lost { why: error.to_string(), for_long: error.is_misconfigured() }
    }
}

impl Ear {
    /// Hears what is published to `notices`. It proves itself over `heartbeats`, which is to be a
    /// channel that nobody else uses.
    pub(super) fn new(pool: &Arc<Pool>, notices: Vec<u8>, heartbeats: Vec<u8>) -> Ear {
        let inner = Inner {
            pool: Arc::downgrade(pool),
            notices,
            heartbeats,
            state: Mutex::new(State::default()),
            changed: Condvar::new(),
            strange: AtomicU64::new(0),
            heard: AtomicU64::new(0),
        };
        Ear { inner: Arc::new(inner) }
    }

    /// Tells `listener` from now on.
    pub(super) fn listen(&self, listener: Weak<dyn Listener>) {
        let mut state = self.inner.state.lock();
        state.rows.retain(|row| row.listener.strong_count() > 0);
        state.rows.push(Row { listener, up: false });
        if !state.started {
            let inner = Arc::clone(&self.inner);
            match spawn("onefill-ear".to_string(), move || inner.run()) {
                Ok(_) => state.started = true,
                // The next listener tries again. Until then copies are short-lived.
                Err(error) => state.deaf = Some(format!("no thread to listen on: {error}")),
            }
        }
    }

    /// Adds what it has to tell.
    pub(super) fn report(&self, report: &mut Report) {
        report.strange = self.inner.strange.load(Ordering::Relaxed);
        report.heard = self.inner.heard.load(Ordering::Relaxed);
        report.deaf = self.inner.state.lock().deaf.clone();
    }
}

impl Drop for Ear {
    fn drop(&mut self) {
        self.inner.state.lock().closed = true;
        self.inner.changed.notify_all();
    }
}

impl Inner {
    /// The thread.
    fn run(&self) {
        let mut pause = SHORTEST;
        loop {
            let before = self.heard.load(Ordering::Relaxed);
            // A connection may be anybody's, and a panic in it must not leave everybody deaf.
            let session = catch_unwind(AssertUnwindSafe(|| self.session()));
            let lost = match session {
                Ok(Ok(())) => return,
                Ok(Err(lost)) => lost,
                Err(_) => Lost { why: "the subscription panicked".into(), for_long: false },
            };
            if self.heard.load(Ordering::Relaxed) != before {
                pause = SHORTEST;
            }
            if lost.for_long {
                pause = LONGEST;
            }
            let was_deaf = self.state.lock().deaf.replace(lost.why.clone()).is_some();
            if !was_deaf {
                telemetry::deaf(&lost.why);
            }
            self.tell(&Event::Down);
            // Not all at once: the processes of a fleet lose a server in the same moment.
            if !self.rest(pause.mul_f64(1.0 - fastrand::f64() / 2.0)) {
                return;
            }
            pause = (pause * 2).min(LONGEST);
        }
    }

    /// Hears for as long as it goes well; returns when it is not wanted any more.
    fn session(&self) -> Result<(), Lost> {
        let Some(pool) = self.pool.upgrade() else { return Ok(()) };
        let channels = [&self.notices[..], &self.heartbeats];
        let mut subscription = pool.subscribe(&channels, Deadline::NEVER)?;
        // It is not kept alive by those who listen to it.
        drop(pool);
        // The server has said that we are subscribed. That what is published gets here is another
        // matter: it may be another server, or we may not be allowed to. So the first thing to do
        // is to listen to ourselves, and nobody is told that notices come before one did.
        let mut up = false;
        let mut silent_since = Instant::now();
        let mut proof = Some(Proof { sent: false, by: silent_since + PATIENCE });
        while !self.is_closed() {
            // A message is heard before anything that follows from there being none.
            let message = subscription.next(Deadline::after(TICK))?;
            let now = Instant::now();
            if message.is_some() {
                (silent_since, proof) = (now, None);
                if !up {
                    up = true;
                    self.heard.fetch_add(1, Ordering::Relaxed);
                    self.state.lock().deaf = None;
                }
            }
            if up {
                // Those who do not know yet. Before the message, which they are to take for news.
                self.tell(&Event::Up);
            }
            if let Some(message) = message {
                self.deliver(&message);
                continue;
            }
            let proof = match &mut proof {
                Some(proof) => proof,
                None if now.duration_since(silent_since) < SILENCE => continue,
                none => none.insert(Proof { sent: false, by: now + PATIENCE }),
            };
            if now >= proof.by {
                let why = format!("nothing was heard for {:?}", now.duration_since(silent_since));
                return Err(Lost { why, for_long: false });
            }
            if !proof.sent {
                proof.sent = self.send()?;
            }
        }
        Ok(())
    }

    /// Publishes a heartbeat. `false` if it is to be tried again.
    fn send(&self) -> Result<bool, Lost> {
        // The tier is gone, and so will this be.
        let Some(pool) = self.pool.upgrade() else { return Ok(false) };
        match pool.call(&[&[b"PUBLISH", &self.heartbeats, b""]], Deadline::after(TICK)).as_deref() {
            Ok([Reply::Int(_)]) => Ok(true),
            Ok([Reply::Error { code, text }]) => Err(refused(code, text).into()),
            // The pool's troubles are not the subscription's; only in the end they count as such.
            Ok(_) | Err(_) => Ok(false),
        }
    }

    fn deliver(&self, message: &Message) {
        if message.channel != self.notices {
            return;
        }
        match Notice::from_bytes(&message.payload) {
            Some(notice) => self.tell(&Event::Notice(notice)),
            None => {
                self.strange.fetch_add(1, Ordering::Relaxed);
                telemetry::strange_notice(message.payload.len());
            }
        }
    }

    /// Tells the listeners whom it concerns.
    fn tell(&self, event: &Event) {
        let listeners: Vec<_> = {
            let mut state = self.state.lock();
            state.rows.retain(|row| row.listener.strong_count() > 0);
            let rows = state.rows.iter_mut().filter_map(|row| {
                let concerned = match event {
                    Event::Up => !std::mem::replace(&mut row.up, true),
                    Event::Down => std::mem::replace(&mut row.up, false),
                    Event::Notice(_) => row.up,
                };
                concerned.then(|| row.listener.upgrade()).flatten()
            });
            rows.collect()
        };
        for listener in listeners {
            // Whatever it does, the others are told, too. Not even the last reference to it may
            // take the thread along when it is dropped.
            let _ = catch_unwind(AssertUnwindSafe(move || listener.hear(event)));
        }
    }

    /// Waits; `false` if it is not wanted any more.
    fn rest(&self, pause: Duration) -> bool {
        let deadline = Deadline::after(pause);
        let mut state = self.state.lock();
        while !state.closed {
            if !deadline.wait(&self.changed, &mut state) {
                break;
            }
        }
        !state.closed
    }

    fn is_closed(&self) -> bool {
        self.state.lock().closed
    }
}

/// That a connection still carries what is published.
struct Proof {
    sent: bool,
    by: Instant,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State")
            .field("listeners", &self.rows.len())
            .field("deaf", &self.deaf)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::event::News;
    use crate::fleet::redis::fake::Fake;
    use crate::fleet::redis::{Redis, Settings};
    use crate::fleet::{Fingerprint, Origin, Tier};
    use std::sync::mpsc::{Receiver, channel};

    /// Longer than anything in here takes.
    const LONG: Duration = Duration::from_secs(30);

    fn notice(key: u8) -> Notice {
        let key = Fingerprint::from_bytes([key; 16]);
        Notice { from: Origin::from_u64(1), news: News::Invalidated { key } }
    }

    /// A server over which everything comes back that is published, as long as `echoes` says so.
    fn server(echoes: impl Fn() -> Reply + Send + Sync + 'static) -> Fake {
        let (sender, handle) = channel::<Fake>();
        let handle = Mutex::new((handle, None));
        let fake = Fake::new(move |_, command| {
            let mut handle = handle.lock();
            if handle.1.is_none() {
                handle.1 = handle.0.recv().ok();
            }
            let reply = echoes();
            if let (b"PUBLISH", Reply::Int(1..), Some(fake)) = (command[0], &reply, &handle.1) {
                fake.publish(command[1], command[2]);
            }
            reply
        });
        sender.send(fake.clone()).unwrap();
        fake
    }

    fn listener(tier: &Redis) -> (Arc<dyn Listener>, Receiver<Event>) {
        let (sender, events) = channel();
        let listener: Arc<dyn Listener> =
            Arc::new(move |event: &Event| drop(sender.send(event.clone())));
        tier.listen(Arc::downgrade(&listener));
        (listener, events)
    }

    fn tier(fake: &Fake) -> Redis {
        Redis::over(fake.clone()).pool_wait(LONG).io_timeout(LONG).tier().unwrap()
    }

    fn publish(fake: &Fake, notice: &Notice) {
        assert!(fake.publish(b"onefill:ev", &notice.to_bytes()));
    }

    #[test]
    fn what_is_published_is_heard_by_each_listener_from_when_it_came() {
        let fake = server(|| Reply::Int(1));
        let tier = tier(&fake);
        assert_eq!(fake.subscriptions(), 0, "nobody listens");
        let (_one, one_hears) = listener(&tier);
        assert_eq!(one_hears.recv_timeout(LONG), Ok(Event::Up));
        publish(&fake, &notice(1));
        assert_eq!(one_hears.recv_timeout(LONG), Ok(Event::Notice(notice(1))));

        let (two, two_hears) = listener(&tier);
        publish(&fake, &notice(2));
        assert_eq!(two_hears.recv_timeout(LONG), Ok(Event::Up));
        assert_eq!(two_hears.recv_timeout(LONG), Ok(Event::Notice(notice(2))));
        assert_eq!(one_hears.recv_timeout(LONG), Ok(Event::Notice(notice(2))));

        drop(two);
        publish(&fake, &notice(3));
        assert_eq!(one_hears.recv_timeout(LONG), Ok(Event::Notice(notice(3))));
        assert!(two_hears.try_recv().is_err());
        assert_eq!(fake.subscriptions(), 1);
    }

    #[test]
    fn a_break_is_told_at_once_and_mended() {
        let fake = server(|| Reply::Int(1));
        let tier = tier(&fake);
        let (_listener, hears) = listener(&tier);
        for round in 1..4 {
            assert_eq!(hears.recv_timeout(LONG), Ok(Event::Up));
            assert_eq!(tier.report().deaf, None);
            assert_eq!(tier.report().heard, round);
            fake.send(Err(TierError::Unreachable("reset by peer".into())));
            assert_eq!(hears.recv_timeout(LONG), Ok(Event::Down));
            assert!(tier.report().deaf.unwrap().contains("reset by peer"));
        }
    }

    #[test]
    fn before_anything_is_heard_nobody_is_told_that_it_would_be() {
        let fake = server(|| Reply::Int(0)); // published, and nobody was there
        let tier = tier(&fake);
        let (_listener, hears) = listener(&tier);
        let deadline = Deadline::after(LONG);
        while fake.subscriptions() < 2 {
            assert!(!deadline.has_passed(), "it tries again");
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(hears.try_recv().is_err());
        assert!(tier.report().deaf.unwrap().starts_with("nothing was heard for 2"));
    }

    #[test]
    fn whoever_may_not_publish_does_not_hear_in_turns() {
        let fake =
            server(|| Reply::Error { code: "NOPERM".into(), text: "no such channel".into() });
        let tier = tier(&fake);
        let (_listener, hears) = listener(&tier);
        let deadline = Deadline::after(LONG);
        while tier.report().deaf.is_none() {
            assert!(!deadline.has_passed(), "it is said");
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(tier.report().deaf.unwrap().contains("NOPERM"));
        std::thread::sleep(Duration::from_millis(500));
        assert_eq!(fake.subscriptions(), 1, "there is no use in trying again soon");
        assert!(hears.try_recv().is_err());
    }

    #[test]
    fn a_listener_that_panics_harms_nobody() {
        let fake = server(|| Reply::Int(1));
        let tier = tier(&fake);
        let panics: Arc<dyn Listener> = Arc::new(|_: &Event| panic!("a listener's own fault"));
        tier.listen(Arc::downgrade(&panics));
        let (_listener, hears) = listener(&tier);
        assert_eq!(hears.recv_timeout(LONG), Ok(Event::Up));
        publish(&fake, &notice(1));
        publish(&fake, &notice(2));
        assert_eq!(hears.recv_timeout(LONG), Ok(Event::Notice(notice(1))));
        assert_eq!(hears.recv_timeout(LONG), Ok(Event::Notice(notice(2))));
        assert_eq!(fake.subscriptions(), 1);
    }

    #[test]
    fn a_message_that_is_no_notice_is_counted() {
        let fake = server(|| Reply::Int(1));
        let tier = tier(&fake);
        let (_listener, hears) = listener(&tier);
        assert_eq!(hears.recv_timeout(LONG), Ok(Event::Up));
        fake.publish(b"onefill:ev", b"hello");
        fake.publish(b"another channel", &notice(1).to_bytes());
        publish(&fake, &notice(2));
        assert_eq!(hears.recv_timeout(LONG), Ok(Event::Notice(notice(2))));
        assert_eq!(tier.report().strange, 1);
    }

    #[test]
    fn the_thread_ends_with_the_tier() {
        let fake = server(|| Reply::Int(1));
        let tier = tier(&fake);
        let (_listener, hears) = listener(&tier);
        assert_eq!(hears.recv_timeout(LONG), Ok(Event::Up));
        drop(tier);
        let deadline = Deadline::after(LONG);
        while fake.publish(b"onefill:hb", b"") {
            assert!(!deadline.has_passed(), "the subscription is closed");
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(hears.try_recv().is_err(), "that is no trouble");
    }

    #[test]
    fn a_dialer_that_panics_is_tried_again() {
        #[derive(Debug)]
        struct Panics(Fake, std::sync::atomic::AtomicBool);
        impl super::super::Dial for Panics {
            fn dial(&self, by: Deadline) -> Result<Box<dyn super::super::Wire>, TierError> {
                self.0.dial(by)
            }
            fn subscribe(
                &self,
                channels: &[&[u8]],
                by: Deadline,
            ) -> Result<Box<dyn super::super::Subscription>, TierError> {
                assert!(self.1.swap(true, Ordering::SeqCst), "a dialer's own fault");
                self.0.subscribe(channels, by)
            }
        }
        let fake = server(|| Reply::Int(1));
        let namespace = crate::fleet::Namespace::new("onefill");
        let dial = Arc::new(Panics(fake, false.into()));
        let tier = Redis::new(dial, namespace, Settings::default());
        let (_listener, hears) = listener(&tier);
        assert_eq!(hears.recv_timeout(LONG), Ok(Event::Up));
    }
}
