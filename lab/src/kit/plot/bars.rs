//! Horizontal bars: the median of each target, with the range of its runs.

use std::fmt::Write;

use super::axis::{Axis, Scale};
use super::{Style, TITLE_HEIGHT, WIDTH, draw_grid, draw_path, draw_text, draw_title};
use crate::kit::markup::digits;
use crate::kit::statistics::Summary;

const LABELS_WIDTH: f64 = 130.0;

/// Space for the numbers behind the longest bar.
const VALUES_WIDTH: f64 = 205.0;
const ROW_HEIGHT: f64 = 28.0;
const BAR_HEIGHT: f64 = 18.0;
const AXIS_HEIGHT: f64 = 26.0;

/// Some bars below one title.
#[derive(Clone, Debug)]
pub(crate) struct BarPanel {
    pub(crate) title: String,
    pub(crate) bars: Vec<Bar>,
}

#[derive(Clone, Debug)]
pub(crate) struct Bar {
    pub(crate) label: String,
    pub(crate) style: Style,
    pub(crate) value: Summary,
    /// A value to be reached, drawn across the bar.
    pub(crate) mark: Option<f64>,
}

impl BarPanel {
    pub(super) fn height(&self) -> f64 {
        TITLE_HEIGHT + ROW_HEIGHT * self.bars.len() as f64 + AXIS_HEIGHT
    }

    pub(super) fn draw(&self, svg: &mut String, top: f64) {
        draw_title(svg, &self.title, top);
        let values = self.bars.iter().flat_map(|bar| [bar.value.max].into_iter().chain(bar.mark));
        let axis = Axis::new(Scale::Linear, values, LABELS_WIDTH, WIDTH - VALUES_WIDTH);
        let (first, base) = (top + TITLE_HEIGHT, top + self.height() - AXIS_HEIGHT);
        draw_grid(svg, &axis, first, base);
        for (index, bar) in self.bars.iter().enumerate() {
            draw_bar(svg, bar, &axis, first + ROW_HEIGHT * (index as f64 + 0.5));
        }
    }

    /// The bars in words.
    pub(super) fn describe(&self) -> String {
        let bars: Vec<String> =
            self.bars.iter().map(|bar| format!("{} {}", bar.label, range(&bar.value))).collect();
        format!("{}: {}.", self.title, bars.join(", "))
    }
}

fn draw_bar(svg: &mut String, bar: &Bar, axis: &Axis, y: f64) {
    let Summary { median, min, max, .. } = bar.value;
    let [zero, end, low, high] = [0.0, median, min, max].map(|value| axis.position(value));
    let (top, text_y) = (y - BAR_HEIGHT / 2.0, y + 4.5);
    let _ = write!(svg, r#"<g class="{}">"#, bar.style.class());
    draw_text(svg, "label", (LABELS_WIDTH - 8.0, text_y), &bar.label);
    let size = format!(r#"width="{:.1}" height="{BAR_HEIGHT}""#, (end - zero).max(1.0));
    let _ = write!(svg, r#"<rect class="bar" x="{zero:.1}" y="{top:.1}" {size}/>"#);
    if min < max {
        let cap = |x: f64| format!("M{x:.1} {:.1}V{:.1}", y - 4.0, y + 4.0);
        let path = format!("{}M{low:.1} {y:.1}H{high:.1}{}", cap(low), cap(high));
        draw_path(svg, "whisker", &path);
    }
    if let Some(mark) = bar.mark.map(|mark| axis.position(mark)) {
        draw_path(svg, "mark", &format!("M{mark:.1} {:.1}V{:.1}", top - 3.0, top + BAR_HEIGHT + 3.0));
    }
    let text_x = axis.position(max.max(bar.mark.unwrap_or(0.0))) + 8.0;
    draw_text(svg, "value", (text_x, text_y), &range(&bar.value));
    svg.push_str("</g>");
}

/// The median, and the range where there is one.
fn range(value: &Summary) -> String {
    let [median, min, max] = [value.median, value.min, value.max].map(digits);
    if value.min == value.max { median } else { format!("{median} [{min} to {max}]") }
}
