//! [`Sentinel`]: the master of a group of servers, whichever that is.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::connection::Connection;
use super::refusal::refused;
use super::{Client, Dial, Reply, Server, Subscription, Wire};
use crate::deadline::Deadline;
use crate::error::{BuildError, TierError};
use crate::sync::Arc;

/// The master of a group of servers, by the name that Sentinels know it by.
///
/// Each connection begins with a question to one Sentinel after the other, until one knows a master
/// that says itself that it is one; none of them gets more than its share of the time. So the users
/// that ask must be allowed `SENTINEL` there and `ROLE` here. A connection stays with its server: a
/// master that has become a replica refuses writes, or hangs up.
///
/// ```
/// use onefill::fleet::redis::{Sentinel, Server};
///
/// let sentinels = [Server::tcp("s1.internal", 26379), Server::tcp("s2.internal", 26379)];
/// // How to talk to the master, wherever it is: the address is replaced.
/// let master = Server::tcp("", 0).credentials("app", "secret");
/// let dial = Sentinel::new("main", sentinels, master)?;
/// # Ok::<(), onefill::BuildError>(())
/// ```
#[derive(Clone)]
pub struct Sentinel {
    service: String,
    sentinels: Vec<Server>,
    master: Server,
    /// The one to ask first: whichever has answered last.
    first: Arc<AtomicUsize>,
}

impl Sentinel {
    /// The master named `service`, as these Sentinels know it; each with its own credentials and
    /// encryption. Those of the master, and its database, are those of `master`, whose address does
    /// not matter.
    ///
    /// # Errors
    ///
    /// [`BuildError`] if there is no Sentinel to ask.
    pub fn new(
        service: impl Into<String>,
        sentinels: impl IntoIterator<Item = Server>,
        master: Server,
    ) -> Result<Sentinel, BuildError> {
        let sentinels: Vec<_> = sentinels.into_iter().collect();
        if sentinels.is_empty() {
            return Err(BuildError::new("sentinels", 0, "one or more"));
        }
        Ok(Sentinel { service: service.into(), sentinels, master, first: Arc::default() })
    }

    /// Whose parser reads the replies.
    #[must_use]
    pub fn client(mut self, client: Client) -> Sentinel {
        self.sentinels =
            self.sentinels.into_iter().map(|sentinel| sentinel.client(client)).collect();
        self.master = self.master.client(client);
        self
    }

    /// Encrypts the connections to the Sentinels and to the master.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn tls(mut self, tls: super::Tls) -> Sentinel {
        self.sentinels =
            self.sentinels.into_iter().map(|sentinel| sentinel.tls(tls.clone())).collect();
        self.master = self.master.tls(tls);
        self
    }

    fn connect(&self, deadline: Deadline) -> Result<Connection, TierError> {
        let (first, all) = (self.first.load(Ordering::Relaxed), self.sentinels.len());
        // Of the errors that a failover brings, those of a master tell more.
        let (mut of_master, mut of_sentinel) = (None, None);
        for tried in 0..all {
            let index = (first + tried) % all;
            // One share is left for the master.
            let share = deadline.share(all - tried + 1);
            match self.ask(&self.sentinels[index], share) {
                Ok(master) => match connect_master(&master, deadline) {
                    Ok(connection) => {
                        self.first.store(index, Ordering::Relaxed);
                        return Ok(connection);
                    }
                    Err(error) => of_master = Some(error),
                },
                Err(error) => of_sentinel = Some(error),
            }
        }
        Err(of_master.or(of_sentinel).expect("there is at least one"))
    }

    /// Where the master is, as far as this one knows.
    fn ask(&self, sentinel: &Server, deadline: Deadline) -> Result<Server, TierError> {
        let mut connection = sentinel.connect(deadline)?;
        let question: &[&[u8]] =
            &[b"SENTINEL", b"GET-MASTER-ADDR-BY-NAME", self.service.as_bytes()];
        match connection.ask(question, deadline)? {
            Reply::Error { code, text } => return Err(refused(&code, &text)),
            Reply::Array(parts) => {
                if let [Reply::Bytes(host), Reply::Bytes(port)] = &parts[..] {
                    let (host, port) = (std::str::from_utf8(host), std::str::from_utf8(port));
                    if let (Ok(host), Ok(Ok(port))) = (host, port.map(str::parse)) {
                        return Ok(self.master.elsewhere(host, port));
                    }
                }
            }
            Reply::Nil => {
                let (peer, service) = (sentinel.peer(), &self.service);
                let why = format!("sentinel {peer} knows no master named {service:?}");
                return Err(TierError::Unreachable(why));
            }
            _ => {}
        }
        Err(TierError::Garbled(format!("sentinel {} sent no address", sentinel.peer())))
    }
}

