//! Lines over a count: a line for each target, with the range of the runs at each point.

use std::fmt::Write;

use super::axis::{Axis, Scale};
use super::{Style, TITLE_HEIGHT, WIDTH, draw_dot, draw_path, draw_text, draw_title};
use crate::kit::markup::{digits, tick_label};
use crate::kit::statistics::Summary;

const TICKS_WIDTH: f64 = 70.0;
const LABELS_WIDTH: f64 = 180.0;
const PLOT_HEIGHT: f64 = 290.0;
const AXIS_HEIGHT: f64 = 46.0;
const LABEL_HEIGHT: f64 = 15.0;

/// The least distance of two labels below the axis.
const LABEL_DISTANCE: f64 = 26.0;

/// How far lines stand apart at the same count, so that their ranges do not cover each other.
const LINE_DISTANCE: f64 = 3.0;

/// Some lines below one title.
#[derive(Clone, Debug)]
pub(crate) struct LinePanel {
    pub(crate) title: String,
    /// What is counted from left to right.
    pub(crate) across: String,
    pub(crate) across_scale: Scale,
    pub(crate) up_scale: Scale,
    pub(crate) lines: Vec<Line>,
}

#[derive(Clone, Debug)]
pub(crate) struct Line {
    pub(crate) label: String,
    pub(crate) style: Style,
    pub(crate) points: Vec<(f64, Summary)>,
}

impl LinePanel {
    pub(super) fn height(&self) -> f64 {
        TITLE_HEIGHT + PLOT_HEIGHT + AXIS_HEIGHT
    }

    pub(super) fn draw(&self, svg: &mut String, top: f64) {
        draw_title(svg, &self.title, top);
        let (first, base) = (top + TITLE_HEIGHT + 6.0, top + TITLE_HEIGHT + PLOT_HEIGHT);
        let points = || self.lines.iter().flat_map(|line| &line.points);
        let counts = points().map(|point| point.0);
        let across = Axis::new(self.across_scale, counts, TICKS_WIDTH, WIDTH - LABELS_WIDTH);
        let values = points().flat_map(|point| [point.1.min, point.1.max]);
        let up = Axis::new(self.up_scale, values, base, first);
        self.draw_axes(svg, &across, &up, base);
        let middle = self.lines.len().saturating_sub(1) as f64 / 2.0;
        for (index, line) in self.lines.iter().enumerate() {
            draw_line(svg, line, [&across, &up], (index as f64 - middle) * LINE_DISTANCE);
        }
        self.draw_labels(svg, &up, base);
    }

    fn draw_axes(&self, svg: &mut String, across: &Axis, up: &Axis, base: f64) {
        let (left, right) = (TICKS_WIDTH, WIDTH - LABELS_WIDTH);
        for tick in up.ticks() {
            let y = up.position(tick);
            draw_path(svg, "grid", &format!("M{left:.1} {y:.1}H{right:.1}"));
            draw_text(svg, "tick end", (left - 8.0, y + 4.0), &tick_label(tick));
        }
        let mut last = f64::NEG_INFINITY;
        for count in self.counts() {
            let x = across.position(count);
            if x - last >= LABEL_DISTANCE {
                draw_text(svg, "tick middle", (x, base + 18.0), &tick_label(count));
                last = x;
            }
        }
        draw_text(svg, "tick middle", ((left + right) / 2.0, base + 37.0), &self.across);
    }

    /// The counts of all points, in order.
    fn counts(&self) -> Vec<f64> {
        let mut counts: Vec<f64> =
            self.lines.iter().flat_map(|line| line.points.iter().map(|point| point.0)).collect();
        counts.sort_by(f64::total_cmp);
        counts.dedup();
        counts
    }

