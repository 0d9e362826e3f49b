//! An axis: maps values to positions, and chooses ticks at round values.

/// Above this quotient of largest and smallest value an automatic scale is logarithmic.
const LINEAR_QUOTIENT_MAX: f64 = 30.0;

/// Ticks of a linear axis, at most.
const TICKS_MAX: f64 = 6.0;

/// How values become positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scale {
    /// Linear from zero, or logarithmic where the values are far apart.
    Auto,
    Linear,
    Logarithmic,
}

#[derive(Debug)]
pub(super) struct Axis {
    low: f64,
    high: f64,
    is_logarithmic: bool,
    start: f64,
    end: f64,
}

impl Axis {
    /// An axis for these values between two positions.
    pub(super) fn new(scale: Scale, values: impl Iterator<Item = f64>, start: f64, end: f64) -> Self {
        // A logarithmic axis begins at the smallest value above zero; a smaller one is drawn there.
        let is_drawn = |value: &f64| scale != Scale::Logarithmic || *value > 0.0;
        let (low, high) = bounds(values.filter(is_drawn));
        let is_logarithmic = match scale {
            Scale::Auto => low > 0.0 && high / low > LINEAR_QUOTIENT_MAX,
            Scale::Linear => false,
            Scale::Logarithmic => low > 0.0,
        };
        let low = if is_logarithmic { low } else { low.min(0.0) };
        Self { low, high, is_logarithmic, start, end }
    }

    pub(super) fn position(&self, value: f64) -> f64 {
        let scaled = |value: f64| if self.is_logarithmic { value.max(self.low).ln() } else { value };
        let span = scaled(self.high) - scaled(self.low);
        let share = if span > 0.0 { (scaled(value) - scaled(self.low)) / span } else { 0.0 };
        self.start + share * (self.end - self.start)
    }

    /// Round values within the axis.
    pub(super) fn ticks(&self) -> Vec<f64> {
        if self.is_logarithmic { self.logarithmic_ticks() } else { self.linear_ticks() }
    }

    fn linear_ticks(&self) -> Vec<f64> {
        let span = self.high - self.low;
        let power = 10f64.powf((span / TICKS_MAX).log10().floor());
        let sizes = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * power);
        let step = sizes.into_iter().find(|size| span / size <= TICKS_MAX).unwrap_or(span);
        let first = (self.low / step).ceil() as i64;
        (first..)
            .map(|number| number as f64 * step)
            .take_while(|tick| *tick <= self.high * 1.000_001)
            .collect()
    }

    /// Powers of ten, with their doubles and fivefolds where there are few of them.
    fn logarithmic_ticks(&self) -> Vec<f64> {
        let decades = (self.high / self.low).log10();
        let factors: &[f64] = if decades <= 2.0 { &[1.0, 2.0, 5.0] } else { &[1.0] };
        let powers = self.low.log10().floor() as i32..=self.high.log10().ceil() as i32;
        let ticks = powers.flat_map(|power| factors.iter().map(move |factor| factor * 10f64.powi(power)));
        let is_within = |tick: &f64| (self.low * 0.999_999..=self.high * 1.000_001).contains(tick);
        let ticks: Vec<f64> = ticks.filter(is_within).collect();
        if ticks.len() < 2 { vec![self.low, self.high] } else { ticks }
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

    const START: f64 = 110.0;
    const END: f64 = 610.0;

    #[test]
    fn positions_run_from_start_to_end() {
        let check = |values: &[f64], value: f64, expected: f64| {
            let axis = Axis::new(Scale::Auto, values.iter().copied(), START, END);
            let position = axis.position(value);
            assert!((position - expected).abs() < 1e-9, "{values:?} {value}: {position}");
        };
        check(&[5.0, 10.0], 0.0, START);
        check(&[5.0, 10.0], 10.0, END);
        check(&[1.0, 10_000.0], 100.0, (START + END) / 2.0);
        check(&[0.0, 0.0], 0.0, START);
        check(&[], 0.0, START);
    }

    #[test]
    fn logarithmic_axis_begins_above_zero() {
        let axis = Axis::new(Scale::Logarithmic, [0.0, 1.0, 100.0].into_iter(), START, END);
        let positions = [0.0, 1.0, 10.0, 100.0].map(|value| axis.position(value).round());
        assert_eq!(positions, [START, START, (START + END) / 2.0, END]);
    }

    #[test]
    fn ticks_are_round_values_within_the_axis() {
        let check = |scale, values: [f64; 2], expected: &[f64]| {
            let ticks = Axis::new(scale, values.into_iter(), START, END).ticks();
            assert_eq!(ticks.len(), expected.len(), "{ticks:?}");
            let is_near = |(tick, expected): (&f64, &f64)| (tick - expected).abs() <= expected.abs() * 1e-9;
            assert!(ticks.iter().zip(expected).all(is_near), "{ticks:?}");
        };
        check(Scale::Linear, [3.0, 106.0], &[0.0, 20.0, 40.0, 60.0, 80.0, 100.0]);
        check(Scale::Linear, [0.2, 0.9], &[0.0, 0.2, 0.4, 0.6, 0.8]);
        check(Scale::Auto, [13.0, 9e6], &[1e2, 1e3, 1e4, 1e5, 1e6]);
        check(Scale::Logarithmic, [1.0, 24.0], &[1.0, 2.0, 5.0, 10.0, 20.0]);
        check(Scale::Logarithmic, [3.0, 4.0], &[3.0, 4.0]);
    }
}
