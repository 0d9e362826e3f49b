//! Diagnostics: what is wrong in the configuration, where it is, and how to correct it.
//!
//! Guarantees: every finding is kept, and rendered with file, line and column. What may be a secret is shown
//! as stars, whatever is wrong around it.

use std::fmt;
use std::ops::Range;

use annotate_snippets::{Annotation, AnnotationKind, Element, Level, Renderer, Snippet};

use super::secrets::{masked, secret_assignments};

/// Diagnostics that are shown; those of a file that is no configuration at all would fill the screen.
const SHOWN_MAX: usize = 50;

/// One text of the configuration.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SourceText {
    /// The absolute path, or the option.
    pub(crate) name: String,
    pub(crate) text: String,
}

/// A range of bytes in a source.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span {
    /// Index into the sources of one load.
    pub(crate) source: usize,
    pub(crate) start: usize,
    pub(crate) end: usize,
}

impl Span {
    pub(crate) fn new(source: usize, span: Range<usize>) -> Span {
        Span { source, start: span.start, end: span.end }
    }
}

/// One error or warning.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Diagnostic {
    pub(crate) title: String,
    pub(crate) span: Option<Span>,
    /// The text under the marked source; may be empty.
    pub(crate) label: String,
    /// A second span that explains the first.
    pub(crate) related: Option<(Span, String)>,
    pub(crate) help: Option<String>,
}

impl Diagnostic {
    /// A diagnostic without a span: a file that cannot be read.
    pub(crate) fn without_span(title: impl Into<String>) -> Diagnostic {
        Diagnostic { title: title.into(), span: None, label: String::new(), related: None, help: None }
    }

    pub(crate) fn at(span: &Span, title: impl Into<String>) -> Diagnostic {
        Diagnostic { span: Some(span.clone()), ..Diagnostic::without_span(title) }
    }

    pub(crate) fn label(mut self, label: impl Into<String>) -> Diagnostic {
        self.label = label.into();
        self
    }

    pub(crate) fn related(mut self, span: &Span, label: impl Into<String>) -> Diagnostic {
        self.related = Some((span.clone(), label.into()));
        self
    }

    pub(crate) fn help(mut self, help: impl Into<String>) -> Diagnostic {
        self.help = Some(help.into());
        self
    }
}

/// What a load collects while it reads.
#[derive(Debug, Default)]
pub(crate) struct Report {
    pub(crate) errors: Vec<Diagnostic>,
    pub(crate) warnings: Vec<Diagnostic>,
    /// Values that must not be shown.
    pub(crate) secrets: Vec<Span>,
}

impl Report {
    pub(crate) fn error(&mut self, diagnostic: Diagnostic) {
        self.errors.push(diagnostic);
    }

    pub(crate) fn warning(&mut self, diagnostic: Diagnostic) {
        self.warnings.push(diagnostic);
    }
}

/// One finding, for a program.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Findings {
    sources: Vec<SourceText>,
    diagnostics: Vec<Diagnostic>,
}

/// One finding for a program to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Its file or option; `None` if it concerns no text.
    pub file: Option<String>,
    /// Line, from 1.
    pub line: Option<usize>,
    /// Column in characters, from 1.
    pub column: Option<usize>,
    /// What is wrong.
    pub message: String,
    /// What is expected there.
    pub detail: Option<String>,
    /// How to correct it.
    pub help: Option<String>,
}

impl Findings {
    /// Sorts the diagnostics in the order of the texts and masks what is secret.
    pub(crate) fn new(
        sources: &[SourceText],
        mut diagnostics: Vec<Diagnostic>,
        secrets: &[Span],
    ) -> Findings {
        diagnostics.sort_by(|a, b| a.span.cmp(&b.span));
        let hidden = |(index, source): (usize, &SourceText)| {
            let mut spans: Vec<Range<usize>> = secret_assignments(&source.text);
            spans.extend(secrets.iter().filter(|span| span.source == index).map(|at| at.start..at.end));
            SourceText { name: source.name.clone(), text: masked(&source.text, &spans) }
        };
        Findings { sources: sources.iter().enumerate().map(hidden).collect(), diagnostics }
    }

    /// The number of findings.
    pub fn len(&self) -> usize {
        self.diagnostics.len()
    }

