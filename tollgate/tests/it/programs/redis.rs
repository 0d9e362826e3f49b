//! redis-cli through a `forward` listener.

use std::fmt::Write;

use super::forwarding;
use super::services::{run_with, service};

const VALUES: usize = 100_000;

#[test]
#[ignore = "needs redis: cargo xtask services"]
fn commands_and_mass_insert_through_forward_succeed() {
    let (mut gateway, [host, port]) = forwarding(&service("REDIS_PORT"));
    let redis = |words: &[&str], input: &str| {
        let endpoint = ["-h", &host, "-p", &port];
        run_with("redis-cli", &[&endpoint[..], words].concat(), input.as_bytes()).text()
    };
    // The key is unique to this run: the server keeps its data from one run to the next.
    let key = format!("tollgate:{}", std::process::id());
    assert_eq!(redis(&["set", &key, "a value"], ""), "OK");
    assert_eq!(redis(&["get", &key], ""), "a value");
    assert_eq!(redis(&["del", &key], ""), "1");

    let (inserts, values) = mass_insert(&key);
    let output = redis(&["--pipe"], &inserts);
    assert!(output.contains(&format!("errors: 0, replies: {VALUES}")), "{output}");
    assert!(redis(&["lrange", &key, "0", "-1"], "") == values, "other values came back");
    assert_eq!(redis(&["del", &key], ""), "1");

    gateway.stop();
    let (flows, up, down) = gateway.usage_of("me");
    assert_eq!(flows, 6);
    assert!(up > inserts.len() as u64 && down > values.len() as u64, "{up} {down}");
}

/// Commands in the Redis protocol that append to a list, and the final lines of the list.
fn mass_insert(key: &str) -> (String, String) {
    let (mut inserts, mut values) = (String::new(), String::new());
    for number in 0..VALUES {
        let value = format!("value-{number}");
        let (key_bytes, value_bytes) = (key.len(), value.len());
        write!(inserts, "*3\r\n$5\r\nRPUSH\r\n${key_bytes}\r\n{key}\r\n${value_bytes}\r\n{value}\r\n")
            .unwrap();
        writeln!(values, "{value}").unwrap();
    }
    (inserts, values.trim_end().to_owned())
}
