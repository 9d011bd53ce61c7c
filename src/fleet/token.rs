//! The random numbers of a fleet: [`Token`], [`Origin`], [`Epoch`].
//!
//! All three come straight from the operating system, afresh each time. A generator seeded once
//! would be cheaper, but a process that forks, or a machine started twice from one snapshot, would
//! go on with the same numbers as its twin, and two processes would hold the same lease. One
//! system call per load of a value is not felt.

use std::fmt;

/// Proves a lease, and names the version of the value stored under it.
///
/// 128 random bits, drawn for one attempt to fill one key: nobody else in the fleet, now or
/// later, has the same. Printed as 32 hexadecimal digits.
///
/// # Example
///
/// ```
/// use onefill::fleet::Token;
///
/// let token = Token::random();
/// assert_ne!(token, Token::random());
/// assert_eq!(Token::from_bytes(*token.as_bytes()), token);
/// assert_eq!(Token::from_bytes([0xab; 16]).to_string(), "ab".repeat(16));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Token([u8; 16]);

impl Token {
    /// Draws a new one.
    ///
    /// # Panics
    ///
    /// If the operating system has no random numbers to give, as a
    /// [`HashMap`](std::collections::HashMap) would.
    pub fn random() -> Token {
        Token(draw())
    }

    /// The token with these bytes, as they were stored.
    pub const fn from_bytes(bytes: [u8; 16]) -> Token {
        Token(bytes)
    }

    /// Its bytes, as they are to be stored.
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        hex(&self.0, f)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token({self})")
    }
}

/// Who sent a notice: one cache in one process.
///
/// A cache hears its own notices, too, and knows them by this. Two caches of one process are two
/// origins, since neither knows what the other did.
///
/// ```
/// use onefill::fleet::Origin;
///
/// let me = Origin::random();
/// assert_ne!(me, Origin::random());
/// assert_eq!(Origin::from_u64(me.as_u64()), me);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Origin(u64);

impl Origin {
    /// Draws a new one.
    ///
    /// # Panics
    ///
    /// As [`Token::random`].
    pub fn random() -> Origin {
        Origin(u64::from_be_bytes(draw()))
    }

    /// The origin with this number, as it was sent.
    pub const fn from_u64(number: u64) -> Origin {
        Origin(number)
    }

    /// Its number, as it is to be sent.
    pub const fn as_u64(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Debug for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Origin({self})")
    }
}

/// What a table's values are stored under until all of them are invalidated: a value with
/// another epoch than its table's is no value.
///
/// Random, and compared for equality only. A counter would start again after the tier had lost
/// it, and would sooner or later reach a number that old values still carry.
///
/// ```
/// use onefill::fleet::Epoch;
///
/// let epoch = Epoch::random();
/// assert_ne!(epoch, Epoch::random());
/// assert_eq!(Epoch::from_u64(epoch.as_u64()), epoch);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Epoch(u64);

impl Epoch {
    /// Draws a new one.
    ///
    /// # Panics
    ///
    /// As [`Token::random`].
    pub fn random() -> Epoch {
        Epoch(u64::from_be_bytes(draw()))
    }

    /// The epoch with this number, as it was stored.
    pub const fn from_u64(number: u64) -> Epoch {
        Epoch(number)
    }

    /// Its number, as it is to be stored.
    pub const fn as_u64(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Debug for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Epoch({self})")
    }
}

fn draw<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).expect("the operating system gives random numbers");
    bytes
}

/// Two digits a byte.
pub(super) fn hex(bytes: &[u8], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn no_two_tokens_are_alike() {
        let tokens: HashSet<Token> = (0..10_000).map(|_| Token::random()).collect();
        assert_eq!(tokens.len(), 10_000);
    }

    #[test]
    fn they_print_as_hexadecimal_digits() {
        let token =
            Token::from_bytes(*b"\x00\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0e\xff");
        assert_eq!(token.to_string(), "000102030405060708090a0b0c0d0eff");
        assert_eq!(format!("{token:?}"), "Token(000102030405060708090a0b0c0d0eff)");
        assert_eq!(Origin::from_u64(0xbeef).to_string(), "000000000000beef");
        assert_eq!(Epoch::from_u64(0xf00d).to_string(), "000000000000f00d");
    }
}
