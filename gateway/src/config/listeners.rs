//! Listeners: the addresses at which clients are served, and the gateway's own addresses, to which no user
//! may be led.
//!
//! Guarantees: no two listeners take the same connections. A forward listener has its destination and its
//! user.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use policy::{AddressClass, NameVerdict, Policy, UserIndex};
use proto::target::{Host, Target};

use super::raw::RawConfig;
use super::read::{Located, Optional, nearest};
use super::report::{Diagnostic, Report, Span};
use super::value::OwnAddress;
use crate::config::settings::{ListenerKind, ListenerTable};
use crate::users::UserName;

/// Most listeners: each costs every reactor thread a socket.
const LISTENERS_MAX: usize = 256;

/// The address of the listener of a configuration without listeners.
const DEFAULT_ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 3128);

/// A port that Tollgate listens on.
#[derive(Clone, Debug, PartialEq)]
pub struct Listener {
    /// Address and port; no other listener has the same. Port 0 lets the kernel choose.
    pub address: SocketAddr,
    /// The protocol that clients use there.
    pub ingress: Ingress,
}

/// The protocol of a listener.
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "listeners are few")]
pub enum Ingress {
    /// HTTP or SOCKS5, distinguished by the first byte.
    Mixed,
    /// HTTP: tunnels by CONNECT, and plain requests.
    Http,
    /// SOCKS5.
    Socks5,
    /// No protocol: every connection leads to one destination.
    Forward {
        /// The destination.
        to: Target,
        /// The user whose rules apply and that is billed, as an index of this configuration's policy.
        user: UserIndex,
    },
}

/// Reports listeners that are invalid, or that collide.
pub(super) fn check(raw: &RawConfig, report: &mut Report) {
    let names: HashSet<&str> = raw.users.iter().map(|user| &*user.name).collect();
    for listener in &raw.listeners {
        check_forward(listener, report);
        if raw.has_all_users {
            check_forward_user(listener, &names, report);
        }
    }
    if let Some(listener) = raw.listeners.get(LISTENERS_MAX) {
        let title = format!("more than {LISTENERS_MAX} listeners");
        report.error(Diagnostic::at(&listener.address.span, title));
    }
    for (at, listener) in raw.listeners.iter().enumerate().take(LISTENERS_MAX) {
        let address = &listener.address;
        if let Some(earlier) = raw.listeners[..at].iter().find(|l| collide(*l.address, **address)) {
            let title = format!("two listeners on {}", **address);
            let diagnostic = Diagnostic::at(&address.span, title).label("it takes the same connections");
            report.error(diagnostic.related(&earlier.address.span, "as this one"));
        } else if collide(raw.admin.address, **address) {
            let title = format!("a listener on the address of [admin], {}", raw.admin.address);
            report.error(Diagnostic::at(&address.span, title));
        }
    }
}

/// Warns of forward listeners whose connections are all denied.
pub(super) fn warn_denied_forwards(raw: &RawConfig, policy: &Policy, report: &mut Report) {
    for listener in raw.listeners.iter().filter(|listener| listener.kind == ListenerKind::Forward) {
        let (Some(to), Some(name)) = (listener.to.written(), listener.user.written()) else { continue };
        let Some(user) = policy.user(name) else { continue };
        let host = match &to.value.host {
            Host::Name(name) => policy::Host::Name(name.as_str()),
            Host::Address(address) => policy::Host::Address(*address),
        };
        if let NameVerdict::Denied(verdict) = policy.judge_name(user, host, to.value.port.get()) {
            let title = format!("the rules of user `{}` deny every connection of this listener", **name);
            report.warning(Diagnostic::at(&to.span, title).help(verdict.reason.to_string()));
        }
    }
}

/// The listeners. [`check`] must have found no error.
pub(super) fn resolve(raw: &RawConfig, policy: &Policy) -> Vec<Listener> {
    if raw.listeners.is_empty() {
        return vec![Listener { address: DEFAULT_ADDRESS, ingress: Ingress::Mixed }];
    }
    let resolve = |table: &ListenerTable| {
        let ingress = match table.kind {
            ListenerKind::Mixed => Ingress::Mixed,
            ListenerKind::Http => Ingress::Http,
            ListenerKind::Socks5 => Ingress::Socks5,
            ListenerKind::Forward => {
                let to = table.to.written().expect("`check` rejected a forward listener without `to`");
                let user = table.user.written().and_then(|user| policy.user(user));
                let user = user.expect("`check` rejected a forward listener without a known user");
                Ingress::Forward { to: to.value, user }
            }
        };
        Listener { address: *table.address, ingress }
    };
    raw.listeners.iter().map(resolve).collect()
}

