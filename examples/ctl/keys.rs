//! Keys as they are typed and as they are stored.

use clap::{Args, ValueEnum};
use onefill::fleet::{Fingerprint, Key, Namespace, Table};

/// A key of a table, as it is typed.
#[derive(Args)]
pub(crate) struct TypedKey {
    /// A key of the table.
    #[arg(allow_hyphen_values = true)]
    pub(crate) key: Option<String>,
    /// What the key is, in the program that it is a key of.
    #[arg(long = "as", value_enum, default_value_t = Kind::Auto, requires = "key")]
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Kind {
    /// An integer if it looks like one, otherwise a string.
    Auto,
    /// An integer.
    Int,
    /// A string.
    String,
    /// As it is stored, and as `inspect --json` shows it: 42; or 3:tea or, for a tuple of both,
    /// 42;3:tea.
    Raw,
}

impl TypedKey {
    /// The key of `table`, if one was typed; or why it is none.
    pub(crate) fn of(&self, table: &Table) -> Result<Option<Key>, String> {
        self.key.as_deref().map(|key| self.kind.read(table, key)).transpose()
    }
}

impl Kind {
    fn read(self, table: &Table, typed: &str) -> Result<Key, String> {
        // All integers are written alike, whatever their type.
        let integer = || match (typed.parse::<i128>(), typed.parse::<u128>()) {
            (Ok(number), _) if number.to_string() == typed => Some(Key::new(table, &number)),
            (_, Ok(number)) if number.to_string() == typed => Some(Key::new(table, &number)),
            _ => None,
        };
        match self {
            Kind::Auto => Ok(integer().unwrap_or_else(|| Key::new(table, typed))),
            Kind::Int => integer().ok_or_else(|| format!("{typed:?} is no integer")),
            Kind::String => Ok(Key::new(table, typed)),
            Kind::Raw => Ok(Key::from_bytes(table, typed.as_bytes())),
        }
    }
}

/// A key as it is typed: an integer, or a string. One that this could be mistaken for another, or
/// for more than text, is shown as it is stored.
pub(crate) fn shown(stored: &[u8]) -> String {
    as_typed(stored).map_or_else(|| stored.escape_ascii().to_string(), str::to_owned)
}

/// The key of a table, as `table/key`.
pub(crate) fn named(key: &Key) -> String {
    format!("{}/{}", key.table().name().escape_debug(), shown(key.bytes()))
}

fn as_typed(stored: &[u8]) -> Option<&str> {
    let text = match stored.strip_suffix(b";") {
        Some(digits) if part(stored) == Some(b"") => digits,
        _ => &stored[stored.iter().position(|byte| *byte == b':')? + 1..],
    };
    let text = std::str::from_utf8(text).ok()?;
    let plain = |char: char| {
        char == '"' || char == '\'' || (char != '\\' && char.escape_debug().len() == 1)
    };
    // Typed, it is to lead back here; and it is not to look as if it were shown as it is stored.
    let read = Kind::Auto.read(&Table::new(""), text).ok()?;
    let leads_back = read.bytes() == stored && text.trim() == text && text.chars().all(plain);
    (leads_back && !looks_stored(text.as_bytes())).then_some(text)
}

/// Whether this is how some key is stored: parts, one after the other, or none.
fn looks_stored(mut text: &[u8]) -> bool {
    while !text.is_empty() {
        match part(text) {
            Some(rest) => text = rest,
            None => return false,
        }
    }
    true
}

/// What is behind the part, or the beginning of one, that this begins with.
fn part(text: &[u8]) -> Option<&[u8]> {
    if let [b't' | b'f' | b'n' | b's', rest @ ..] = text {
        return Some(rest);
    }
    let unsigned = text.strip_prefix(b"-").unwrap_or(text);
    let end = unsigned.iter().position(|byte| !byte.is_ascii_digit()).filter(|end| *end > 0)?;
    match unsigned.split_at(end) {
        (_, [b';' | b'[', rest @ ..]) => Some(rest),
        (len, [b':', rest @ ..]) => rest.get(std::str::from_utf8(len).ok()?.parse().ok()?..),
        _ => None,
    }
}

/// What all plain names of a table's values begin with, and of its leases; `None` if the table's name
/// is so long that there are none.
pub(crate) fn beginnings(names: &Namespace, table: &Table) -> Option<[Vec<u8>; 2]> {
    // The key that is written as nothing at all.
    let nothing = names.names(&Key::new(table, &()));
    let beginning = |name: &[u8]| name.strip_suffix(b"/}").map(|name| [name, b"/"].concat());
    Some([beginning(&nothing.value)?, beginning(&nothing.lease)?])
}

/// The pattern that a name which begins like this matches, and no other.
pub(crate) fn pattern(beginning: &[u8]) -> Vec<u8> {
    let mut pattern = Vec::with_capacity(beginning.len() + 1);
    for byte in beginning {
        if matches!(byte, b'*' | b'?' | b'[' | b']' | b'\\' | b'^') {
            pattern.push(b'\\');
        }
        pattern.push(*byte);
    }
    pattern.push(b'*');
    pattern
}

/// The key in a plain name, of which the beginning is known.
pub(crate) fn key_in<'n>(name: &'n [u8], beginning: &[u8]) -> Option<&'n [u8]> {
    name.strip_prefix(beginning)?.strip_suffix(b"}")
}

