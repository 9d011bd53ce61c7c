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
    /// As it is stored, and as `inspect` shows it: 42; or 3:tea or, for a tuple of both, 42;3:tea.
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
