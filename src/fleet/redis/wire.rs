//! [`Wire`]: the exclusive use of one connection; [`Dial`]: how to make one.

use std::fmt;

use crate::deadline::Deadline;
use crate::error::TierError;

/// One command: its name, and its arguments.
pub type Command<'a> = &'a [&'a [u8]];

/// The exclusive use of one connection to a server.
///
/// # For whoever writes one
///
/// `Ok` says that each command was answered by one complete reply, and that nothing else has come:
/// a server that says no is a [`Reply::Error`], and the connection is fine. `Err` says that nobody
/// knows what comes next over this connection; the pool throws it away, and so a reply that is late
/// is never taken for the answer to another command.
pub trait Wire: Send {
    /// Sends the commands, all at once, and returns their replies in the same order, by
    /// `deadline`, however the replies drip in.
    ///
    /// # Errors
    ///
    /// [`Unreachable`](TierError::Unreachable), [`TooSlow`](TierError::TooSlow) or
    /// [`Garbled`](TierError::Garbled); never [`Refused`](TierError::Refused).
    fn call(
        &mut self,
        commands: &[Command<'_>],
        deadline: Deadline,
    ) -> Result<Vec<Reply>, TierError>;
}

/// A connection that messages come over.
pub trait Subscription: Send {
    /// The next message, waiting for it until `deadline`; `None` if there was none by then. What
    /// has come of a message by then is kept for the next call.
    ///
    /// # Errors
    ///
    /// As [`Wire::call`]: the connection is of no more use.
    fn next(&mut self, deadline: Deadline) -> Result<Option<Message>, TierError>;
}

/// A message of a [`Subscription`].
#[derive(Clone, PartialEq, Eq)]
pub struct Message {
    /// The channel it was published to.
    pub channel: Vec<u8>,
    /// What it says.
    pub payload: Vec<u8>,
}

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Message({}, {} bytes)", self.channel.escape_ascii(), self.payload.len())
    }
}

/// How to reach a server, or a group of servers that pass for one.
pub trait Dial: Send + Sync + fmt::Debug {
    /// Makes a connection that is ready for commands: connected, encrypted, authenticated, all of
    /// it by `deadline`.
    ///
    /// # Errors
    ///
    /// Any [`TierError`]; a server that does not let us in has [refused](TierError::Refused).
    fn dial(&self, deadline: Deadline) -> Result<Box<dyn Wire>, TierError>;

    /// Makes a connection that has subscribed to `channels`, confirmed by the server.
    ///
    /// # Errors
    ///
    /// As [`dial`](Dial::dial).
    fn subscribe(
        &self,
        channels: &[&[u8]],
        deadline: Deadline,
    ) -> Result<Box<dyn Subscription>, TierError>;
}

/// What a server answers to a command.
#[derive(Clone, PartialEq, Eq)]
pub enum Reply {
    /// There is nothing.
    Nil,
    /// A number.
    Int(i64),
    /// Bytes, or a status such as `OK`.
    Bytes(Vec<u8>),
    /// Several.
    Array(Vec<Reply>),
    /// No: the code, such as `WRONGTYPE`, and the rest of the line.
    Error {
        /// The first word.
        code: String,
        /// The others.
        text: String,
    },
}

/// Without the bytes, which may be many, and are nobody's business.
impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reply::Nil => f.write_str("Nil"),
            Reply::Int(number) => write!(f, "Int({number})"),
            Reply::Bytes(bytes) => write!(f, "Bytes({} bytes)", bytes.len()),
            Reply::Array(replies) => f.debug_list().entries(replies).finish(),
            Reply::Error { code, text } => write!(f, "Error({code} {text})"),
        }
    }
}
