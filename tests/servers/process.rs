//! A server's process, which does not outlive the tests' one.

use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{io, thread};

use std::os::unix::process::CommandExt;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

use super::patience::PATIENCE;

/// What the watchdog does: it reads from a pipe that only the tests' process can write to. A line
/// means that the server has been seen off; the pipe's end, that the tests' process is gone.
const WATCHDOG: &str =
    r#"trap "" HUP INT TERM; read -r seen_off || { kill -9 "$1"; rm -rf "$2"; }"#;

/// A child process. Killed when this is dropped, and also when the tests' process dies without
/// dropping anything: then its directory goes, too.
#[derive(Debug)]
pub(super) struct Process {
    child: Child,
    watchdog: Child,
}

impl Process {
    /// Starts `command`, whose files are in `directory`; what it prints goes to `output`.
    pub(super) fn start(
        command: &mut Command,
        directory: &Path,
        output: &File,
    ) -> io::Result<Process> {
        // In a group of their own, so that an interrupt from the terminal reaches the tests only.
        command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output.try_clone()?);
        let mut child = command.process_group(0).spawn()?;
        let mut watchdog = Command::new("sh");
        watchdog.args(["-c", WATCHDOG, "watchdog", &child.id().to_string()]).arg(directory);
        watchdog.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        match watchdog.process_group(0).spawn() {
            Ok(watchdog) => Ok(Process { child, watchdog }),
            Err(error) => {
                let _ = child.kill();
                let _ = child.wait();
                Err(error)
            }
        }
    }

    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Whether it has ended by itself.
    pub(super) fn has_ended(&mut self) -> bool {
        self.child.try_wait().map_or(true, |status| status.is_some())
    }

    /// Stops it in its tracks, and waits until it has stopped.
    pub(super) fn pause(&self) {
        kill_process(self.pid(), Signal::STOP).expect("the server is our child");
        let began = Instant::now();
        let stopped = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG;
        while !matches!(waitid(WaitId::Pid(self.pid()), stopped), Ok(Some(_))) {
            assert!(began.elapsed() < PATIENCE, "the server does not stop: has it died?");
            thread::sleep(Duration::from_micros(200));
        }
    }

    pub(super) fn resume(&self) {
        kill_process(self.pid(), Signal::CONT).expect("the server is our child");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both fail only if it has ended already. A stopped process can be killed, too.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Some(mut pipe) = self.watchdog.stdin.take() {
            let _ = io::Write::write_all(&mut pipe, b"seen off\n");
        }
        let _ = self.watchdog.wait();
    }
}
