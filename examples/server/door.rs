//! How requests come in: a deadline for each, a bounded queue, threads, and the end.
//!
//! `tiny_http` has a thread for each connection, which reads requests and hands them over one by
//! one. Here they are given a deadline and put in a queue, from which a fixed number of threads
//! take them. Both are bounds: on what is worked on at once, and on what waits. Without the second,
//! a server that is too slow for its clients has a queue that only grows, and answers nobody in
//! time any more, however fast it is.
//!
//! What this door cannot do is time out a client that sends its request letter by letter: sockets
//! of `tiny_http` have no timeouts. Such a client holds a thread of a connection, and none of ours;
//! have a proxy in front that knows better.

use std::net::TcpListener;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};
use tiny_http::{Request, Server};

use crate::reply::Reply;
use crate::routes::{App, Asked};

/// How long an answer is of use to a client that does not say.
const TIMEOUT: Duration = Duration::from_secs(2);

/// And to one that does, at most: nobody may hold a thread for as long as they please.
const TIMEOUT_CAP: Duration = Duration::from_secs(10);

/// How many requests may wait, for each thread.
const WAITING_PER_THREAD: usize = 8;

/// The largest body that is taken. `tiny_http` reads bodies of up to 1,024 bytes before it hands the
/// request over, so none of our threads ever waits for a client to send one.
const LARGEST_BODY: usize = 1024;

/// A request, and when its answer is of no more use.
struct Job {
    request: Request,
    deadline: Result<Instant, Reply>,
}

pub(crate) struct Door {
    server: Arc<Server>,
    stopping: Arc<AtomicBool>,
    jobs: Sender<Job>,
    /// Nothing is ever sent over it. It is disconnected when the last thread has ended.
    threads: Receiver<()>,
    app: Arc<App>,
}

/// Stops a [`Door`], from another thread.
pub(crate) struct Stopper {
    server: Arc<Server>,
    stopping: Arc<AtomicBool>,
}

impl Stopper {
    pub(crate) fn stop(self) {
        self.stopping.store(true, Ordering::SeqCst);
        self.server.unblock();
    }
}

impl Door {
    pub(crate) fn open(
        listener: TcpListener,
        threads: usize,
        app: &Arc<App>,
    ) -> Result<Door, String> {
        let server = Server::from_listener(listener, None).map_err(|error| error.to_string())?;
        let (jobs, queue) = bounded::<Job>(threads * WAITING_PER_THREAD);
        let (alive, ended) = bounded(0);
        for number in 0..threads {
            let (queue, app, alive) = (queue.clone(), Arc::clone(app), Sender::clone(&alive));
            let work = move || {
                let _alive = alive;
                queue.iter().for_each(|job| answer(&app, job));
            };
            thread::Builder::new()
                .name(format!("request-{number}"))
                .spawn(work)
                .map_err(|error| format!("cannot start {threads} threads: {error}"))?;
        }
        Ok(Door {
            server: Arc::new(server),
            stopping: Arc::default(),
            jobs,
            threads: ended,
            app: Arc::clone(app),
        })
    }

    pub(crate) fn stopper(&self) -> Stopper {
        Stopper { server: Arc::clone(&self.server), stopping: Arc::clone(&self.stopping) }
    }

    /// Lets requests in until it is stopped; then finishes those that are in, for `grace` at most.
    pub(crate) fn serve(self, grace: Duration) -> Result<(), String> {
        let end = loop {
            match self.server.recv() {
                Ok(request) => self.admit(request),
                Err(_) if self.stopping.load(Ordering::SeqCst) => break Ok(()),
                // Accepting has failed, for want of file descriptors, say, and `tiny_http` has given
                // it up. Whoever supervises this process starts another one, which accepts again.
                Err(error) => break Err(format!("cannot accept connections: {error}")),
            }
        };
        // What had come before the end is in.
        while let Ok(Some(request)) = self.server.try_recv() {
            self.admit(request);
        }
        // No more connections; no more jobs. Threads end when they have emptied the queue. What comes
        // now over a connection that was open is not answered; its end says to ask elsewhere.
        drop(self.server);
        drop(self.jobs);
        match self.threads.recv_timeout(grace) {
            Err(crossbeam_channel::RecvTimeoutError::Timeout) => {
                Err(format!("stopped with requests unanswered after {grace:?}"))
            }
            _ => end,
        }
    }

    /// Gives the request its deadline and has a thread answer it; or says that there are too many.
    fn admit(&self, request: Request) {
        // Once, and before it waits: time in the queue is time that its client waits, too.
        let deadline = deadline(&request, Instant::now());
        if let Err(TrySendError::Full(job) | TrySendError::Disconnected(job)) =
            self.jobs.try_send(Job { request, deadline })
        {
            self.app.count("queue", 503);
            Reply::unavailable("too many requests are waiting").send(job.request);
        }
    }
}

/// Until when the answer is of use: as the client says, within reason.
fn deadline(request: &Request, arrived: Instant) -> Result<Instant, Reply> {
    let said = request.headers().iter().find(|header| header.field.equiv("X-Request-Timeout-Ms"));
    let timeout = match said {
        None => TIMEOUT,
        Some(header) => match header.value.as_str().trim().parse() {
            Ok(millis) => TIMEOUT_CAP.min(Duration::from_millis(millis)),
            Err(_) => {
                return Err(Reply::error(400, "X-Request-Timeout-Ms is a number of milliseconds"));
            }
        },
    };
    Ok(arrived + timeout)
}

fn answer(app: &App, job: Job) {
    let Job { mut request, deadline } = job;
    let (route, reply) = match deadline.and_then(|deadline| asked(&mut request, deadline)) {
        Err(reply) => ("door", reply),
        Ok(asked) => {
            // A panic is one request's misfortune. Without this the thread would be gone for all.
            catch_unwind(AssertUnwindSafe(|| app.answer(&asked)))
                .unwrap_or_else(|_| ("panic", Reply::error(500, "this is a bug")))
        }
    };
    app.count(route, reply.status);
    reply.send(request);
}

/// What `request` asks for.
fn asked(request: &mut Request, deadline: Instant) -> Result<Asked, Reply> {
    // Its client is gone by now, or soon; what is left of the time is for those who still wait.
    if deadline <= Instant::now() {
        return Err(Reply::unavailable("timed out in the queue, before any work began"));
    }
    let mut body = Vec::new();
    match request.body_length() {
        Some(length) if length > LARGEST_BODY => {
            return Err(Reply::error(413, "a product has no more than 1,024 bytes"));
        }
        Some(_) => {
            let read = request.as_reader().read_to_end(&mut body);
            read.map_err(|_| Reply::error(400, "the body does not come to its end"))?;
        }
        None if request.headers().iter().any(|h| h.field.equiv("Transfer-Encoding")) => {
            return Err(Reply::error(411, "a body comes with its length"));
        }
        None => {}
    }
    let path = request.url().split('?').next().unwrap_or_default().to_owned();
    Ok(Asked { method: request.method().clone(), path, body, deadline })
}
