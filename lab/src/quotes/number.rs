//! Numbers as documents write them: `4,693`, `0.88`, `51.6 [46.9-53.2]`.

use std::ops::Range;

use crate::kit::markup::with_thousands;

/// A written figure is at most this share of the value away from it.
const ROUNDING_MAX: f64 = 0.1;

/// No figure has more decimals.
const DECIMALS_MAX: usize = 6;

/// The text of a value, with the decimals of `written`, or with more where these would round too much.
pub(super) fn rendered_as(written: &str, value: f64) -> String {
    let decimals = written.split_once('.').map_or(0, |(_, decimals)| decimals.len());
    rendered(value, decimals)
}

/// The text of a value to three significant digits.
pub(super) fn rendered_to_three_digits(value: f64) -> String {
    let magnitude = if value == 0.0 { 2 } else { value.abs().log10().floor() as i32 };
    let unit = 10f64.powi(magnitude - 2);
    rendered((value / unit).round() * unit, (2 - magnitude).max(0) as usize)
}

fn rendered(value: f64, least_decimals: usize) -> String {
    let text = |decimals: usize| format!("{value:.decimals$}");
    let is_near = |decimals: &usize| {
        let rounded: f64 = text(*decimals).parse().unwrap_or(f64::NAN);
        (rounded - value).abs() <= ROUNDING_MAX * value.abs()
    };
    let text = text((least_decimals..=DECIMALS_MAX).find(is_near).unwrap_or(DECIMALS_MAX));
    match text.split_once('.') {
        Some((whole, decimals)) => format!("{}.{decimals}", with_thousands(whole)),
        None => with_thousands(&text),
    }
}

/// A figure in a text, with the positions of its numbers.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Figure {
    pub(super) median: Range<usize>,
    /// The least and the greatest, where brackets hold them.
    pub(super) spread: Option<[Range<usize>; 2]>,
}

impl Figure {
    /// The figure that ends where the text ends.
    pub(super) fn at_end(text: &str) -> Option<Self> {
        let Some(open) = text.strip_suffix(']').and_then(|text| text.rfind('[')) else {
            return number_at_end(text).map(|median| Self { median, spread: None });
        };
        let (low, _) = text[open + 1..text.len() - 1].split_once('-')?;
        let spread = [open + 1..open + 1 + low.len(), open + 2 + low.len()..text.len() - 1];
        let median = number_at_end(text[..open].trim_end())?;
        spread.iter().all(|range| is_number(&text[range.clone()])).then_some(())?;
        Some(Self { median, spread: Some(spread) })
    }

    /// The figure with which the text begins.
    pub(super) fn at_start(text: &str) -> Option<Self> {
        let end = text.find(|letter: char| !is_of_number(letter)).unwrap_or(text.len());
        let bracketed = text[end..].strip_prefix(" [").and_then(|rest| rest.find(']'));
        bracketed
            .and_then(|length| Self::at_end(&text[..end + length + 3]))
            .or_else(|| Self::at_end(&text[..end]))
    }

    pub(super) fn range(&self) -> Range<usize> {
        let end = self.spread.as_ref().map_or(self.median.end, |spread| spread[1].end + 1);
        self.median.start..end
    }
}

fn number_at_end(text: &str) -> Option<Range<usize>> {
    let start = text.trim_end_matches(is_of_number).len();
    is_number(&text[start..]).then_some(start..text.len())
}

fn is_of_number(letter: char) -> bool {
    letter.is_ascii_digit() || matches!(letter, '.' | ',')
}

fn is_number(text: &str) -> bool {
    let is_digit = |letter: char| letter.is_ascii_digit();
    text.chars().all(is_of_number) && text.starts_with(is_digit) && text.ends_with(is_digit)
}

/// The words of a text that are numbers, also those of a multiple such as `3x`, with their positions.
pub(super) fn numbers(text: &str) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let mut at = 0;
    for word in
        text.split_inclusive(|letter: char| !(letter.is_alphanumeric() || matches!(letter, '.' | ',' | '_')))
    {
        let bare = word.trim_end_matches(|letter: char| !letter.is_alphanumeric());
        let number = bare.strip_suffix('x').unwrap_or(bare);
        if is_number(number) {
            found.push(at..at + number.len());
        }
        at += word.len();
    }
    found
}

