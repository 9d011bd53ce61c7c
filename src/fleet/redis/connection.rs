//! [`Connection`]: commands and their replies over one [`Stream`].

use std::collections::VecDeque;
use std::sync::Arc;

use super::client::{self, Client};
use super::frame::{Scan, excerpt};
use super::stream::{Budget, Stream, is_deadline};
use super::{Command, Message, Reply, Subscription, Wire};
use crate::deadline::Deadline;
use crate::error::TierError;

/// What is read at once, at least; and what is kept of a buffer that a large value has passed
/// through, at most.
const CHUNK: usize = 16 << 10;

/// Replies, one after the other, as they come out of a stream.
#[derive(Debug)]
struct Replies {
    stream: Stream,
    client: Client,
    /// Whom errors speak of.
    peer: Arc<str>,
    /// Room for bytes; it grows as they come, whatever lengths they announce.
    buffer: Vec<u8>,
    /// Where those begin that no reply was made of, and where they end.
    start: usize,
    end: usize,
    /// How far they were looked at.
    scan: Scan,
    /// Set for as long as nobody knows what comes next.
    broken: bool,
}

impl Replies {
    fn new(stream: Stream, client: Client, peer: Arc<str>) -> Replies {
        Replies {
            stream,
            client,
            peer,
            buffer: vec![0; CHUNK],
            start: 0,
            end: 0,
            scan: Scan::default(),
            broken: false,
        }
    }

    /// The next reply, or `None` if it was not complete by the deadline, in which case what there
    /// is of it is kept.
    fn next(&mut self, budget: Budget) -> Result<Option<Reply>, TierError> {
        self.stream.set_deadline(budget.deadline);
        loop {
            let bytes = &self.buffer[self.start..self.end];
            if let Some(len) = self.scan.advance(bytes).map_err(|what| self.garbled(what))? {
                let reply = self.client.decode(&bytes[..len]);
                self.start += len;
                self.scan = Scan::default();
                return reply.map(Some).map_err(|what| self.garbled(what));
            }
            self.make_room();
            match self.stream.read(&mut self.buffer[self.end..]) {
                Ok(0) => {
                    let cut = if self.start == self.end { "" } else { " in the middle of a reply" };
                    let peer = &self.peer;
                    return Err(TierError::Unreachable(format!("{peer} hung up{cut}")));
                }
                Ok(read) => self.end += read,
                Err(error) if is_deadline(&error) => return Ok(None),
                Err(error) => return Err(budget.failed(&self.peer, &error)),
            }
        }
    }

    fn make_room(&mut self) {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
            if self.buffer.len() > 4 * CHUNK {
                self.buffer = vec![0; CHUNK];
            }
        } else if self.end == self.buffer.len() {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
            if self.end > self.buffer.len() / 2 {
                self.buffer.resize(2 * self.buffer.len(), 0);
            }
        }
    }

    /// Whether bytes have come that nobody asked for.
    fn is_ahead(&mut self) -> bool {
        self.start < self.end || self.stream.has_more()
    }

    fn garbled(&self, what: String) -> TierError {
        TierError::Garbled(format!("{} sent {what}", self.peer))
    }

    /// Does `work`, after which the connection can be used only if that was `Ok`; not even if it
    /// panicked.
    fn guarded<R>(
        &mut self,
        work: impl FnOnce(&mut Replies) -> Result<R, TierError>,
    ) -> Result<R, TierError> {
        if std::mem::replace(&mut self.broken, true) {
            let peer = &self.peer;
            return Err(TierError::Unreachable(format!("{peer}: the connection was given up")));
        }
        let done = work(self)?;
        self.broken = false;
        Ok(done)
    }
}

/// A connection to one server.
#[derive(Debug)]
pub(super) struct Connection {
    replies: Replies,
    /// Commands on their way out: kept for its room.
    out: Vec<u8>,
}

impl Connection {
    pub(super) fn new(stream: Stream, client: Client, peer: Arc<str>) -> Connection {
        Connection { replies: Replies::new(stream, client, peer), out: Vec::new() }
    }

