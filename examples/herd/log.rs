//! The lines of an access log: the common and combined formats, and `seconds key`.
//!
//! A line is bytes, not text: clients put anything into a request, and servers log it.

/// What a line says.
#[derive(Debug, PartialEq)]
pub(crate) enum Line<'a> {
    /// Somebody read what is under a key.
    Read(Read<'a>),
    /// Something was changed or done. No load can answer two of those.
    Write,
}

/// A request that asked for something.
#[derive(Debug, PartialEq)]
pub(crate) struct Read<'a> {
    pub(crate) at: Moment,
    pub(crate) key: &'a [u8],
    /// The address it came from; empty in a log that names none.
    pub(crate) client: &'a [u8],
    /// How long it took, in nanoseconds, if the log says so.
    pub(crate) took: Option<u64>,
}

/// When a request came.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Moment {
    /// Nanoseconds since 1970, in UTC; or since whatever a log of bare seconds counts from.
    pub(crate) nanos: u64,
    /// Whether the log keeps no time finer than seconds.
    pub(crate) whole_second: bool,
}

const SECOND: u64 = 1_000_000_000;

/// Reads one line, without its line feed. An error is the reason why it is a bad one.
///
/// The key of an access log's line is the path that was asked for, without method, host and
/// fragment. Its query is part of the key unless `ignore_query` is set: a page is another page with another
/// query, so that is what a loader would depend on.
pub(crate) fn parse(line: &[u8], ignore_query: bool) -> Result<Line<'_>, &'static str> {
    let line = line.trim_ascii();
    let end = line.iter().position(u8::is_ascii_whitespace).unwrap_or(line.len());
    let (first, rest) = line.split_at(end);
    if let Some(at) = seconds(first) {
        let key = rest.trim_ascii_start();
        return match key {
            [] => Err("no key after the seconds"),
            _ => Ok(Line::Read(Read { at: at?, key, client: b"", took: None })),
        };
    }
    let (nanos, before, rest) = bracketed_time(line)?;
    let Quoted { method, target, rest } = request(rest)?;
    if !matches!(method, b"GET" | b"HEAD") {
        return Ok(Line::Write);
    }
    let at = Moment { nanos, whole_second: true };
    let key = path(target, ignore_query);
    Ok(Line::Read(Read { at, key, client: client(before), took: took(rest) }))
}

/// The address of who asked, from what is before the time: `[host] address identity user`.
fn client(before: &[u8]) -> &[u8] {
    let mut words = before.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    let (first, second) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    // Where a virtual host comes first, the address is where else the identity is, which is a dash.
    let is_address = second.iter().any(|byte| matches!(byte, b'.' | b':'));
    if is_address && words.count() >= 2 { second } else { first }
}

/// How long the request took, from what is after it: status, size, perhaps more in quotes or not.
///
/// No format says where the time is, but servers that log it put it behind all the rest: Apache
/// microseconds (`%D`), nginx seconds with a point (`$request_time`), Traefik `12ms`.
fn took(rest: &[u8]) -> Option<u64> {
    let mut quoted = false;
    let mut words = rest.split(|byte| {
        quoted ^= *byte == b'"';
        !quoted && byte.is_ascii_whitespace()
    });
    let is_word = |word: &&[u8]| !word.is_empty();
    // The status and the size are numbers, too.
    words.by_ref().filter(is_word).nth(1)?;
    words.filter(is_word).filter_map(span).last()
}

/// A word that is a span of time, in nanoseconds.
fn span(word: &[u8]) -> Option<u64> {
    let word = word.strip_prefix(b"rt=").unwrap_or(word);
    if let Some(millis) = word.strip_suffix(b"ms") {
        return number(millis).filter(|_| !millis.is_empty())?.checked_mul(1_000_000);
    }
    match seconds(word)?.ok()? {
        Moment { nanos, whole_second: true } => (nanos / SECOND).checked_mul(1_000),
        Moment { nanos, .. } => Some(nanos),
    }
}

