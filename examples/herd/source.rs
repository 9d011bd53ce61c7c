//! [`Source`]: where a log comes from, plain or compressed, line by line.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor, Read};

use flate2::bufread::MultiGzDecoder;

/// Longer lines are read past, not kept. Servers accept far shorter requests than this.
pub(crate) const LONGEST_LINE: usize = 64 * 1024;

pub(crate) struct Source<R = Box<dyn BufRead>>(R);

/// A line of a source, without its end.
#[derive(Debug, PartialEq)]
pub(crate) enum Kept<'a> {
    Whole(&'a [u8]),
    /// Longer than [`LONGEST_LINE`].
    TooLong,
}

impl Source {
    /// Opens a file, or standard input if the path is `-`.
    pub(crate) fn open(path: &str) -> io::Result<Source> {
        match path {
            "-" => Source::of(io::stdin()),
            _ => Source::of(File::open(path)?),
        }
    }

    /// Whether it is compressed shows in its first bytes: what comes through a pipe has no name.
    fn of(bytes: impl Read + 'static) -> io::Result<Source> {
        let mut bytes = BufReader::with_capacity(64 * 1024, bytes);
        let mut start = Vec::new();
        bytes.by_ref().take(2).read_to_end(&mut start)?;
        let compressed = start == [0x1f, 0x8b];
        let bytes = Cursor::new(start).chain(bytes);
        Ok(Source(match compressed {
            // Rotated logs are often several compressed files, one after the other.
            true => Box::new(BufReader::with_capacity(64 * 1024, MultiGzDecoder::new(bytes))),
            false => Box::new(bytes),
        }))
    }
}

impl<R: BufRead> Source<R> {
    /// Reads the next line into `kept`; `None` at the end.
    pub(crate) fn line<'a>(&mut self, kept: &'a mut Vec<u8>) -> io::Result<Option<Kept<'a>>> {
        kept.clear();
        let (mut read_any, mut too_long) = (false, false);
        loop {
            let bytes = match self.0.fill_buf() {
                Ok(bytes) => bytes,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            let end = bytes.iter().position(|byte| *byte == b'\n');
            let part = &bytes[..end.unwrap_or(bytes.len())];
            too_long |= kept.len() + part.len() > LONGEST_LINE;
            if !too_long {
                kept.extend_from_slice(part);
            }
            read_any |= !bytes.is_empty();
            let over = end.is_some() || bytes.is_empty();
            let used = end.map_or(part.len(), |end| end + 1);
            self.0.consume(used);
            if over {
                let line = if too_long { Kept::TooLong } else { Kept::Whole(kept) };
                return Ok(read_any.then_some(line));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    fn lines(source: io::Result<Source>) -> io::Result<Vec<Option<String>>> {
        let (mut source, mut kept, mut lines) = (source?, Vec::new(), Vec::new());
        while let Some(line) = source.line(&mut kept)? {
            lines.push(match line {
                Kept::Whole(line) => Some(String::from_utf8_lossy(line).into_owned()),
                Kept::TooLong => None,
            });
        }
        Ok(lines)
    }

    fn of(bytes: Vec<u8>) -> io::Result<Vec<Option<String>>> {
        lines(Source::of(Cursor::new(bytes)))
    }

    fn compressed(text: &str) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(text.as_bytes()).expect("a vector takes everything");
        encoder.finish().expect("a vector takes everything")
    }

    fn whole(text: &str) -> Option<String> {
        Some(text.to_string())
    }

    #[test]
    fn lines_come_without_their_ends() {
        assert_eq!(of(b"a\n\nb".to_vec()).unwrap(), [whole("a"), whole(""), whole("b")]);
        assert_eq!(of(b"a\n".to_vec()).unwrap(), [whole("a")]);
        assert_eq!(of(b"\n".to_vec()).unwrap(), [whole("")]);
        assert_eq!(of(Vec::new()).unwrap(), []);
    }

    #[test]
    fn compressed_members_are_read_one_after_the_other() {
        let two = [compressed("a\nb\n"), compressed("c\n")].concat();
        assert_eq!(of(two).unwrap(), [whole("a"), whole("b"), whole("c")]);
    }

    #[test]
    fn a_compressed_file_that_is_cut_off_is_an_error() {
        let text: String = (0..5_000).map(|line| format!("{line} key {}\n", line * 7919)).collect();
        let mut cut = compressed(&text);
        cut.truncate(cut.len() / 2);
        assert_eq!(of(cut).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn a_line_of_any_length_costs_bounded_memory() {
        let text = [
            vec![b'x'; LONGEST_LINE],
            vec![b'\n'],
            vec![b'y'; 9 * LONGEST_LINE],
            vec![b'\n', b'z'],
        ];
        let (mut source, mut kept) = (Source(&text.concat()[..]), Vec::new());
        let first = source.line(&mut kept).unwrap();
        assert!(matches!(first, Some(Kept::Whole(line)) if line.len() == LONGEST_LINE));
        assert_eq!(source.line(&mut kept).unwrap(), Some(Kept::TooLong));
        assert_eq!(source.line(&mut kept).unwrap(), Some(Kept::Whole(b"z")));
        assert_eq!(source.line(&mut kept).unwrap(), None);
        assert!(kept.capacity() <= 2 * LONGEST_LINE);
    }
}
