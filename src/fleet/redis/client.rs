//! [`Client`]: whose parser makes replies of bytes.

use super::{Command, Reply, frame};

/// Which client crate reads what a server sends.
///
/// Sockets, deadlines and framing are this crate's own with either: neither client can bound a call
/// by a deadline, only single reads. What they read is the same, too. A build can have both.
///
/// The default is [`Redis`](Client::Redis), if the build has it.
///
#[cfg_attr(feature = "redis", doc = "```")]
#[cfg_attr(not(feature = "redis"), doc = "```ignore")]
/// use onefill::fleet::redis::Client;
///
/// assert_eq!(Client::default(), Client::Redis);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Client {
    /// The `redis` crate of today: the feature `redis`.
    #[cfg(feature = "redis")]
    Redis,
    /// The `redis` crate that `r2d2_redis` brings along: the feature of that name.
    #[cfg(feature = "r2d2_redis")]
    R2d2Redis,
}

impl Default for Client {
    fn default() -> Client {
        #[cfg(feature = "redis")]
        return Client::Redis;
        #[cfg(not(feature = "redis"))]
        return Client::R2d2Redis;
    }
}

impl Client {
    /// Makes a reply of one whole frame; what is wrong with it, if it is none.
    pub(super) fn decode(self, whole: &[u8]) -> Result<Reply, String> {
        if let Some(error) = frame::as_error(whole) {
            return Ok(error);
        }
        match self {
            #[cfg(feature = "redis")]
            Client::Redis => {
                let value = redis::parse_redis_value(whole).map_err(|error| error.to_string())?;
                of_redis(value)
            }
            #[cfg(feature = "r2d2_redis")]
            Client::R2d2Redis => {
                let value = r2d2_redis::redis::parse_redis_value(whole)
                    .map_err(|error| error.to_string())?;
                Ok(of_r2d2_redis(value))
            }
        }
    }
}

#[cfg(feature = "redis")]
fn of_redis(value: redis::Value) -> Result<Reply, String> {
    use redis::Value;

    Ok(match value {
        Value::Nil => Reply::Nil,
        Value::Int(number) => Reply::Int(number),
        Value::BulkString(bytes) => Reply::Bytes(bytes),
        Value::SimpleString(text) => Reply::Bytes(text.into_bytes()),
        Value::Okay => Reply::Bytes(b"OK".to_vec()),
        Value::Array(values) => {
            Reply::Array(values.into_iter().map(of_redis).collect::<Result<_, _>>()?)
        }
        // Frames are of RESP2, in which there is no more.
        _ => return Err("a reply of RESP3".to_owned()),
    })
}

#[cfg(feature = "r2d2_redis")]
fn of_r2d2_redis(value: r2d2_redis::redis::Value) -> Reply {
    use r2d2_redis::redis::Value;

    match value {
        Value::Nil => Reply::Nil,
        Value::Int(number) => Reply::Int(number),
        Value::Data(bytes) => Reply::Bytes(bytes),
        Value::Status(text) => Reply::Bytes(text.into_bytes()),
        Value::Okay => Reply::Bytes(b"OK".to_vec()),
        Value::Bulk(values) => Reply::Array(values.into_iter().map(of_r2d2_redis).collect()),
    }
}

/// Appends a command as it goes over the wire. The clients' packers would have it copied twice, and
/// a value may have a megabyte.
pub(super) fn pack(command: Command<'_>, out: &mut Vec<u8>) {
    let header = |out: &mut Vec<u8>, kind: u8, len: usize| {
        out.push(kind);
        out.extend_from_slice(len.to_string().as_bytes());
        out.extend_from_slice(b"\r\n");
    };
    header(out, b'*', command.len());
    for word in command {
        header(out, b'$', word.len());
        out.extend_from_slice(word);
        out.extend_from_slice(b"\r\n");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::redis::stub::CLIENTS;

    #[test]
    fn both_clients_decode_alike() {
        let bytes = |bytes: &[u8]| Reply::Bytes(bytes.to_vec());
        let error = |code: &str, text: &str| Reply::Error { code: code.into(), text: text.into() };
        let replies = [
            (b"+OK\r\n".as_slice(), bytes(b"OK")),
            (b"+PONG\r\n", bytes(b"PONG")),
            (b"$3\r\n\xff\r\n\r\n", bytes(b"\xff\r\n")),
            (b"$0\r\n\r\n", bytes(b"")),
            (b"$-1\r\n", Reply::Nil),
            (b"*-1\r\n", Reply::Nil),
            (b":-7\r\n", Reply::Int(-7)),
            (b"*0\r\n", Reply::Array(vec![])),
            (
                b"*2\r\n*1\r\n$-1\r\n+OK\r\n",
                Reply::Array(vec![Reply::Array(vec![Reply::Nil]), bytes(b"OK")]),
            ),
            (b"-ERR no\r\n", error("ERR", "no")),
            (b"-NOSCRIPT\r\n", error("NOSCRIPT", "")),
            (b"-\xff a b\r\n", error("\u{fffd}", "a b")),
        ];
        for client in CLIENTS {
            for (frame, reply) in &replies {
                assert_eq!(client.decode(frame).as_ref(), Ok(reply), "{}", frame.escape_ascii());
            }
        }
    }

    #[test]
    fn no_word_changes_the_framing_of_a_command() {
        let mut out = Vec::new();
        pack(&[b"GET", b"\r\n$3\r\n", b""], &mut out);
        assert_eq!(out, b"*3\r\n$3\r\nGET\r\n$6\r\n\r\n$3\r\n\r\n$0\r\n\r\n");
    }
}
