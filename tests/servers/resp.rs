//! The servers' protocol, as far as the harness speaks it.

use std::io::{self, BufRead, Read};

/// A reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Resp {
    Simple(String),
    Error(String),
    Integer(i64),
    Bulk(Vec<u8>),
    Nil,
    Array(Vec<Resp>),
}

impl Resp {
    /// What a person would read.
    pub(crate) fn text(&self) -> String {
        match self {
            Resp::Simple(text) | Resp::Error(text) => text.clone(),
            Resp::Integer(number) => number.to_string(),
            Resp::Bulk(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            Resp::Nil => String::from("nil"),
            Resp::Array(items) => {
                items.iter().map(Resp::text).collect::<Vec<_>>().join(" ").trim_end().to_string()
            }
        }
    }

    /// The first word of an error.
    pub(crate) fn error_code(&self) -> Option<&str> {
        match self {
            Resp::Error(text) => text.split(' ').next(),
            _ => None,
        }
    }

    pub(crate) fn is_error(&self) -> bool {
        matches!(self, Resp::Error(_))
    }

    #[track_caller]
    pub(crate) fn integer(&self) -> i64 {
        match self {
            Resp::Integer(number) => *number,
            other => panic!("no integer: {other:?}"),
        }
    }

    #[track_caller]
    pub(crate) fn items(self) -> Vec<Resp> {
        match self {
            Resp::Array(items) => items,
            other => panic!("no array: {other:?}"),
        }
    }

    /// The bytes of a string, none of a nil.
    #[track_caller]
    pub(crate) fn bytes(self) -> Option<Vec<u8>> {
        match self {
            Resp::Bulk(bytes) => Some(bytes),
            Resp::Simple(text) => Some(text.into_bytes()),
            Resp::Nil => None,
            other => panic!("no string: {other:?}"),
        }
    }

    /// The reply itself, where it must not be an error.
    #[track_caller]
    pub(crate) fn good(self) -> Resp {
        assert!(!self.is_error(), "the server answers {self:?}");
        self
    }

    /// The bytes of this reply on the line.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        match self {
            Resp::Simple(text) => format!("+{text}\r\n").into_bytes(),
            Resp::Error(text) => format!("-{text}\r\n").into_bytes(),
            Resp::Integer(number) => format!(":{number}\r\n").into_bytes(),
            Resp::Bulk(bytes) => {
                let head = format!("${}\r\n", bytes.len());
                [head.as_bytes(), bytes, b"\r\n"].concat()
            }
            Resp::Nil => b"$-1\r\n".to_vec(),
            Resp::Array(items) => {
                let mut all = format!("*{}\r\n", items.len()).into_bytes();
                items.iter().for_each(|item| all.extend(item.to_bytes()));
                all
            }
        }
    }
}

/// The bytes of a command on the line.
pub(crate) fn encode<A: AsRef<[u8]>>(command: &[A]) -> Vec<u8> {
    Resp::Array(command.iter().map(|word| Resp::Bulk(word.as_ref().to_vec())).collect()).to_bytes()
}

/// Reads one reply.
pub(super) fn read(from: &mut impl BufRead) -> io::Result<Resp> {
    let line = line(from)?;
    let (kind, rest) = line.split_at_checked(1).ok_or_else(foreign)?;
    Ok(match kind {
        "+" => Resp::Simple(rest.to_string()),
        "-" => Resp::Error(rest.to_string()),
        ":" => Resp::Integer(rest.parse().map_err(|_| foreign())?),
        "$" => match usize::try_from(number(rest)?) {
            Err(_) => Resp::Nil,
            Ok(length) => {
                let mut bytes = Vec::new();
                from.by_ref().take(length as u64 + 2).read_to_end(&mut bytes)?;
                if bytes.len() < length + 2 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                bytes.truncate(length);
                Resp::Bulk(bytes)
            }
        },
        "*" => match usize::try_from(number(rest)?) {
            Err(_) => Resp::Nil,
            Ok(items) => Resp::Array((0..items).map(|_| read(from)).collect::<io::Result<_>>()?),
        },
        _ => return Err(foreign()),
    })
}

fn line(from: &mut impl BufRead) -> io::Result<String> {
    let mut line = Vec::new();
    from.read_until(b'\n', &mut line)?;
    match line.strip_suffix(b"\r\n") {
        Some(line) => Ok(String::from_utf8_lossy(line).into_owned()),
        None => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

fn number(text: &str) -> io::Result<i64> {
    text.parse().map_err(|_| foreign())
}

fn foreign() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "these bytes are of another protocol")
}

/// The length of the message at the start of these bytes, once all of it is there; also of the
/// kinds that only version 3 of the protocol has. An error means that it is no such message.
pub(super) fn length(bytes: &[u8]) -> io::Result<Option<usize>> {
    let (mut at, mut missing) = (0, 1_i64);
    while missing > 0 {
        let Some(end) = bytes[at..].windows(2).position(|pair| pair == b"\r\n") else {
            // A head is short: so much without its end is something else.
            let known = bytes.get(at).is_none_or(|kind| b"+-:$*_#,(!=%~>|".contains(kind));
            return if known { Ok(None) } else { Err(foreign()) };
        };
        let head = &bytes[at..at + end];
        at += end + 2;
        missing -= 1;
        let count = || {
            let text = head.get(1..).and_then(|text| std::str::from_utf8(text).ok());
            number(text.ok_or_else(foreign)?)
        };
        match head.first() {
            Some(b'+' | b'-' | b':' | b'_' | b'#' | b',' | b'(') => {}
            Some(b'$' | b'!' | b'=') => {
                if let Ok(length) = usize::try_from(count()?) {
                    at += length + 2;
                    if bytes.len() < at {
                        return Ok(None);
                    }
                }
            }
            Some(b'*' | b'~' | b'>') => missing += count()?.max(0),
            Some(b'%') => missing += 2 * count()?,
            // Attributes stand before the value that they are of.
            Some(b'|') => missing += 2 * count()? + 1,
            _ => return Err(foreign()),
        }
    }
    Ok(Some(at))
}

/// The command at the start of these bytes and its length, once all of it is there. An error
/// means that whoever sends them speaks otherwise, as in TLS.
pub(super) fn command(bytes: &[u8]) -> io::Result<Option<(Vec<Vec<u8>>, usize)>> {
    if bytes.first().is_some_and(|kind| *kind != b'*') {
        return Err(foreign());
    }
    let Some(length) = length(bytes)? else { return Ok(None) };
    let words = match read(&mut &bytes[..length])? {
        Resp::Array(items) => items,
        _ => return Err(foreign()),
    };
    let words = words.into_iter().map(|word| match word {
        Resp::Bulk(bytes) => Ok(bytes),
        _ => Err(foreign()),
    });
    Ok(Some((words.collect::<io::Result<_>>()?, length)))
}
