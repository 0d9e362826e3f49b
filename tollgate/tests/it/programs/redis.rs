//! redis-cli through a `forward` listener.

use std::fmt::Write;

use super::gateway::Gateway;
use super::services::{run_with, service};

const VALUES: usize = 100_000;

#[test]
#[ignore = "needs redis: cargo xtask services"]
fn commands_and_a_mass_insert_come_through_forward() {
    let server = service("REDIS_PORT");
    let gateway = Gateway::start(&format!(
        r#"
[[listener]]
address = "127.0.0.1:0"
kind = "forward"
to = "127.0.0.1:{server}"
user = "ci"
[[user]]
name = "ci"
allow = ["127.0.0.1:{server}"]
"#
    ));
    let port = gateway.listeners[0].port().to_string();
    let redis = |words: &[&str], input: &str| {
        let place = ["-h", "127.0.0.1", "-p", &port];
        run_with("redis-cli", &[&place[..], words].concat(), input.as_bytes()).text()
    };
    // Of this run only: the server keeps its data from one run to the next.
    let key = format!("tollgate:{}", std::process::id());
    assert_eq!(redis(&["set", &key, "a value"], ""), "OK");
    assert_eq!(redis(&["get", &key], ""), "a value");
    assert_eq!(redis(&["del", &key], ""), "1");

    let (inserts, values) = mass_insert(&key);
    let said = redis(&["--pipe"], &inserts);
    assert!(said.contains(&format!("errors: 0, replies: {VALUES}")), "{said}");
    assert!(redis(&["lrange", &key, "0", "-1"], "") == values, "other values came back");
    assert_eq!(redis(&["del", &key], ""), "1");

    let usage = gateway.stop().usage("ci");
    assert_eq!(usage.flows, 6);
    assert!(usage.up > inserts.len() as u64 && usage.down > values.len() as u64, "{usage:?}");
}

/// Commands in Redis's own protocol that append to a list, and the list's lines in the end.
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
