//! How keys become bytes, and bytes become the names of things in the shared tier.
//!
//! Two rules hold everything together. Every key is written as a row of parts each of which says
//! where it ends, so two keys of one type have the same bytes only if they are equal. And
//! whatever is derived from a key is derived from its table as well, so two tables never share a
//! value, whatever they are called and whatever their keys contain.

use std::borrow::Cow;
use std::fmt;
use std::io::Write;
use std::rc::Rc;
use std::sync::Arc;

use super::token::hex;

/// A key that can leave the process: one that can be written as bytes, the same ones in every
/// process, build and version.
///
/// Implemented for integers, `bool`, `char`, strings, bytes, `Option`, slices, arrays, `Vec`,
/// tuples of up to eight, and references and boxes of these.
///
/// # What is promised
///
/// Two keys of one type that differ are written differently: `("a", "bc")` and `("ab", "c")`,
/// `None` and `Some(0)`, `["a", ""]` and `["", "a"]`. Keys of different types that a reader would
/// take for the same are written the same: `1u32` and `1u64`; `"a"`, `'a'` and `b"a"[..]`; a `Vec`
/// and an array of the same elements; `(1, (2, 3))` and `((1, 2), 3)`. So an id can be widened
/// without losing what is stored.
///
/// # Implementing it
///
/// Write everything that `Eq` looks at, in a fixed order, with
/// [`KeyEncoder::part`]. An enum writes a number for its variant first. The encoder delimits each
/// part by itself. What was once deployed must not change: other bytes are another key.
///
/// ```
/// use onefill::fleet::{FleetKey, Key, KeyEncoder, Table};
///
/// enum Page {
///     Front { tenant: u32 },
///     Article { tenant: u32, slug: String },
/// }
///
/// impl FleetKey for Page {
///     fn encode(&self, out: &mut KeyEncoder) {
///         match self {
///             Page::Front { tenant } => out.part(&0).part(tenant),
///             Page::Article { tenant, slug } => out.part(&1).part(tenant).part(slug),
///         };
///     }
/// }
///
/// let pages = Table::new("page");
/// let front = Key::new(&pages, &Page::Front { tenant: 7 });
/// let article = Key::new(&pages, &Page::Article { tenant: 7, slug: "tea".into() });
/// assert_eq!(front.bytes(), b"0;7;");
/// assert_eq!(article.bytes(), b"1;7;3:tea");
/// ```
pub trait FleetKey {
    /// Writes the key.
    fn encode(&self, out: &mut KeyEncoder);

    /// Writes a row of such keys. Only bytes have a shorter form than one after the other; there
    /// is no reason to implement it.
    fn encode_slice(slice: &[Self], out: &mut KeyEncoder)
    where
        Self: Sized,
    {
        out.write(format_args!("{}[", slice.len()));
        slice.iter().for_each(|item| item.encode(out));
    }
}

/// Takes the parts of a key, and delimits each of them.
///
/// | part | is written as | for example |
/// |---|---|---|
/// | an integer | its decimal digits, `;` | `-42;` |
/// | a string, a `char`, bytes | how many bytes, `:`, the bytes | `3:tea` |
/// | `true`, `false` | `t`, `f` | `t` |
/// | `None`, `Some(x)` | `n`, `s` and `x` | `s42;` |
/// | a slice, array, `Vec` | how many, `[`, one after the other | `2[1;2;` |
/// | a tuple | one after the other | `42;3:tea` |
///
/// There is no way to write anything without its delimiter, hence none for two keys to run
/// together.
#[derive(Debug)]
pub struct KeyEncoder(Vec<u8>);

impl KeyEncoder {
    /// Writes a part.
    pub fn part<K: FleetKey + ?Sized>(&mut self, part: &K) -> &mut Self {
        part.encode(self);
        self
    }

    /// Writes bytes, as one part.
    pub fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.write(format_args!("{}:", bytes.len()));
        self.0.extend_from_slice(bytes);
        self
    }

    fn write(&mut self, text: fmt::Arguments<'_>) {
        self.0.write_fmt(text).expect("a Vec takes all that is written to it");
    }
}

macro_rules! integers {
    ($($int:ty)*) => {$(
        impl FleetKey for $int {
            fn encode(&self, out: &mut KeyEncoder) {
                out.write(format_args!("{self};"));
            }
        }
    )*};
}
integers!(u16 u32 u64 u128 usize i8 i16 i32 i64 i128 isize);

