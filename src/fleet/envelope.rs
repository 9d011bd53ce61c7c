//! The bytes that stand for a value in the shared tier: a header, then the encoded value.
//!
//! | offset | bytes | what |
//! |---:|---:|---|
//! | 0 | 1 | magic, [`MAGIC`] |
//! | 1 | 1 | format, [`FORMAT`] |
//! | 2 | 16 | version: the [`Token`] of the fill that made the value |
//! | 18 | 16 | [`Fingerprint`] of the table and the key |
//! | 34 | 1 | flags: bit 0 for absent |
//! | 35 | 8 | ttl: for how long the value is fresh, in milliseconds |
//! | 43 | 8 | life: for how long it was stored, in milliseconds |
//! | 51 | 4 | cost: how long the load took, in microseconds |
//! | 55 | 4 | [`Schema`]: how the value is encoded |
//! | 59 | 8 | [`Epoch`] of the table |
//! | 67 | 4 | checksum: CRC-32 (IEEE) of all other bytes, in order |
//! | 71 | | the encoded value |
//!
//! Numbers are big-endian. Formats to come will keep the first [`SEEN`] bytes, so that a script on
//! a server can tell one version of a value from another without knowing the rest.
//!
//! There is no time of day in it: nobody's clock can be trusted by everybody. A value's age is its
//! `life` less what the tier says is left of it ([`Header::age`]).
//!
//! Reading believes nothing. Bytes may come from another application, another version of this one,
//! or another key by way of a connection that lost its place; they may be cut off or damaged. Each
//! is a [`Fault`], none a panic, and no number in them makes anything be allocated.
//!
//! # Example
//!
//! ```
//! use onefill::fleet::envelope::{self, Header, Schema};
//! use onefill::fleet::{Codec, Epoch, Key, Table, Token, codec};
//! use std::time::Duration;
//!
//! let tea = Key::new(&Table::new("product"), "tea");
//! let schema = Schema::new(1, "raw");
//! let header = Header {
//!     version: Token::random(),
//!     fingerprint: tea.fingerprint(),
//!     absent: false,
//!     ttl: Duration::from_secs(300),
//!     life: Duration::from_secs(360),
//!     cost: Duration::from_micros(1_700),
//!     schema,
//!     epoch: Epoch::random(),
//! };
//! let value = "a pot of tea".to_string();
//! let bytes = envelope::encode(&header, 1 << 20, |out| codec::Raw.encode(&value, out))?;
//!
//! let read = envelope::decode(&bytes, tea.fingerprint(), schema)?;
//! assert_eq!(read.payload, b"a pot of tea");
//! assert_eq!(read.header, header);
//!
//! // As another key's it is not even looked at.
//! let milk = Key::new(&Table::new("product"), "milk");
//! let fault = envelope::decode(&bytes, milk.fingerprint(), schema).unwrap_err();
//! assert!(fault.is_foreign());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::fmt;
use std::time::Duration;

use super::key::Fingerprint;
use super::token::{Epoch, Token};
use crate::error::CodecError;

pub use crate::error::Fault;

/// The first byte of every envelope. No text in UTF-8 and nothing in MessagePack begins with it.
pub const MAGIC: u8 = 0xc1;

/// The second byte: how to read the rest.
pub const FORMAT: u8 = 1;

/// How many bytes, from the first, tell one version of a value from another: magic, format and
/// version.
pub const SEEN: usize = 18;

/// How many bytes the header has.
pub const HEADER: usize = 71;

/// As long as any value may be stored: ten years. Servers overflow on some of what is longer.
pub const MAX_LIFE: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);

/// As many bytes as any value may have when it is encoded. With its header, and what a server sends
/// around it, it must be a reply that is read.
pub(crate) const MAX_PAYLOAD: usize = 63 << 20;

/// What an envelope has room for before its vector grows: most values are small.
const SMALL: usize = 256;

const FINGERPRINT: usize = 18;
const FLAGS: usize = 34;
const TTL: usize = 35;
const LIFE: usize = 43;
const COST: usize = 51;
const SCHEMA: usize = 55;
const EPOCH: usize = 59;
const CHECKSUM: usize = 67;

const ABSENT: u8 = 1;

