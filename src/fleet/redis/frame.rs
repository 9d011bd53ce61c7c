//! Where a reply ends: found before anything is made of its bytes.
//!
//! The clients' own parsers are handed whole replies only. By themselves they would go on in the
//! middle of a reply that was cut off, and follow however many lengths a server claims.

use super::Reply;
use crate::fleet::envelope;

/// A reply has at most so many bytes, which is also the most that a bulk may have. Redis itself
/// allows 512 MiB; no value of ours comes near it, and a length that is nonsense must not be waited
/// for.
pub(super) const REPLY_LIMIT: usize = 64 << 20;
// Every value that may be stored can be read again.
const _: () = assert!(envelope::MAX_PAYLOAD + envelope::HEADER + LINE_LIMIT <= REPLY_LIMIT);
/// A status or an error has at most so many bytes.
const LINE_LIMIT: usize = 64 << 10;
/// A number has at most so many bytes.
const NUMBER_LIMIT: usize = 24;
/// An array has at most so many elements.
const ARRAY_LIMIT: u32 = 1 << 20;
/// Arrays are nested at most so deep.
const DEPTH_LIMIT: usize = 8;

/// A search for the end of one reply, which goes on where it stopped when more bytes have come.
#[derive(Debug, Default)]
pub(super) struct Scan {
    /// Where the element begins that is looked at.
    at: usize,
    /// Before here there is no end of its first line.
    searched: usize,
    /// How many elements are to come, in each of the arrays around it.
    left: [u32; DEPTH_LIMIT],
    depth: usize,
}

impl Scan {
    /// Where the reply ends that `bytes` begin with; `None` if that is still to come. `bytes` are
    /// those of the last time, and more. What is wrong with them, if they are no reply.
    pub(super) fn advance(&mut self, bytes: &[u8]) -> Result<Option<usize>, String> {
        loop {
            let Some(&kind) = bytes.get(self.at) else { return Ok(None) };
            let limit = match kind {
                b'+' | b'-' => LINE_LIMIT,
                b':' | b'$' | b'*' => NUMBER_LIMIT,
                _ => return Err(format!("{} is no reply", excerpt(&bytes[self.at..]))),
            };
            let Some(line_end) = self.line_end(bytes) else {
                if bytes.len() - self.at > limit {
                    return Err(format!("a line of more than {limit} bytes"));
                }
                return Ok(None);
            };
            let line = &bytes[self.at + 1..line_end];
            if line.len() > limit {
                return Err(format!("a line of more than {limit} bytes"));
            }
            let mut end = line_end + 2;
            match kind {
                b'+' if std::str::from_utf8(line).is_err() => {
                    return Err("a status that is no text".to_owned());
                }
                // The clients make nothing of the array around it, or not the same.
                b'-' if self.depth > 0 => return Err("an error within an array".to_owned()),
                b':' => {
                    number(line)?;
                }
                b'$' => {
                    if let Some(len) = length(line, REPLY_LIMIT)? {
                        end += len;
                        let Some(tail) = bytes.get(end..end + 2) else {
                            return too_large(end + 2).map_or(Ok(None), Err);
                        };
                        if tail != b"\r\n" {
                            return Err(format!("bytes beyond the {len} that were announced"));
                        }
                        end += 2;
                    }
                }
                b'*' => {
                    let len = length(line, ARRAY_LIMIT as usize)?.unwrap_or(0);
                    if len > 0 {
                        if self.depth == DEPTH_LIMIT {
                            return Err(format!("arrays nested more than {DEPTH_LIMIT} deep"));
                        }
                        self.left[self.depth] = len as u32;
                        self.depth += 1;
                        self.go_on_at(end)?;
                        continue;
                    }
                }
                _ => {}
            }
            self.go_on_at(end)?;
            loop {
                let Some(around) = self.depth.checked_sub(1) else { return Ok(Some(end)) };
                self.left[around] -= 1;
                if self.left[around] > 0 {
                    break;
                }
                self.depth = around;
            }
        }
    }