/// A decimal number of seconds; `None` if `text` is not a number at all.
fn seconds(text: &[u8]) -> Option<Result<Moment, &'static str>> {
    let point = text.iter().position(|byte| *byte == b'.');
    let (whole, fraction) = match point {
        Some(point) => (&text[..point], &text[point + 1..]),
        None => (text, &[][..]),
    };
    let digits = |text: &[u8]| text.iter().all(u8::is_ascii_digit);
    if whole.is_empty() || !digits(whole) || !digits(fraction) {
        return None;
    }
    // What is finer than a nanosecond is cut off.
    let fraction = fraction.iter().chain(std::iter::repeat(&b'0')).take(9);
    let fraction = fraction.fold(0, |nanos, digit| nanos * 10 + u64::from(digit - b'0'));
    let nanos = number(whole)
        .and_then(|whole| whole.checked_mul(SECOND))
        .and_then(|whole| whole.checked_add(fraction))
        .ok_or("more seconds than can be counted");
    Some(nanos.map(|nanos| Moment { nanos, whole_second: point.is_none() }))
}

/// The time in brackets, and what comes before and after it.
fn bracketed_time(line: &[u8]) -> Result<(u64, &[u8], &[u8]), &'static str> {
    let mut reason = "neither an access log line nor `seconds key`";
    // A user's name, before the time, may hold a bracket itself.
    for open in (0..line.len()).filter(|place| line[*place] == b'[') {
        let inside = &line[open + 1..];
        // The form has a fixed length: 17/May/2015:10:05:03 +0000]
        if let Some((time, rest)) = inside.split_at_checked(26)
            && let Some(rest) = rest.strip_prefix(b"]")
        {
            match time_of(time) {
                Some(nanos) => return Ok((nanos, &line[..open], rest)),
                None => reason = "no such time as the one in brackets",
            }
        } else if reason.starts_with("neither") {
            reason = "no time in brackets, as in [17/May/2015:10:05:03 +0000]";
        }
    }
    Err(reason)
}

/// `17/May/2015:10:05:03 +0000` in nanoseconds since 1970.
fn time_of(text: &[u8]) -> Option<u64> {
    const MONTHS: [&[u8]; 12] = [
        b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov",
        b"Dec",
    ];
    let separated = [(2, b'/'), (6, b'/'), (11, b':'), (14, b':'), (17, b':'), (20, b' ')];
    if text.len() != 26 || separated.iter().any(|(place, byte)| text[*place] != *byte) {
        return None;
    }
    let part = |from: usize, to: usize| number(&text[from..to]);
    let (day, year) = (part(0, 2)?, part(7, 11)?);
    let month = MONTHS.iter().position(|name| name.eq_ignore_ascii_case(&text[3..6]))?;
    let (hour, minute, second) = (part(12, 14)?, part(15, 17)?, part(18, 20)?);
    let (east, zone_hours, zone_minutes) = (text[21] == b'+', part(22, 24)?, part(24, 26)?);
    if !(1..=days_in(month, year)).contains(&day)
        || hour > 23
        || minute > 59
        || second > 60 // a leap second
        || !(east || text[21] == b'-')
        || zone_minutes > 59
    {
        return None;
    }
    let before = (0..month).map(|month| days_in(month, year)).sum::<u64>() + day - 1;
    let days = days_before(year).checked_sub(days_before(1970))? + before;
    let seconds = ((days * 24 + hour) * 60 + minute) * 60 + second;
    let zone = (zone_hours * 60 + zone_minutes) * 60;
    // East of Greenwich it is later.
    let seconds = if east { seconds.checked_sub(zone)? } else { seconds + zone };
    seconds.checked_mul(SECOND)
}

fn is_leap(year: u64) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
}

/// Days in a month, the first of which is month 0.
fn days_in(month: usize, year: u64) -> u64 {
    match month {
        1 if is_leap(year) => 29,
        1 => 28,
        3 | 5 | 8 | 10 => 30,
        _ => 31,
    }
}

/// Days from the first day of the year 1 to the first of `year`.
fn days_before(year: u64) -> u64 {
    let past = year.saturating_sub(1);
    past * 365 + past / 4 - past / 100 + past / 400
}