/// Every address at which a connection reaches a socket of `open`. A wildcard stands for itself and for all
/// addresses of this machine, the `locals`. The `further` addresses lead here as well.
pub(super) fn own_addresses(
    open: impl Iterator<Item = SocketAddr>,
    locals: &[IpAddr],
    further: &[Located<OwnAddress>],
) -> Vec<SocketAddr> {
    let (mut own, mut mapped) = (Vec::new(), Vec::new());
    for Located { value: OwnAddress { ip, port }, .. } in further {
        match *port {
            Some(port) => own.push(SocketAddr::new(*ip, port)),
            None => mapped.push(*ip),
        }
    }
    for address in open {
        own.push(address);
        own.extend(mapped.iter().map(|&ip| SocketAddr::new(ip, address.port())));
        if address.ip().is_unspecified() {
            // Of the gateway's sockets, only that of the admin side accepts IPv4 connections at `::` too.
            let all = locals.iter().filter(|local| address.is_ipv6() || local.is_ipv4());
            own.extend(all.map(|&local| SocketAddr::new(local, address.port())));
        }
    }
    own.sort();
    own.dedup();
    own
}

/// Warns if the admin side, which has no password, is reachable at a public address.
pub(super) fn warn_public_admin(raw: &RawConfig, locals: &[IpAddr], policy: &Policy, report: &mut Report) {
    let (ip, port) = (raw.admin.address.ip(), raw.admin.address.port());
    let is_public = |ip: &IpAddr| policy.address_class(*ip, port) == AddressClass::Public;
    let public = match ip.is_unspecified() {
        true => locals.iter().find(|local| (ip.is_ipv6() || local.is_ipv4()) && is_public(local)),
        false => Some(&ip).filter(|ip| is_public(ip)),
    };
    if let Some(public) = public {
        let title = format!("[admin] has no password and is reachable at a public address, {public}");
        let help = "write `address = \"127.0.0.1:9128\"`, or an address of a private network";
        report.warning(Diagnostic::without_span(title).help(help));
    }
}

fn check_forward(listener: &ListenerTable, report: &mut Report) {
    let forward = listener.kind == ListenerKind::Forward;
    let address = &listener.address.span;
    let only_forward = |span: &Span, name: &str| {
        let title = format!("`{name}` is for listeners of kind \"forward\" only");
        Diagnostic::at(span, title)
    };
    match &listener.to {
        Optional::Absent if forward => report.error(
            Diagnostic::at(address, "a forward listener needs `to`")
                .help("write `to = \"HOST:PORT\"`, the destination of its connections"),
        ),
        Optional::Written(to) if !forward => report.error(only_forward(&to.span, "to")),
        _ => {}
    }
    match &listener.user {
        Optional::Absent if forward => report.error(
            Diagnostic::at(address, "a forward listener needs `user`")
                .help("write `user = \"NAME\"`: the user whose rules apply and that is billed"),
        ),
        Optional::Written(user) if !forward => report.error(only_forward(&user.span, "user")),
        _ => {}
    }
}

/// Reports a forward listener whose user does not exist.
fn check_forward_user(listener: &ListenerTable, users: &HashSet<&str>, report: &mut Report) {
    if listener.kind == ListenerKind::Forward
        && let Optional::Written(user) = &listener.user
        && !users.contains(&*user.value)
    {
        report.error(unknown_user(user, users));
    }
}

fn unknown_user(user: &Located<UserName>, users: &HashSet<&str>) -> Diagnostic {
    let diagnostic = Diagnostic::at(&user.span, format!("there is no user `{}`", user.value));
    let mut names: Vec<&str> = users.iter().copied().collect();
    // Of names that are equally near, the message names the same one each time.
    names.sort_unstable();
    match nearest(&user.value, &names) {
        Some(name) => diagnostic.help(format!("did you mean `{name}`?")),
        None => diagnostic.help(format!("`tollgate user add {}` creates this user", user.value)),
    }
}

/// Whether two sockets would take each other's connections. Ports that the kernel chooses never collide, and
/// a wildcard takes its own family only.
fn collide(a: SocketAddr, b: SocketAddr) -> bool {
    let (a, b) = (canonical(a), canonical(b));
    let is_wild = |address: SocketAddr| address.ip().is_unspecified();
    a.port() == b.port()
        && a.port() != 0
        && (a.ip() == b.ip() || (a.is_ipv4() == b.is_ipv4() && (is_wild(a) || is_wild(b))))
}

fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}
