//! How fast flights are, as ratios to their peers in the same run.
fn main() {}