fn number(digits: &[u8]) -> Option<u64> {
    digits.iter().try_fold(0_u64, |number, digit| {
        let digit = digit.is_ascii_digit().then(|| u64::from(digit - b'0'))?;
        number.checked_mul(10)?.checked_add(digit)
    })
}

/// A request in quotes.
struct Quoted<'a> {
    method: &'a [u8],
    target: &'a [u8],
    /// What comes after it in the line.
    rest: &'a [u8],
}

/// The quoted request that comes first in `text`.
fn request(text: &[u8]) -> Result<Quoted<'_>, &'static str> {
    let text = text.trim_ascii_start().strip_prefix(b"\"").ok_or("no quoted request")?;
    let mut escaped = false;
    let end = text.iter().position(|byte| {
        let closes = *byte == b'"' && !escaped;
        escaped = *byte == b'\\' && !escaped;
        closes
    });
    let (request, after) = text.split_at(end.ok_or("the quoted request does not end")?);
    let reason = "no method and path in the request";
    let space = request.iter().position(|byte| *byte == b' ').ok_or(reason)?;
    let (method, rest) = (&request[..space], request[space + 1..].trim_ascii());
    // Whatever the target holds, the version is what comes last; ancient requests have none.
    let target = match rest.iter().rposition(|byte| *byte == b' ') {
        Some(space) if rest[space + 1..].starts_with(b"HTTP/") => rest[..space].trim_ascii_end(),
        _ => rest,
    };
    let named = !method.is_empty() && method.iter().all(u8::is_ascii_uppercase);
    let only_a_version = target.starts_with(b"HTTP/");
    match named && !target.is_empty() && !only_a_version {
        true => Ok(Quoted { method, target, rest: &after[1..] }),
        false => Err(reason),
    }
}

