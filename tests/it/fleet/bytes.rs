//! What lies in the shared tier: bytes that are no value of ours are misses, counted and replaced;
//! bytes that are come back as they were.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;
use std::thread;
use std::time::Instant;

use onefill::fleet::memory::{Memory, Op};
use onefill::fleet::{Codec, Fleet, FleetKey, Key, Table, codec};
use onefill::{Cache, Clock, CodecError, Fill, Load, Source};

use super::support::*;

/// The envelope of a value that an instance has stored under a key.
fn envelope_of(memory: &Memory, id: u64) -> Vec<u8> {
    memory.stored(&key(id)).unwrap().bytes
}

#[test]
fn bytes_that_are_no_value_of_the_key_are_a_miss_and_are_replaced() {
    within(|| {
        let memory = Memory::new();
        let other = instance(&memory, |_| Ok(Fill::new("of another key".into())));
        other.value(8);
        let good = envelope_of(&memory, 8);
        let schema = start(
            &memory,
            |f| f,
            |c| c.schema_version(1).loader(|_| Ok(Fill::new("of another version".into()))),
        );
        schema.value(7);
        let versioned = envelope_of(&memory, 7);
        let mut damaged = good.clone();
        *damaged.last_mut().unwrap() ^= 1;
        let mut random = vec![0; 300];
        patternless(&mut random);

        let planted: [(&str, Vec<u8>, u64); 8] = [
            ("random bytes", random, 1),
            ("nothing", Vec::new(), 0),
            ("one byte", vec![0], 1),
            ("cut off", good[..good.len() - 3].to_vec(), 1),
            ("a header cut off", good[..20].to_vec(), 1),
            ("damaged", damaged, 1),
            ("another key's", good, 1),
            ("another version's", versioned, 1),
        ];
        for (what, bytes, counted) in planted {
            heals(&memory, what, &bytes, counted);
        }
        heals(&memory, "ten million zeros", &vec![0; 10 << 20], 1);
    });
}

/// Bytes without a pattern, and the same ones in every run.
fn patternless(bytes: &mut [u8]) {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    for byte in bytes {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        *byte = state as u8;
    }
}

fn heals(memory: &Memory, what: &str, bytes: &[u8], counted: u64) {
    let meter = Meter::default();
    memory.plant(&key(7), bytes, Some(ms(60_000)));
    let [one, two] = [0; 2].map(|_| instance(memory, meter.numbered()));
    assert_eq!(one.get(7).unwrap().source(), Source::Loaded, "{what}");
    assert_eq!(one.cache.stats().undecodable, counted, "{what}");
    assert_ne!(memory.stored(&key(7)).unwrap().bytes, bytes, "{what}");
    assert_eq!(two.get(7).unwrap().source(), Source::Fleet, "{what}");
    assert_eq!(two.cache.stats().undecodable, 0, "{what}");
    assert_eq!((meter.loads(), memory.leases()), (1, 0), "{what}");
}

#[test]
fn bytes_that_are_no_value_and_are_being_replaced_are_waited_for() {
    within(|| {
        let (memory, stage) = (Memory::new(), Stage::new());
        memory.plant(&key(7), b"no value", Some(ms(60_000)));
        let [one, two] = [0; 2].map(|_| instance(&memory, stage.loader()));
        let started = Instant::now();
        thread::scope(|s| {
            let heals = s.spawn(|| one.value(7));
            stage.begun();
            let waits = s.spawn(|| two.value(7));
            two.until_claimed(1);
            stage.end_with("tea");
            assert_eq!(
                (heals.join().unwrap(), waits.join().unwrap()),
                ("tea".into(), "tea".into())
            );
        });
        assert_eq!(stage.loads(), 1);
        assert!(two.count(Op::Acquire) <= claims_in(started.elapsed()));
    });
}

#[test]
fn a_value_whose_age_cannot_be_known_is_not_served_for_ever() {
    within(|| {
        let (memory, meter, clock) = (Memory::manual(), Meter::default(), Clock::manual());
        let [one, two] = [0; 2]
            .map(|_| start(&memory, |f| f, |c| c.clock(clock.clone()).loader(meter.numbered())));
        assert_eq!(one.value(7), "1");
        // Without an end, or with more left than it was ever to live, as when the server's clock is
        // set back. It is replaced by one that ends when it should.
        for (id, left) in [(7, None), (8, Some(TTL + ms(3))), (9, Some(60 * TTL))] {
            let undecodable = two.cache.stats().undecodable;
            one.value(id);
            memory.plant(&key(id), &envelope_of(&memory, id), left);
            assert_eq!(two.get(id).unwrap().source(), Source::Loaded, "{left:?}");
            assert_eq!(memory.stored(&key(id)).unwrap().left, Some(TTL));
            assert_eq!(two.cache.stats().undecodable, undecodable + 1);
            assert_eq!(one.value(id), two.value(id));
        }
        // As far as whole milliseconds can tell this one is new.
        one.value(10);
        memory.plant(&key(10), &envelope_of(&memory, 10), Some(TTL + ms(1)));
        assert_eq!(two.get(10).unwrap().source(), Source::Fleet);
    });
}

