//! Requests to a running gateway: `tollgate reload` reaches one gateway and waits for the outcome.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Output};

use rustix::process::Signal;

use crate::harness::{Gateway, LOCAL_USER, eventually};
use crate::peers::{Destination, check_echo, tunnel};

/// Reloads `gateway` with `extra` behind the head; returns the exit code and the output.
fn reload(gateway: &Gateway, extra: &str) -> (i32, String) {
    gateway.write_configuration(extra);
    run_command(Command::new(env!("CARGO_BIN_EXE_tollgate")).arg("reload").current_dir(gateway.path("")))
}

fn run_command(command: &mut Command) -> (i32, String) {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let printed = [stdout, stderr].concat();
    (status.code().expect("the process exits, and no signal ends it"), String::from_utf8(printed).unwrap())
}

/// Regression: the formerly printed hint, `kill -HUP $(pidof tollgate)`, ended other commands of the program.
#[test]
fn reload_prints_changes_and_reaches_one_process() {
    let destination = Destination::echo();
    let (gateway, other) = (Gateway::local(""), Gateway::local(""));
    let mut live = tunnel(&gateway, destination.address);
    let mut top = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    let mut top =
        top.args(["top", "--once", "--interval", "1m"]).current_dir(gateway.path("")).spawn().unwrap();

    let added = TcpListener::bind("127.0.0.4:0").unwrap().local_addr().unwrap();
    let user = "[[user]]\nname = \"new\"\nfrom = [\"127.9.0.1/32\"]\n";
    let changed = LOCAL_USER.replace("\"[::1]\", ", "");
    let listener = format!("[[listener]]\naddress = \"{added}\"\n");
    let (code, printed) = reload(&gateway, &format!("{changed}{user}{listener}[accept]\nbacklog = 77\n"));
    let expected = format!(
        "reloaded\n  users added: new\n  users changed: me\n  listeners added: {added}\n  \
         take effect with the next start: [accept]\n"
    );
    assert!(code == 0 && printed.starts_with(&expected), "{code} {printed}");
    assert!(printed.contains("user `new` may go nowhere"), "warnings are printed: {printed}");
    eventually("the new listener serves", || TcpStream::connect(added).is_ok());

    let (code, printed) = reload(&gateway, LOCAL_USER);
    let expected =
        format!("reloaded\n  users removed: new\n  users changed: me\n  listeners removed: {added}\n");
    assert_eq!((code, printed), (0, expected));
    assert_eq!(reload(&gateway, LOCAL_USER), (0, "reloaded\n".to_owned()));

    check_echo(&mut live, b"goes on");
    assert_eq!(other.metric("tollgate_config_reloads_total"), Some(1.0), "its start alone");
    assert_eq!(gateway.metric("tollgate_config_reloads_total"), Some(4.0));
    assert_eq!(top.try_wait().unwrap(), None, "another command is not ended");
    top.kill().unwrap();
    top.wait().unwrap();
}

#[test]
fn refused_reload_is_printed_with_its_reason() {
    let mut gateway = Gateway::local("");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let (code, printed) = reload(&gateway, &format!("{LOCAL_USER}[[listener]]\naddress = \"{address}\"\n"));
    assert_eq!(code, 1, "{printed}");
    assert!(printed.contains("reload refused, the old configuration stays:\n"), "{printed}");
    assert!(printed.contains(&format!("cannot listen on {address}")), "{printed}");

    let (code, printed) = reload(&gateway, "[nonsense]\n");
    assert_eq!(code, 78, "the configuration is validated first: {printed}");
    // With `--directory` the command does not read the configuration, and the gateway reports the error
    // itself.
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    let directory = gateway.path("tollgate-data");
    let (code, printed) =
        run_command(command.args(["reload", "--directory"]).arg(&directory).current_dir("/"));
    assert!(code == 1 && printed.contains("unknown key `nonsense`"), "{code} {printed}");
    assert_eq!(gateway.metric("tollgate_config_reload_success"), Some(0.0));

    gateway.stop();
    assert!(!directory.join("control").exists());
    let (code, printed) = reload(&gateway, LOCAL_USER);
    let expected = format!("no gateway serves with the ledger in {}", directory.display());
    assert!(code == 1 && printed.contains(&expected), "{code} {printed}");
}

/// Regression: SIGUSR1 waited behind a reload, so that for as long a rotated log had no new file.
#[test]
fn log_is_reopened_during_a_long_reload() {
    let gateway = Gateway::local("");
    let (log, old) = (gateway.path("log.jsonl"), gateway.path("log.old"));
    // A reload opens its listeners in order, and waits a second for an address in use.
    let [first, taken] = [(); 2].map(|()| TcpListener::bind("127.0.0.4:0").unwrap());
    let [open, in_use] = [&first, &taken].map(|socket| socket.local_addr().unwrap());
    drop(first);
    let listeners = [open, in_use].map(|address| format!("[[listener]]\naddress = \"{address}\"\n"));
    gateway.write_configuration(&format!("{LOCAL_USER}{}", listeners.concat()));
    let reloads = || gateway.metric("tollgate_config_reloads_total").unwrap();
    // This process may be delayed for that second; then the next round decides.
    let is_prompt = (0..10).any(|_| {
        let before = reloads();
        fs::rename(&log, &old).unwrap();
        gateway.signal(Signal::HUP);
        eventually("the reload has begun", || TcpStream::connect(open).is_ok() || reloads() > before);
        gateway.signal(Signal::USR1);
        eventually("the log has its file again", || log.exists());
        let is_prompt = reloads() == before;
        eventually("the reload is refused", || reloads() > before);
        is_prompt
    });
    assert!(is_prompt, "the file appeared only after the reload, ten times of ten");
}
