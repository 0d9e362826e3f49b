//! Plots as SVG: bars, lines and strips of runs, for a report's page and as files of their own.
//!
//! Guarantees: a plot loads nothing and runs no script; text stays text; it has a title and a description in
//! words; it reads in light and in dark. A file has a ground of its own, since the page around it may have
//! another theme than the reader's system; a plot within a page has none.

mod axis;
mod bars;
mod lines;
mod strips;

use std::fmt::Write;

pub(crate) use self::axis::Scale;
pub(crate) use self::bars::{Bar, BarPanel};
pub(crate) use self::lines::{Line, LinePanel};
pub(crate) use self::strips::{Strip, StripPanel};

use self::axis::Axis;
use crate::kit::markup::{escape, tick_label};

/// The style of all plots, by classes below `.plot`.
pub(crate) const STYLE: &str = include_str!("plot/plot.css");

const WIDTH: f64 = 760.0;
/// Left margin of titles and notes, since the first letter may overhang.
const LEFT: f64 = 2.0;
const FIGURE_TITLE_HEIGHT: f64 = 34.0;
const TITLE_HEIGHT: f64 = 28.0;
const PANEL_GAP: f64 = 14.0;
const NOTE_HEIGHT: f64 = 18.0;
/// The ground of a file beyond its plot, on each side.
const MARGIN: f64 = 14.0;

/// Panels below each other.
#[derive(Clone, Debug)]
pub(crate) struct Figure {
    /// Empty where the panel's own says everything.
    pub(crate) title: String,
    pub(crate) panels: Vec<Panel>,
    /// Lines below: how to read the figure, and where it comes from.
    pub(crate) notes: Vec<String>,
}

#[derive(Clone, Debug)]
pub(crate) enum Panel {
    Bars(BarPanel),
    Lines(LinePanel),
    Strips(StripPanel),
}

/// The colour of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Style {
    /// Tollgate's own.
    Ours,
    /// Another form of it, 1 or 2.
    Variant(u8),
    /// From 1 to 9.
    Rival(u8),
    /// Anything but a rival: no relay at all, no timers at all, a bound.
    Reference,
}

impl Style {
    fn class(self) -> String {
        match self {
            Self::Ours => "ours".to_owned(),
            Self::Variant(number) => format!("variant-{number}"),
            Self::Rival(number) => format!("rival-{number}"),
            Self::Reference => "reference".to_owned(),
        }
    }
}