    fn go_on_at(&mut self, at: usize) -> Result<(), String> {
        (self.at, self.searched) = (at, at);
        too_large(at).map_or(Ok(()), Err)
    }

    /// Where the first line of the element ends, without its CR LF.
    fn line_end(&mut self, bytes: &[u8]) -> Option<usize> {
        let from = self.searched;
        match bytes[from..].windows(2).position(|pair| pair == b"\r\n") {
            Some(position) => {
                // A bulk whose bytes are still to come has its line looked at again.
                self.searched = from + position;
                Some(from + position)
            }
            None => {
                self.searched = from.max(bytes.len().saturating_sub(1));
                None
            }
        }
    }
}

fn too_large(len: usize) -> Option<String> {
    (len > REPLY_LIMIT).then(|| format!("a reply of more than {REPLY_LIMIT} bytes"))
}

/// A number, as a server writes it. The parsers are more generous, and not alike.
fn number(line: &[u8]) -> Result<i64, String> {
    let digits = line.strip_prefix(b"-").unwrap_or(line);
    let number = std::str::from_utf8(line).ok().and_then(|text| text.parse().ok());
    match number {
        Some(number) if digits.iter().all(u8::is_ascii_digit) => Ok(number),
        _ => Err(format!("{} is no number", excerpt(line))),
    }
}

/// A length; `None` for -1, which stands for nothing.
fn length(line: &[u8], limit: usize) -> Result<Option<usize>, String> {
    match number(line)? {
        -1 => Ok(None),
        len => match usize::try_from(len) {
            Ok(len) if len <= limit => Ok(Some(len)),
            Ok(len) => Err(format!("a length of {len}, and {limit} are allowed")),
            Err(_) => Err(format!("a length of {len}")),
        },
    }
}

/// How `bytes` begin, for whoever reads the error: most often it is plain what has answered.
pub(super) fn excerpt(bytes: &[u8]) -> String {
    const SHOWN: usize = 24;
    let shown = bytes[..bytes.len().min(SHOWN)].escape_ascii();
    if bytes.len() > SHOWN { format!("\"{shown}\"...") } else { format!("\"{shown}\"") }
}

