//! Escapes text for HTML and SVG, and formats numbers for readers.

/// Escapes text for HTML and SVG, for elements and for attributes in double quotes.
pub(crate) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// A number to three significant digits, without an exponent.
pub(crate) fn digits(value: f64) -> String {
    let magnitude = if value == 0.0 { 0 } else { value.abs().log10().floor() as i32 };
    let decimals = (2 - magnitude).clamp(0, 6) as usize;
    let text = format!("{value:.decimals$}");
    if decimals == 0 { with_thousands(&text) } else { text }
}

/// A number of an axis: as `digits`, in millions from one million on, without the zeros behind the point.
pub(crate) fn tick_label(value: f64) -> String {
    let (value, unit) = if value.abs() >= 1e6 { (value / 1e6, " M") } else { (value, "") };
    let text = digits(value);
    let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    format!("{text}{unit}")
}

/// Whole digits with a comma before each three of them.
pub(crate) fn with_thousands(whole: &str) -> String {
    let (sign, figures) = whole.strip_prefix('-').map_or(("", whole), |figures| ("-", figures));
    let mut text = String::from(sign);
    for (index, figure) in figures.char_indices() {
        if index > 0 && (figures.len() - index) % 3 == 0 {
            text.push(',');
        }
        text.push(figure);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_significant_digits() {
        let check = |value, expected| assert_eq!(digits(value), expected);
        check(0.0, "0.00");
        check(0.001_234_5, "0.00123");
        check(0.834, "0.834");
        check(79.84, "79.8");
        check(12_055.4, "12,055");
        check(1_234_567.0, "1,234,567");
        check(-1_500.0, "-1,500");
    }

    #[test]
    fn tick_labels_have_no_trailing_zeros() {
        let check = |value, expected| assert_eq!(tick_label(value), expected);
        check(0.0, "0");
        check(0.5, "0.5");
        check(20.0, "20");
        check(100.0, "100");
        check(2_500.0, "2,500");
        check(2_500_000.0, "2.5 M");
        check(100_000_000.0, "100 M");
    }
}