/// A Sentinel may not have heard yet of a failover.
fn connect_master(master: &Server, deadline: Deadline) -> Result<Connection, TierError> {
    let mut connection = master.connect(deadline)?;
    match connection.ask(&[b"ROLE"], deadline)? {
        Reply::Error { code, text } => Err(refused(&code, &text)),
        Reply::Array(parts) if parts.first() == Some(&Reply::Bytes(b"master".to_vec())) => {
            Ok(connection)
        }
        _ => Err(TierError::Unreachable(format!("{} is no master any more", master.peer()))),
    }
}

impl Dial for Sentinel {
    fn dial(&self, deadline: Deadline) -> Result<Box<dyn Wire>, TierError> {
        Ok(Box::new(self.connect(deadline)?))
    }

    fn subscribe(
        &self,
        channels: &[&[u8]],
        deadline: Deadline,
    ) -> Result<Box<dyn Subscription>, TierError> {
        Ok(Box::new(self.connect(deadline)?.subscribe(channels, deadline)?))
    }
}

impl fmt::Debug for Sentinel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let asked: Vec<_> = self.sentinels.iter().map(Server::peer).collect();
        write!(f, "Sentinel(redis-sentinel://{}/{})", asked.join(","), self.service)
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::fleet::redis::stub::Stub;

    fn soon() -> Deadline {
        Deadline::after(Duration::from_secs(20))
    }

    /// Tells everybody that the master is there.
    fn sentinel(port: u16) -> Stub {
        let answer = format!("*2\r\n$9\r\n127.0.0.1\r\n${}\r\n{port}\r\n", port.to_string().len());
        Stub::new(move |_, mut caller| while caller.hear() && caller.say(answer.as_bytes()) {})
    }

    fn server(role: &'static str) -> Stub {
        Stub::new(move |_, mut caller| {
            while let Some(request) = caller.request() {
                if request.ends_with(b"ROLE\r\n") {
                    caller
                        .say(format!("*3\r\n${}\r\n{role}\r\n:0\r\n*0\r\n", role.len()).as_bytes());
                } else {
                    caller.say(b":1\r\n");
                }
            }
        })
    }

    fn dial(sentinels: &[&Stub]) -> Sentinel {
        let sentinels = sentinels.iter().map(|stub| stub.server());
        Sentinel::new("main", sentinels, Server::tcp("", 0)).unwrap()
    }

    #[test]
    fn the_master_is_found_behind_sentinels_that_are_of_no_help() {
        let (master, replica) = (server("master"), server("slave"));
        let hung = Stub::new(|_, mut caller| while caller.hear() {});
        let ignorant = Stub::saying(b"*-1\r\n");
        let (late, right) = (sentinel(replica.port), sentinel(master.port));
        let dial = dial(&[&hung, &ignorant, &late, &right]);
        let began = Instant::now();
        let mut wire = dial.dial(Deadline::after(Duration::from_secs(2))).unwrap();
        assert!(began.elapsed() < Duration::from_secs(2));
        assert_eq!(wire.call(&[&[b"GET", b"key"]], soon()), Ok(vec![Reply::Int(1)]));
        // The one that has helped is asked first.
        dial.dial(soon()).unwrap();
        assert_eq!((hung.accepted(), right.accepted()), (1, 2));
    }

    #[test]
    fn no_master_is_for_a_reason() {
        let replica = server("slave");
        let (late, down) = (sentinel(replica.port), Stub::saying(b"nonsense"));
        let error = dial(&[&late, &down]).dial(soon()).err().unwrap();
        assert!(error.to_string().ends_with("is no master any more"), "{error}");
        let ignorant = Stub::saying(b"*-1\r\n");
        let error = dial(&[&ignorant]).dial(soon()).err().unwrap();
        assert!(error.to_string().ends_with("knows no master named \"main\""), "{error}");
        assert!(Sentinel::new("main", [], Server::tcp("", 0)).is_err());
    }
}
