//! [`Script`]: what a server does in one step.

use crate::deadline::Deadline;
use crate::error::TierError;

use super::{Pool, Reply};

/// A script, known to a server by its digest once it has seen it.
#[derive(Debug)]
pub(super) struct Script {
    text: &'static str,
    /// SHA-1 of the text, in hexadecimal digits: what the server files it under.
    digest: &'static str,
}

macro_rules! scripts {
    ($($name:ident = $file:literal, $digest:literal;)*) => {
        $(pub(super) const $name: Script =
            Script { text: include_str!(concat!("lua/", $file)), digest: $digest };)*
        #[cfg(test)]
        const ALL: &[Script] = &[$($name),*];
    };
}
scripts! {
    ACQUIRE = "acquire.lua", "e581d5c77e3020926aa474e8bc202a4bebf2bab7";
    COMMIT = "commit.lua", "e07249c5334372a840f3de31029e500fe6df3eea";
    RENEW = "renew.lua", "dcf6127ff697ea75fcc39822b7f3b359ef4c4709";
    RELEASE = "release.lua", "1eb968da084a85dbcdba8bf63d077ad8979d41df";
    INVALIDATE = "invalidate.lua", "baa4365a8b46785283023e5a613d25dfc4c104e3";
    PUT = "put.lua", "139c428ded50efbb18e023919c118961bc55f939";
    EPOCH = "epoch.lua", "fff63798e57308d82fc49939b658208a9eefa9db";
    INVALIDATE_ALL = "invalidate_all.lua", "23a1c000b3c69e6e827563f0b18d3afe5cebdc3a";
}

impl Script {
    /// Runs it, and reads the reply. The server is sent the digest, and the text only if it does
    /// not know that: a restart, a failover or an operator may have made it forget, at any time.
    pub(super) fn run<T>(
        &self,
        pool: &Pool,
        keys: &[&[u8]],
        arguments: &[&[u8]],
        deadline: Deadline,
        read: impl Fn(Reply) -> Result<T, TierError>,
    ) -> Result<T, TierError> {
        let count = keys.len().to_string();
        let mut command = vec![&b"EVALSHA"[..], self.digest.as_bytes(), count.as_bytes()];
        command.extend(keys);
        command.extend(arguments);
        let known = pool.call_with(&[&command], deadline, |replies| match one(replies)? {
            Reply::Error { code, .. } if code == "NOSCRIPT" => Ok(None),
            reply => read(reply).map(Some),
        })?;
        match known {
            Some(answer) => Ok(answer),
            None => {
                // Nothing was done, so it can be asked for again. This makes the server remember.
                command[..2].copy_from_slice(&[b"EVAL", self.text.as_bytes()]);
                pool.call_with(&[&command], deadline, |replies| read(one(replies)?))
            }
        }
    }
}

/// The reply to one command.
fn one(replies: Vec<Reply>) -> Result<Reply, TierError> {
    let [reply] = <[Reply; 1]>::try_from(replies).map_err(|replies| {
        TierError::Garbled(format!("{} replies to one command", replies.len()))
    })?;
    Ok(reply)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_digest_is_that_of_its_text() {
        for script in ALL {
            let digest = sha1_smol::Sha1::from(script.text).digest().to_string();
            let first = script.text.lines().next().unwrap_or_default();
            assert_eq!(script.digest, digest, "{first}");
        }
    }
}
