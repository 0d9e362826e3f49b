//! Sampled stacks as a flame graph: one SVG with a strategy's name at the root of its stacks. A frame's width
//! is its share of all samples, its colour the purpose of most of them.
//!
//! Guarantees: the file needs nothing but itself, and is bounded: frames too narrow to see are left out.
//!
//! Drawn here because the library that draws flame graphs has a licence that this project does not accept.

use std::fmt::Write;

use crate::kit::markup::escape;
use crate::kit::stacks::{Frame, Profile, Stack};

const STYLE: &str = include_str!("flame.css");
const SCRIPT: &str = include_str!("flame.js");

const WIDTH: f64 = 1240.0;
const MARGIN: f64 = 10.0;
const HEAD_HEIGHT: f64 = 74.0;
const FRAME_HEIGHT: f64 = 18.0;
const LEGEND_WIDTH: f64 = 220.0;

/// Width of one letter in a frame.
const LETTER_WIDTH: f64 = 7.3;

/// Narrower frames are left out, since they cannot be seen.
const WIDTH_MIN: f64 = 0.4;

/// Frames of a stack, the strategy's and the root's included; a deeper stack is cut at its leaf.
const DEPTH_MAX: usize = 96;

/// The title of a graph, and the meaning of its colours.
pub(crate) struct Palette {
    pub(crate) title: &'static str,
    /// Each purpose's class in the style sheet, and the purpose in words; of two purposes with as many
    /// samples the earlier one is shown.
    pub(crate) purposes: &'static [(&'static str, &'static str)],
    /// The index of a stack's purpose in `purposes`.
    pub(crate) purpose_of: fn(&Stack) -> usize,
}

/// The graph of some strategies.
pub(crate) fn svg(palette: &Palette, profiles: &[Profile]) -> String {
    let title = palette.title;
    let tree = Node::from_profiles(palette, profiles);
    let depth = tree.depth();
    let height = HEAD_HEIGHT + FRAME_HEIGHT * depth as f64 + MARGIN;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" \
         height=\"{height}\"><title>{title}</title><style>{STYLE}</style>\
         <rect class=\"paper\" width=\"{WIDTH}\" height=\"{height}\"/>\
         <text class=\"head\" x=\"{MARGIN}\" y=\"24\">{title}</text>\
         <text class=\"note\" x=\"{MARGIN}\" y=\"44\">Width: share of {} samples of all \
         strategies. Italics: in the kernel. Click on a frame to zoom in, on the lowest one to zoom \
         out.</text>",
        tree.samples()
    );
    legend(palette, &mut svg);
    let mut graph = Graph { palette, svg, base: height - MARGIN, all: tree.samples().max(1) as f64 };
    graph.draw(&tree, MARGIN, 0);
    let script = SCRIPT.replace("LETTER_WIDTH", &LETTER_WIDTH.to_string());
    let _ = writeln!(graph.svg, "<script><![CDATA[{script}]]></script></svg>");
    graph.svg
}

fn legend(palette: &Palette, svg: &mut String) {
    for (index, (class, meaning)) in palette.purposes.iter().enumerate() {
        let x = MARGIN + LEGEND_WIDTH * index as f64;
        let beside = x + 18.0;
        let _ = write!(
            svg,
            "<g class=\"{class}\"><rect x=\"{x}\" y=\"54\" width=\"12\" height=\"12\"/></g>\
             <text class=\"note\" x=\"{beside}\" y=\"64\">{meaning}</text>"
        );
    }
}

/// A frame, and the frames that it called, by name.
#[derive(Debug)]
struct Node {
    frame: Frame,
    /// Samples of this frame and of all above it, by purpose.
    samples: Vec<u64>,
    callees: Vec<Node>,
}

impl Node {
    fn from_profiles(palette: &Palette, profiles: &[Profile]) -> Self {
        let named = |name: &str| Frame { name: name.to_owned(), is_kernel: false };
        let mut all = Self::new(named("all"), palette.purposes.len());
        for profile in profiles {
            let strategy = named(&profile.name);
            profile.stacks.iter().for_each(|stack| all.add(&strategy, stack, (palette.purpose_of)(stack)));
        }
        all.sort();
        all
    }

    fn new(frame: Frame, purposes: usize) -> Self {
        Self { frame, samples: vec![0; purposes], callees: Vec::new() }
    }

    fn add(&mut self, strategy: &Frame, stack: &Stack, purpose: usize) {
        let purposes = self.samples.len();
        let mut node = self;
        node.samples[purpose] += stack.samples;
        for frame in [strategy].into_iter().chain(&stack.frames).take(DEPTH_MAX - 1) {
            let index = node.callees.iter().position(|callee| callee.frame == *frame).unwrap_or_else(|| {
                node.callees.push(Self::new(frame.clone(), purposes));
                node.callees.len() - 1
            });
            node = &mut node.callees[index];
            node.samples[purpose] += stack.samples;
        }
    }

    /// Strategies keep their order; the frames that they called are sorted by name.
    fn sort(&mut self) {
        for strategy in &mut self.callees {
            strategy.sort_callees();
        }
    }

    fn sort_callees(&mut self) {
        self.callees.sort_by(|one, other| one.frame.cmp(&other.frame));
        self.callees.iter_mut().for_each(Self::sort_callees);
    }

    fn samples(&self) -> u64 {
        self.samples.iter().sum()
    }

    fn depth(&self) -> usize {
        1 + self.callees.iter().map(Self::depth).max().unwrap_or(0)
    }

    /// The index of the purpose that most samples have.
    fn main_purpose(&self) -> usize {
        (0..self.samples.len()).rev().max_by_key(|&purpose| self.samples[purpose]).unwrap_or(0)
    }
}

