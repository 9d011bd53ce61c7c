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
