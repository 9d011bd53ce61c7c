//! What the processes of a fleet tell each other: [`Event`], [`Notice`], [`Listener`].

use std::sync::Arc;

use super::key::Fingerprint;
use super::token::{Epoch, Origin, Token};

/// Something a [`Listener`] is told.
///
/// Notices are a courtesy: one may be lost, come twice or come late, and nothing breaks. They
/// wake whoever waits for a fill, and shorten the time for which a value in another process is out
/// of date; its lifetime there is what bounds it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// From now on notices come. They did not before this, so whatever was read before it may be
    /// out of date.
    Up,
    /// Notices may have been missed, and will be until the next [`Up`](Event::Up).
    Down,
    /// Some cache did something.
    Notice(Notice),
}

/// What a cache did, as it tells the others.
///
/// # As bytes
///
/// For tiers that send notices over a wire. Numbers are big-endian; none is longer than its
/// envelope and 41 bytes.
///
/// | offset | bytes | what |
/// |---:|---:|---|
/// | 0 | 1 | kind: 1 filled, 2 failed, 3 invalidated, 4 put, 5 all invalidated |
/// | 1 | 16 | fingerprint of the key, or for 5 of the table |
/// | 17 | 16 | version or token; for 3 zeros; for 5 the epoch and zeros |
/// | 33 | 8 | origin |
/// | 41 | | for 1 and 4 the envelope, or nothing; for 2 the reaction, one byte |
///
/// ```
/// use onefill::fleet::{Key, News, Notice, Origin, Table};
///
/// let key = Key::new(&Table::new("product"), &42);
/// let news = News::Invalidated { key: key.fingerprint() };
/// let notice = Notice { from: Origin::random(), news };
///
/// let bytes = notice.to_bytes();
/// assert_eq!(bytes.len(), 41);
/// assert_eq!(Notice::from_bytes(&bytes), Some(notice));
/// assert_eq!(Notice::from_bytes(b"something else"), None);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// Who did it. A cache hears its own notices, too, and should not mind them.
    pub from: Origin,
    /// What it did.
    pub news: News,
}

/// What a [`Notice`] is about.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum News {
    /// A lease ended with a value, or with the answer that there is none.
    Filled {
        /// The key that was filled.
        key: Fingerprint,
        /// The version that is stored now.
        version: Token,
        /// Its envelope, if it is small, so that those who wait for it need not ask.
        envelope: Option<Arc<[u8]>>,
    },
    /// A lease ended without either.
    Failed {
        /// The key that was not filled.
        key: Fingerprint,
        /// The lease that ended.
        token: Token,
        /// What those who wait for it had best do.
        reaction: Reaction,
    },
    /// Whatever was known of the key is out of date.
    Invalidated {
        /// The key.
        key: Fingerprint,
    },
    /// A value was stored without having been loaded.
    Put {
        /// The key.
        key: Fingerprint,
        /// The version that is stored now.
        version: Token,
        /// Its envelope, if it is small.
        envelope: Option<Arc<[u8]>>,
    },
    /// Whatever was known of the keys of a table is out of date.
    InvalidatedAll {
        /// The table's own fingerprint.
        table: Fingerprint,
        /// The epoch of the values that are stored from now on.
        epoch: Epoch,
    },
}

/// What a process had best do that waited for another's fill in vain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reaction {
    /// Try for the lease: the holder gave up for reasons of its own.
    TakeOver,
    /// Load without a lease: the holder has a value, which is for itself alone.
    LoadAlone,
    /// Do not load just now: the source failed, and would fail again. Serve a stale value, or an
    /// error.
    BackOff,
}

