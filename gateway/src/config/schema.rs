//! The form of the declarations in `settings.rs`: a setting, and a table of settings.

/// A table of the configuration with its settings.
#[derive(Debug)]
pub struct Table {
    /// As it is written: `[limits]`, or `[[user]]` for one that may be repeated.
    pub header: &'static str,
    /// What the table is about; paragraphs are lines.
    pub text: &'static [&'static str],
    /// Its settings.
    pub settings: &'static [Setting],
}

impl Table {
    /// The setting of this name.
    pub fn setting(&self, name: &str) -> Option<&Setting> {
        self.settings.iter().find(|setting| setting.name == name)
    }
}

/// One setting.
#[derive(Debug)]
pub struct Setting {
    /// Its key.
    pub name: &'static str,
    /// What to write, in words.
    pub kind: &'static str,
    /// Whether it is a list of these.
    pub list: bool,
    /// Whether its value is never shown.
    pub secret: bool,
    /// The default as TOML. `required` and `none` are not TOML: they stand for themselves.
    pub default: &'static str,
    pub(super) bounds: &'static [&'static str],
    pub(super) text: &'static [&'static str],
}

impl Setting {
    /// The least and the greatest value, as TOML.
    pub fn bounds(&self) -> Option<(&'static str, &'static str)> {
        match self.bounds {
            [low, high] => Some((low, high)),
            _ => None,
        }
    }

    /// Its description.
    pub fn text(&self) -> String {
        joined(self.text)
    }
}

/// The lines of a doc comment as one paragraph.
fn joined(lines: &[&str]) -> String {
    lines.iter().map(|line| line.trim()).collect::<Vec<_>>().join(" ")
}
