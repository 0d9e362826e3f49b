//! A parsed Rust file: its tokens, functions and modules, and the lines that belong to tests.

use std::ops::RangeInclusive;

use syn::{
    Attribute, ImplItemFn, Item, ItemFn, ItemMod, ItemUse, Meta, Signature, Token, TraitItemFn, UseTree,
    punctuated::Punctuated, spanned::Spanned, visit::Visit,
};

use super::tokens::{self, Token as CodeToken};

/// A parsed file. Lines are counted from 1.
pub(super) struct Source {
    pub(super) path: String,
    pub(super) text: String,
    pub(super) tokens: Vec<CodeToken>,
    /// Each path of a `use` with braces in full: `use a::{b, c}` gives `a::b` and `a::c`.
    pub(super) uses: Vec<Vec<CodeToken>>,
    pub(super) functions: Vec<Function>,
    pub(super) modules: Vec<Module>,
    /// The first inner attribute with arguments, such as `forbid(unsafe_code)`.
    pub(super) first_attribute: Option<String>,
    /// Whether the whole file is built for tests only.
    pub(super) is_test: bool,
    test_lines: Vec<RangeInclusive<usize>>,
}

/// A function with a body.
pub(super) struct Function {
    pub(super) name: String,
    /// From the line of `fn` to that of the closing brace.
    pub(super) lines: RangeInclusive<usize>,
}

/// A module that the file declares.
pub(super) struct Module {
    pub(super) name: String,
    pub(super) line: usize,
    pub(super) is_inline: bool,
    pub(super) is_test: bool,
}

impl Source {
    /// Parses a file.
    ///
    /// # Errors
    /// The line and the message of a syntax error.
    pub(super) fn parse(path: &str, text: &str) -> Result<Source, (usize, String)> {
        let syntax = syn::parse_file(text)
            .map_err(|error| (error.span().start().line, format!("does not parse: {error}")))?;
        let tokens = tokens::lex(text).expect("syn has parsed the text, so it can be lexed");
        let mut outline = Outline::default();
        outline.visit_file(&syntax);
        Ok(Source {
            path: path.to_owned(),
            text: text.to_owned(),
            tokens,
            uses: outline.uses,
            functions: outline.functions,
            modules: outline.modules,
            first_attribute: syntax.attrs.iter().find_map(lint_attribute),
            is_test: is_test_path(path),
            test_lines: outline.test_lines,
        })
    }

    /// The crate, or other top-level folder, of the file.
    pub(super) fn crate_name(&self) -> &str {
        self.path.split('/').next().expect("a split yields at least one part")
    }

    /// Whether the line is built for tests only.
    pub(super) fn is_test_line(&self, line: usize) -> bool {
        self.is_test || self.test_lines.iter().any(|lines| lines.contains(&line))
    }

    /// The folder with the files of the modules that this file declares.
    pub(super) fn module_directory(&self) -> &str {
        let stem = self.path.strip_suffix(".rs").unwrap_or(&self.path);
        let (directory, name) = stem.rsplit_once('/').unwrap_or(("", stem));
        let is_root = matches!(name, "lib" | "main") || is_target_directory(directory);
        if is_root { directory } else { stem }
    }

    /// Whether the file is a crate root: no other file declares it.
    pub(super) fn is_crate_root(&self) -> bool {
        let (directory, name) = self.path.rsplit_once('/').unwrap_or(("", &self.path));
        matches!(name, "lib.rs" | "main.rs" | "build.rs") || is_target_directory(directory)
    }
}

/// Whether cargo builds each file of the folder as a crate of its own.
fn is_target_directory(directory: &str) -> bool {
    let last = directory.rsplit('/').next().expect("a split yields at least one part");
    matches!(last, "bin" | "examples" | "benches" | "fuzz_targets")
        || (last == "tests" && !directory.contains("/src/"))
}

fn is_test_path(path: &str) -> bool {
    path.split('/').any(|part| matches!(part, "tests" | "tests.rs" | "benches" | "fuzz"))
}

fn lint_attribute(attribute: &Attribute) -> Option<String> {
    match &attribute.meta {
        Meta::List(list) => Some(format!("{}({})", list.path.get_ident()?, list.tokens)),
        _ => None,
    }
}

/// Collects the items of a file that the rules check.
#[derive(Default)]
struct Outline {
    uses: Vec<Vec<CodeToken>>,
    functions: Vec<Function>,
    modules: Vec<Module>,
    test_lines: Vec<RangeInclusive<usize>>,
}