/// How the values of a table are encoded, in 32 bits.
///
/// Two caches of the same table that would read each other's bytes as something they are not
/// differ in this, and find a [`Fault`] there instead.
///
/// ```
/// use onefill::fleet::envelope::Schema;
///
/// assert_ne!(Schema::new(1, "json"), Schema::new(1, "raw"));
/// assert_ne!(Schema::new(1, "json"), Schema::new(2, "json"));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Schema(u32);

impl Schema {
    /// The application's own version of what it stores in the table, to be raised when values
    /// already stored should not be read any more; and the
    /// [`format`](super::Codec::format) of the codec.
    ///
    /// It is the CRC-32 of the version's four bytes, the most significant first, and of the format.
    pub fn new(version: u32, format: &str) -> Schema {
        let mut sum = crc32fast::Hasher::new();
        sum.update(&version.to_be_bytes());
        sum.update(format.as_bytes());
        Schema(sum.finalize())
    }
}

impl fmt::Display for Schema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}", self.0)
    }
}

impl fmt::Debug for Schema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Schema({self})")
    }
}

/// All that an envelope says about its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The token of the fill that made the value, or one of its own if it was put.
    pub version: Token,
    /// The table and the key it belongs to.
    pub fingerprint: Fingerprint,
    /// Whether the answer is that there is no value. Then the payload is empty.
    pub absent: bool,
    /// For how long it is fresh, counted from when it was stored. Written in whole milliseconds,
    /// and as no more than `life`.
    pub ttl: Duration,
    /// For how long it was stored: its ttl, and its stale windows. Written in whole milliseconds,
    /// as at least one, and as no more than [`MAX_LIFE`].
    pub life: Duration,
    /// How long the load took; zero if that is not known. Written in whole microseconds, up to
    /// some 71 minutes.
    pub cost: Duration,
    /// How the value is encoded.
    pub schema: Schema,
    /// The epoch of the table when the load began. The reader compares it with the table's.
    pub epoch: Epoch,
}

impl Header {
    /// How old the value is, given what the tier says is [`left`](super::Stored::left) of it.
    ///
    /// `None` if the tier says that it never expires: somebody else has stored it or changed its
    /// expiry, and its age cannot be known. Zero if more is left than it was stored for. A cache takes
    /// neither for a value.
    ///
    /// ```
    /// # use onefill::fleet::envelope::{Header, Schema};
    /// # use onefill::fleet::{Epoch, Key, Table, Token};
    /// use std::time::Duration;
    /// # let key = Key::new(&Table::new(""), "");
    /// # let secs = Duration::from_secs;
    /// # let header = Header { version: Token::random(), fingerprint: key.fingerprint(),
    /// #     absent: true, ttl: secs(300), life: secs(360), cost: Duration::ZERO,
    /// #     schema: Schema::new(0, ""), epoch: Epoch::random() };
    /// assert_eq!(header.life, Duration::from_secs(360));
    /// assert_eq!(header.age(Some(Duration::from_secs(300))), Some(Duration::from_secs(60)));
    /// assert_eq!(header.age(None), None);
    /// ```
    pub fn age(&self, left: Option<Duration>) -> Option<Duration> {
        left.map(|left| self.life.saturating_sub(left))
    }
}

/// What [`decode`] and [`inspect`] read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Envelope<'a> {
    /// What the envelope says about the value.
    pub header: Header,
    /// The encoded value; empty if it is absent.
    pub payload: &'a [u8],
}

/// Writes an envelope whose payload is what `write` appends: at most `limit` bytes.
///
/// `write` is given the vector that is returned, with the header in it, so the payload is written
/// once and never copied. It is not called if the header says that there is no value.
///
/// # Errors
///
/// What `write` returns; [`CodecError::TooLarge`] if it appended more than `limit` bytes;
/// [`CodecError::Encode`] if it changed what was there before.
pub fn encode(
    header: &Header,
    limit: usize,
    write: impl FnOnce(&mut Vec<u8>) -> Result<(), CodecError>,
) -> Result<Vec<u8>, CodecError> {
    let head = write_header(header);
    let mut bytes = Vec::with_capacity(SMALL);
    bytes.extend_from_slice(&head);
    if !header.absent {
        write(&mut bytes)?;
    }
    if !bytes.starts_with(&head) {
        return Err(CodecError::encode("the codec changed what it was to append to"));
    }
    let len = bytes.len() - HEADER;
    if len > limit {
        return Err(CodecError::TooLarge { len, limit });
    }
    let sum = checksum(&bytes).to_be_bytes();
    bytes[CHECKSUM..HEADER].copy_from_slice(&sum);
    Ok(bytes)
}

