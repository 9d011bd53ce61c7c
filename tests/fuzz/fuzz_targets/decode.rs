//! Whatever is found in the shared tier, or comes over its channel, is read without a panic; and
//! what is taken for an envelope or a notice is written back byte for byte.
//!
//! ```sh
//! cargo +nightly fuzz run --fuzz-dir tests/fuzz decode -- -max_total_time=60
//! ```
#![no_main]

use libfuzzer_sys::fuzz_target;
use onefill::fleet::envelope::{self, Envelope, FORMAT, HEADER, MAGIC};
use onefill::fleet::{Codec, Notice, codec};

/// Where the checksum is: the last thing in the header.
const CHECKSUM: usize = HEADER - 4;

fuzz_target!(|bytes: &[u8]| {
    read(bytes);
    if let Some(notice) = Notice::from_bytes(bytes) {
        let again = notice.to_bytes();
        assert_eq!(Notice::from_bytes(&again), Some(notice));
    }
    if bytes.len() >= HEADER {
        let mut intact = bytes.to_vec();
        intact[..2].copy_from_slice(&[MAGIC, FORMAT]);
        let mut sum = crc32fast::Hasher::new();
        sum.update(&intact[..CHECKSUM]);
        sum.update(&intact[HEADER..]);
        intact[CHECKSUM..HEADER].copy_from_slice(&sum.finalize().to_be_bytes());
        read(&intact);
    }
});

fn read(bytes: &[u8]) {
    let Ok(Envelope { header, payload }) = envelope::inspect(bytes) else { return };
    assert_eq!(payload, &bytes[HEADER..]);
    let decoded = envelope::decode(bytes, header.fingerprint, header.schema);
    assert_eq!(decoded, Ok(Envelope { header, payload }));

    let again = envelope::encode(&header, payload.len(), |out| {
        out.extend_from_slice(payload);
        Ok(())
    });
    // A life of no time at all is read, but not written.
    assert!(header.life.is_zero() || again.unwrap() == bytes);

    type Value = (u64, String, Option<Vec<(bool, char, f64)>>);
    let _ = Codec::<String>::decode(&codec::Raw, payload);
    let _ = Codec::<Value>::decode(&codec::Json, payload);
    let _ = Codec::<Value>::decode(&codec::Postcard, payload);
}
