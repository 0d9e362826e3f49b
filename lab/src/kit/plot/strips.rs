//! Strips of runs: for each target a dot for every run, and its median.

use std::fmt::Write;

use super::axis::{Axis, Scale};
use super::{Style, TITLE_HEIGHT, WIDTH, draw_dot, draw_grid, draw_path, draw_text, draw_title};
use crate::kit::markup::digits;

const LABELS_WIDTH: f64 = 150.0;
const RIGHT_MARGIN: f64 = 30.0;
const STRIP_HEIGHT: f64 = 26.0;
const AXIS_HEIGHT: f64 = 26.0;

/// Some strips below one title.
#[derive(Clone, Debug)]
pub(crate) struct StripPanel {
    pub(crate) title: String,
    pub(crate) strips: Vec<Strip>,
}

#[derive(Clone, Debug)]
pub(crate) struct Strip {
    pub(crate) label: String,
    pub(crate) style: Style,
    /// Each with whether it is contaminated.
    pub(crate) runs: Vec<(f64, bool)>,
    pub(crate) median: f64,
}

impl StripPanel {
    pub(super) fn height(&self) -> f64 {
        TITLE_HEIGHT + STRIP_HEIGHT * self.strips.len() as f64 + AXIS_HEIGHT
    }

    pub(super) fn draw(&self, svg: &mut String, top: f64) {
        draw_title(svg, &self.title, top);
        let values = self.strips.iter().flat_map(|strip| strip.runs.iter().map(|run| run.0));
        let axis = Axis::new(Scale::Auto, values, LABELS_WIDTH, WIDTH - RIGHT_MARGIN);
        let (first, base) = (top + TITLE_HEIGHT, top + self.height() - AXIS_HEIGHT);
        draw_grid(svg, &axis, first, base);
        for (index, strip) in self.strips.iter().enumerate() {
            draw_strip(svg, strip, &axis, first + STRIP_HEIGHT * (index as f64 + 0.5));
        }
    }

    /// The strips in words.
    pub(super) fn describe(&self) -> String {
        let strip = |strip: &Strip| format!("{} {}", strip.label, digits(strip.median));
        let strips: Vec<String> = self.strips.iter().map(strip).collect();
        format!("{}, medians: {}.", self.title, strips.join(", "))
    }
}

fn draw_strip(svg: &mut String, strip: &Strip, axis: &Axis, y: f64) {
    let _ = write!(svg, r#"<g class="{}">"#, strip.style.class());
    draw_text(svg, "label", (LABELS_WIDTH - 8.0, y + 4.0), &strip.label);
    for &(value, is_contaminated) in &strip.runs {
        let class = if is_contaminated { "hollow" } else { "dot" };
        draw_dot(svg, class, (axis.position(value), y), &digits(value));
    }
    let x = axis.position(strip.median);
    draw_path(svg, "median", &format!("M{x:.1} {:.1}V{:.1}", y - 9.0, y + 9.0));
    svg.push_str("</g>");
}