impl Outline {
    fn record_function(&mut self, signature: &Signature, last_line: usize) {
        let lines = signature.fn_token.span.start().line..=last_line;
        self.functions.push(Function { name: signature.ident.to_string(), lines });
    }

    fn record_if_test(&mut self, attributes: &[Attribute], item: &impl Spanned) {
        if attributes.iter().any(is_test_attribute) {
            let span = item.span();
            self.test_lines.push(span.start().line..=span.end().line);
        }
    }
}

impl<'ast> Visit<'ast> for Outline {
    fn visit_item(&mut self, item: &'ast Item) {
        match item {
            Item::Fn(it) => self.record_if_test(&it.attrs, it),
            Item::Impl(it) => self.record_if_test(&it.attrs, it),
            Item::Mod(it) => self.record_if_test(&it.attrs, it),
            Item::Struct(it) => self.record_if_test(&it.attrs, it),
            Item::Use(it) => self.record_if_test(&it.attrs, it),
            _ => {}
        }
        syn::visit::visit_item(self, item);
    }

    fn visit_item_fn(&mut self, item: &'ast ItemFn) {
        self.record_function(&item.sig, item.block.brace_token.span.close().start().line);
        syn::visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast ImplItemFn) {
        self.record_if_test(&item.attrs, item);
        self.record_function(&item.sig, item.block.brace_token.span.close().start().line);
        syn::visit::visit_impl_item_fn(self, item);
    }

    fn visit_trait_item_fn(&mut self, item: &'ast TraitItemFn) {
        if let Some(block) = &item.default {
            self.record_function(&item.sig, block.brace_token.span.close().start().line);
        }
        syn::visit::visit_trait_item_fn(self, item);
    }

    fn visit_item_mod(&mut self, item: &'ast ItemMod) {
        self.modules.push(Module {
            name: item.ident.to_string(),
            line: item.ident.span().start().line,
            is_inline: item.content.is_some(),
            is_test: item.attrs.iter().any(is_test_attribute),
        });
        syn::visit::visit_item_mod(self, item);
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        expand_use(&item.tree, &mut Vec::new(), &mut self.uses);
    }
}

fn is_test_attribute(attribute: &Attribute) -> bool {
    match &attribute.meta {
        Meta::Path(path) => path.is_ident("test"),
        Meta::List(list) if list.path.is_ident("cfg") => {
            list.parse_args::<Meta>().is_ok_and(|condition| requires_test(&condition))
        }
        _ => false,
    }
}

/// Whether the condition holds in test builds only. Builds for `loom` and `shuttle` are tests too.
fn requires_test(condition: &Meta) -> bool {
    let parts = |list: &syn::MetaList| {
        list.parse_args_with(Punctuated::<Meta, Token![,]>::parse_terminated).unwrap_or_default()
    };
    match condition {
        Meta::Path(path) => ["test", "loom", "shuttle"].iter().any(|name| path.is_ident(name)),
        Meta::List(list) if list.path.is_ident("all") => parts(list).iter().any(requires_test),
        Meta::List(list) if list.path.is_ident("any") => {
            let parts = parts(list);
            !parts.is_empty() && parts.iter().all(requires_test)
        }
        _ => false,
    }
}

fn expand_use(tree: &UseTree, prefix: &mut Vec<CodeToken>, uses: &mut Vec<Vec<CodeToken>>) {
    let token = |ident: &syn::Ident| CodeToken { text: ident.to_string(), line: ident.span().start().line };
    let leaf = |ident: &syn::Ident, prefix: &[CodeToken]| [prefix, &[token(ident)]].concat();
    match tree {
        UseTree::Path(path) => {
            let length = prefix.len();
            let first = token(&path.ident);
            let colon = CodeToken { text: ":".to_owned(), line: first.line };
            prefix.extend([first, colon.clone(), colon]);
            expand_use(&path.tree, prefix, uses);
            prefix.truncate(length);
        }
        UseTree::Group(group) => group.items.iter().for_each(|item| expand_use(item, prefix, uses)),
        UseTree::Name(name) => uses.push(leaf(&name.ident, prefix)),
        UseTree::Rename(rename) => uses.push(leaf(&rename.ident, prefix)),
        UseTree::Glob(_) => uses.push(prefix.clone()),
    }
}