/// Is told what happens in a fleet.
///
/// Called on a thread of the tier's, or on that of whoever did something; never while the tier
/// holds a lock, so it may call the tier. It should be quick: one at a time is called, and the
/// next notice waits for it.
///
/// A closure is a listener:
///
/// ```
/// use onefill::fleet::{Event, Listener, Tier, memory::Memory};
/// use std::sync::{Arc, Mutex};
///
/// let heard = Arc::new(Mutex::new(Vec::new()));
/// let book = Arc::clone(&heard);
/// let listener: Arc<dyn Listener> =
///     Arc::new(move |event: &Event| book.lock().unwrap().push(event.clone()));
///
/// let tier = Memory::new();
/// tier.listen(Arc::downgrade(&listener)); // until `listener` is dropped
/// assert_eq!(*heard.lock().unwrap(), [Event::Up]);
/// ```
pub trait Listener: Send + Sync {
    /// Something happened.
    fn hear(&self, event: &Event);
}

impl<F: Fn(&Event) + Send + Sync> Listener for F {
    fn hear(&self, event: &Event) {
        self(event);
    }
}

const FILLED: u8 = 1;
const FAILED: u8 = 2;
const INVALIDATED: u8 = 3;
const PUT: u8 = 4;
const INVALIDATED_ALL: u8 = 5;

const TAKE_OVER: u8 = 0;
const LOAD_ALONE: u8 = 1;
const BACK_OFF: u8 = 2;

impl Notice {
    /// How it is sent.
    pub fn to_bytes(&self) -> Vec<u8> {
        let none = Token::from_bytes([0; 16]);
        let (kind, about, version, rest) = match &self.news {
            News::Filled { key, version, envelope } => (FILLED, key, *version, envelope.as_deref()),
            News::Put { key, version, envelope } => (PUT, key, *version, envelope.as_deref()),
            News::Failed { key, token, reaction } => {
                let reaction: &[u8] = match reaction {
                    Reaction::TakeOver => &[TAKE_OVER],
                    Reaction::LoadAlone => &[LOAD_ALONE],
                    Reaction::BackOff => &[BACK_OFF],
                };
                (FAILED, key, *token, Some(reaction))
            }
            News::Invalidated { key } => (INVALIDATED, key, none, None),
            News::InvalidatedAll { table, epoch } => {
                let mut bytes = [0; 16];
                bytes[..8].copy_from_slice(&epoch.as_u64().to_be_bytes());
                (INVALIDATED_ALL, table, Token::from_bytes(bytes), None)
            }
        };
        let from = self.from.as_u64().to_be_bytes();
        [&[kind], &about.as_bytes()[..], version.as_bytes(), &from, rest.unwrap_or_default()]
            .concat()
    }

