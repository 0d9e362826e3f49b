//! Plots as SVG text: strips of runs, and lines over a count. Promises: no script, no file and no address
//! of another place; every run is a visible dot whose title gives its value; contaminated runs are hollow.
//! Leaves to others: colours, which the page's style sheet holds.

use std::fmt::Write;

use super::digits;

const WIDTH: f64 = 640.0;
const LABEL_WIDTH: f64 = 110.0;
const RIGHT_MARGIN: f64 = 30.0;
const LANE_HEIGHT: f64 = 26.0;
const AXIS_HEIGHT: f64 = 26.0;
const TITLE_HEIGHT: f64 = 22.0;
const LINES_HEIGHT: f64 = 240.0;
const LABEL_HEIGHT: f64 = 12.0;
const TICKS: usize = 5;

/// Above this quotient of largest and smallest value a scale is logarithmic.
const LINEAR_QUOTIENT_MAX: f64 = 30.0;

/// One lane of a strip plot: a subject and its runs, each with whether it is contaminated.
pub(super) struct Lane<'a> {
    pub(super) target: &'a str,
    pub(super) runs: Vec<(f64, bool)>,
    pub(super) median: f64,
}

/// One line of a line plot.
pub(super) struct Line<'a> {
    pub(super) target: &'a str,
    pub(super) points: Vec<(f64, f64)>,
}