impl Figure {
    /// As a file of its own.
    pub(crate) fn file(&self) -> String {
        let (x, width) = (-MARGIN, WIDTH + 2.0 * MARGIN);
        let height = self.height() + 2.0 * MARGIN;
        let view = format!(r#"viewBox="{x} {x} {width} {height}" width="{width}" height="{height}""#);
        let ground =
            format!(r#"<rect class="ground" x="{x}" y="{x}" width="{width}" height="{height}" rx="6"/>"#);
        let style = format!("<style>{STYLE}</style>{ground}");
        self.svg(&format!(r#" xmlns="http://www.w3.org/2000/svg" {view}"#), &style, "plot") + "\n"
    }

    /// As a part of a page that has the style, and whose `id` no other element has.
    pub(crate) fn inline(&self, id: &str) -> String {
        let height = self.height();
        self.svg(&format!(r#" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}""#), "", id)
    }

    fn title_height(&self) -> f64 {
        if self.title.is_empty() { 0.0 } else { FIGURE_TITLE_HEIGHT }
    }

    fn height(&self) -> f64 {
        let panels: f64 = self.panels.iter().map(|panel| panel.height() + PANEL_GAP).sum();
        self.title_height() + panels + NOTE_HEIGHT * self.notes.len() as f64
    }

    /// The element with its attributes for the size; `first` stands in front of what is drawn.
    fn svg(&self, size: &str, first: &str, id: &str) -> String {
        let [title, description] = [self.full_title(), self.describe()].map(|text| escape(&text));
        let names = format!(r#"aria-labelledby="{id}-title {id}-description""#);
        let mut svg = format!(r#"<svg{size} class="plot" role="img" {names}>"#);
        let _ = write!(svg, r#"<title id="{id}-title">{title}</title>"#);
        let _ = write!(svg, r#"<desc id="{id}-description">{description}</desc>{first}"#);
        if !self.title.is_empty() {
            draw_text(&mut svg, "figure-title", (LEFT, 18.0), &self.title);
        }
        let mut top = self.title_height();
        for panel in &self.panels {
            panel.draw(&mut svg, top);
            top += panel.height() + PANEL_GAP;
        }
        for note in &self.notes {
            draw_text(&mut svg, "note", (LEFT, top + 10.0), note);
            top += NOTE_HEIGHT;
        }
        svg.push_str("</svg>");
        svg
    }

    /// The fewest and the most runs of any median.
    pub(crate) fn runs(&self) -> Option<(usize, usize)> {
        let runs: Vec<usize> = self.panels.iter().flat_map(Panel::runs).collect();
        runs.iter().min().copied().zip(runs.iter().max().copied())
    }

    fn full_title(&self) -> String {
        match (self.title.as_str(), self.panels.first()) {
            ("", Some(panel)) => panel.title().to_owned(),
            (title, _) => title.to_owned(),
        }
    }

    fn describe(&self) -> String {
        let panels: Vec<String> = self.panels.iter().map(Panel::describe).collect();
        panels.into_iter().chain(self.notes.iter().cloned()).collect::<Vec<_>>().join(" ")
    }
}

impl Panel {
    fn title(&self) -> &str {
        match self {
            Self::Bars(panel) => &panel.title,
            Self::Lines(panel) => &panel.title,
            Self::Strips(panel) => &panel.title,
        }
    }

    /// The runs of each median.
    fn runs(&self) -> Vec<usize> {
        match self {
            Self::Bars(panel) => panel.bars.iter().map(|bar| bar.value.runs).collect(),
            Self::Lines(panel) => {
                panel.lines.iter().flat_map(|line| &line.points).map(|point| point.1.runs).collect()
            }
            Self::Strips(panel) => panel.strips.iter().map(|strip| strip.runs.len()).collect(),
        }
    }

    fn height(&self) -> f64 {
        match self {
            Self::Bars(panel) => panel.height(),
            Self::Lines(panel) => panel.height(),
            Self::Strips(panel) => panel.height(),
        }
    }

    fn draw(&self, svg: &mut String, top: f64) {
        match self {
            Self::Bars(panel) => panel.draw(svg, top),
            Self::Lines(panel) => panel.draw(svg, top),
            Self::Strips(panel) => panel.draw(svg, top),
        }
    }

    fn describe(&self) -> String {
        match self {
            Self::Bars(panel) => panel.describe(),
            Self::Lines(panel) => panel.describe(),
            Self::Strips(panel) => panel.describe(),
        }
    }
}

fn draw_title(svg: &mut String, title: &str, top: f64) {
    draw_text(svg, "title", (LEFT, top + 15.0), title);
}

/// Vertical lines at the ticks of a horizontal axis, from `top` to `base`, and their labels below.
fn draw_grid(svg: &mut String, axis: &Axis, top: f64, base: f64) {
    for tick in axis.ticks() {
        let x = axis.position(tick);
        draw_path(svg, "grid", &format!("M{x:.1} {top:.1}V{base:.1}"));
        draw_text(svg, "tick middle", (x, base + 16.0), &tick_label(tick));
    }
}

fn draw_text(svg: &mut String, class: &str, (x, y): (f64, f64), text: &str) {
    let _ = write!(svg, r#"<text class="{class}" x="{x:.1}" y="{y:.1}">{}</text>"#, escape(text));
}

fn draw_path(svg: &mut String, class: &str, path: &str) {
    let _ = write!(svg, r#"<path class="{class}" d="{path}"/>"#);
}

fn draw_dot(svg: &mut String, class: &str, (x, y): (f64, f64), title: &str) {
    let position = format!(r#"cx="{x:.1}" cy="{y:.1}" r="3.5""#);
    let _ = write!(svg, r#"<circle class="{class}" {position}><title>{}</title></circle>"#, escape(title));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kit::statistics::Summary;

    fn strips() -> Figure {
        let strip = |label: &str, style, runs: &[(f64, bool)], median| Strip {
            label: label.to_owned(),
            style,
            runs: runs.to_vec(),
            median,
        };
        let strips = vec![
            strip("tollgate", Style::Ours, &[(1.0, false), (2.0, true)], 1.5),
            strip("a<b", Style::Rival(2), &[(4.0, false)], 4.0),
        ];
        let panels = vec![Panel::Strips(StripPanel { title: "rate".to_owned(), strips })];
        Figure { title: String::new(), panels, notes: Vec::new() }
    }

    fn bars() -> Figure {
        let value = |median, min, max| Summary { median, min, max, runs: 5 };
        let bar = |label: &str, style, value, mark| Bar { label: label.to_owned(), style, value, mark };
        let bars = vec![
            bar("tollgate", Style::Ours, value(60.0, 56.0, 66.0), Some(50.0)),
            bar("haproxy", Style::Rival(1), value(79.8, 72.0, 106.0), None),
            bar("direct", Style::Reference, value(5.0, 5.0, 5.0), None),
        ];
        let panels = vec![Panel::Bars(BarPanel { title: "CPU & time".to_owned(), bars })];
        Figure { title: "Short <connections>".to_owned(), panels, notes: vec!["2 CPUs".to_owned()] }
    }

    /// Elements without a partner, other than those that end in `/>`.
    fn unclosed(svg: &str) -> Vec<&str> {
        let mut open = Vec::new();
        for tag in svg.split('<').skip(1).map(|tag| tag.split('>').next().unwrap_or_default()) {
            let name = tag.split(' ').next().unwrap_or_default();
            match name.strip_prefix('/') {
                Some(closed) => assert_eq!(open.pop(), Some(closed), "{svg}"),
                None if tag.ends_with('/') => {}
                None => open.push(name),
            }
        }
        open
    }

    #[test]
    fn contaminated_runs_are_hollow_dots() {
        let svg = strips().inline("one");
        assert_eq!(svg.matches(r#"class="dot""#).count(), 2);
        assert_eq!(svg.matches(r#"class="hollow""#).count(), 1);
        assert!(svg.contains("a&lt;b") && !svg.contains("a<b"));
        assert!(svg.starts_with("<svg") && svg.ends_with("</svg>"));
    }

    #[test]
    fn bars_have_a_range_and_a_mark() {
        let svg = bars().inline("one");
        assert_eq!(svg.matches(r#"class="bar""#).count(), 3);
        assert_eq!(svg.matches(r#"class="whisker""#).count(), 2, "one run has no range");
        assert_eq!(svg.matches(r#"class="mark""#).count(), 1);
        assert!(svg.contains("60.0 [56.0 to 66.0]") && svg.contains(">5.00<"), "{svg}");
    }

    #[test]
    fn file_loads_nothing_and_has_both_themes() {
        for figure in [strips(), bars()] {
            let svg = figure.file();
            assert_eq!(unclosed(&svg), [] as [&str; 0]);
            let inside = svg.replacen("http://www.w3.org/2000/svg", "", 1);
            for foreign in ["http:", "https:", "href", "@import", "url(", "<script", "<image"] {
                assert!(!inside.contains(foreign), "{foreign:?} would need something from elsewhere");
            }
            assert!(svg.contains("prefers-color-scheme: dark") && svg.contains("class=\"ground\""), "{svg}");
            assert!(!figure.inline("one").contains("class=\"ground\""));
            assert!(svg.contains(r#"role="img" aria-labelledby="plot-title plot-description""#));
        }
    }

    #[test]
    fn file_has_title_and_description() {
        let svg = bars().file();
        assert!(svg.contains("<title id=\"plot-title\">Short &lt;connections&gt;</title>"), "{svg}");
        let words =
            "CPU &amp; time: tollgate 60.0 [56.0 to 66.0], haproxy 79.8 [72.0 to 106], direct 5.00. 2 CPUs";
        assert!(svg.contains(&format!("<desc id=\"plot-description\">{words}</desc>")), "{svg}");
        assert!(strips().inline("one").contains("<title id=\"one-title\">rate</title>"));
    }
}
