//! [`Connection`]: commands and their replies over one [`Stream`].

use std::collections::VecDeque;
use std::sync::Arc;

use super::client::{self, Client};
use super::frame::{Scan, excerpt};
use super::stream::{Budget, Glance, Stream, is_deadline};
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

    /// What it is that has come before anything was sent: perhaps why the server hangs up.
    fn unasked(&mut self, budget: Budget) -> TierError {
        match self.next(budget) {
            Ok(Some(Reply::Error { code, text })) => {
                TierError::Unreachable(format!("{}: {code} {text}", self.peer))
            }
            _ => self.garbled("what nobody asked for".to_owned()),
        }
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
            // Before anything is sent: afterwards it would pass for the answer.
            match replies.stream.glance() {
                Glance::Quiet => {}
                Glance::Sent => return Err(replies.unasked(budget)),
                Glance::HungUp => {
                    let peer = &replies.peer;
                    return Err(TierError::Unreachable(format!("{peer} hung up")));
                }
            }
            out.clear();
            commands.iter().for_each(|command| client::pack(command, out));
            replies.stream.set_deadline(deadline);
            replies.stream.write(out).map_err(|error| budget.failed(&replies.peer, &error))?;
            out.shrink_to(4 * CHUNK);
            let mut answers = Vec::with_capacity(commands.len());
            for _ in commands {
                let reply = replies.next(budget)?.ok_or_else(|| budget.passed())?;
                if let Reply::Error { code, text } = &reply
                    && super::refusal::is_farewell(code, text)
                {
                    let why = format!("{}: {code} {text}", replies.peer);
                    return Err(TierError::Unreachable(why));
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

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::{Duration, Instant};

    use super::*;
    use crate::fleet::redis::stub::{CLIENTS, Stub};

    const GET: Command<'static> = &[b"GET", b"key"];
    const PTTL: Command<'static> = &[b"PTTL", b"key"];

    fn soon() -> Deadline {
        Deadline::after(Duration::from_secs(20))
    }

    fn connection(stub: &Stub) -> Connection {
        stub.server().connect(soon()).unwrap()
    }

    /// The call fails, and there is no other.
    fn fails(stub: &Stub, deadline: Deadline) -> TierError {
        let mut connection = connection(stub);
        let error = connection.call(&[GET], deadline).unwrap_err();
        let next = connection.call(&[GET], soon()).unwrap_err();
        assert!(next.to_string().ends_with("the connection was given up"), "{next}");
        error
    }

    #[test]
    fn replies_are_in_the_order_of_their_commands() {
        let stub = Stub::saying(b"$5\r\nvalue\r\n:300\r\n");
        for client in CLIENTS {
            let mut connection = stub.server().client(*client).connect(soon()).unwrap();
            for _ in 0..3 {
                let replies = connection.call(&[GET, PTTL], soon()).unwrap();
                assert_eq!(replies, [Reply::Bytes(b"value".to_vec()), Reply::Int(300)]);
            }
        }
        assert_eq!(connection(&stub).call(&[], Deadline::NEVER), Ok(vec![]));
    }

    #[test]
    fn an_error_of_the_server_is_a_reply() {
        let stub = Stub::saying(b"-WRONGTYPE Operation against a key\r\n");
        let mut connection = connection(&stub);
        for _ in 0..2 {
            let reply = connection.ask(GET, soon()).unwrap();
            let text = "Operation against a key".to_owned();
            assert_eq!(reply, Reply::Error { code: "WRONGTYPE".to_owned(), text });
        }
    }

    #[test]
    fn one_reply_too_many_is_the_end_of_a_connection() {
        let error = fails(&Stub::saying(b"$1\r\na\r\n$1\r\nb\r\n"), soon());
        assert!(matches!(&error, TierError::Garbled(what)
            if what.ends_with(r#"sent more than was asked for: "$1\r\nb\r\n""#)));
    }

    /// Anything that came before a command was sent would pass for its answer.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    #[test]
    fn what_comes_unasked_is_the_end_of_a_connection_before_anything_is_sent() {
        for (said, expected) in [
            (&b":1\r\n"[..], "sent what nobody asked for"),
            (b"-ERR max number of clients reached\r\n", "ERR max number of clients reached"),
            (b"", "hung up"),
        ] {
            let (tell, told) = std::sync::mpsc::channel();
            let (go, gone) = std::sync::mpsc::channel::<()>();
            let gone = std::sync::Mutex::new(gone);
            let stub = Stub::new(move |_, mut caller| {
                // So that nothing comes before the connection is made.
                gone.lock().unwrap().recv().unwrap();
                if said.is_empty() {
                    drop(caller);
                    tell.send(false).unwrap();
                } else {
                    caller.say(said);
                    tell.send(false).unwrap();
                    tell.send(caller.hear()).unwrap();
                }
            });
            let mut connection = connection(&stub);
            go.send(()).unwrap();
            told.recv().unwrap();
            let error = connection.call(&[GET], soon()).unwrap_err();
            assert!(error.to_string().ends_with(expected), "{error}");
            drop(connection);
            assert!(said.is_empty() || !told.recv().unwrap(), "nothing was sent over it");
        }
    }

    #[test]
    fn a_reply_that_was_cut_off_is_the_end_of_a_connection() {
        let stub = Stub::new(|_, mut caller| {
            caller.hear();
            caller.say(b"$5\r\nval");
        });
        let error = fails(&stub, soon());
        assert!(error.to_string().ends_with("hung up in the middle of a reply"), "{error}");

        let silent = Stub::new(|_, mut caller| assert!(caller.hear()));
        let error = fails(&silent, soon());
        assert!(matches!(&error, TierError::Unreachable(why) if why.ends_with("hung up")));
    }

    #[test]
    fn what_another_protocol_says_is_told() {
        let error = fails(&Stub::saying(b"HTTP/1.1 400 Bad Request\r\n\r\n"), soon());
        let TierError::Garbled(what) = error else { panic!("{error}") };
        assert!(what.ends_with(r#"sent "HTTP/1.1 400 Bad Request"... is no reply"#), "{what}");
    }

    #[test]
    fn a_server_that_is_full_says_so_and_hangs_up() {
        let error = fails(&Stub::saying(b"-ERR max number of clients reached\r\n"), soon());
        assert!(matches!(&error, TierError::Unreachable(why)
            if why.ends_with("ERR max number of clients reached")));
    }

    #[test]
    fn a_reply_that_drips_is_waited_for_until_the_deadline_only() {
        let stub = Stub::new(|_, mut caller| {
            caller.hear();
            caller.say(b"$1000\r\n");
            while caller.say(b".") {
                thread::sleep(Duration::from_millis(20));
            }
        });
        let began = Instant::now();
        let error = fails(&stub, Deadline::after(Duration::from_millis(150)));
        let TierError::TooSlow { waited } = error else { panic!("{error}") };
        assert!(waited >= Duration::from_millis(150));
        assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    }

    #[test]
    fn a_command_that_is_cut_off_is_the_end_of_a_connection() {
        let stub = Stub::new(|_, caller| {
            thread::sleep(Duration::from_secs(30));
            drop(caller);
        });
        let value = vec![0; 64 << 20];
        let mut connection = connection(&stub);
        let deadline = Deadline::after(Duration::from_millis(100));
        let error = connection.call(&[&[b"SET", b"key", &value]], deadline).unwrap_err();
        assert!(matches!(error, TierError::TooSlow { .. }), "{error}");
        assert!(connection.call(&[GET], soon()).is_err());
    }

    #[test]
    fn nothing_is_sent_after_the_deadline() {
        let stub = Stub::saying(b":1\r\n");
        let passed = Deadline::at(Instant::now());
        assert!(matches!(fails(&stub, passed), TierError::TooSlow { .. }));
    }

    #[test]
    fn lengths_do_not_make_room() {
        let stub = Stub::saying(b"*1000000\r\n$67000000\r\nabc");
        let mut connection = connection(&stub);
        let deadline = Deadline::after(Duration::from_millis(50));
        assert!(connection.call(&[GET], deadline).is_err());
        assert!(connection.replies.buffer.len() <= CHUNK);
    }

    #[test]
    fn a_large_value_passes_and_its_room_is_given_back() {
        let value = vec![7; 1 << 20];
        let frame = [format!("${}\r\n", value.len()).as_bytes(), &value, b"\r\n"].concat();
        let stub = Stub::new(move |_, mut caller| while caller.hear() && caller.say(&frame) {});
        let mut connection = connection(&stub);
        assert_eq!(connection.ask(GET, soon()), Ok(Reply::Bytes(value)));
        connection.replies.make_room();
        assert_eq!(connection.replies.buffer.len(), CHUNK);
    }

    #[test]
    fn messages_are_put_together_from_what_comes() {
        let stub = Stub::new(|_, mut caller| {
            caller.hear();
            caller.say(b"*3\r\n$9\r\nsubscribe\r\n$2\r\nev\r\n:1\r\n");
            caller.say(b"*3\r\n$7\r\nmessage\r\n$2\r\nev\r\n$5\r\nearly\r\n");
            caller.say(b"*3\r\n$9\r\nsubscribe\r\n$2\r\nhb\r\n:2\r\n");
            caller.say(b"*3\r\n$7\r\nmessage\r\n$2\r\nev\r\n$4\r\nla");
            caller.hear(); // the test's sign
            caller.say(b"te\r\n+what\r\n");
            caller.hear();
        });
        let mut subscriber = connection(&stub).subscribe(&[b"ev", b"hb"], soon()).unwrap();
        let message = |payload: &[u8]| {
            Ok(Some(Message { channel: b"ev".to_vec(), payload: payload.to_vec() }))
        };
        assert_eq!(subscriber.next(soon()), message(b"early"));
        // Half a message is none yet, and not lost.
        let short = || Deadline::after(Duration::from_millis(30));
        assert_eq!(subscriber.next(short()), Ok(None));
        assert_eq!(subscriber.next(short()), Ok(None));
        subscriber.replies.stream.set_deadline(soon());
        subscriber.replies.stream.write(b"go on").unwrap();
        assert_eq!(subscriber.next(soon()), message(b"late"));
        assert!(matches!(subscriber.next(soon()), Err(TierError::Garbled(_))));
        assert!(matches!(subscriber.next(soon()), Err(TierError::Unreachable(_))));
    }

    #[test]
    fn a_server_may_refuse_to_let_us_listen() {
        let stub = Stub::saying(b"-NOPERM this user has no permissions\r\n");
        let error = connection(&stub).subscribe(&[b"ev"], soon()).unwrap_err();
        assert_eq!(error.refusal(), Some(crate::Refusal::Denied));
    }
}
