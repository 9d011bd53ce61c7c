//! The examples, as programs that tests run.
//!
//! Pulled in with `#[path = "programs/mod.rs"] mod programs;`.

use std::path::PathBuf;
use std::process::{Command, Stdio};

/// The program of an example, built with the features that this test was built with.
///
/// Cargo builds an example that has unit tests only as those tests, and builds no example at all
/// for `cargo test --test herd`, so it is asked for it here.
pub(crate) fn build(example: &str) -> PathBuf {
    let mut build = Command::new(env!("CARGO"));
    build.args(["build", "--quiet", "--example", example, "--message-format", "json"]);
    build.args(["--no-default-features", "--features", &features()]);
    if !cfg!(debug_assertions) {
        build.arg("--release");
    }
    let built = build.current_dir(env!("CARGO_MANIFEST_DIR")).stderr(Stdio::inherit());
    let built = built.output().expect("cargo runs, as it has just run this test");
    assert!(built.status.success(), "the example does not build");
    let messages = String::from_utf8(built.stdout).expect("cargo writes UTF-8");
    let path = messages.split(r#""executable":""#).nth(1).expect("the example is a program");
    let path = path.split('"').next().unwrap_or_default();
    PathBuf::from(path.replace(r"\\", r"\"))
}

/// With others than this test's, all that was just built would be built once more.
fn features() -> String {
    let features = [
        ("default", cfg!(feature = "default")),
        ("cache", cfg!(feature = "cache")),
        ("json", cfg!(feature = "json")),
        ("postcard", cfg!(feature = "postcard")),
        ("r2d2_redis", cfg!(feature = "r2d2_redis")),
        ("redis", cfg!(feature = "redis")),
        ("tls", cfg!(feature = "tls")),
        ("metrics", cfg!(feature = "metrics")),
        ("tracing", cfg!(feature = "tracing")),
    ];
    let names = features.iter().filter(|(_, is_on)| *is_on).map(|(name, _)| *name);
    names.collect::<Vec<_>>().join(",")
}