    /// The reply to a single command.
    pub(super) fn ask(
        &mut self,
        command: Command<'_>,
        deadline: Deadline,
    ) -> Result<Reply, TierError> {
        let mut replies = self.call(&[command], deadline)?;
        Ok(replies.pop().expect("one command has one reply"))
    }

    /// Subscribes to the channels, and waits until the server says so.
    pub(super) fn subscribe(
        mut self,
        channels: &[&[u8]],
        deadline: Deadline,
    ) -> Result<Subscriber, TierError> {
        let mut subscriber = Subscriber { early: VecDeque::new(), replies: self.replies };
        let Subscriber { early, replies } = &mut subscriber;
        replies.guarded(|replies| {
            let budget = Budget::new(deadline);
            let command: Vec<_> =
                [b"SUBSCRIBE".as_slice()].iter().chain(channels).copied().collect();
            self.out.clear();
            client::pack(&command, &mut self.out);
            replies.stream.set_deadline(deadline);
            replies
                .stream
                .write(&self.out)
                .map_err(|error| budget.failed(&replies.peer, &error))?;
            let mut to_confirm = channels.len();
            while to_confirm > 0 {
                match replies.next(budget)?.ok_or_else(|| budget.passed())? {
                    Reply::Error { code, text } => {
                        return Err(super::refusal::refused(&code, &text));
                    }
                    reply if is_confirmation(&reply) => to_confirm -= 1,
                    reply => early.push_back(message(reply).map_err(|what| replies.garbled(what))?),
                }
            }
            Ok(())
        })?;
        Ok(subscriber)
    }
}

impl Wire for Connection {
    fn call(
        &mut self,
        commands: &[Command<'_>],
        deadline: Deadline,
    ) -> Result<Vec<Reply>, TierError> {
        let budget = Budget::new(deadline);
        let Connection { replies, out } = self;
        replies.guarded(|replies| {
            out.clear();
            commands.iter().for_each(|command| client::pack(command, out));
            replies.stream.set_deadline(deadline);
            replies.stream.write(out).map_err(|error| budget.failed(&replies.peer, &error))?;
            out.shrink_to(4 * CHUNK);
            let mut answers = Vec::with_capacity(commands.len());
            for _ in commands {
                let reply = replies.next(budget)?.ok_or_else(|| budget.passed())?;
                if let Reply::Error { code, text } = &reply {
                    if super::refusal::is_farewell(code, text) {
                        return Err(TierError::Unreachable(format!(
                            "{}: {code} {text}",
                            replies.peer
                        )));
                    }
                }
                answers.push(reply);
            }
            if replies.is_ahead() {
                let rest = excerpt(&replies.buffer[replies.start..replies.end]);
                return Err(replies.garbled(format!("more than was asked for: {rest}")));
            }
            Ok(answers)
        })
    }
}

/// A connection that has subscribed.
#[derive(Debug)]
pub(super) struct Subscriber {
    /// Messages that came before the last confirmation.
    early: VecDeque<Message>,
    replies: Replies,
}

impl Subscription for Subscriber {
    fn next(&mut self, deadline: Deadline) -> Result<Option<Message>, TierError> {
        if let Some(message) = self.early.pop_front() {
            return Ok(Some(message));
        }
        self.replies.guarded(|replies| {
            let Some(reply) = replies.next(Budget::new(deadline))? else { return Ok(None) };
            message(reply).map(Some).map_err(|what| replies.garbled(what))
        })
    }
}

fn is_confirmation(reply: &Reply) -> bool {
    matches!(reply, Reply::Array(parts)
        if matches!(&parts[..], [Reply::Bytes(kind), Reply::Bytes(_), Reply::Int(_)] if kind == b"subscribe"))
}

fn message(reply: Reply) -> Result<Message, String> {
    match reply {
        Reply::Array(parts) => match <[Reply; 3]>::try_from(parts) {
            Ok([Reply::Bytes(kind), Reply::Bytes(channel), Reply::Bytes(payload)])
                if kind == b"message" =>
            {
                Ok(Message { channel, payload })
            }
            _ => Err("something that is no message to a subscriber".to_owned()),
        },
        Reply::Error { code, text } => Err(format!("an error to a subscriber: {code} {text}")),
        _ => Err("something that is no message to a subscriber".to_owned()),
    }
}
