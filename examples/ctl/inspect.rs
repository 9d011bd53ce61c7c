//! What is stored, and who is loading.

use std::collections::BTreeSet;
use std::io::Write;
use std::time::Duration;

use clap::Args;
use onefill::fleet::envelope::{self, HEADER, Header};
use onefill::fleet::redis::Reply;
use onefill::fleet::{Epoch, Fingerprint, Key, Names, Stored, Table, Token};

use crate::keys::{self, TypedKey};
use crate::server::{Place, Server, refused};
use crate::{Failure, show};

/// Shows what is stored under a key, or under all keys of a table, and who is loading it.
#[derive(Args)]
pub(crate) struct Inspect {
    /// A table: the name of a cache.
    table: String,
    #[command(flatten)]
    key: TypedKey,
    /// As JSON, with times in milliseconds.
    #[arg(long)]
    json: bool,
}

/// A key, and all that is known of it.
pub(crate) struct Found {
    /// As it is stored; `None` if only its fingerprint is known.
    pub(crate) key: Option<Vec<u8>>,
    pub(crate) fingerprint: Fingerprint,
    pub(crate) value: Option<Value>,
    pub(crate) lease: Option<Lease>,
}

/// What is stored under a key.
pub(crate) struct Value {
    pub(crate) what: What,
    /// What is left of it; `None` if it has no end.
    pub(crate) left: Option<Duration>,
}

pub(crate) enum What {
    Envelope {
        header: Header,
        /// How many bytes the value has, without its header.
        len: usize,
        state: State,
    },
    /// Something that is no value of this key, and what is wrong with it.
    Broken(String),
}

/// What a cache would take a value for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Fresh,
    /// Past its freshness: within a stale window, if its cache has one.
    Stale,
    /// Past its freshness, and an absence: that has no stale window.
    Expired,
    /// All values of its table were invalidated since.
    Invalidated,
    /// Its age is not known: somebody has removed its end.
    Endless,
}

pub(crate) struct Lease {
    /// Who holds it; `None` if what is there is no token.
    pub(crate) token: Option<Token>,
    pub(crate) left: Option<Duration>,
}

/// How many keys are asked for at once. A value may have a megabyte.
const AT_ONCE: usize = 16;

impl Inspect {
    pub(crate) fn run(&self, place: &Place, out: &mut impl Write) -> Result<(), Failure> {
        let table = Table::new(self.table.as_str());
        let mut server = place.connect()?;
        let epoch = server.epoch(&table)?;
        let found = match self.key.of(&table).map_err(Failure::Told)? {
            Some(key) => {
                let asked = (Some(key.clone()), place.names.names(&key), key.fingerprint());
                let found = look(&mut server, &[asked], epoch)?;
                if found.is_empty() {
                    let reason = "there is neither a value nor a lease";
                    return Err(Failure::Told(format!(
                        "no such key, {}: {reason}",
                        keys::named(&key)
                    )));
                }
                found
            }
            None => {
                let found = all(&mut server, place, &table, epoch)?;
                if found.is_empty() && epoch.is_none() {
                    return Err(Failure::Told(format!(
                        "no such table, {:?}: nobody has asked for it in the namespace {:?}",
                        self.table,
                        place.namespace()
                    )));
                }
                found
            }
        };
        match self.json {
            true => show::json(out, &table, &found),
            false => show::table(out, &table, &found),
        }
    }
}

/// All keys of a table under which there is a value or a lease, as far as their names say so.
pub(crate) fn plain_keys(
    server: &mut Server<'_>,
    place: &Place,
    table: &Table,
) -> Result<Vec<Key>, Failure> {
    let mut keys = BTreeSet::new();
    for beginning in keys::beginnings(&place.names, table).into_iter().flatten() {
        let names = server.scan(&keys::pattern(&beginning))?;
        let found = names.iter().filter_map(|name| keys::key_in(name, &beginning));
        keys.extend(found.map(<[u8]>::to_vec));
    }
    Ok(keys.into_iter().map(|key| Key::from_bytes(table, key)).collect())
}