impl FleetKey for u8 {
    fn encode(&self, out: &mut KeyEncoder) {
        out.write(format_args!("{self};"));
    }

    fn encode_slice(slice: &[u8], out: &mut KeyEncoder) {
        out.bytes(slice);
    }
}

impl FleetKey for bool {
    fn encode(&self, out: &mut KeyEncoder) {
        out.0.push(if *self { b't' } else { b'f' });
    }
}

impl FleetKey for char {
    fn encode(&self, out: &mut KeyEncoder) {
        out.bytes(self.encode_utf8(&mut [0; 4]).as_bytes());
    }
}

impl FleetKey for str {
    fn encode(&self, out: &mut KeyEncoder) {
        out.bytes(self.as_bytes());
    }
}

impl FleetKey for String {
    fn encode(&self, out: &mut KeyEncoder) {
        out.bytes(self.as_bytes());
    }
}

impl<K: FleetKey> FleetKey for Option<K> {
    fn encode(&self, out: &mut KeyEncoder) {
        match self {
            None => out.0.push(b'n'),
            Some(key) => {
                out.0.push(b's');
                key.encode(out);
            }
        }
    }
}

impl<K: FleetKey> FleetKey for [K] {
    fn encode(&self, out: &mut KeyEncoder) {
        K::encode_slice(self, out);
    }
}

impl<K: FleetKey, const N: usize> FleetKey for [K; N] {
    fn encode(&self, out: &mut KeyEncoder) {
        K::encode_slice(self, out);
    }
}

impl<K: FleetKey> FleetKey for Vec<K> {
    fn encode(&self, out: &mut KeyEncoder) {
        K::encode_slice(self, out);
    }
}

impl<K: FleetKey + ToOwned + ?Sized> FleetKey for Cow<'_, K> {
    fn encode(&self, out: &mut KeyEncoder) {
        (**self).encode(out);
    }
}

macro_rules! pointers {
    ($($pointer:ty)*) => {$(
        impl<K: FleetKey + ?Sized> FleetKey for $pointer {
            fn encode(&self, out: &mut KeyEncoder) {
                (**self).encode(out);
            }
        }
    )*};
}
pointers!(&K Box<K> Rc<K> Arc<K>);

impl FleetKey for () {
    fn encode(&self, _: &mut KeyEncoder) {}
}

macro_rules! tuples {
    ($(($($part:ident)*))*) => {$(
        impl<$($part: FleetKey),*> FleetKey for ($($part,)*) {
            #[allow(non_snake_case)] // the parts are called after their types
            fn encode(&self, out: &mut KeyEncoder) {
                let ($($part,)*) = self;
                $($part.encode(out);)*
            }
        }
    )*};
}
tuples! { (A) (A B) (A B C) (A B C D) (A B C D E) (A B C D E F) (A B C D E F G) (A B C D E F G H) }

/// 128 bits that stand for a table and a key, in every process, build and version, for ever.
///
/// The first 16 bytes of the SHA-256 of: the length of the table's name in bytes as decimal
/// digits, `:`, the name, and the key as [`KeyEncoder`] wrote it. So a shell can compute it:
///
/// ```sh
/// printf '7:product42;' | sha256sum | cut -c 1-32
/// ```
///
/// A faster hash would do against chance. But keys hold what users typed, and where whoever
/// chooses two keys can make them collide, one user is served what was stored for another.
///
/// ```
/// use onefill::fleet::{Key, Table};
///
/// let key = Key::new(&Table::new("product"), &42);
/// assert_eq!(key.fingerprint().to_string(), "b0357cc9bc56c05cf1f9222e382b6eb9");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Fingerprint([u8; 16]);

impl Fingerprint {
    fn of(table: &str, key: &[u8]) -> Fingerprint {
        let mut hash = hmac_sha256::Hash::new();
        hash.update(table.len().to_string());
        hash.update(b":");
        hash.update(table);
        hash.update(key);
        let digest = hash.finalize();
        Fingerprint(*digest.first_chunk().expect("a digest has 32 bytes"))
    }

    /// The fingerprint with these bytes, as they were stored.
    pub const fn from_bytes(bytes: [u8; 16]) -> Fingerprint {
        Fingerprint(bytes)
    }

    /// Its bytes, as they are to be stored.
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        hex(&self.0, f)
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fingerprint({self})")
    }
}

