//! The users, hosts and sets of a synthetic year, and how often each is drawn.
//!
//! Guarantees: integers only, so that a seed gives the same draws on every machine.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::random::Random;
use crate::record::Class;

/// Hosts of the year.
const HOSTS: usize = 100_000;

/// Hosts to which a user returns, besides those that all users draw from.
const OWN_HOSTS: u64 = 64;

/// The percentage of flows to a user's own hosts.
const OWN_PERCENT: u64 = 60;

/// Added to each rank: the first has some percent of the draws, not a tenth as by Zipf's law alone.
const RANK_OFFSET: u64 = 10;

/// The named sets: their rule and their class. Number 0 is no set.
const SETS: [(&str, Class); 6] = [
    ("*:443", Class::External),
    ("@github[0] *.github.com", Class::External),
    ("@packages[1] *.example.org", Class::External),
    ("@office[0] *.example.net", Class::External),
    ("@models[2] api.example.com", Class::External),
    ("@corp[0] *.corp.example", Class::Internal),
];

/// Ranks with Zipf's law: the probability of a rank is proportional to its inverse.
struct Zipf {
    /// The sums of the weights up to each rank.
    sums: Vec<u64>,
}

impl Zipf {
    fn new(ranks: usize) -> Zipf {
        let weights = (RANK_OFFSET..).take(ranks).map(|rank| (1_u64 << 40) / rank);
        let sums = weights.scan(0, |sum, weight| {
            *sum += weight;
            Some(*sum)
        });
        Zipf { sums: sums.collect() }
    }

    /// A rank, counted from 0.
    fn draw(&self, random: &mut Random) -> usize {
        let all = *self.sums.last().expect("there is a rank");
        let drawn = random.below(all);
        self.sums.partition_point(|sum| *sum <= drawn)
    }
}

/// A host, and how flows to it are metered.
pub(super) struct Host {
    pub(super) name: String,
    pub(super) address: IpAddr,
    pub(super) set: u16,
    pub(super) class: Class,
    pub(super) rule: &'static str,
}

/// A user, the address of its machine, and its own hosts.
pub(super) struct User {
    pub(super) name: String,
    pub(super) account: u32,
    pub(super) address: IpAddr,
    own_hosts: Vec<u32>,
}

/// All users and hosts.
pub(super) struct Population {
    users: Vec<User>,
    user_ranks: Zipf,
    hosts: Vec<Host>,
    host_ranks: Zipf,
}

impl Population {
    pub(super) fn new(users: u32, random: &mut Random) -> Population {
        let host_ranks = Zipf::new(HOSTS);
        let hosts = (0..HOSTS).map(|number| Host::new(number, random)).collect();
        let users: Vec<User> = (1..=users).map(|account| User::new(account, random)).collect();
        Population { user_ranks: Zipf::new(users.len()), users, hosts, host_ranks }
    }

    /// A user, and the host of its next flow.
    pub(super) fn draw(&self, random: &mut Random) -> (usize, usize) {
        let user = self.user_ranks.draw(random);
        let host = match random.chance(OWN_PERCENT) {
            true => self.users[user].own_hosts[random.below(OWN_HOSTS) as usize] as usize,
            false => self.host_ranks.draw(random),
        };
        (user, host)
    }

    pub(super) fn user(&self, user: usize) -> &User {
        &self.users[user]
    }

    pub(super) fn host(&self, host: usize) -> &Host {
        &self.hosts[host]
    }
}

impl User {
    fn new(account: u32, random: &mut Random) -> User {
        let [_, high, middle, low] = account.to_be_bytes();
        let address = IpAddr::V4(Ipv4Addr::new(10, high, middle, low));
        let own_hosts = (0..OWN_HOSTS).map(|_| random.below(HOSTS as u64) as u32).collect();
        User { name: format!("user-{account:05}"), account, address, own_hosts }
    }

    /// The user's end of a connection.
    pub(super) fn client(&self, random: &mut Random) -> SocketAddr {
        SocketAddr::new(self.address, 32_768 + random.below(28_000) as u16)
    }
}

impl Host {
    fn new(number: usize, random: &mut Random) -> Host {
        const PREFIXES: [&str; 6] = ["www", "api", "cdn-assets", "login", "static-content", "eu-west-1"];
        const SUFFIXES: [&str; 6] =
            ["example.com", "github.com", "example.org", "example.net", "example.com", "corp.example"];
        // Half of the hosts are in no set.
        let set = if random.chance(50) { 0 } else { random.below(SETS.len() as u64) as usize };
        let prefix = PREFIXES[random.below(PREFIXES.len() as u64) as usize];
        let bits = random.next();
        let address = match bits % 8 {
            0 => IpAddr::V6(Ipv6Addr::from(0x2001_0db8_u128 << 96 | u128::from(bits))),
            _ => {
                IpAddr::V4(Ipv4Addr::from(bits.to_be_bytes().first_chunk::<4>().copied().unwrap_or_default()))
            }
        };
        let (rule, class) = SETS[set];
        let name = format!("{prefix}.s{number}.{}", SUFFIXES[set]);
        Host { name, address, set: set as u16, class, rule }
    }
}