/// The path of a request's target, which may name the host, too.
fn path(target: &[u8], ignore_query: bool) -> &[u8] {
    let scheme = [&b"http://"[..], b"https://"].into_iter().find(|scheme| {
        target.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme))
    });
    let target = match scheme {
        None => target,
        Some(scheme) => {
            let host = &target[scheme.len()..];
            match host.iter().position(|byte| matches!(byte, b'/' | b'?' | b'#')) {
                Some(end) => &host[end..],
                None => b"/",
            }
        }
    };
    let ends = |byte: &u8| *byte == b'#' || (ignore_query && *byte == b'?');
    let end = target.iter().position(ends).unwrap_or(target.len());
    match &target[..end] {
        [] => b"/",
        path => path,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMBINED: &str = r#"198.18.0.7 - frank [17/May/2015:10:05:03 +0000] "GET /a/b.png?x=1 HTTP/1.1" 200 2326 "-" "curl/8""#;

    fn key(line: &[u8]) -> String {
        match parse(line, false) {
            Ok(Line::Read(Read { key, .. })) => String::from_utf8_lossy(key).into_owned(),
            other => panic!("{other:?}"),
        }
    }

    fn nanos(line: &str) -> u64 {
        match parse(line.as_bytes(), false) {
            Ok(Line::Read(Read { at, .. })) => at.nanos,
            other => panic!("{other:?}"),
        }
    }

    fn asking(request: &str) -> Vec<u8> {
        format!("h - - [17/May/2015:10:05:03 +0000] \"{request}\" 200 1").into_bytes()
    }

    fn at(time: &str) -> String {
        format!("h - - [{time}] \"GET / HTTP/1.1\" 200 1")
    }

    #[test]
    fn the_combined_format_is_read() {
        let at = Moment { nanos: 1_431_857_103 * SECOND, whole_second: true };
        let key = b"/a/b.png?x=1";
        let read = Line::Read(Read { at, key, client: b"198.18.0.7", took: None });
        assert_eq!(parse(COMBINED.as_bytes(), false), Ok(read));
    }

    #[test]
    fn the_common_format_is_read_with_and_without_a_virtual_host() {
        let common = r#"::1 - - [17/May/2015:10:05:03 +0000] "HEAD / HTTP/1.0" 200 -"#;
        assert_eq!(key(common.as_bytes()), "/");
        assert_eq!(key(format!("example.org:443 {common}").as_bytes()), "/");
        assert_eq!(key(format!("{common}\r").as_bytes()), "/");
    }

    #[test]
    fn the_zone_is_taken_into_account() {
        let utc = nanos(&at("17/May/2015:10:05:03 +0000"));
        assert_eq!(nanos(&at("17/May/2015:12:05:03 +0200")), utc);
        assert_eq!(nanos(&at("17/May/2015:04:35:03 -0530")), utc);
        assert_eq!(nanos(&at("18/May/2015:00:05:03 +1400")), utc);
    }

    #[test]
    fn the_calendar_is_known() {
        assert_eq!(nanos(&at("01/Jan/1970:00:00:00 +0000")), 0);
        assert_eq!(nanos(&at("29/Feb/2024:00:00:00 +0000")), 1_709_164_800 * SECOND);
        assert_eq!(nanos(&at("31/Dec/1999:23:59:60 +0000")), 946_684_800 * SECOND);
        assert_eq!(nanos(&at("01/Mar/2000:00:00:00 +0000")), 951_868_800 * SECOND);
    }

    #[test]
    fn a_time_that_never_was_is_a_bad_line() {
        for time in [
            "29/Feb/2023:00:00:00 +0000",
            "00/May/2015:00:00:00 +0000",
            "31/Apr/2015:00:00:00 +0000",
            "17/Mai/2015:00:00:00 +0000",
            "17/May/2015:24:00:00 +0000",
            "17/May/2015:10:60:00 +0000",
            "17/May/2015:10:05:61 +0000",
            "17/May/2015:10:05:03 *0000",
            "17/May/2015:10:05:03 +0060",
            "17/May/1815:10:05:03 +0000",
            "17/May/9999:10:05:03 +0000",
            "01/Jan/1970:00:00:00 +0100",
            "+7/May/2015:10:05:03 +0000",
        ] {
            let reason = parse(at(time).as_bytes(), false).unwrap_err();
            assert_eq!(reason, "no such time as the one in brackets", "{time}");
        }
    }

    #[test]
    fn a_bracket_in_a_users_name_does_not_hide_the_time() {
        let line = r#"h - [odd] user [17/May/2015:10:05:03 +0000] "GET /x HTTP/1.1" 200 1"#;
        assert_eq!(key(line.as_bytes()), "/x");
    }

    #[test]
    fn the_query_is_part_of_the_key_unless_ignored() {
        let ignoring = parse(COMBINED.as_bytes(), true);
        assert!(matches!(ignoring, Ok(Line::Read(Read { key: b"/a/b.png", .. }))), "{ignoring:?}");
        assert_eq!(key(&asking("GET /a?x=1#top HTTP/1.1")), "/a?x=1");
    }

    #[test]
    fn the_host_of_an_absolute_target_is_no_part_of_the_key() {
        assert_eq!(key(&asking("GET http://example.org/a HTTP/1.1")), "/a");
        assert_eq!(key(&asking("GET HTTPS://example.org HTTP/1.1")), "/");
        assert_eq!(key(&asking("GET http://example.org?q HTTP/1.1")), "?q");
    }

    #[test]
    fn quotes_and_spaces_in_a_path_are_read() {
        assert_eq!(key(&asking(r#"GET /say\"hi\"\\ HTTP/1.1"#)), r#"/say\"hi\"\\"#);
        assert_eq!(key(&asking("GET /two words HTTP/1.1")), "/two words");
        assert_eq!(key(&asking("GET /ancient")), "/ancient");
    }

    #[test]
    fn a_write_is_no_read() {
        assert_eq!(parse(&asking("POST /form HTTP/1.1"), false), Ok(Line::Write));
        assert_eq!(parse(&asking("OPTIONS * HTTP/1.1"), false), Ok(Line::Write));
    }

    #[test]
    fn a_request_that_is_none_is_a_bad_line() {
        for request in
            ["-", "", " ", "GET", "GET ", "GET HTTP/1.1", "\x16\x03\x01 x", "get / HTTP/1.1"]
        {
            assert!(parse(&asking(request), false).is_err(), "{request:?}");
        }
        let open = r#"h - - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1\" 200"#;
        assert_eq!(parse(open.as_bytes(), false), Err("the quoted request does not end"));
        let none = "h - - [17/May/2015:10:05:03 +0000] 200";
        assert_eq!(parse(none.as_bytes(), false), Err("no quoted request"));
    }

    fn read(line: &[u8]) -> Read<'_> {
        match parse(line, false) {
            Ok(Line::Read(read)) => read,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_client_is_known_behind_a_virtual_host_too() {
        let line = r#"[17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 1"#;
        for (before, client) in [
            ("198.18.0.7 - -", "198.18.0.7"),
            ("::1 - frank", "::1"),
            ("198.18.0.7 - two words", "198.18.0.7"),
            ("example.org:443 ::1 - -", "::1"),
            ("", ""),
        ] {
            let line = format!("{before} {line}");
            assert_eq!(read(line.as_bytes()).client, client.as_bytes(), "{before}");
        }
        assert_eq!(read(b"1.5 key").client, b"");
    }

    #[test]
    fn the_time_a_request_took_is_read_if_the_log_has_it() {
        const MILLI: u64 = 1_000_000;
        for (rest, took) in [
            ("200 2326", None),
            (r#"200 2326 "-" "curl/8 1 2""#, None),
            ("200 - 1500", Some(1_500_000)),
            (r#"200 2326 "-" "curl/8 1 2" 2500"#, Some(2_500_000)),
            (r#"200 2326 "-" "curl/8" 0.125"#, Some(125 * MILLI)),
            (r#"200 2326 "-" "curl/8" "-" rt=0.050 uct="0.000""#, Some(50 * MILLI)),
            (r#"200 2326 "-" "-" 17 "router" "http://10.0.0.1" 12ms"#, Some(12 * MILLI)),
            (r#"200 2326 "an open quote 17"#, None),
            ("200 2326 ms 99999999999999999999", None),
        ] {
            let line = format!(r#"h - - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" {rest}"#);
            assert_eq!(read(line.as_bytes()).took, took, "{rest}");
        }
    }

    #[test]
    fn seconds_and_a_key_are_read() {
        let read = |line: &str| match parse(line.as_bytes(), false) {
            Ok(Line::Read(Read { at, key, .. })) => (at.nanos, at.whole_second, key.to_vec()),
            other => panic!("{other:?}"),
        };
        assert_eq!(read("12 product:7"), (12 * SECOND, true, b"product:7".to_vec()));
        assert_eq!(read("0.25\tk"), (SECOND / 4, false, b"k".to_vec()));
        assert_eq!(read(" 12.0   two words "), (12 * SECOND, false, b"two words".to_vec()));
        assert_eq!(read("1.0000000019 k"), (SECOND + 1, false, b"k".to_vec()));
    }

    #[test]
    fn seconds_without_a_key_or_beyond_counting_are_bad_lines() {
        assert_eq!(parse(b"12.5", false), Err("no key after the seconds"));
        let endless = b"99999999999999999999999 k";
        assert_eq!(parse(endless, false), Err("more seconds than can be counted"));
        assert_eq!(parse(b"18446744074 k", false), Err("more seconds than can be counted"));
        for line in [&b"-1 k"[..], b".5 k", b"1.2.3 k", b"1e3 k", b"nan k", b"hello"] {
            assert_eq!(parse(line, false), Err("neither an access log line nor `seconds key`"));
        }
    }

    #[test]
    fn a_line_need_not_be_text() {
        let mut line = asking("GET /caf? HTTP/1.1");
        let place = line.iter().position(|byte| *byte == b'?').expect("it is there");
        line[place] = 0xe9;
        assert!(matches!(parse(&line, false), Ok(Line::Read(Read { key: b"/caf\xe9", .. }))));
    }

    #[test]
    fn a_line_cut_anywhere_or_with_any_byte_in_any_place_does_not_panic() {
        let line = COMBINED.as_bytes();
        for place in 0..line.len() {
            let _ = parse(&line[..place], false);
            let _ = parse(&line[place..], true);
            for byte in 0..=255 {
                let mut line = line.to_vec();
                line[place] = byte;
                let _ = parse(&line, place % 2 == 0);
            }
        }
    }
}