    /// Each line's name at the height of its last point, above the axis.
    fn draw_labels(&self, svg: &mut String, up: &Axis, base: f64) {
        let ends = self.lines.iter().filter_map(|line| {
            let (_, last) = line.points.last()?;
            Some((up.position(last.median) + 4.0, line))
        });
        let x = WIDTH - LABELS_WIDTH + 12.0;
        for (y, line) in spread_apart(ends.collect(), base) {
            let _ = write!(svg, r#"<g class="{}">"#, line.style.class());
            draw_text(svg, "name", (x, y), &line.label);
            svg.push_str("</g>");
        }
    }

    /// The lines in words.
    pub(super) fn describe(&self) -> String {
        let line = |line: &Line| {
            let points = line
                .points
                .iter()
                .map(|(count, value)| format!("{} at {}", digits(value.median), tick_label(*count)));
            format!("{} {}", line.label, points.collect::<Vec<_>>().join(", "))
        };
        let lines: Vec<String> = self.lines.iter().map(line).collect();
        format!("{}, over {}: {}.", self.title, self.across, lines.join("; "))
    }
}

/// Draws a line `aside` of the counts.
fn draw_line(svg: &mut String, line: &Line, [across, up]: [&Axis; 2], aside: f64) {
    let _ = write!(svg, r#"<g class="{}">"#, line.style.class());
    let x = |count: f64| across.position(count) + aside;
    let positions: Vec<String> = line
        .points
        .iter()
        .map(|(count, value)| format!("{:.1},{:.1}", x(*count), up.position(value.median)))
        .collect();
    let _ = write!(svg, r#"<polyline class="line" points="{}"/>"#, positions.join(" "));
    for (count, value) in &line.points {
        let x = x(*count);
        let [y, low, high] = [value.median, value.min, value.max].map(|value| up.position(value));
        if value.min < value.max {
            draw_path(svg, "whisker", &format!("M{x:.1} {low:.1}V{high:.1}"));
        }
        let title = format!("{}, {}: {}", line.label, tick_label(*count), digits(value.median));
        draw_dot(svg, "dot", (x, y), &title);
    }
    svg.push_str("</g>");
}

/// Labels from top to bottom, moved apart as little as reading needs: a group of labels that would cover each
/// other is centred at its mean. None is below `lowest`.
fn spread_apart<T>(mut labels: Vec<(f64, T)>, lowest: f64) -> Vec<(f64, T)> {
    labels.sort_by(|one, other| one.0.total_cmp(&other.0));
    // Each group: the position of its first label, and its number of labels.
    let mut groups: Vec<(f64, usize)> = Vec::new();
    for (y, _) in &labels {
        groups.push((*y, 1));
        while let [.., (above, count), (below, _)] = groups[..] {
            if above + LABEL_HEIGHT * count as f64 <= below {
                break;
            }
            merge_last(&mut groups);
        }
    }
    let positions = groups
        .iter()
        .flat_map(|&(first, count)| (0..count).map(move |index| first + LABEL_HEIGHT * index as f64));
    let mut spread: Vec<(f64, T)> =
        labels.into_iter().zip(positions).map(|((_, label), position)| (position, label)).collect();
    let mut limit = lowest;
    for (position, _) in spread.iter_mut().rev() {
        *position = position.min(limit);
        limit = *position - LABEL_HEIGHT;
    }
    spread
}

fn merge_last(groups: &mut Vec<(f64, usize)>) {
    let (Some((below, fewer)), Some((above, count))) = (groups.pop(), groups.pop()) else { return };
    let wanted = below - LABEL_HEIGHT * count as f64;
    let all = count + fewer;
    groups.push(((above * count as f64 + wanted * fewer as f64) / all as f64, all));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(value: f64) -> Summary {
        Summary { median: value, min: value, max: value, runs: 1 }
    }

    fn panel(points: Vec<(f64, Summary)>) -> LinePanel {
        LinePanel {
            title: "latency".to_owned(),
            across: "connections".to_owned(),
            across_scale: Scale::Auto,
            up_scale: Scale::Auto,
            lines: vec![Line { label: "nginx".to_owned(), style: Style::Rival(1), points }],
        }
    }

    fn drawn(panel: &LinePanel) -> String {
        let mut svg = String::new();
        panel.draw(&mut svg, 0.0);
        svg
    }

    #[test]
    fn labels_do_not_cover_each_other() {
        let labels = vec![(40.0, "low"), (10.0, "high"), (11.0, "next")];
        let expected = [(3.0, "high"), (3.0 + LABEL_HEIGHT, "next"), (40.0, "low")];
        assert_eq!(spread_apart(labels, 290.0), expected);
        let positions = |lowest| -> Vec<f64> {
            let chain = vec![(0.0, 1), (10.0, 2), (20.0, 3)];
            spread_apart(chain, lowest).into_iter().map(|label| label.0).collect()
        };
        assert_eq!(positions(290.0), [10.0 - LABEL_HEIGHT, 10.0, 10.0 + LABEL_HEIGHT]);
        assert_eq!(positions(20.0), [20.0 - 2.0 * LABEL_HEIGHT, 20.0 - LABEL_HEIGHT, 20.0]);
    }

    #[test]
    fn distant_counts_get_a_logarithmic_axis() {
        let positions = |counts: [f64; 3]| {
            let svg = drawn(&panel(counts.map(|count| (count, at(1.0))).to_vec()));
            let positions =
                svg.split("cx=\"").skip(1).filter_map(|rest| rest.split('"').next()?.parse().ok());
            positions.collect::<Vec<f64>>()
        };
        let [low, middle, high] = positions([1.0, 100.0, 10_000.0])[..] else { panic!("there are three") };
        assert!((middle - (low + high) / 2.0).abs() < 0.1, "{low} {middle} {high}");
        let [low, middle, high] = positions([0.0, 100.0, 10_000.0])[..] else { panic!("there are three") };
        assert!((middle - low) * 90.0 < high - low, "{low} {middle} {high}");
    }

    #[test]
    fn line_has_all_its_points() {
        let panel = panel(vec![(1_000.0, at(9.0)), (9_000.0, at(81.0))]);
        let svg = drawn(&panel);
        assert_eq!(svg.matches("<circle").count(), 2);
        assert!(svg.contains("polyline"));
        assert_eq!(panel.describe(), "latency, over connections: nginx 9.00 at 1,000, 81.0 at 9,000.");
    }
}