/// Reads an envelope that should be that of the key with this fingerprint, and hold a value of
/// this schema.
///
/// # Errors
///
/// A [`Fault`] for anything else.
pub fn decode(
    bytes: &[u8],
    fingerprint: Fingerprint,
    schema: Schema,
) -> Result<Envelope<'_>, Fault> {
    let envelope = inspect(bytes)?;
    let found = envelope.header.fingerprint;
    if found != fingerprint {
        return Err(Fault::Fingerprint { found, expected: fingerprint });
    }
    let found = envelope.header.schema;
    if found != schema {
        return Err(Fault::Schema { found, expected: schema });
    }
    Ok(envelope)
}

/// Reads an envelope whoever's it is, for tools that look at what is stored.
///
/// # Errors
///
/// A [`Fault`] if it is no envelope, or not one that this version can read.
pub fn inspect(bytes: &[u8]) -> Result<Envelope<'_>, Fault> {
    let Some((head, payload)) = bytes.split_first_chunk::<HEADER>() else {
        return Err(Fault::TooShort { len: bytes.len() });
    };
    if head[0] != MAGIC {
        return Err(Fault::Magic { found: head[0] });
    }
    if head[1] != FORMAT {
        return Err(Fault::Format { found: head[1] });
    }
    let (stored, computed) = (u32::from_be_bytes(field(head, CHECKSUM)), checksum(bytes));
    if stored != computed {
        return Err(Fault::Checksum { stored, computed });
    }
    let flags = head[FLAGS];
    let absent = flags & ABSENT != 0;
    if flags & !ABSENT != 0 || absent && !payload.is_empty() {
        return Err(Fault::Flags { found: flags });
    }
    let ttl_ms = u64::from_be_bytes(field(head, TTL));
    let life_ms = u64::from_be_bytes(field(head, LIFE));
    // What is added to an instant later on must not overflow it.
    if ttl_ms > life_ms || life_ms > millis(MAX_LIFE) {
        return Err(Fault::Lifetimes { ttl_ms, life_ms });
    }
    let header = Header {
        version: Token::from_bytes(field(head, 2)),
        fingerprint: Fingerprint::from_bytes(field(head, FINGERPRINT)),
        absent,
        ttl: Duration::from_millis(ttl_ms),
        life: Duration::from_millis(life_ms),
        cost: Duration::from_micros(u32::from_be_bytes(field(head, COST)).into()),
        schema: Schema(u32::from_be_bytes(field(head, SCHEMA))),
        epoch: Epoch::from_u64(u64::from_be_bytes(field(head, EPOCH))),
    };
    Ok(Envelope { header, payload })
}

/// Whether it looks like another key's envelope. Cheaper than reading it, which is for whoever
/// has a use for it.
#[cfg(any(feature = "r2d2_redis", feature = "redis"))]
pub(super) fn is_of_another(bytes: &[u8], fingerprint: Fingerprint) -> bool {
    bytes.first_chunk::<HEADER>().is_some_and(|head| {
        head[..2] == [MAGIC, FORMAT] && field(head, FINGERPRINT) != *fingerprint.as_bytes()
    })
}

/// What a tier is to keep for `life`: whole milliseconds, of which there is at least one. A server
/// takes none at all for an error.
pub(super) fn clamp_life(life: Duration) -> Duration {
    Duration::from_millis(millis(life.clamp(Duration::from_millis(1), MAX_LIFE)))
}

