//! A herd of callers, without and with coalescing.
fn main() {}