/// A kind of thing that is cached: the name under which its keys are told from everybody else's.
///
/// Any name will do, the empty one included. Cheap to clone.
///
/// ```
/// use onefill::fleet::Table;
///
/// assert_eq!(Table::new("product").name(), "product");
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Table {
    name: Arc<str>,
    fingerprint: Fingerprint,
}

impl Table {
    /// The table of this name.
    pub fn new(name: impl Into<Arc<str>>) -> Table {
        let name = name.into();
        Table { fingerprint: Fingerprint::of(&name, b""), name }
    }

    /// What it is called.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Stands for the table where something concerns all of its keys.
    pub fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }
}

impl fmt::Debug for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Table({:?})", self.name)
    }
}

/// A key as the shared tier knows it: its table, its bytes, its fingerprint.
///
/// ```
/// use onefill::fleet::{Key, Table};
///
/// let (a, ab) = (Table::new("A"), Table::new("AA"));
/// assert_ne!(Key::new(&a, "AB"), Key::new(&ab, "B"));
/// assert_eq!(Key::new(&a, &42u32), Key::new(&a, &42u64));
/// assert_eq!(Key::new(&a, &("tea", 42)).bytes(), b"3:tea42;");
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Key {
    table: Table,
    bytes: Box<[u8]>,
    fingerprint: Fingerprint,
}

impl Key {
    /// Writes `key`, of `table`, as bytes.
    pub fn new<K: FleetKey + ?Sized>(table: &Table, key: &K) -> Key {
        let mut out = KeyEncoder(Vec::new());
        key.encode(&mut out);
        Key::from_bytes(table, out.0)
    }

    /// The key, of `table`, that was written as these bytes: for tools, which know a key by what
    /// they read of it. Any bytes will do; those that no key is written as are a key that nobody
    /// asks for.
    ///
    /// ```
    /// use onefill::fleet::{Key, Table};
    ///
    /// let products = Table::new("product");
    /// assert_eq!(Key::from_bytes(&products, *b"42;"), Key::new(&products, &42));
    /// ```
    pub fn from_bytes(table: &Table, bytes: impl Into<Box<[u8]>>) -> Key {
        let bytes = bytes.into();
        Key { table: table.clone(), fingerprint: Fingerprint::of(&table.name, &bytes), bytes }
    }

    /// The table it belongs to.
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// The key as [`KeyEncoder`] wrote it, without its table.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Stands for the table and the key.
    pub fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }
}

impl std::hash::Hash for Key {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.fingerprint.hash(state); // which covers all the rest
    }
}

/// `table/key`, with bytes that are no text escaped.
impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.table.name.escape_debug(), self.bytes.escape_ascii())
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({self})")
    }
}

/// What sets one application's names apart from another's on the same server.
///
/// # Names
///
/// | what | plain | hashed |
/// |---|---|---|
/// | the value of a key | `ns:v:{table/key}` | `ns:V:{fingerprint}` |
/// | its lease | `ns:l:{table/key}` | `ns:L:{fingerprint}` |
/// | the epoch of a table | `ns:e:{table/}` | `ns:E:{fingerprint}` |
/// | the channel of notices | `ns:ev` | |
/// | a process's own channel | `ns:hb:{random}` without the braces | |
///
/// The plain form is for people: it can be read, and searched for by table. It is used while what
/// is between the braces has at most [`PLAIN_MAX`](Namespace::PLAIN_MAX) bytes and no `}` in it.
/// A cluster places a name by what stands between its first `{` and the next `}`; with a `}`
/// inside, all keys that begin alike would be placed together.
///
/// Between the braces the two names of a key are the same, so they live in the same slot of a
/// cluster, as scripts that take both need them to.
///
/// No two names collide. In a namespace and in a table's name the bytes `%`, `/`, `{`, `}` and
/// control characters are written as `%` and two digits. Thus the first `{` ends the namespace,
/// the first `/` after it ends the table, and the rest is the key, byte for byte.
///
/// # Example
///
/// ```
/// use onefill::fleet::{Key, Namespace, Table};
///
/// let shop = Namespace::new("shop");
/// let products = Table::new("product");
///
/// let names = shop.names(&Key::new(&products, &42));
/// assert_eq!(names.value, b"shop:v:{product/42;}");
/// assert_eq!(names.lease, b"shop:l:{product/42;}");
///
/// let names = shop.names(&Key::new(&products, "}{"));
/// assert_eq!(names.value, b"shop:V:{ff356508eb7485a45c156bfd71deff3b}");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Namespace(Box<str>);