    /// Whether there are no findings.
    pub fn is_empty(&self) -> bool {
        self.diagnostics.is_empty()
    }

    /// The findings one by one, in the order of the texts.
    pub fn iter(&self) -> impl Iterator<Item = Finding> {
        self.diagnostics.iter().map(|diagnostic| {
            let position = diagnostic.span.as_ref().map(|span| self.position(span));
            Finding {
                file: diagnostic.span.as_ref().map(|span| self.sources[span.source].name.clone()),
                line: position.map(|(line, _)| line),
                column: position.map(|(_, column)| column),
                message: diagnostic.title.clone(),
                detail: Some(diagnostic.label.clone()).filter(|label| !label.is_empty()),
                help: diagnostic.help.clone(),
            }
        })
    }

    /// The span of each finding that has one, and the one that explains it, each with its text.
    #[cfg(feature = "fuzzing")]
    pub(super) fn spans(&self) -> impl Iterator<Item = (&str, Range<usize>)> {
        let related = |diagnostic: &Diagnostic| diagnostic.related.as_ref().map(|(span, _)| span.clone());
        let each = self.diagnostics.iter();
        let spans = each.flat_map(move |diagnostic| [diagnostic.span.clone(), related(diagnostic)]);
        spans.flatten().map(|span| (self.sources[span.source].text.as_str(), span.start..span.end))
    }

    /// The text for a person, as errors or as warnings, with colours for a terminal if `styled`.
    pub fn render(&self, severity: Severity, styled: bool) -> String {
        let renderer = if styled { Renderer::styled() } else { Renderer::plain() };
        let shown = self.diagnostics.iter().take(SHOWN_MAX);
        let mut text =
            shown.map(|each| self.render_one(each, &renderer, severity)).collect::<Vec<_>>().join("\n\n");
        if let Some(rest) = self.len().checked_sub(SHOWN_MAX).filter(|&rest| rest > 0) {
            text.push_str(&format!("\n\nand {rest} more"));
        }
        text
    }

    fn render_one(&self, diagnostic: &Diagnostic, renderer: &Renderer, severity: Severity) -> String {
        let level = match severity {
            Severity::Error => Level::ERROR,
            Severity::Warning => Level::WARNING,
        };
        let mut group = level.primary_title(diagnostic.title.as_str()).elements(self.snippets(diagnostic));
        if let Some(help) = &diagnostic.help {
            group = group.element(Level::HELP.message(help.as_str()));
        }
        renderer.render(&[group])
    }

    fn snippets<'a>(&'a self, diagnostic: &'a Diagnostic) -> Vec<Element<'a>> {
        let Some(span) = &diagnostic.span else { return Vec::new() };
        let mut first = self.snippet(span, AnnotationKind::Primary, &diagnostic.label);
        match &diagnostic.related {
            None => vec![first.into()],
            Some((other, label)) if other.source == span.source => {
                first = first.annotation(annotation(other, AnnotationKind::Context, label));
                vec![first.into()]
            }
            Some((other, label)) => {
                vec![first.into(), self.snippet(other, AnnotationKind::Context, label).into()]
            }
        }
    }

    fn snippet<'a>(
        &'a self,
        span: &Span,
        kind: AnnotationKind,
        label: &'a str,
    ) -> Snippet<'a, Annotation<'a>> {
        let source = &self.sources[span.source];
        Snippet::source(source.text.as_str())
            .path(source.name.as_str())
            .annotation(annotation(span, kind, label))
    }

    /// Line and column of a span's start, both from 1, the column in characters.
    fn position(&self, span: &Span) -> (usize, usize) {
        let before = &self.sources[span.source].text[..span.start];
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        (before.matches('\n').count() + 1, before[line_start..].chars().count() + 1)
    }
}

/// The severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// The configuration is not used.
    Error,
    /// The configuration is used, but probably not what was intended.
    Warning,
}

/// All errors of a configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct ConfigErrors(pub Findings);

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.render(Severity::Error, false))
    }
}

impl std::error::Error for ConfigErrors {}

fn annotation<'a>(span: &Span, kind: AnnotationKind, label: &'a str) -> Annotation<'a> {
    kind.span(span.start..span.end).label((!label.is_empty()).then_some(label))
}