/// The fingerprint in a hashed name.
pub(crate) fn fingerprint_in(name: &[u8], beginning: &[u8]) -> Option<Fingerprint> {
    let digits = std::str::from_utf8(key_in(name, beginning)?).ok()?;
    if digits.len() != 32 || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    u128::from_str_radix(digits, 16).ok().map(|bits| Fingerprint::from_bytes(bits.to_be_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn typed(kind: Kind, key: &str) -> Result<Vec<u8>, String> {
        kind.read(&Table::new("t"), key).map(|key| key.bytes().to_vec())
    }

    #[test]
    fn what_looks_like_an_integer_is_one() {
        let auto = |key: &str| typed(Kind::Auto, key).unwrap();
        assert_eq!(auto("42"), b"42;");
        assert_eq!(auto("-42"), b"-42;");
        assert_eq!(auto(&u128::MAX.to_string()), format!("{};", u128::MAX).as_bytes());
        assert_eq!(auto("042"), b"3:042");
        assert_eq!(auto("+42"), b"3:+42");
        assert_eq!(auto("tea"), b"3:tea");
        assert_eq!(auto(""), b"0:");
        assert_eq!(typed(Kind::String, "42").unwrap(), b"2:42");
        assert_eq!(typed(Kind::Raw, "42;3:tea").unwrap(), b"42;3:tea");
        assert!(typed(Kind::Int, "tea").unwrap_err().contains("no integer"));
    }

    #[test]
    fn a_key_is_shown_as_it_is_typed_unless_that_could_be_another() {
        for typed in
            ["42", "-42", "0", "tea", "user:7", "green tea", "caf\u{e9}", "/a?b=\"c\"", "042"]
        {
            let stored = self::typed(Kind::Auto, typed).unwrap();
            assert_eq!(shown(&stored), typed);
        }
        // A string of digits, one that looks like a key that is stored, and what is not for terminals.
        for (typed, stored) in [
            ("42", "2:42"),
            ("42;", "3:42;"),
            ("3:tea", "5:3:tea"),
            ("42;3:tea", "8:42;3:tea"),
            ("t", "1:t"),
            ("sn", "2:sn"),
            ("", "0:"),
            (" a", "2: a"),
            ("a\\n", "3:a\\\\n"),
            ("a\n", "2:a\\n"),
        ] {
            assert_eq!(shown(&self::typed(Kind::String, typed).unwrap()), stored);
        }
        for stored in ["", "t", "s42;", "42;3:tea", "2[1;2;", "3:tea42;", "042;", "what;", ":", ";"]
        {
            assert_eq!(shown(stored.as_bytes()), stored);
        }
    }

    #[test]
    fn a_name_leads_back_to_its_key() {
        let names = Namespace::new("sh*p");
        for table in ["product", "a/b", "", "[x]"].map(Table::new) {
            let [values, leases] = beginnings(&names, &table).unwrap();
            for key in [Key::new(&table, &42), Key::new(&table, "a{b"), Key::new(&table, &())] {
                let of = names.names(&key);
                assert_eq!(key_in(&of.value, &values), Some(key.bytes()));
                assert_eq!(key_in(&of.lease, &leases), Some(key.bytes()));
                assert_eq!(key_in(&of.value, &leases), None);
            }
        }
        assert_eq!(beginnings(&names, &Table::new("t".repeat(300))), None);

        let hashed = Key::new(&Table::new("t"), "}");
        let name = names.names(&hashed).value;
        assert_eq!(fingerprint_in(&name, b"sh*p:V:{"), Some(hashed.fingerprint()));
        assert_eq!(fingerprint_in(b"sh*p:V:{12}", b"sh*p:V:{"), None);
    }

    #[test]
    fn a_pattern_takes_nothing_for_a_wildcard() {
        assert_eq!(pattern(b"a*?[b]\\:v:{"), b"a\\*\\?\\[b\\]\\\\:v:{*");
    }
}