/// The counts in the name of a part or a target: `64` and `8` in `owner-w64-8`, and none in `3proxy`.
pub(super) fn counts_within(name: &str) -> Vec<String> {
    let words = name.split('-').map(|word| word.strip_prefix('w').unwrap_or(word));
    words.filter(|word| is_number(word)).map(str::to_owned).collect()
}

/// The versions in a fact: `2.6.12` in `HAProxy version 2.6.12-1`.
pub(super) fn versions_within(words: &str) -> Vec<&str> {
    let numbers = words.split(|letter: char| !is_of_number(letter)).map(|word| word.trim_matches('.'));
    numbers.filter(|number| is_number(number) && number.contains('.')).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_is_rendered_as_precisely_as_written() {
        let check = |written, value, expected: &str| assert_eq!(rendered_as(written, value), expected);
        check("51.6", 51.64, "51.6");
        check("9", 4_693.2, "4,693");
        check("4.7", 4.693, "4.7");
        check("1,000.5", 1_234.56, "1,234.6");
        check("4", 4.4, "4");
        check("5", 4.56, "5");
        check("1", 1.4, "1.4");
        check("0", 0.3, "0.3");
        check("0", 0.0, "0");
    }

    #[test]
    fn three_digits_are_significant() {
        let check = |value, expected: &str| assert_eq!(rendered_to_three_digits(value), expected);
        check(0.881_6, "0.882");
        check(4_693_123.0, "4,690,000");
        check(99.96, "100.0");
        check(12.0, "12.0");
        check(0.0, "0");
        check(905.2, "905");
    }

    #[test]
    fn figure_has_a_median_and_a_spread() {
        let at_end = |text: &str| {
            let figure = Figure::at_end(text)?;
            let spread = figure.spread.map(|spread| spread.map(|range| text[range].to_owned()));
            Some((text[figure.median].to_owned(), spread))
        };
        let spread = |low: &str, high: &str| Some([low.to_owned(), high.to_owned()]);
        assert_eq!(at_end("rate: 1,008"), Some(("1,008".to_owned(), None)));
        assert_eq!(at_end("is 1.08 [1.07-1.10]"), Some(("1.08".to_owned(), spread("1.07", "1.10"))));
        assert_eq!(at_end("is 1.08\n[1.07-1.10]"), Some(("1.08".to_owned(), spread("1.07", "1.10"))));
        for text in ["", "none", "a [b-c]", "1 [2]", "[1-2]", "5."] {
            assert_eq!(at_end(text), None, "{text:?}");
        }
        let at_start = |text: &str| Figure::at_start(text).map(|figure| text[figure.range()].to_owned());
        assert_eq!(at_start("1.5 [1.2-1.6] (one run)"), Some("1.5 [1.2-1.6]".to_owned()));
        assert_eq!(at_start("90 %"), Some("90".to_owned()));
        assert_eq!(at_start("- "), None);
    }

    #[test]
    fn names_and_versions_of_words_are_no_numbers() {
        let check = |text: &str, expected: &[&str]| {
            let found: Vec<&str> = numbers(text).into_iter().map(|range| &text[range]).collect();
            assert_eq!(found, expected, "{text}");
        };
        check("p99 of g3proxy, 3proxy", &[]);
        check("9,000 tunnels, 3x (0.9), 10-20 %.", &["9,000", "3", "0.9", "10", "20"]);
    }

    #[test]
    fn counts_and_versions_are_within_names() {
        assert_eq!(counts_within("owner-w64-8"), ["64", "8"]);
        assert_eq!(counts_within("load-0.5"), ["0.5"]);
        assert_eq!(counts_within("3proxy"), [] as [String; 0]);
        assert_eq!(versions_within("HAProxy version 2.6.12-1+deb12u4 2026/10/17"), ["2.6.12"]);
        assert_eq!(versions_within("nginx/1.22.1"), ["1.22.1"]);
    }
}
