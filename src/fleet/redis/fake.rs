//! [`Fake`]: a server that answers what its test says.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};

use super::{Command, Dial, Message, Reply, Subscription, Wire};
use crate::deadline::Deadline;
use crate::error::TierError;
use crate::sync::{Arc, Mutex};

/// What a connection, told by its number, answers to a command.
type Answer = Box<dyn Fn(usize, &[&[u8]]) -> Reply + Send + Sync>;
type Heard = Result<Message, TierError>;

/// A handle to a server, which dials it as well.
#[derive(Clone)]
pub(super) struct Fake(Arc<Inner>);

struct Inner {
    answer: Answer,
    dialled: AtomicUsize,
    subscriptions: AtomicUsize,
    commands: Mutex<Vec<Vec<Vec<u8>>>>,
    /// Where messages go to: the last subscription.
    subscriber: Mutex<Option<Sender<Heard>>>,
}

impl Fake {
    pub(super) fn new(answer: impl Fn(usize, &[&[u8]]) -> Reply + Send + Sync + 'static) -> Fake {
        Fake(Arc::new(Inner {
            answer: Box::new(answer),
            dialled: AtomicUsize::new(0),
            subscriptions: AtomicUsize::new(0),
            commands: Mutex::new(Vec::new()),
            subscriber: Mutex::new(None),
        }))
    }

    /// How many connections were made for commands.
    pub(super) fn dialled(&self) -> usize {
        self.0.dialled.load(SeqCst)
    }

    /// How many were made for messages.
    pub(super) fn subscriptions(&self) -> usize {
        self.0.subscriptions.load(SeqCst)
    }

    /// What it was sent.
    pub(super) fn commands(&self) -> Vec<Vec<Vec<u8>>> {
        self.0.commands.lock().clone()
    }

    /// Sends what a subscriber is to hear next; `false` if there is none.
    pub(super) fn send(&self, heard: Heard) -> bool {
        let mut subscriber = self.0.subscriber.lock();
        let sent = subscriber.as_ref().is_some_and(|subscriber| subscriber.send(heard).is_ok());
        if !sent {
            *subscriber = None;
        }
        sent
    }

    pub(super) fn publish(&self, channel: &[u8], payload: &[u8]) -> bool {
        self.send(Ok(Message { channel: channel.to_vec(), payload: payload.to_vec() }))
    }
}

impl fmt::Debug for Fake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Fake")
    }
}

impl Dial for Fake {
    fn dial(&self, _: Deadline) -> Result<Box<dyn Wire>, TierError> {
        let number = self.0.dialled.fetch_add(1, SeqCst);
        Ok(Box::new(Connection { server: self.clone(), number }))
    }

    fn subscribe(&self, _: &[&[u8]], _: Deadline) -> Result<Box<dyn Subscription>, TierError> {
        self.0.subscriptions.fetch_add(1, SeqCst);
        let (sender, messages) = channel();
        *self.0.subscriber.lock() = Some(sender);
        Ok(Box::new(Listening { messages }))
    }
}

struct Connection {
    server: Fake,
    number: usize,
}

impl Wire for Connection {
    fn call(&mut self, commands: &[Command<'_>], _: Deadline) -> Result<Vec<Reply>, TierError> {
        let words = |command: &Command<'_>| command.iter().map(|word| word.to_vec()).collect();
        self.server.0.commands.lock().extend(commands.iter().map(words));
        Ok(commands.iter().map(|command| (self.server.0.answer)(self.number, command)).collect())
    }
}

struct Listening {
    messages: Receiver<Heard>,
}

impl Subscription for Listening {
    fn next(&mut self, deadline: Deadline) -> Result<Option<Message>, TierError> {
        let wait = deadline.remaining().expect("the ear looks around now and then");
        match self.messages.recv_timeout(wait) {
            Ok(heard) => heard.map(Some),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(TierError::Unreachable("gone".into())),
        }
    }
}
