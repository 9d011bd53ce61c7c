//! How values become bytes: [`Codec`], and the ones that are built in.
//!
//! | codec | for | with the feature |
//! |---|---|---|
//! | [`Raw`] | strings and bytes, as they are | |
//! | `Json` | whatever serde can write; people can read it | `json` |
//! | `Postcard` | whatever serde can write; a third of the size | `postcard` |

use std::borrow::Cow;
use std::sync::Arc;

use crate::error::CodecError;

/// Turns values into bytes for the shared tier, and back.
///
/// A codec must read whatever it is given without panicking: bytes in the shared tier may have
/// been written by another version of the application. What it makes nothing of is a miss, and is
/// overwritten by the next load. What it would read *wrongly* is kept from it by its
/// [`format`](Codec::format) and the application's [schema](super::envelope::Schema) version.
///
/// Runs outside of all locks. How large a value may be is the caller's business.
///
/// # Example
///
/// ```
/// use onefill::CodecError;
/// use onefill::fleet::Codec;
/// use std::borrow::Cow;
///
/// struct BigEndian;
///
/// impl Codec<u64> for BigEndian {
///     fn format(&self) -> Cow<'static, str> {
///         "u64, big-endian".into()
///     }
///
///     fn encode(&self, value: &u64, out: &mut Vec<u8>) -> Result<(), CodecError> {
///         out.extend_from_slice(&value.to_be_bytes());
///         Ok(())
///     }
///
///     fn decode(&self, bytes: &[u8]) -> Result<u64, CodecError> {
///         Ok(u64::from_be_bytes(bytes.try_into().map_err(CodecError::decode)?))
///     }
/// }
///
/// let mut bytes = Vec::new();
/// BigEndian.encode(&42, &mut bytes)?;
/// assert_eq!(BigEndian.decode(&bytes)?, 42);
/// assert!(BigEndian.decode(b"42").unwrap_err().is_decode());
/// # Ok::<(), CodecError>(())
/// ```
pub trait Codec<V>: Send + Sync {
    /// What this codec writes, in a word: part of the [schema](super::envelope::Schema) by which
    /// a cache tells values it can read from others. Two codecs that would read each other's bytes
    /// as something they are not must differ in it. It must not change while what was stored
    /// should still be read.
    fn format(&self) -> Cow<'static, str>;

    /// Appends the bytes of `value` to `out`, and leaves alone what is there.
    ///
    /// # Errors
    ///
    /// [`CodecError::Encode`] if there are none; what is in `out` is of no use then. The value
    /// still goes to whoever asked for it.
    fn encode(&self, value: &V, out: &mut Vec<u8>) -> Result<(), CodecError>;

    /// The value whose bytes these are, all of them.
    ///
    /// # Errors
    ///
    /// [`CodecError::Decode`] if there is none. It is loaded, then.
    fn decode(&self, bytes: &[u8]) -> Result<V, CodecError>;
}

/// Strings and bytes, as they are: `String`, `Box<str>`, `Arc<str>`, `Vec<u8>`, `Box<[u8]>` and
/// `Arc<[u8]>`.
///
/// ```
/// use onefill::fleet::{Codec, codec};
/// use std::sync::Arc;
///
/// let page: Arc<str> = "<h1>Tea</h1>".into();
/// let mut bytes = Vec::new();
/// codec::Raw.encode(&page, &mut bytes)?;
/// assert_eq!(bytes, b"<h1>Tea</h1>");
/// assert_eq!(Codec::<Arc<str>>::decode(&codec::Raw, &bytes)?, page);
/// # Ok::<(), onefill::CodecError>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Raw;

macro_rules! raw {
    ($($owned:ty: |$bytes:ident| $decoded:expr;)*) => {$(
        impl Codec<$owned> for Raw {
            fn format(&self) -> Cow<'static, str> {
                "raw".into()
            }

            fn encode(&self, value: &$owned, out: &mut Vec<u8>) -> Result<(), CodecError> {
                out.extend_from_slice(AsRef::<[u8]>::as_ref(&**value));
                Ok(())
            }

            fn decode(&self, $bytes: &[u8]) -> Result<$owned, CodecError> {
                $decoded
            }
        }
    )*};
}
raw! {
    Vec<u8>: |bytes| Ok(bytes.into());
    Box<[u8]>: |bytes| Ok(bytes.into());
    Arc<[u8]>: |bytes| Ok(bytes.into());
    String: |bytes| text(bytes).map(Into::into);
    Box<str>: |bytes| text(bytes).map(Into::into);
    Arc<str>: |bytes| text(bytes).map(Into::into);
}