fn write_header(header: &Header) -> [u8; HEADER] {
    let life = clamp_life(header.life);
    let mut head = [0; HEADER];
    let mut put = |at: usize, bytes: &[u8]| head[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, &[MAGIC, FORMAT]);
    put(2, header.version.as_bytes());
    put(FINGERPRINT, header.fingerprint.as_bytes());
    put(FLAGS, &[if header.absent { ABSENT } else { 0 }]);
    put(TTL, &millis(header.ttl.min(life)).to_be_bytes());
    put(LIFE, &millis(life).to_be_bytes());
    put(COST, &u32::try_from(header.cost.as_micros()).unwrap_or(u32::MAX).to_be_bytes());
    put(SCHEMA, &header.schema.0.to_be_bytes());
    put(EPOCH, &header.epoch.as_u64().to_be_bytes());
    head
}

fn field<const N: usize>(head: &[u8; HEADER], at: usize) -> [u8; N] {
    *head[at..].first_chunk().expect("every field lies within the header")
}

/// Of all bytes but those of the checksum itself.
fn checksum(bytes: &[u8]) -> u32 {
    let mut sum = crc32fast::Hasher::new();
    sum.update(&bytes[..CHECKSUM]);
    sum.update(&bytes[HEADER..]);
    sum.finalize()
}

