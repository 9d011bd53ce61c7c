//! Encryption, by rustls.

use rustls::{ClientConnection, StreamOwned};

use super::stream::Raw;

/// A stream that is encrypted.
pub(super) type Encrypted = StreamOwned<ClientConnection, Raw>;

/// Whether a record was decrypted that nobody has read, or could be if anybody tried.
pub(super) fn has_more(stream: &mut Encrypted) -> bool {
    // An error is one of the next read.
    stream.conn.process_new_packets().is_ok_and(|state| state.plaintext_bytes_to_read() > 0)
}