/// The names of one key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Names {
    /// Where its value is stored.
    pub value: Vec<u8>,
    /// Where its lease is.
    pub lease: Vec<u8>,
}

impl Namespace {
    /// How long a table and a key may be together, in bytes, to be readable in their names.
    pub const PLAIN_MAX: usize = 256;

    /// The namespace of this name.
    pub fn new(name: &str) -> Namespace {
        let mut escaped = Vec::with_capacity(name.len());
        escape(name, &mut escaped);
        let escaped = String::from_utf8(escaped).expect("only ASCII is escaped, into ASCII");
        Namespace(escaped.into())
    }

    /// The names of a key.
    pub fn names(&self, key: &Key) -> Names {
        match plain(&key.table, &key.bytes) {
            Some(tag) => Names { value: self.name(b'v', &tag), lease: self.name(b'l', &tag) },
            None => {
                let tag = key.fingerprint.to_string();
                let tag = tag.as_bytes();
                Names { value: self.name(b'V', tag), lease: self.name(b'L', tag) }
            }
        }
    }

    /// The name of a table's [`Epoch`](super::Epoch).
    pub fn epoch(&self, table: &Table) -> Vec<u8> {
        match plain(table, b"") {
            Some(tag) => self.name(b'e', &tag),
            None => self.name(b'E', table.fingerprint.to_string().as_bytes()),
        }
    }

    /// The channel that notices are sent over.
    pub fn channel(&self) -> String {
        format!("{}:ev", self.0)
    }

    /// The channel over which a process listens to itself.
    #[cfg(any(feature = "r2d2_redis", feature = "redis"))]
    pub(super) fn heartbeats(&self, origin: super::Origin) -> String {
        format!("{}:hb:{origin}", self.0)
    }

    fn name(&self, role: u8, tag: &[u8]) -> Vec<u8> {
        // The role stands before the brace, so that values can be listed without leases.
        [self.0.as_bytes(), &[b':', role, b':', b'{'], tag, b"}"].concat()
    }
}

/// What stands between the braces of a name that can be read.
fn plain(table: &Table, key: &[u8]) -> Option<Vec<u8>> {
    let longest = table.name.len() + 1 + key.len();
    if longest > Namespace::PLAIN_MAX || key.contains(&b'}') {
        return None;
    }
    let mut tag = Vec::with_capacity(longest);
    escape(&table.name, &mut tag);
    tag.push(b'/');
    tag.extend_from_slice(key);
    (tag.len() <= Namespace::PLAIN_MAX).then_some(tag)
}