fn text(bytes: &[u8]) -> Result<&str, CodecError> {
    std::str::from_utf8(bytes).map_err(CodecError::decode)
}

/// Whatever serde can write, as JSON. Values in an `Arc`, too.
///
/// It says what its parts are, so fields can be added with a `#[serde(default)]` and values of
/// another type are, as a rule, no values.
///
/// ```
/// use onefill::fleet::{Codec, codec};
/// use std::sync::Arc;
///
/// let prices = Arc::new(vec![("tea".to_string(), 250), ("milk".to_string(), 90)]);
/// let mut bytes = Vec::new();
/// codec::Json.encode(&prices, &mut bytes)?;
/// assert_eq!(bytes, br#"[["tea",250],["milk",90]]"#);
/// assert_eq!(Codec::<Arc<Vec<(String, u32)>>>::decode(&codec::Json, &bytes)?, prices);
/// # Ok::<(), onefill::CodecError>(())
/// ```
#[cfg(feature = "json")]
#[derive(Clone, Copy, Debug, Default)]
pub struct Json;

#[cfg(feature = "json")]
impl<V: serde::Serialize + serde::de::DeserializeOwned> Codec<V> for Json {
    fn format(&self) -> Cow<'static, str> {
        "json".into()
    }

    fn encode(&self, value: &V, out: &mut Vec<u8>) -> Result<(), CodecError> {
        serde_json::to_writer(out, value).map_err(CodecError::encode)
    }

    fn decode(&self, bytes: &[u8]) -> Result<V, CodecError> {
        serde_json::from_slice(bytes).map_err(CodecError::decode)
    }
}

/// Whatever serde can write, in the compact form of [postcard](https://docs.rs/postcard). Values
/// in an `Arc`, too.
///
/// The bytes say nothing of what they are: `0` may be a number, an empty string or a `None`. So
/// the name of the type is part of the [`format`](Codec::format), and a value stored under another
/// name is a miss: after the type was moved or renamed, too. What is *inside* the type is not part
/// of it. Whoever changes its fields, or those of a type in it, has to raise the table's
/// [schema](super::envelope::Schema) version.
///
/// ```
/// use onefill::fleet::{Codec, codec};
///
/// let prices = vec![("tea".to_string(), 250), ("milk".to_string(), 90)];
/// let mut bytes = Vec::new();
/// codec::Postcard.encode(&prices, &mut bytes)?;
/// assert_eq!(bytes.len(), 13);
/// assert_eq!(Codec::<Vec<(String, u32)>>::decode(&codec::Postcard, &bytes)?, prices);
/// # Ok::<(), onefill::CodecError>(())
/// ```
#[cfg(feature = "postcard")]
#[derive(Clone, Copy, Debug, Default)]
pub struct Postcard;

