//! [`Server`]: the Redis of a storm; somebody else's, or one that lives as long as the storm does.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use onefill::Deadline;
use onefill::fleet::redis::{Address, Reply, Wire};

use crate::Failure;

/// How long a server may take to start, or to answer.
const PATIENCE: Duration = Duration::from_secs(20);

/// What the watchdog does: it reads from a pipe that only this process can write to. A line means
/// that the server has been seen off; the pipe's end, that this process is gone.
const WATCHDOG: &str = r#"trap "" HUP INT TERM; read -r seen_off || kill -9 "$1""#;

pub(super) struct Server {
    url: String,
    own: Option<Own>,
}

/// A server's process, which ends with this one, however this one ends.
struct Own {
    process: Child,
    watchdog: Child,
}

impl Server {
    pub(super) fn at(url: &str) -> Result<Server, Failure> {
        if matches!(Address::parse(url), Ok(Address::Cluster(_))) {
            let reason =
                "--redis is for one server: a cluster cannot be stopped or tidied as a whole";
            return Err(Failure::Told(reason.into()));
        }
        let server = Server { url: url.to_string(), own: None };
        // For whatever is wrong with it, before anything else is done.
        server.call(&[b"PING"])?;
        Ok(server)
    }

    /// One of our own, on a free port of the loopback. It stores nothing on a disk.
    pub(super) fn start() -> Result<Server, Failure> {
        // Somebody else may take the port between the draw and the start.
        for _ in 0..5 {
            if let Some(server) = Server::try_start()? {
                return Ok(server);
            }
        }
        Err(Failure::Told("each port is in use that was free just before".into()))
    }

    /// `None` if the port is taken.
    fn try_start() -> Result<Option<Server>, Failure> {
        let told = |error: io::Error| Failure::Told(format!("cannot start redis-server: {error}"));
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(told)?;
        let port = free.local_addr().map_err(told)?.port();
        drop(free);
        // So that nobody else gets in, and that whoever answers is ours.
        let password = format!("{:032x}", fastrand::u128(..));
        let mut output = tempfile::tempfile().map_err(told)?;
        let mut server = Server {
            url: format!("redis://:{password}@127.0.0.1:{port}"),
            own: Some(Own::start(&output).map_err(|error| {
                match error.kind() {
                io::ErrorKind::NotFound => Failure::Told(
                    "there is no redis-server in the PATH; install it, or name a server of yours \
                     with --redis"
                        .into(),
                ),
                _ => told(error),
            }
            })?),
        };
        let config = format!(
            "bind 127.0.0.1\nport {port}\nrequirepass {password}\nsave \"\"\nappendonly no\n\
             tcp-backlog 4096\n"
        );
        server.configure(&config).map_err(told)?;
        let began = Instant::now();
        while server.call(&[b"PING"]).is_err() {
            if server.has_ended() {
                let mut said = String::new();
                output.rewind().and_then(|()| output.read_to_string(&mut said)).map_err(told)?;
                return match said.contains("ddress already in use") {
                    true => Ok(None),
                    false => Err(Failure::Told(format!(
                        "redis-server does not start: {}",
                        said.lines().last().unwrap_or("it ended without a word")
                    ))),
                };
            }
            if began.elapsed() > PATIENCE {
                return Err(Failure::Told("redis-server does not answer".into()));
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(Some(server))
    }

    fn configure(&mut self, config: &str) -> io::Result<()> {
        match self.own.as_mut().and_then(|own| own.process.stdin.take()) {
            Some(mut input) => input.write_all(config.as_bytes()),
            None => Ok(()),
        }
    }

    fn has_ended(&mut self) -> bool {
        self.own.as_mut().is_some_and(|own| !matches!(own.process.try_wait(), Ok(None)))
    }

    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// Lets nobody be answered for so long.
    pub(super) fn pause(&self, time: Duration) -> Result<(), Failure> {
        let millis = time.as_millis().to_string();
        self.call(&[b"CLIENT", b"PAUSE", millis.as_bytes(), b"ALL"]).map(drop)
    }

    /// Removes what is stored under a namespace. A server of our own is soon gone as a whole.
    pub(super) fn clean(&self, namespace: &str) -> Result<(), Failure> {
        if self.own.is_some() {
            return Ok(());
        }
        let mut wire = self.wire()?;
        let pattern = format!("{namespace}:*");
        let mut cursor = b"0".to_vec();
        loop {
            let scan: [&[u8]; 6] =
                [b"SCAN", &cursor, b"MATCH", pattern.as_bytes(), b"COUNT", b"1000"];
            let Reply::Array(parts) = call(wire.as_mut(), &scan)? else { break };
            let Ok([Reply::Bytes(next), Reply::Array(names)]) = <[Reply; 2]>::try_from(parts)
            else {
                break;
            };
            let names = names.iter().filter_map(|name| match name {
                Reply::Bytes(name) => Some(&name[..]),
                _ => None,
            });
            for name in names {
                call(wire.as_mut(), &[b"DEL", name])?;
            }
            if next == b"0" {
                break;
            }
            cursor = next;
        }
        Ok(())
    }

    fn call(&self, command: &[&[u8]]) -> Result<Reply, Failure> {
        call(self.wire()?.as_mut(), command)
    }

    fn wire(&self) -> Result<Box<dyn Wire>, Failure> {
        let address =
            Address::parse(&self.url).map_err(|error| Failure::Told(error.to_string()))?;
        let wire = address.into_dial().dial(Deadline::after(PATIENCE));
        wire.map_err(|error| Failure::Told(format!("cannot reach Redis: {error}")))
    }
}

fn call(wire: &mut dyn Wire, command: &[&[u8]]) -> Result<Reply, Failure> {
    match wire.call(&[command], Deadline::after(PATIENCE)).as_mut().map(Vec::pop) {
        Ok(Some(Reply::Error { code, text })) => {
            Err(Failure::Told(format!("Redis says {code} {text}")))
        }
        Ok(Some(reply)) => Ok(reply),
        Ok(None) => Err(Failure::Told("Redis does not answer".into())),
        Err(error) => Err(Failure::Told(format!("cannot reach Redis: {error}"))),
    }
}

impl Own {
    /// Its configuration is read from its standard input, where nobody else sees the password. Both
    /// are in groups of their own, so that an interrupt from the terminal reaches only us.
    fn start(output: &File) -> io::Result<Own> {
        let mut server = Command::new("redis-server");
        server.arg("-").stdin(Stdio::piped()).stdout(output.try_clone()?).stderr(Stdio::null());
        let mut process = server.process_group(0).spawn()?;
        let mut watchdog = Command::new("sh");
        watchdog.args(["-c", WATCHDOG, "watchdog", &process.id().to_string()]);
        watchdog.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        match watchdog.process_group(0).spawn() {
            Ok(watchdog) => Ok(Own { process, watchdog }),
            Err(error) => {
                let _ = process.kill();
                let _ = process.wait();
                Err(error)
            }
        }
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        // Both fail only if it has ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
        if let Some(mut pipe) = self.watchdog.stdin.take() {
            let _ = pipe.write_all(b"seen off\n");
        }
        let _ = self.watchdog.wait();
    }
}