fn escape(text: &str, out: &mut Vec<u8>) {
    for byte in text.bytes() {
        match byte {
            b'%' | b'/' | b'{' | b'}' | 0..0x20 | 0x7f => {
                write!(out, "%{byte:02x}").expect("a Vec takes all that is written to it");
            }
            _ => out.push(byte),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    fn bytes_of<K: FleetKey + ?Sized>(key: &K) -> Vec<u8> {
        Key::new(&Table::new("t"), key).bytes().to_vec()
    }

    /// The slot in which a cluster keeps a name: CRC-16 (XMODEM) of what is between the first `{`
    /// and the next `}`, unless that is nothing, of 16,384.
    fn slot(name: &[u8]) -> u16 {
        let tag = name.iter().position(|&b| b == b'{').and_then(|open| {
            let rest = &name[open + 1..];
            let close = rest.iter().position(|&b| b == b'}')?;
            (close > 0).then(|| &rest[..close])
        });
        let mut crc = 0u16;
        for byte in tag.unwrap_or(name) {
            crc ^= u16::from(*byte) << 8;
            for _ in 0..8 {
                crc = if crc & 0x8000 == 0 { crc << 1 } else { crc << 1 ^ 0x1021 };
            }
        }
        crc % 16_384
    }

    #[test]
    fn slots_are_computed_as_a_cluster_does() {
        assert_eq!(slot(b"123456789"), 0x31c3); // the check value of this CRC
        assert_eq!(slot(b"{user1000}.following"), slot(b"{user1000}.followers"));
        assert_ne!(slot(b"foo{}{bar}"), slot(b"foo{}{baz}"), "an empty tag is none");
        assert_eq!(slot(b"foo{{bar}}zap"), slot(b"{{bar}"));
    }

    #[test]
    fn each_kind_of_key_is_written_as_documented() {
        assert_eq!(bytes_of(&42u8), b"42;");
        assert_eq!(bytes_of(&-42i64), b"-42;");
        assert_eq!(bytes_of(&u128::MAX), b"340282366920938463463374607431768211455;");
        assert_eq!(bytes_of(&i128::MIN), b"-170141183460469231731687303715884105728;");
        assert_eq!(bytes_of(&(true, false)), b"tf");
        assert_eq!(bytes_of("tea"), b"3:tea");
        assert_eq!(bytes_of("thé"), "4:thé".as_bytes());
        assert_eq!(bytes_of(&'é'), "2:é".as_bytes());
        assert_eq!(bytes_of(&b"\0\xff\r\n"[..]), b"4:\0\xff\r\n");
        assert_eq!(bytes_of(&[1u8, 2]), b"2:\x01\x02");
        assert_eq!(bytes_of(&[1u16, 2]), b"2[1;2;");
        assert_eq!(bytes_of(&vec!["a", ""]), b"2[1:a0:");
        assert_eq!(bytes_of(&Some(1)), b"s1;");
        assert_eq!(bytes_of(&None::<u8>), b"n");
        assert_eq!(bytes_of(&()), b"");
        assert_eq!(bytes_of(&(1, "b", true, 'd', [5u8], Some(6), 7, 8)), b"1;1:bt1:d1:\x05s6;7;8;");
    }

    #[test]
    fn owned_and_borrowed_keys_are_the_same() {
        let tea = bytes_of("tea");
        assert_eq!(bytes_of(&String::from("tea")), tea);
        assert_eq!(bytes_of(&Box::<str>::from("tea")), tea);
        assert_eq!(bytes_of(&Arc::<str>::from("tea")), tea);
        assert_eq!(bytes_of(&Rc::<str>::from("tea")), tea);
        assert_eq!(bytes_of(&Cow::from("tea")), tea);
        assert_eq!(bytes_of(&&&"tea"), tea);
        assert_eq!(bytes_of(&b"tea".to_vec()), tea);
        assert_eq!(bytes_of(&Arc::<[u8]>::from(*b"tea")), tea);
    }

    #[test]
    fn a_key_read_back_is_the_key() {
        let table = Table::new("t");
        for key in [Key::new(&table, &("tea", 42)), Key::new(&table, ""), Key::new(&table, &())] {
            assert_eq!(Key::from_bytes(&table, key.bytes()), key);
            assert_ne!(Key::from_bytes(&Table::new("u"), key.bytes()), key);
        }
    }

    #[test]
    fn parts_do_not_run_together() {
        assert_ne!(bytes_of(&("a", "bc")), bytes_of(&("ab", "c")));
        assert_ne!(bytes_of(&(1, 23)), bytes_of(&(12, 3)));
        assert_ne!(bytes_of(&("1:a", "")), bytes_of(&("1", "a")));
        assert_ne!(bytes_of(&["a", ""]), bytes_of(&["", "a"]));
        assert_ne!(bytes_of(&(vec![1], vec![2, 3])), bytes_of(&(vec![1, 2], vec![3])));
        assert_ne!(bytes_of(&(None::<u8>, Some(1))), bytes_of(&(Some(1), None::<u8>)));
        assert_ne!(bytes_of(&Some(None::<u8>)), bytes_of(&None::<Option<u8>>));
    }

    /// Pinned: what these are today they must be in every version to come.
    #[test]
    fn fingerprints_never_change() {
        let fingerprint =
            |table: &str, key: &str| Key::new(&Table::new(table), key).fingerprint().to_string();
        assert_eq!(
            Key::new(&Table::new("product"), &42).fingerprint().to_string(),
            "b0357cc9bc56c05cf1f9222e382b6eb9"
        );
        assert_eq!(fingerprint("", ""), "390feabc786e369e55b904251d643b52");
        assert_eq!(fingerprint("product", "tea"), "837d4b83a3c63d6e2cbcf8eb45d46af2");
        assert_eq!(fingerprint("prodücт", &"x".repeat(65_536)), "690633858908e02b8dfe61431ff32743");
        assert_eq!(
            Table::new("product").fingerprint().to_string(),
            "13f1de75f80ff8d83b5d3fb7fc2b337f"
        );
    }

    #[test]
    fn tables_and_keys_do_not_run_together() {
        let pairs = [
            ("a:b", "c"),
            ("a", "b:c"),
            ("AA", "B"),
            ("A", "AB"),
            ("", "a:b"),
            ("a", "b"),
            ("a:", "b"),
            ("a", ":b"),
            ("a/b", "c"),
            ("a", "b/c"),
            ("a%2fb", "c"),
            ("a}", "{c"),
            ("a", "}{c"),
        ];
        let ns = Namespace::new("ns");
        let keys = pairs.map(|(table, key)| Key::new(&Table::new(table), key));
        let mut names: Vec<Vec<u8>> = keys.iter().map(|key| ns.names(key).value).collect();
        let mut fingerprints: Vec<_> = keys.iter().map(Key::fingerprint).collect();
        names.sort();
        names.dedup();
        fingerprints.sort();
        fingerprints.dedup();
        assert_eq!(names.len(), pairs.len());
        assert_eq!(fingerprints.len(), pairs.len());
    }

    #[test]
    fn any_bytes_can_be_a_key() {
        let long = vec![b'x'; 65_536];
        let keys: [&[u8]; 11] = [
            b"",
            b"\0",
            b"\r\n",
            b" ",
            b"\"'",
            "🫖".as_bytes(),
            b"\xff\xfe",
            b"\xc3",
            b"$3\r\nfoo\r\n",
            &long,
            &long[1..],
        ];
        let ns = Namespace::new("ns");
        let mut names = keys.map(|key| ns.names(&Key::new(&Table::new("t"), key)).value).to_vec();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), keys.len());
        assert!(names.iter().all(|name| name.len() < 300));
    }

    #[test]
    fn namespaces_and_keys_do_not_run_together() {
        // The second is made to end in what the first is followed by.
        let outer = Namespace::new("x");
        let inner = Namespace::new("x:v:{t/14:A");
        let outer_name = outer.names(&Key::new(&Table::new("t"), "A:v:{t/0:")).value;
        let inner_name = inner.names(&Key::new(&Table::new("t"), "")).value;
        assert_ne!(outer_name, inner_name);
        assert_eq!(inner_name, b"x:v:%7bt%2f14:A:v:{t/0:}");
    }

    #[test]
    fn long_keys_and_closing_braces_are_hashed() {
        let ns = Namespace::new("ns");
        let t = Table::new("t");
        let is_hashed = |key: &Key| {
            let names = ns.names(key);
            let hex = key.fingerprint().to_string();
            let hashed = names.value == format!("ns:V:{{{hex}}}").as_bytes();
            assert_eq!(hashed, names.lease == format!("ns:L:{{{hex}}}").as_bytes());
            hashed
        };
        assert!(!is_hashed(&Key::new(&t, "")));
        assert!(!is_hashed(&Key::new(&t, "{")));
        assert!(is_hashed(&Key::new(&t, "}")));
        // 2 bytes of table, 4 of length, and the string.
        assert!(!is_hashed(&Key::new(&t, &*"x".repeat(250))));
        assert!(is_hashed(&Key::new(&t, &*"x".repeat(251))));
        assert!(is_hashed(&Key::new(&t, &*"x".repeat(65_536))));
        // Escaped it is too long, though it is not by itself.
        assert!(is_hashed(&Key::new(&Table::new("/".repeat(100)), "x")));
        assert!(is_hashed(&Key::new(&Table::new("t".repeat(300)), &())));
    }

    #[test]
    fn epochs_have_names_of_their_own() {
        let ns = Namespace::new("ns");
        assert_eq!(ns.epoch(&Table::new("product")), b"ns:e:{product/}");
        assert_eq!(ns.epoch(&Table::new("a}b")), b"ns:e:{a%7db/}");
        assert!(ns.epoch(&Table::new("t".repeat(300))).starts_with(b"ns:E:{"));
        assert_eq!(ns.channel(), "ns:ev");
    }

    #[test]
    fn both_names_of_a_key_share_a_slot() {
        let awkward: &[&[u8]] = &[
            b"",
            b"{",
            b"}",
            b"{}",
            b"}{",
            b"{{",
            b"}}",
            b"{}}",
            b"\xff\xfe",
            b"\0\r\n",
            b"{a}{b}",
        ];
        let mut random = 0x243f_6a88_85a3_08d3u64;
        let mut next = move || {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random
        };
        let ns = [Namespace::new("ns"), Namespace::new(""), Namespace::new("{}")];
        let tables = [Table::new("t"), Table::new(""), Table::new("}"), Table::new("{x}")];
        for round in 0..10_000 {
            let key: Vec<u8> = match awkward.get(round) {
                Some(key) => key.to_vec(),
                None => (0..next() % 300).map(|_| b"{}a\xff\0/:%"[next() as usize % 8]).collect(),
            };
            let key = Key::new(&tables[round % 4], &key);
            let names = ns[round % 3].names(&key);
            assert_eq!(slot(&names.value), slot(&names.lease), "{key}");
            assert_ne!(names.value, names.lease);
        }
    }

    #[test]
    fn keys_with_braces_are_spread_over_the_slots() {
        let ns = Namespace::new("ns");
        let t = Table::new("t");
        let mut slots: HashMap<u16, usize> = HashMap::new();
        for i in 0..1_000 {
            *slots.entry(slot(&ns.names(&Key::new(&t, &format!("}}{i}"))).value)).or_default() += 1;
        }
        assert!(slots.len() > 900, "{} slots", slots.len());
    }

    /// A string in which what delimits is likely.
    fn tricky() -> impl Strategy<Value = String> {
        proptest::string::string_regex("[0-3:;\\[{}/%nsab]{0,6}").unwrap()
    }

    /// A text, and two ways of cutting it in three: whatever joins parts without telling where one
    /// ends takes both for the same.
    fn cut_twice() -> impl Strategy<Value = [[String; 3]; 2]> {
        let text = proptest::string::string_regex("[0-3:;\\[{}/%nsv]{0,12}").unwrap();
        (text, any::<[prop::sample::Index; 4]>()).prop_map(|(text, cuts)| {
            let [a, b, c, d] = cuts.map(|cut| cut.index(text.len() + 1));
            [[a, b], [c, d]].map(|mut cuts| {
                cuts.sort();
                let [from, to] = cuts;
                [&text[..from], &text[from..to], &text[to..]].map(String::from)
            })
        })
    }

    fn config() -> ProptestConfig {
        ProptestConfig { failure_persistence: None, cases: 2_000, ..ProptestConfig::default() }
    }

    proptest! {
        #![proptest_config(config())]

        #[test]
        fn different_tuples_are_written_differently(
            a in (tricky(), tricky(), any::<Option<u8>>(), proptest::collection::vec(tricky(), 0..3)),
            b in (tricky(), tricky(), any::<Option<u8>>(), proptest::collection::vec(tricky(), 0..3)),
        ) {
            prop_assert_eq!(a == b, bytes_of(&a) == bytes_of(&b));
        }

        #[test]
        fn no_key_is_the_beginning_of_another(
            a in (tricky(), any::<i16>(), proptest::collection::vec(any::<u8>(), 0..4)),
            b in (tricky(), any::<i16>(), proptest::collection::vec(any::<u8>(), 0..4)),
        ) {
            prop_assert_eq!(a == b, bytes_of(&a).starts_with(&bytes_of(&b)));
        }

        #[test]
        fn a_text_cut_in_two_ways_is_two_keys([a, b] in cut_twice()) {
            let tuple = |[x, y, z]: &[String; 3]| bytes_of(&(x, y, z));
            prop_assert_eq!(a == b, tuple(&a) == tuple(&b));
            let row = |parts: &[String; 3]| bytes_of(&(&parts[..2], &parts[2..]));
            prop_assert_eq!(a == b, row(&a) == row(&b));
        }

        #[test]
        fn different_triples_have_different_names([a, b] in cut_twice()) {
            let names = |[ns, table, key]: &[String; 3]| {
                Namespace::new(ns).names(&Key::new(&Table::new(table.as_str()), key))
            };
            prop_assert_eq!(a == b, names(&a).value == names(&b).value);
            prop_assert_eq!(a == b, names(&a).lease == names(&b).lease);
            prop_assert_ne!(names(&a).value, names(&b).lease);
        }

        #[test]
        fn different_pairs_have_different_fingerprints([a, b] in cut_twice()) {
            let fingerprint = |[table, x, y]: &[String; 3]| {
                Key::new(&Table::new(table.as_str()), &(x, y)).fingerprint()
            };
            prop_assert_eq!(a == b, fingerprint(&a) == fingerprint(&b));
        }
    }
}