#[cfg(feature = "postcard")]
impl<V: serde::Serialize + serde::de::DeserializeOwned> Codec<V> for Postcard {
    fn format(&self) -> Cow<'static, str> {
        format!("postcard {}", std::any::type_name::<V>()).into()
    }

    fn encode(&self, value: &V, out: &mut Vec<u8>) -> Result<(), CodecError> {
        // It appends to what it owns.
        *out = postcard::to_extend(value, std::mem::take(out)).map_err(CodecError::encode)?;
        Ok(())
    }

    fn decode(&self, bytes: &[u8]) -> Result<V, CodecError> {
        match postcard::take_from_bytes(bytes) {
            Ok((value, [])) => Ok(value),
            Ok((_, rest)) => Err(CodecError::decode(format!("{} bytes too many", rest.len()))),
            Err(error) => Err(CodecError::decode(error)),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn round_trip<V: PartialEq + std::fmt::Debug>(codec: impl Codec<V>, value: V) {
        let mut bytes = b"before".to_vec();
        codec.encode(&value, &mut bytes).unwrap();
        assert!(bytes.starts_with(b"before"), "a codec appends");
        assert_eq!(codec.decode(&bytes[6..]).unwrap(), value);
    }

    #[test]
    fn raw_keeps_every_byte() {
        let all: Vec<u8> = (0..=255).collect();
        round_trip(Raw, all.clone());
        round_trip(Raw, all.clone().into_boxed_slice());
        round_trip(Raw, Arc::<[u8]>::from(all));
        round_trip(Raw, String::from("thé\r\n\0"));
        round_trip(Raw, Box::<str>::from(""));
        round_trip(Raw, Arc::<str>::from("thé"));
    }

    #[test]
    fn raw_text_must_be_text() {
        assert!(Codec::<String>::decode(&Raw, b"\xc3").unwrap_err().is_decode());
        assert!(Codec::<Vec<u8>>::decode(&Raw, b"\xc3").is_ok());
    }

    #[cfg(any(feature = "json", feature = "postcard"))]
    mod with_serde {
        use super::super::*;
        use super::round_trip;
        use serde::{Deserialize, Serialize};

        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        struct Product {
            id: u64,
            name: String,
            price: Option<u32>,
            tags: Vec<String>,
        }

        fn tea() -> Product {
            Product { id: 42, name: "thé".into(), price: Some(250), tags: vec!["hot".into()] }
        }

        /// What cannot be written, with the error that it gives.
        struct Unwritable;

        impl Serialize for Unwritable {
            fn serialize<S: serde::Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
                Err(serde::ser::Error::custom("unwritable"))
            }
        }

        impl<'de> Deserialize<'de> for Unwritable {
            fn deserialize<D: serde::Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
                Ok(Unwritable)
            }
        }

        #[cfg(feature = "json")]
        #[test]
        fn json_round_trips() {
            round_trip(Json, tea());
            round_trip(Json, Arc::new(tea()));
            round_trip(Json, None::<Product>);
        }

        #[cfg(feature = "json")]
        #[test]
        fn json_of_another_shape_is_an_error() {
            for bytes in [&b""[..], b"{", b"{}", b"42", b"\"x\"", b"\xc1\x01", b"[[[[[[[["] {
                assert!(Codec::<Product>::decode(&Json, bytes).unwrap_err().is_decode());
            }
            assert!(Codec::<u64>::decode(&Json, b"\"x\"").unwrap_err().is_decode());
            assert!(Codec::<u64>::decode(&Json, b"7 8").unwrap_err().is_decode(), "to the end");
            assert!(Json.encode(&Unwritable, &mut Vec::new()).unwrap_err().is_encode());
        }

        #[cfg(feature = "postcard")]
        #[test]
        fn postcard_round_trips() {
            round_trip(Postcard, tea());
            round_trip(Postcard, Arc::new(tea()));
            round_trip(Postcard, None::<Product>);
        }

        #[cfg(feature = "postcard")]
        #[test]
        fn postcard_of_another_shape_is_an_error() {
            assert!(Codec::<Product>::decode(&Postcard, b"").unwrap_err().is_decode());
            assert!(
                Codec::<u64>::decode(&Postcard, b"\x01x").unwrap_err().is_decode(),
                "to the end"
            );
            // A length of four gigabytes, and nothing behind it.
            let huge = b"\xff\xff\xff\xff\x0f";
            assert!(Codec::<Vec<u8>>::decode(&Postcard, huge).unwrap_err().is_decode());
            assert!(Postcard.encode(&Unwritable, &mut Vec::new()).unwrap_err().is_encode());
        }

        #[cfg(feature = "postcard")]
        #[test]
        fn postcard_tells_types_apart_by_name() {
            let number = Codec::<u64>::format(&Postcard);
            let text = Codec::<String>::format(&Postcard);
            assert_eq!(number, "postcard u64");
            assert_ne!(number, text);
        }

        /// An empty string and the number zero are the same byte.
        #[cfg(feature = "postcard")]
        #[test]
        fn a_table_declared_with_another_type_reads_no_wrong_number() {
            use crate::fleet::envelope::{self, Fault, Header, Schema};
            use crate::fleet::{Epoch, Key, Table, Token};
            use std::time::Duration;

            let key = Key::new(&Table::new("s"), &1);
            let schema_of_text = Schema::new(1, &Codec::<String>::format(&Postcard));
            let schema_of_number = Schema::new(1, &Codec::<u64>::format(&Postcard));
            let header = Header {
                version: Token::random(),
                fingerprint: key.fingerprint(),
                absent: false,
                ttl: Duration::from_secs(1),
                life: Duration::from_secs(1),
                cost: Duration::ZERO,
                schema: schema_of_text,
                epoch: Epoch::random(),
            };
            let text = String::new();
            let bytes = envelope::encode(&header, 100, |out| Postcard.encode(&text, out)).unwrap();

            let read = envelope::decode(&bytes, key.fingerprint(), schema_of_text).unwrap();
            assert_eq!(Codec::<u64>::decode(&Postcard, read.payload).unwrap(), 0);
            let fault = Fault::Schema { found: schema_of_text, expected: schema_of_number };
            assert_eq!(envelope::decode(&bytes, key.fingerprint(), schema_of_number), Err(fault));
        }
    }
}
