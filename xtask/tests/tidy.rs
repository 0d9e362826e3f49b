//! Runs `cargo xtask tidy` over this checkout, so that `cargo test` has its findings too.

use std::process::Command;

#[test]
fn tree_is_tidy() {
    let output = Command::new(env!("CARGO_BIN_EXE_xtask")).arg("tidy").output().expect("xtask was built");
    assert!(output.status.success(), "\n{}", String::from_utf8_lossy(&output.stderr));
}