    /// Reads what was sent. `None` if it is no notice, or of a kind that is not known here: what
    /// it may have said is found out when something's lifetime ends.
    pub fn from_bytes(bytes: &[u8]) -> Option<Notice> {
        let (&kind, bytes) = bytes.split_first()?;
        let (&about, bytes) = bytes.split_first_chunk::<16>()?;
        let (&version, bytes) = bytes.split_first_chunk::<16>()?;
        let (&from, rest) = bytes.split_first_chunk::<8>()?;

        let key = Fingerprint::from_bytes(about);
        let envelope = || (!rest.is_empty()).then(|| rest.into());
        let news = match kind {
            FILLED => {
                News::Filled { key, version: Token::from_bytes(version), envelope: envelope() }
            }
            PUT => News::Put { key, version: Token::from_bytes(version), envelope: envelope() },
            FAILED => {
                let reaction = match *rest {
                    [TAKE_OVER] => Reaction::TakeOver,
                    [LOAD_ALONE] => Reaction::LoadAlone,
                    [BACK_OFF] => Reaction::BackOff,
                    _ => return None,
                };
                News::Failed { key, token: Token::from_bytes(version), reaction }
            }
            INVALIDATED => News::Invalidated { key },
            INVALIDATED_ALL => {
                let epoch = u64::from_be_bytes(*version.first_chunk()?);
                News::InvalidatedAll { table: key, epoch: Epoch::from_u64(epoch) }
            }
            _ => return None,
        };
        Some(Notice { from: Origin::from_u64(u64::from_be_bytes(from)), news })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn config() -> ProptestConfig {
        ProptestConfig { failure_persistence: None, cases: 1_000, ..ProptestConfig::default() }
    }

    /// Pinned: processes of several versions talk to each other.
    #[test]
    fn notices_never_change() {
        let key = Fingerprint::from_bytes([0x11; 16]);
        let version = Token::from_bytes([0x22; 16]);
        let epoch = Epoch::from_u64(0x4444_4444_4444_4444);
        let bytes =
            |news| Notice { from: Origin::from_u64(0x0303_0303_0303_0303), news }.to_bytes();
        let expected = |kind: u8, version: [u8; 16], rest: &[u8]| {
            [&[kind], &[0x11; 16][..], &version, &[3; 8], rest].concat()
        };
        let envelope = Some(Arc::from(*b"tea"));
        let mut half = [0; 16];
        half[..8].fill(0x44);

        assert_eq!(
            bytes(News::Filled { key, version, envelope: envelope.clone() }),
            expected(1, [0x22; 16], b"tea")
        );
        assert_eq!(
            bytes(News::Failed { key, token: version, reaction: Reaction::BackOff }),
            expected(2, [0x22; 16], &[2])
        );
        assert_eq!(bytes(News::Invalidated { key }), expected(3, [0; 16], b""));
        assert_eq!(bytes(News::Put { key, version, envelope }), expected(4, [0x22; 16], b"tea"));
        assert_eq!(bytes(News::InvalidatedAll { table: key, epoch }), expected(5, half, b""));
    }

    fn any_news() -> impl Strategy<Value = News> {
        let fingerprint = || any::<[u8; 16]>().prop_map(Fingerprint::from_bytes);
        let token = || any::<[u8; 16]>().prop_map(Token::from_bytes);
        let envelope = || {
            proptest::option::of(
                proptest::collection::vec(any::<u8>(), 1..40).prop_map(Arc::<[u8]>::from),
            )
        };
        let reaction = || {
            prop_oneof![
                Just(Reaction::TakeOver),
                Just(Reaction::LoadAlone),
                Just(Reaction::BackOff)
            ]
        };
        prop_oneof![
            (fingerprint(), token(), envelope())
                .prop_map(|(key, version, envelope)| News::Filled { key, version, envelope }),
            (fingerprint(), token(), reaction()).prop_map(|(key, token, reaction)| News::Failed {
                key,
                token,
                reaction
            }),
            fingerprint().prop_map(|key| News::Invalidated { key }),
            (fingerprint(), token(), envelope()).prop_map(|(key, version, envelope)| News::Put {
                key,
                version,
                envelope
            }),
            (fingerprint(), any::<u64>()).prop_map(|(table, epoch)| News::InvalidatedAll {
                table,
                epoch: Epoch::from_u64(epoch)
            }),
        ]
    }

    proptest! {
        #![proptest_config(config())]

        #[test]
        fn what_was_sent_is_heard(from in any::<u64>(), news in any_news()) {
            let notice = Notice { from: Origin::from_u64(from), news };
            prop_assert_eq!(Notice::from_bytes(&notice.to_bytes()), Some(notice));
        }

        #[test]
        fn any_bytes_are_heard_without_a_panic(
            kind in 0..8u8,
            bytes in proptest::collection::vec(any::<u8>(), 0..60)
        ) {
            let _ = Notice::from_bytes(&[&[kind], &bytes[..]].concat());
            let _ = Notice::from_bytes(&bytes);
        }

        #[test]
        fn half_a_notice_is_none(news in any_news(), cut in 0..41usize) {
            let notice = Notice { from: Origin::from_u64(0), news };
            prop_assert_eq!(Notice::from_bytes(&notice.to_bytes()[..cut]), None);
        }
    }
}