#[test]
fn a_value_that_ends_while_it_is_read_is_not_kept() {
    within(|| {
        let (memory, meter, clock) = (Memory::manual(), Meter::default(), Clock::manual());
        let [one, two] = [0; 2]
            .map(|_| start(&memory, |f| f, |c| c.clock(clock.clone()).loader(meter.numbered())));
        assert_eq!(one.value(7), "1");
        memory.plant(&key(7), &envelope_of(&memory, 7), Some(ms(1)));
        let answer = two.get(7).unwrap();
        assert!(["1", "2"].contains(&answer.value().unwrap().as_str()));
        clock.advance(ms(1));
        memory.advance(ms(1));
        assert!(two.cache.peek(&7).is_none_or(|kept| kept.value().unwrap() == "2"));
        assert_eq!(two.value(7), "2");
    });
}

/// Values of any type that has a decimal notation.
struct Text;

impl<V: fmt::Display + std::str::FromStr<Err: std::error::Error + Send + Sync + 'static>> Codec<V>
    for Text
{
    fn format(&self) -> Cow<'static, str> {
        format!("text of {}", std::any::type_name::<V>()).into()
    }

    fn encode(&self, value: &V, out: &mut Vec<u8>) -> Result<(), CodecError> {
        out.extend_from_slice(value.to_string().as_bytes());
        Ok(())
    }

    fn decode(&self, bytes: &[u8]) -> Result<V, CodecError> {
        let text = std::str::from_utf8(bytes).map_err(CodecError::decode)?;
        text.parse().map_err(CodecError::decode)
    }
}

/// Loads one value in one instance and reads it in another.
fn goes_around<V, C>(value: V, codec: impl Fn() -> C)
where
    V: Clone + PartialEq + fmt::Debug + Send + Sync + 'static,
    C: Codec<V> + 'static,
{
    let memory = Memory::new();
    let cache = || -> Cache<u64, V, String> {
        let value = value.clone();
        Cache::builder("values")
            .ttl(TTL)
            .loader(move |_: &Load<'_, u64, V>| Ok::<_, String>(Fill::new(value.clone())))
            .fleet(&Fleet::on(memory.peer()), codec())
            .build()
            .unwrap()
    };
    let (one, two) = (cache(), cache());
    for _ in 0..10 {
        assert_eq!(one.get(&7).unwrap().into_value().as_ref(), Some(&value));
    }
    for _ in 0..10 {
        assert_eq!(two.get(&7).unwrap().into_value().as_ref(), Some(&value));
    }
    let (first, second) = (one.stats(), two.stats());
    assert_eq!((first.loads, first.hits), (1, 9), "{value:?}");
    assert_eq!((second.loads, second.fleet_hits, second.hits), (0, 1, 9), "{value:?}");
}

#[test]
fn values_that_look_like_nothing_are_values() {
    within(|| {
        goes_around(String::new(), || codec::Raw);
        goes_around(Vec::<u8>::new(), || codec::Raw);
        goes_around(0_u64, || Text);
        goes_around(false, || Text);
    });
}

#[test]
fn every_byte_comes_back_as_it_was() {
    within(|| {
        goes_around((0..=255).collect::<Vec<u8>>(), || codec::Raw);
        goes_around("\0\r\n{}\u{1F375}".to_string(), || codec::Raw);
    });
}

#[test]
fn every_text_and_all_bytes_are_keys_of_their_own() {
    within(|| {
        let memory = Memory::new();
        let texts =
            ["", " ", "\0", "\r\n", "a b", "\"'", "\u{1F375}", "{}", "}{", "}", "{a}", "a:b", "é"];
        let mut keys: Vec<Vec<u8>> = texts.iter().map(|text| text.as_bytes().to_vec()).collect();
        keys.push(vec![0xFF, 0xFE]);
        keys.push(vec![b'x'; 64 * 1024]);
        let cache = |loads: bool| -> Cache<Vec<u8>, Vec<u8>, String> {
            Cache::builder("keys")
                .ttl(TTL)
                .loader(move |load: &Load<'_, Vec<u8>, Vec<u8>>| {
                    if loads { Ok(Fill::new(load.key().clone())) } else { Err("asked".to_string()) }
                })
                .fleet(&Fleet::on(memory.peer()), codec::Raw)
                .build()
                .unwrap()
        };
        let (one, two) = (cache(true), cache(false));
        for key in &keys {
            assert_eq!(one.get(key).unwrap().into_value().as_ref(), Some(key));
        }
        for key in &keys {
            assert_eq!(two.get(key).unwrap().into_value().as_ref(), Some(key));
        }
        assert_eq!((memory.values(), one.stats().loads), (keys.len(), keys.len() as u64));
        assert_eq!(two.stats().fleet_hits, keys.len() as u64);
    });
}