/// The reply, if it is an error. Read here because not every client tells an error that a server
/// sent from bytes that it could not parse.
pub(super) fn as_error(frame: &[u8]) -> Option<Reply> {
    let line = frame.strip_prefix(b"-")?.strip_suffix(b"\r\n")?;
    let line = String::from_utf8_lossy(line);
    let (code, text) = line.split_once(' ').unwrap_or((&line, ""));
    Some(Reply::Error { code: code.to_owned(), text: text.to_owned() })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn scan(bytes: &[u8]) -> Result<Option<usize>, String> {
        Scan::default().advance(bytes)
    }

    #[test]
    fn a_reply_ends_where_it_ends() {
        let replies: &[&[u8]] = &[
            b"+OK\r\n",
            b"+\r\n",
            b"-ERR no\r\n",
            b"-\xff\r\n",
            b":0\r\n",
            b":-9223372036854775808\r\n",
            b"$-1\r\n",
            b"$0\r\n\r\n",
            b"$4\r\n\r\n\r\n\r\n",
            b"*-1\r\n",
            b"*0\r\n",
            b"*2\r\n$1\r\na\r\n:1\r\n",
            b"*3\r\n*0\r\n*-1\r\n*1\r\n$-1\r\n",
            b"*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n:1\r\n",
        ];
        for reply in replies {
            let followed = [reply, b"+OK\r\n".as_slice()].concat();
            assert_eq!(scan(&followed), Ok(Some(reply.len())), "{}", reply.escape_ascii());
            for cut in 0..reply.len() {
                let mut scan = Scan::default();
                assert_eq!(scan.advance(&reply[..cut]), Ok(None), "{}", reply.escape_ascii());
                assert_eq!(scan.advance(reply), Ok(Some(reply.len())), "from {cut} on");
            }
        }
    }

    #[test]
    fn what_is_no_reply_is_not_waited_for() {
        let bytes: &[(&[u8], &str)] = &[
            (b"H", "\"H\" is no reply"),
            (b"HTTP/1.1 400 Bad Request\r\n", "\"HTTP/1.1 400 Bad Request\"... is no reply"),
            (b"%1\r\n", "\"%1\\r\\n\" is no reply"),
            (b"*2\r\n:1\r\n\r\n", "\"\\r\\n\" is no reply"),
            (b":\r\n", "\"\" is no number"),
            (b":+1\r\n", "\"+1\" is no number"),
            (b": 1\r\n", "\" 1\" is no number"),
            (b":9223372036854775808\r\n", "\"9223372036854775808\" is no number"),
            (b":1111111111111111111111111", "a line of more than 24 bytes"),
            (b"+\xff\r\n", "a status that is no text"),
            (b"$-2\r\n", "a length of -2"),
            (b"$67108865\r\n", "a length of 67108865, and 67108864 are allowed"),
            (b"$67108864\r\n", "a reply of more than 67108864 bytes"),
            (b"$1\r\nabc", "bytes beyond the 1 that were announced"),
            (b"*1048577\r\n", "a length of 1048577, and 1048576 are allowed"),
            (b"*1\r\n-ERR\r\n", "an error within an array"),
            (
                b"*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n",
                "arrays nested more than 8 deep",
            ),
        ];
        for (bytes, what) in bytes {
            assert_eq!(scan(bytes), Err((*what).to_owned()), "{}", bytes.escape_ascii());
        }
        let line = [b"+".as_slice(), &[b'a'; LINE_LIMIT + 1]].concat();
        assert_eq!(scan(&line), Err(format!("a line of more than {LINE_LIMIT} bytes")));
    }

    /// A reply that a server could send, and its bytes.
    fn any_reply() -> impl Strategy<Value = Vec<u8>> {
        let leaf = prop_oneof![
            any::<i64>().prop_map(|number| format!(":{number}\r\n").into_bytes()),
            "[a-zA-Z ]{0,20}".prop_map(|text| format!("+{text}\r\n").into_bytes()),
            Just(b"$-1\r\n".to_vec()),
            proptest::collection::vec(any::<u8>(), 0..40).prop_map(|bytes| {
                [format!("${}\r\n", bytes.len()).as_bytes(), &bytes, b"\r\n"].concat()
            }),
        ];
        leaf.prop_recursive(4, 40, 6, |inner| {
            proptest::collection::vec(inner, 0..6).prop_map(|replies| {
                [format!("*{}\r\n", replies.len()).into_bytes(), replies.concat()].concat()
            })
        })
    }

    proptest! {
        #[test]
        fn any_bytes_are_looked_at(bytes in proptest::collection::vec(
            prop_oneof![proptest::sample::select(b"+-:$*\r\n0123".to_vec()), any::<u8>()], 0..200,
        ), cut in 0_usize..200) {
            let whole = scan(&bytes);
            // It does not matter in how many pieces they come; only how much of it an error shows.
            let mut pieces = Scan::default();
            let first = pieces.advance(&bytes[..cut.min(bytes.len())]);
            let pieces = if first == Ok(None) { pieces.advance(&bytes) } else { first };
            prop_assert_eq!(pieces.as_ref().ok(), whole.as_ref().ok());
            // What passes, the clients make a reply of, and the same one.
            if let Ok(Some(end)) = whole {
                let mut replies = crate::fleet::redis::stub::CLIENTS
                    .iter()
                    .map(|client| client.decode(&bytes[..end]));
                let reply = replies.next().unwrap();
                prop_assert!(reply.is_ok(), "{:?}", reply);
                prop_assert!(replies.all(|other| other == reply));
            }
        }

        #[test]
        fn whole_replies_are_found_at_every_split(reply in any_reply()) {
            let mut scan = Scan::default();
            for cut in 0..reply.len() {
                prop_assert_eq!(scan.advance(&reply[..cut]), Ok(None));
            }
            prop_assert_eq!(scan.advance(&reply), Ok(Some(reply.len())));
        }
    }
}