fn all(
    server: &mut Server<'_>,
    place: &Place,
    table: &Table,
    epoch: Option<Epoch>,
) -> Result<Vec<Found>, Failure> {
    let plain = plain_keys(server, place, table)?.into_iter().map(|key| {
        let names = place.names.names(&key);
        let fingerprint = key.fingerprint();
        (Some(key), names, fingerprint)
    });
    let mut found = Vec::new();
    for asked in plain.collect::<Vec<_>>().chunks(AT_ONCE) {
        found.extend(look(server, asked, epoch)?);
    }
    // A hashed name does not say whose it is. But no two tables have the same epoch, and a value says
    // what its table's was. (Whose a lease is that has no value beside it, nothing says.)
    let beginning = |role: &str| [&place.prefix(), role.as_bytes()].concat();
    let (values, leases) = (beginning("V:{"), beginning("L:{"));
    let hashed = server.scan(&keys::pattern(&values))?;
    let hashed: Vec<_> = hashed
        .into_iter()
        .filter_map(|value| {
            let fingerprint = keys::fingerprint_in(&value, &values)?;
            let lease = [&leases, &value[values.len()..]].concat();
            Some((None, Names { value, lease }, fingerprint))
        })
        .collect();
    for asked in hashed.chunks(AT_ONCE) {
        let of_table = |found: &Found| match &found.value {
            Some(Value { what: What::Envelope { header, .. }, .. }) => Some(header.epoch) == epoch,
            _ => false,
        };
        found.extend(look(server, asked, epoch)?.into_iter().filter(of_table));
    }
    Ok(found)
}

/// What there is of these keys; nothing of those of which there is nothing.
fn look(
    server: &mut Server<'_>,
    asked: &[(Option<Key>, Names, Fingerprint)],
    epoch: Option<Epoch>,
) -> Result<Vec<Found>, Failure> {
    // What is left before what it is left of, as the tier asks, too.
    let commands: Vec<Vec<&[u8]>> = asked
        .iter()
        .flat_map(|(_, Names { value, lease }, _)| {
            let [value, lease]: [&[u8]; 2] = [value, lease];
            [
                vec![b"PTTL", value],
                vec![b"GET".as_slice(), value],
                vec![b"PTTL", lease],
                vec![b"GET", lease],
            ]
        })
        .collect();
    let replies = server.ask(&commands)?;
    let mut found = Vec::new();
    for ((key, _, fingerprint), replies) in asked.iter().zip(replies.chunks(4)) {
        let [left, value, lease_left, lease] = replies else {
            return Err(Failure::told("the server left out a reply"));
        };
        let (value, lease) = (
            stored(value, left, |bytes, left| read(&bytes, left, *fingerprint, epoch))?,
            stored(lease, lease_left, |bytes, left| Lease {
                token: bytes[..].try_into().ok().map(Token::from_bytes),
                left,
            })?,
        );
        let value = value.map(|value| {
            value.unwrap_or_else(|left| Value {
                what: What::Broken("of a type that is not ours".into()),
                left,
            })
        });
        let lease = lease.map(|lease| lease.unwrap_or_else(|left| Lease { token: None, left }));
        if value.is_some() || lease.is_some() {
            let key = key.as_ref().map(|key| key.bytes().to_vec());
            found.push(Found { key, fingerprint: *fingerprint, value, lease });
        }
    }
    Ok(found)
}

/// What a `GET` and a `PTTL` come to; the inner error is what is left of something that is no string.
fn stored<T>(
    got: &Reply,
    left: &Reply,
    read: impl FnOnce(Vec<u8>, Option<Duration>) -> T,
) -> Result<Option<Result<T, Option<Duration>>>, Failure> {
    let left = match left {
        Reply::Int(left) => *left,
        Reply::Error { code, text } => return Err(refused(code, text)),
        _ => return Err(Failure::told("PTTL was answered by something else")),
    };
    match got {
        Reply::Nil => Ok(None),
        Reply::Bytes(bytes) => {
            let Stored { bytes, left, .. } = Stored::with_pttl(bytes.clone(), left);
            Ok(Some(Ok(read(bytes, left))))
        }
        Reply::Error { code, .. } if code == "WRONGTYPE" => {
            Ok(Some(Err(Stored::with_pttl(Vec::new(), left).left)))
        }
        Reply::Error { code, text } => Err(refused(code, text)),
        _ => Err(Failure::told("GET was answered by something else")),
    }
}

fn read(
    bytes: &[u8],
    left: Option<Duration>,
    fingerprint: Fingerprint,
    epoch: Option<Epoch>,
) -> Value {
    let what = match envelope::inspect(bytes) {
        Err(fault) => What::Broken(fault.to_string()),
        Ok(envelope) if envelope.header.fingerprint != fingerprint => {
            What::Broken(format!("of another key, {}", envelope.header.fingerprint))
        }
        Ok(envelope) => {
            let header = envelope.header;
            let state = match header.age(left) {
                _ if Some(header.epoch) != epoch => State::Invalidated,
                None => State::Endless,
                Some(age) if age < header.ttl => State::Fresh,
                Some(_) if header.absent => State::Expired,
                Some(_) => State::Stale,
            };
            What::Envelope { header, len: bytes.len() - HEADER, state }
        }
    };
    Value { what, left }
}