/// Of what is no longer than [`MAX_LIFE`].
fn millis(duration: Duration) -> u64 {
    duration.as_secs() * 1_000 + u64::from(duration.subsec_millis())
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::key::{Key, Table};
    use super::*;
    use proptest::prelude::*;

    const SCHEMA_1: Schema = Schema(0x0102_0304);

    fn header() -> Header {
        Header {
            version: Token::from_bytes([0x11; 16]),
            fingerprint: Fingerprint::from_bytes([0x22; 16]),
            absent: false,
            ttl: Duration::from_millis(0x0a0b),
            life: Duration::from_millis(0x0a0b_0c0d),
            cost: Duration::from_micros(0x0e0f),
            schema: SCHEMA_1,
            epoch: Epoch::from_u64(0x3333_3333_3333_3333),
        }
    }

    fn seal(header: &Header, payload: &[u8]) -> Vec<u8> {
        let write = |out: &mut Vec<u8>| {
            out.extend_from_slice(payload);
            Ok(())
        };
        encode(header, usize::MAX, write).unwrap()
    }

    /// With the checksum set right again after the bytes were changed.
    fn resealed(mut bytes: Vec<u8>) -> Vec<u8> {
        let sum = checksum(&bytes).to_be_bytes();
        bytes[CHECKSUM..HEADER].copy_from_slice(&sum);
        bytes
    }

    fn open(bytes: &[u8]) -> Result<Envelope<'_>, Fault> {
        decode(bytes, header().fingerprint, SCHEMA_1)
    }

    /// Pinned: what is stored today must be read by every version of this format.
    #[test]
    fn the_format_never_changes() {
        let mut expected = vec![0xc1, 1];
        expected.extend([0x11; 16]);
        expected.extend([0x22; 16]);
        expected.push(0);
        expected.extend([0, 0, 0, 0, 0, 0, 0x0a, 0x0b]);
        expected.extend([0, 0, 0, 0, 0x0a, 0x0b, 0x0c, 0x0d]);
        expected.extend([0, 0, 0x0e, 0x0f]);
        expected.extend([1, 2, 3, 4]);
        expected.extend([0x33; 8]);
        expected.extend(0xc36d_2313_u32.to_be_bytes());
        expected.extend(b"tea");
        assert_eq!(seal(&header(), b"tea"), expected);
        assert_eq!(Schema::new(1, "json").to_string(), "12010c80");
    }

    #[test]
    fn an_empty_value_is_not_an_absent_one() {
        let bytes = seal(&header(), b"");
        assert_eq!(bytes.len(), HEADER);
        let empty = open(&bytes).unwrap();
        assert!(!empty.header.absent && empty.payload.is_empty());

        let absent = Header { absent: true, ..header() };
        let bytes = encode(&absent, 0, |_| panic!("there is no value to encode")).unwrap();
        assert_eq!(open(&bytes).unwrap().header, absent);
    }

    #[test]
    fn each_fault_has_its_name() {
        let bytes = seal(&header(), b"tea");
        let with = |at: usize, byte: u8| {
            let mut bytes = bytes.clone();
            bytes[at] = byte;
            resealed(bytes)
        };
        assert_eq!(open(b""), Err(Fault::TooShort { len: 0 }));
        assert_eq!(open(&bytes[..HEADER - 1]), Err(Fault::TooShort { len: HEADER - 1 }));
        assert_eq!(open(&with(0, b'{')), Err(Fault::Magic { found: b'{' }));
        assert_eq!(open(&with(1, 2)), Err(Fault::Format { found: 2 }));
        assert!(matches!(open(&bytes[..HEADER + 2]), Err(Fault::Checksum { .. })));
        assert_eq!(open(&with(FLAGS, 0b10)), Err(Fault::Flags { found: 0b10 }));
        assert_eq!(
            open(&with(FLAGS, ABSENT)),
            Err(Fault::Flags { found: ABSENT }),
            "with a payload"
        );
        assert!(matches!(open(&with(TTL, 0xff)), Err(Fault::Lifetimes { .. })));
        assert!(matches!(open(&with(LIFE, 0xff)), Err(Fault::Lifetimes { .. })));
        assert!(open(&with(FINGERPRINT, 0)).unwrap_err().is_foreign());
        assert!(matches!(open(&with(SCHEMA, 0)), Err(Fault::Schema { .. })));
        assert_eq!(open(&with(COST, 0)).unwrap().payload, b"tea", "not a fault");
    }

    #[test]
    fn ten_mebibytes_of_zeros_are_a_fault() {
        assert_eq!(open(&vec![0; 10 << 20]), Err(Fault::Magic { found: 0 }));
    }

    #[test]
    fn reading_allocates_nothing_and_writing_once() {
        use allocation_counter::measure;
        let mut small = Vec::new();
        let written = measure(|| small = seal(&header(), b"tea"));
        assert_eq!(written.count_total, 1);

        let mut lies = small.clone();
        lies[TTL..CHECKSUM].fill(0xff);
        let lies = resealed(lies);
        let noise = vec![0xff; 1 << 20];
        let read = measure(|| {
            assert!(open(&small).is_ok());
            assert!(open(&small[..small.len() - 1]).is_err());
            assert!(open(&lies).is_err());
            assert!(open(&noise).is_err());
        });
        assert_eq!(read.count_total, 0);
    }

    #[test]
    fn a_value_over_the_limit_is_an_error() {
        let write = |out: &mut Vec<u8>| {
            out.extend_from_slice(b"tea");
            Ok(())
        };
        assert!(encode(&header(), 3, write).is_ok());
        let error = encode(&header(), 2, write).unwrap_err();
        assert!(matches!(error, CodecError::TooLarge { len: 3, limit: 2 }));
    }

    #[test]
    fn a_codec_cannot_damage_the_header() {
        let clear = |out: &mut Vec<u8>| {
            out.clear();
            Ok(())
        };
        assert!(encode(&header(), 9, clear).unwrap_err().is_encode());
        let replace = |out: &mut Vec<u8>| {
            *out = vec![b'x'; 100];
            Ok(())
        };
        assert!(encode(&header(), usize::MAX, replace).unwrap_err().is_encode());
        let fail = |_: &mut Vec<u8>| Err(CodecError::encode("no"));
        assert_eq!(
            encode(&header(), 9, fail).unwrap_err().to_string(),
            "value cannot be encoded: no"
        );
    }

    #[test]
    fn lives_and_costs_are_written_within_their_bounds() {
        let read = |header: Header| open(&seal(&header, b"")).unwrap().header;
        let (zero, most) = (Duration::ZERO, Duration::MAX);

        let short = read(Header { ttl: zero, life: zero, cost: zero, ..header() });
        assert_eq!((short.ttl, short.life, short.cost), (zero, Duration::from_millis(1), zero));

        let long = read(Header { ttl: most, life: most, cost: most, ..header() });
        assert_eq!((long.ttl, long.life), (MAX_LIFE, MAX_LIFE));
        assert_eq!(long.cost, Duration::from_micros(u32::MAX.into()));
    }

    #[test]
    fn age_is_what_is_gone_of_a_life() {
        let secs = Duration::from_secs;
        let header = Header { life: secs(60), ..header() };
        assert_eq!(header.age(Some(secs(60))), Some(secs(0)));
        assert_eq!(header.age(Some(secs(59))), Some(secs(1)));
        assert_eq!(header.age(Some(secs(0))), Some(secs(60)));
        assert_eq!(header.age(Some(Duration::MAX)), Some(secs(0)), "somebody prolonged it");
        assert_eq!(header.age(None), None);
    }

    fn any_header() -> impl Strategy<Value = Header> {
        let lives = (0..=millis(MAX_LIFE)).prop_flat_map(|life| (0..=life, Just(life.max(1))));
        (
            any::<[u8; 16]>(),
            any::<[u8; 16]>(),
            any::<bool>(),
            lives,
            any::<[u32; 2]>(),
            any::<u64>(),
        )
            .prop_map(
                |(version, fingerprint, absent, (ttl, life), [cost, schema], epoch)| Header {
                    version: Token::from_bytes(version),
                    fingerprint: Fingerprint::from_bytes(fingerprint),
                    absent,
                    ttl: Duration::from_millis(ttl),
                    life: Duration::from_millis(life),
                    cost: Duration::from_micros(cost.into()),
                    schema: Schema(schema),
                    epoch: Epoch::from_u64(epoch),
                },
            )
    }

    fn payload() -> impl Strategy<Value = Vec<u8>> {
        proptest::collection::vec(any::<u8>(), 0..200)
    }

    fn config() -> ProptestConfig {
        ProptestConfig { failure_persistence: None, cases: 1_000, ..ProptestConfig::default() }
    }

    proptest! {
        #![proptest_config(config())]

        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = open(&bytes);
        }

        /// Past the checksum, where noise does not get.
        #[test]
        fn any_intact_bytes_are_read_without_a_panic(
            mut bytes in proptest::collection::vec(any::<u8>(), HEADER..300)
        ) {
            bytes[..2].copy_from_slice(&[MAGIC, FORMAT]);
            bytes[FLAGS] &= 3;
            bytes[TTL..TTL + 3].fill(0);
            bytes[LIFE..LIFE + 2].fill(0);
            let bytes = resealed(bytes);
            match inspect(&bytes) {
                Ok(read) => prop_assert_eq!(seal(&read.header, read.payload), bytes),
                Err(fault) => {
                    let expected = matches!(fault, Fault::Flags { .. } | Fault::Lifetimes { .. });
                    prop_assert!(expected, "{}", fault);
                }
            }
        }

        #[test]
        fn what_was_written_is_read(header in any_header(), payload in payload()) {
            let bytes = seal(&header, &payload);
            let payload: &[u8] = if header.absent { &[] } else { &payload };
            let read = decode(&bytes, header.fingerprint, header.schema);
            prop_assert_eq!(read, Ok(Envelope { header, payload }));
        }

        #[test]
        fn every_flipped_bit_is_a_fault(header in any_header(), payload in payload(), at in any::<prop::sample::Index>()) {
            let mut bytes = seal(&header, &payload);
            let bit = at.index(bytes.len() * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(decode(&bytes, header.fingerprint, header.schema).unwrap_err().is_damaged()
                || bit / 8 == 1); // the format's
        }

        #[test]
        fn every_truncation_is_a_fault(header in any_header(), payload in payload(), at in any::<prop::sample::Index>()) {
            let bytes = seal(&header, &payload);
            let cut = &bytes[..at.index(bytes.len())];
            prop_assert!(decode(cut, header.fingerprint, header.schema).unwrap_err().is_damaged());
        }

        #[test]
        fn every_longer_one_is_a_fault(header in any_header(), payload in payload(), more in any::<u8>()) {
            let mut bytes = seal(&header, &payload);
            bytes.push(more);
            prop_assert!(decode(&bytes, header.fingerprint, header.schema).unwrap_err().is_damaged());
        }

        #[test]
        fn another_keys_is_foreign(header in any_header(), payload in payload(), key in any::<u64>()) {
            let key = Key::new(&Table::new("t"), &key);
            let bytes = seal(&header, &payload);
            prop_assert_eq!(
                decode(&bytes, key.fingerprint(), header.schema),
                Err(Fault::Fingerprint { found: header.fingerprint, expected: key.fingerprint() })
            );
        }
    }
}
