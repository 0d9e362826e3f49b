//! Names in rules: conversion to the canonical form.
//!
//! Guarantees: a canonical name is lower-case ASCII (international names are converted once, when the
//! configuration is read), has no trailing dot, and no parser reads it as an address.

use idna::uts46::{AsciiDenyList, DnsLength, Hyphens, Uts46};

use super::RuleError;
use crate::host::{LABEL_BYTES_MAX, NAME_BYTES_MAX, is_name_byte};

/// Converts a name of a rule to its canonical form.
pub(super) fn canonical_name(text: &str) -> Result<Box<str>, RuleError> {
    let ascii = to_ascii(text)?;
    if let Some(found) = ascii.chars().find(|found| !is_name_byte(*found as u8) && *found != '.') {
        return Err(RuleError::unexpected(found));
    }
    if ascii.bytes().all(|byte| byte == b'.') {
        return Err(RuleError::HostMissing);
    }
    if ascii.starts_with('.') {
        return Err(RuleError::LeadingDot { name: ascii.trim_start_matches('.').into() });
    }
    if ascii.ends_with('.') {
        return Err(RuleError::TrailingDot { name: ascii.trim_end_matches('.').into() });
    }
    if ascii.split('.').any(str::is_empty) {
        return Err(RuleError::EmptyLabel);
    }
    if let Some(label) = ascii.split('.').find(|label| label.len() > LABEL_BYTES_MAX) {
        return Err(RuleError::LabelTooLong { bytes: label.len() });
    }
    if ascii.split('.').any(|label| label.starts_with('-') || label.ends_with('-')) {
        return Err(RuleError::Hyphen);
    }
    if ascii.len() > NAME_BYTES_MAX {
        return Err(RuleError::NameTooLong { bytes: ascii.len() });
    }
    if ends_in_a_number(&ascii) {
        return Err(RuleError::AmbiguousAddress { text: ascii.into() });
    }
    Ok(ascii.into())
}

/// Converts non-ASCII labels to A-labels, and validates `xn--` labels.
fn to_ascii(text: &str) -> Result<String, RuleError> {
    let lower = text.to_ascii_lowercase();
    if text.is_ascii() && !lower.split('.').any(|label| label.starts_with("xn--")) {
        return Ok(lower);
    }
    // Characters and lengths are checked afterwards, with error texts of our own.
    Uts46::new()
        .to_ascii(text.as_bytes(), AsciiDenyList::EMPTY, Hyphens::Allow, DnsLength::Ignore)
        .map(String::from)
        .map_err(|_| RuleError::NotInternational)
}

/// Whether some parser could read this name as an IPv4 address (`127.1`, `0x7f.1`, `2130706433`): the test of
/// the WHATWG URL Standard, "ends in a number".
fn ends_in_a_number(name: &str) -> bool {
    let label = name.rsplit('.').next().unwrap_or(name);
    let is_hex = |digits: &str| digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    label.bytes().all(|byte| byte.is_ascii_digit()) || label.strip_prefix("0x").is_some_and(is_hex)
}