/// The graph while it is drawn, from the root at the bottom upwards.
struct Graph<'a> {
    palette: &'a Palette,
    svg: String,
    base: f64,
    all: f64,
}

impl Graph<'_> {
    fn draw(&mut self, node: &Node, x: f64, level: usize) {
        let width = self.width(node);
        if width < WIDTH_MIN {
            return;
        }
        let y = self.base - FRAME_HEIGHT * (level as f64 + 1.0);
        let (purpose, _) = self.palette.purposes[node.main_purpose()];
        let kernel = if node.frame.is_kernel { " kernel" } else { "" };
        let name = escape(&node.frame.name);
        let share = 100.0 * node.samples() as f64 / self.all;
        let _ = write!(
            self.svg,
            "<g class=\"frame {purpose}{kernel}\"><title>{name}\n{share:.2} %, {} samples</title>\
             <rect x=\"{x:.2}\" y=\"{y:.1}\" width=\"{width:.2}\" height=\"{FRAME_HEIGHT}\"/>\
             <text x=\"{:.2}\" y=\"{:.1}\">{}</text></g>",
            node.samples(),
            x + 3.0,
            y + 13.0,
            escape(&shortened(&node.frame.name, width)),
        );
        let mut x = x;
        for callee in &node.callees {
            self.draw(callee, x, level + 1);
            x += self.width(callee);
        }
    }

    fn width(&self, node: &Node) -> f64 {
        (WIDTH - 2.0 * MARGIN) * node.samples() as f64 / self.all
    }
}

/// As much of a name as fits.
fn shortened(name: &str, width: f64) -> String {
    let letters = ((width - 4.0) / LETTER_WIDTH).max(0.0) as usize;
    match name.char_indices().nth(letters) {
        None => name.to_owned(),
        Some(_) if letters < 3 => String::new(),
        Some(_) => name.chars().take(letters - 1).chain(['…']).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Frames of work have this purpose; those with a futex are locking, those with a clone are threads.
    const PALETTE: Palette = Palette {
        title: "where it goes",
        purposes: &[("work", "work"), ("threads", "threads"), ("locking", "locks"), ("other", "other")],
        purpose_of: |stack| {
            let has = |part: &str| stack.frames.iter().any(|frame| frame.name.contains(part));
            ["Work", "clone", "futex"].into_iter().position(has).unwrap_or(3)
        },
    };

    fn profile(name: &str, stacks: &[(&str, u64)]) -> Profile {
        let stack = |&(frames, samples): &(&str, u64)| Stack::new(false, frames.split(' '), samples);
        Profile { name: name.to_owned(), stacks: stacks.iter().map(stack).collect() }
    }

    fn sample() -> Vec<Profile> {
        vec![
            profile("pool-2", &[("start x::work::Work::finish", 50), ("start futex_wait", 25)]),
            profile("batches-100", &[("<odd>&co clone3", 25), ("start narrow", 0)]),
        ]
    }

    /// The graph's frames: names, purposes, positions and widths.
    fn frames(svg: &str) -> Vec<(String, String)> {
        svg.split("<g class=\"frame ")
            .skip(1)
            .map(|frame| {
                let between = |from: &str, to: &str| {
                    let rest = frame.split_once(from).map_or("", |parts| parts.1);
                    rest.split_once(to).map_or("", |parts| parts.0).to_owned()
                };
                let purpose = frame.split_once('"').map_or("", |parts| parts.0);
                let (x, width) = (between("x=\"", "\""), between("width=\"", "\""));
                (between("<title>", "\n"), format!("{purpose} {x} {width}"))
            })
            .collect()
    }

    #[test]
    fn frames_are_drawn_on_their_callers() {
        let expected = [
            ("all", "work 10.00 1220.00"),
            ("pool-2", "work 10.00 915.00"),
            ("start", "work 10.00 915.00"),
            ("futex_wait", "locking 10.00 305.00"),
            ("x::work::Work::finish", "work 315.00 610.00"),
            ("batches-100", "threads 925.00 305.00"),
            ("&lt;odd&gt;&amp;co", "threads 925.00 305.00"),
            ("clone3", "threads 925.00 305.00"),
        ];
        let expected = expected.map(|(name, index)| (name.to_owned(), index.to_owned()));
        assert_eq!(frames(&svg(&PALETTE, &sample())), expected);
    }

    #[test]
    fn graph_is_well_formed_and_loads_nothing() {
        let svg = svg(&PALETTE, &sample());
        assert!(svg.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\"") && svg.ends_with("</svg>\n"));
        assert_eq!(svg.matches("<g ").count(), svg.matches("</g>").count());
        let inside = svg.replacen("http://www.w3.org/2000/svg", "", 1);
        for foreign in ["http:", "https:", "href", "@import", "url("] {
            assert!(!inside.contains(foreign), "{foreign:?} would need something from elsewhere");
        }
    }

    #[test]
    fn no_samples_give_an_empty_graph() {
        assert_eq!(frames(&svg(&PALETTE, &[])), []);
    }

    #[test]
    fn deep_stacks_are_cut_at_the_leaf() {
        let frames = vec!["again"; 2 * DEPTH_MAX].join(" ");
        let tree = Node::from_profiles(&PALETTE, &[profile("deep", &[(&frames, 1)])]);
        assert_eq!(tree.depth(), DEPTH_MAX);
    }

    #[test]
    fn frame_names_are_cut_to_the_width() {
        let check = |width, expected: &str| assert_eq!(shortened("kernel_clone", width), expected, "{width}");
        check(200.0, "kernel_clone");
        check(4.0 + 12.0 * LETTER_WIDTH + 0.1, "kernel_clone");
        check(4.0 + 6.0 * LETTER_WIDTH + 0.1, "kerne…");
        check(10.0, "");
        check(0.5, "");
    }
}