/// A cache of a table on a fleet, which loads its own name.
fn named<K>(fleet: &Fleet, table: &str) -> Cache<K, String, String>
where
    K: FleetKey + std::hash::Hash + Eq + Clone + fmt::Debug + Send + Sync + 'static,
{
    let name = table.to_string();
    Cache::builder(table)
        .ttl(TTL)
        .loader(move |load: &Load<'_, K, String>| Ok(format!("{name}/{:?}", load.key())))
        .fleet(fleet, codec::Raw)
        .build()
        .unwrap()
}

#[test]
fn tables_do_not_mix_whatever_their_names_and_keys() {
    within(|| {
        let pairs = [
            ("a:b", "c"),
            ("a", "b:c"),
            ("AA", "B"),
            ("A", "AB"),
            ("", "a:b"),
            ("a", "b"),
            ("a:", "b"),
            ("a", ":b"),
        ];
        let distinct: BTreeSet<_> = pairs
            .iter()
            .map(|(table, key)| *Key::new(&Table::new(*table), *key).fingerprint().as_bytes())
            .collect();
        assert_eq!(distinct.len(), pairs.len());

        let memory = Memory::new();
        // All tables of a process are on one connection.
        let (one, two) = (Fleet::on(memory.peer()), Fleet::on(memory.peer()));
        let expected = |table: &str, key: &str| format!("{table}/{key:?}");
        for fleet in [&one, &two] {
            for (table, key) in pairs {
                let cache = named::<String>(fleet, table);
                let answer = cache.get(&key.to_string()).unwrap();
                assert_eq!(answer.value().unwrap(), &expected(table, key));
                let source = if std::ptr::eq(fleet, &one) { Source::Loaded } else { Source::Fleet };
                assert_eq!(answer.source(), source, "{table} {key}");
            }
        }
        assert_eq!(memory.values(), pairs.len());
    });
}

#[test]
fn two_tables_on_one_connection_load_the_same_key_side_by_side() {
    within(|| {
        let memory = Memory::new();
        let fleets = [0; 2].map(|_| Fleet::on(memory.peer()));
        let caches = fleets
            .each_ref()
            .map(|fleet| (named::<u64>(fleet, "tenant a"), named::<u64>(fleet, "tenant b")));
        for round in 0..50 {
            thread::scope(|s| {
                for (a, b) in &caches {
                    s.spawn(move || {
                        let value = a.get(&round).unwrap().into_value().unwrap();
                        assert_eq!(value, format!("tenant a/{round}"));
                    });
                    s.spawn(move || {
                        let value = b.get(&round).unwrap().into_value().unwrap();
                        assert_eq!(value, format!("tenant b/{round}"));
                    });
                }
            });
        }
        let loads: u64 = caches.iter().map(|(a, b)| a.stats().loads + b.stats().loads).sum();
        assert_eq!((loads, memory.values()), (100, 100));
    });
}

#[test]
fn a_table_read_as_another_type_has_no_values() {
    within(|| {
        let memory = Memory::new();
        let strings = named::<u64>(&Fleet::on(memory.peer()), "s");
        let numbers: Cache<u64, u64, String> = Cache::builder("s")
            .ttl(TTL)
            .loader(|_: &Load<'_, u64, u64>| Ok(7))
            .fleet(&Fleet::on(memory.peer()), Text)
            .build()
            .unwrap();
        assert_eq!(strings.get(&1).unwrap().into_value().unwrap(), "s/1");
        assert_eq!(numbers.get(&1).unwrap().into_value(), Some(7));
        assert_eq!(numbers.stats().undecodable, 1);
    });
}