/// Text as it may stand in HTML and SVG.
pub(crate) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// One number of all subjects: a dot for each run, a bar for the median.
pub(super) fn strips(title: &str, lanes: &[Lane<'_>]) -> String {
    let values = lanes.iter().flat_map(|lane| lane.runs.iter().map(|run| run.0));
    let axis = Axis::spread(values, LABEL_WIDTH, WIDTH - RIGHT_MARGIN);
    let height = TITLE_HEIGHT + LANE_HEIGHT * lanes.len() as f64 + AXIS_HEIGHT;
    let mut svg = open(title, height);
    axis.draw_below(&mut svg, TITLE_HEIGHT, height - AXIS_HEIGHT);
    for (index, lane) in lanes.iter().enumerate() {
        let y = TITLE_HEIGHT + LANE_HEIGHT * (index as f64 + 0.5);
        let target = escape(lane.target);
        let _ = write!(svg, r#"<g class="{target}"><text x="0" y="{:.1}">{target}</text>"#, y + 4.0);
        for &(value, contaminated) in &lane.runs {
            let class = if contaminated { "hollow" } else { "dot" };
            draw_dot(&mut svg, class, (axis.position(value), y), &digits(value));
        }
        let x = axis.position(lane.median);
        let (top, bottom) = (y - 9.0, y + 9.0);
        let _ = write!(
            svg,
            r#"<line class="median" x1="{x:.1}" x2="{x:.1}" y1="{top:.1}" y2="{bottom:.1}"/></g>"#
        );
    }
    svg.push_str("</svg>");
    svg
}

/// One number of all subjects over a count: both ways as in a strip plot.
pub(super) fn lines(title: &str, lines: &[Line<'_>]) -> String {
    let points = || lines.iter().flat_map(|line| &line.points);
    let across = Axis::spread(points().map(|point| point.0), LABEL_WIDTH, WIDTH - RIGHT_MARGIN);
    let base = LINES_HEIGHT - AXIS_HEIGHT;
    let up = Axis::spread(points().map(|point| point.1), base, TITLE_HEIGHT + 10.0);
    let mut svg = open(title, LINES_HEIGHT);
    across.draw_below(&mut svg, TITLE_HEIGHT, base);
    for tick in up.ticks() {
        let y = up.position(tick) + 4.0;
        let _ = write!(svg, r#"<text class="tick" x="0" y="{y:.1}">{}</text>"#, digits(tick));
    }
    let place = |point: &(f64, f64)| (across.position(point.0), up.position(point.1));
    for line in lines {
        let path: Vec<String> =
            line.points.iter().map(place).map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let target = escape(line.target);
        let _ = write!(svg, r#"<g class="{target}"><polyline points="{}"/>"#, path.join(" "));
        for point in &line.points {
            draw_dot(&mut svg, "dot", place(point), &format!("{target}: {}", digits(point.1)));
        }
        svg.push_str("</g>");
    }
    let ends = lines.iter().filter_map(|line| Some((place(line.points.last()?), line.target)));
    for ((x, y), target) in apart(ends.collect()) {
        let (y, target) = (y - 8.0, escape(target));
        let _ = write!(svg, r#"<text x="{x:.1}" y="{y:.1}" text-anchor="end">{target}</text>"#);
    }
    svg.push_str("</svg>");
    svg
}

/// Labels from top to bottom, each moved down as far as it needs to be read.
fn apart(mut labels: Vec<((f64, f64), &str)>) -> Vec<((f64, f64), &str)> {
    labels.sort_by(|one, other| one.0.1.total_cmp(&other.0.1));
    let mut free = f64::NEG_INFINITY;
    for ((_, y), _) in &mut labels {
        *y = y.max(free);
        free = *y + LABEL_HEIGHT;
    }
    labels
}

fn open(title: &str, height: f64) -> String {
    let size = format!(r#"viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}""#);
    format!(r#"<svg {size} role="img"><text class="title" x="0" y="14">{}</text>"#, escape(title))
}

fn draw_dot(svg: &mut String, class: &str, (x, y): (f64, f64), title: &str) {
    let place = format!(r#"cx="{x:.1}" cy="{y:.1}" r="4""#);
    let _ = write!(svg, r#"<circle class="{class}" {place}><title>{title}</title></circle>"#);
}

/// Maps values to positions.
struct Axis {
    low: f64,
    high: f64,
    logarithmic: bool,
    start: f64,
    end: f64,
}

impl Axis {
    /// From zero, or logarithmic where the values are far apart.
    fn spread(values: impl Iterator<Item = f64>, start: f64, end: f64) -> Self {
        let (low, high) = bounds(values);
        let logarithmic = low > 0.0 && high / low > LINEAR_QUOTIENT_MAX;
        let low = if logarithmic { low } else { low.min(0.0) };
        Self { low, high, logarithmic, start, end }
    }

    fn position(&self, value: f64) -> f64 {
        let scale = |value: f64| if self.logarithmic { value.max(self.low).ln() } else { value };
        let share = (scale(value) - scale(self.low)) / (scale(self.high) - scale(self.low));
        self.start + share * (self.end - self.start)
    }

    fn ticks(&self) -> Vec<f64> {
        let at = |index: usize| {
            let share = index as f64 / (TICKS - 1) as f64;
            if self.logarithmic {
                self.low * (self.high / self.low).powf(share)
            } else {
                self.low + share * (self.high - self.low)
            }
        };
        (0..TICKS).map(at).collect()
    }

    fn draw_below(&self, svg: &mut String, top: f64, base: f64) {
        for tick in self.ticks() {
            let x = self.position(tick);
            let across = format!(r#"x1="{x:.1}" x2="{x:.1}" y1="{top:.1}" y2="{base:.1}""#);
            let _ = write!(svg, r#"<line class="grid" {across}/>"#);
            let (y, label) = (base + 16.0, digits(tick));
            let _ = write!(
                svg,
                r#"<text class="tick" x="{x:.1}" y="{y:.1}" text-anchor="middle">{label}</text>"#
            );
        }
    }
}

/// The smallest and largest value, apart from each other in any case.
fn bounds(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let (low, high) =
        values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| (low.min(v), high.max(v)));
    if low > high {
        return (0.0, 1.0);
    }
    let is_flat_at_zero = high <= low.min(0.0);
    (low, if is_flat_at_zero { high + 1.0 } else { high })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_run_is_a_dot_and_contaminated_ones_are_hollow() {
        let lanes = [
            Lane { target: "tollgate", runs: vec![(1.0, false), (2.0, true)], median: 1.5 },
            Lane { target: "a<b", runs: vec![(4.0, false)], median: 4.0 },
        ];
        let svg = strips("rate", &lanes);
        assert_eq!(svg.matches(r#"class="dot""#).count(), 2);
        assert_eq!(svg.matches(r#"class="hollow""#).count(), 1);
        assert!(svg.contains("a&lt;b") && !svg.contains("a<b"));
        assert!(svg.starts_with("<svg") && svg.ends_with("</svg>"));
    }

    #[test]
    fn positions_run_from_start_to_end() {
        let check = |values: &[f64], value: f64, expected: f64| {
            let axis = Axis::spread(values.iter().copied(), LABEL_WIDTH, WIDTH - RIGHT_MARGIN);
            let position = axis.position(value);
            assert!((position - expected).abs() < 1e-9, "{values:?} {value}: {position}");
        };
        let (start, end) = (LABEL_WIDTH, WIDTH - RIGHT_MARGIN);
        check(&[5.0, 10.0], 0.0, start);
        check(&[5.0, 10.0], 10.0, end);
        check(&[1.0, 10_000.0], 100.0, (start + end) / 2.0);
        check(&[0.0, 0.0], 0.0, start);
        check(&[], 0.0, start);
    }

    #[test]
    fn labels_do_not_cover_each_other() {
        let labels = vec![((9.0, 40.0), "low"), ((9.0, 10.0), "high"), ((9.0, 11.0), "next")];
        let expected = [((9.0, 10.0), "high"), ((9.0, 22.0), "next"), ((9.0, 40.0), "low")];
        assert_eq!(apart(labels), expected);
    }

    #[test]
    fn counts_that_are_far_apart_have_room() {
        let places = |counts: [f64; 3]| {
            let line = Line { target: "nginx", points: counts.map(|count| (count, 1.0)).to_vec() };
            let svg = lines("latency", &[line]);
            let places = svg.split("cx=\"").skip(1).filter_map(|rest| rest.split('"').next()?.parse().ok());
            places.collect::<Vec<f64>>()
        };
        let [low, middle, high] = places([1.0, 100.0, 10_000.0])[..] else { panic!("there are three") };
        assert!((middle - (low + high) / 2.0).abs() < 0.1, "{low} {middle} {high}");
        let [low, middle, high] = places([0.0, 100.0, 10_000.0])[..] else { panic!("there are three") };
        assert!((middle - low) * 90.0 < high - low, "{low} {middle} {high}");
    }

    #[test]
    fn a_line_has_all_its_points() {
        let line = Line { target: "nginx", points: vec![(1_000.0, 9.0), (9_000.0, 81.0)] };
        let svg = lines("memory", &[line]);
        assert_eq!(svg.matches("<circle").count(), 2);
        assert!(svg.contains("polyline"));
    }
}
