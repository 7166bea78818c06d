//! What a file of `src/` names: modules of this crate, other crates, macros. Read from its syntax
//! tree, and inside macros from their tokens, where no tree exists.

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::{Ident, TokenStream, TokenTree};
use syn::visit::{self, Visit};

/// A module by its path from the root of the crate: `store::claim` is `["store", "claim"]`.
pub type ModulePath = Vec<String>;

/// The sources, as they will be judged.
pub struct House {
    pub files: Vec<SourceFile>,
    pub modules: BTreeSet<ModulePath>,
}

pub struct SourceFile {
    /// From the root of the package, with slashes.
    pub name: String,
    pub text: String,
    pub module: ModulePath,
    pub facts: Facts,
}

#[derive(Default)]
pub struct Facts {
    pub names: Vec<Named>,
    /// Line and what it is: `async fn`, `.await`, `async block`.
    pub asynchronous: Vec<(usize, &'static str)>,
    /// Modules that the file declares.
    pub declared: Vec<Declared>,
}

pub struct Declared {
    pub module: ModulePath,
    /// Only tests have it.
    pub test: bool,
    /// Where its file lies, relative to the folder of the declaring one, if that is said.
    path: Option<String>,
}

/// A path that stands in the file.
pub struct Named {
    pub line: usize,
    /// Where it stands; a module within the file counts.
    pub from: ModulePath,
    pub target: Target,
    /// Only in test builds.
    pub test: bool,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Target {
    /// Of this crate, from its root; the last parts may name an item.
    Inner(Vec<String>),
    /// Of another crate, whose name comes first.
    Outer(Vec<String>),
    /// A macro called by its bare name.
    Macro(String),
    /// Any other path of two or more parts, as it is written.
    Local(Vec<String>),
}

impl House {
    /// `files` by name and text; `crates` are the names that start a path into another crate.
    pub fn read(files: &[(String, String)], crates: &BTreeSet<String>) -> Result<House, String> {
        let mut trees = Vec::new();
        let mut elsewhere = BTreeMap::new();
        for (name, text) in files {
            let tree = syn::parse_file(text)
                .map_err(|error| format!("{name}:{}: {error}", error.span().start().line))?;
            let mut declared = Vec::new();
            declared_in(&tree.items, &module_of(name), false, &mut declared);
            let folder = name.rsplit_once('/').map_or("", |(folder, _)| folder);
            for Declared { module, path, .. } in &declared {
                if let Some(path) = path {
                    elsewhere.insert(format!("{folder}/{path}"), module.clone());
                }
            }
            trees.push((name, text, tree, declared));
        }
        let mut house = House { files: Vec::new(), modules: BTreeSet::new() };
        for (name, text, tree, declared) in trees {
            let module = elsewhere.get(name).cloned().unwrap_or_else(|| module_of(name));
            let shadowed = shadowed_by(&tree);
            let facts = Facts { declared, ..Facts::default() };
            let mut reader = Reader { crates, shadowed, at: module.clone(), test: false, facts };
            reader.visit_file(&tree);
            let facts = reader.facts;
            house.modules.insert(module.clone());
            house.modules.extend(facts.declared.iter().map(|declared| declared.module.clone()));
            house.files.push(SourceFile { name: name.clone(), text: text.clone(), module, facts });
        }
        house.mark_test_files();
        Ok(house)
    }

    /// The module that holds what a path names: its longest beginning that is one.
    pub fn module_named(&self, path: &[String]) -> ModulePath {
        let lengths = (0..=path.len()).rev();
        let mut beginnings = lengths.map(|length| path[..length].to_vec());
        beginnings.find(|beginning| self.modules.contains(beginning)).unwrap_or_default()
    }

    /// A file is test code where its parent declares it so, and so is what lies below it.
    fn mark_test_files(&mut self) {
        let declared = self.files.iter().flat_map(|file| &file.facts.declared);
        let of_tests = declared.filter(|declared| declared.test);
        let of_tests: BTreeSet<ModulePath> = of_tests.map(|test| test.module.clone()).collect();
        for file in &mut self.files {
            if of_tests.iter().any(|test| file.module.starts_with(test)) {
                file.facts.names.iter_mut().for_each(|named| named.test = true);
            }
        }
    }
}

/// `src/store/claim.rs` is `store::claim`, `src/store/mod.rs` is `store`, `src/lib.rs` the root.
fn module_of(name: &str) -> ModulePath {
    let name = name.strip_prefix("src/").unwrap_or(name);
    let name = name.strip_suffix(".rs").unwrap_or(name);
    let mut parts: Vec<String> = name.split('/').map(str::to_owned).collect();
    if parts.last().is_some_and(|last| last == "mod") || parts == ["lib"] {
        parts.pop();
    }
    parts
}

fn declared_in(items: &[syn::Item], parent: &ModulePath, test: bool, into: &mut Vec<Declared>) {
    for item in items {
        let syn::Item::Mod(item) = item else { continue };
        let mut module = parent.clone();
        module.push(item.ident.to_string());
        let test = test || is_test(&item.attrs);
        if let Some((_, items)) = &item.content {
            declared_in(items, &module, test, into);
        }
        let path = item.attrs.iter().find_map(path_of_file);
        into.push(Declared { module, test, path });
    }
}

/// `#[path = "…"]`
fn path_of_file(attribute: &syn::Attribute) -> Option<String> {
    let syn::Meta::NameValue(pair) = &attribute.meta else { return None };
    match &pair.value {
        syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(path), .. })
            if pair.path.is_ident("path") =>
        {
            Some(path.value())
        }
        _ => None,
    }
}

/// Names that a `use` or a `mod` of the file gives a meaning of its own.
fn shadowed_by(tree: &syn::File) -> BTreeSet<String> {
    fn of_use(tree: &syn::UseTree, first: bool, names: &mut BTreeSet<String>) {
        match tree {
            syn::UseTree::Path(path) => of_use(&path.tree, false, names),
            syn::UseTree::Name(name) if !first => drop(names.insert(name.ident.to_string())),
            syn::UseTree::Rename(name) => drop(names.insert(name.rename.to_string())),
            syn::UseTree::Group(group) => {
                group.items.iter().for_each(|tree| of_use(tree, first, names));
            }
            _ => {}
        }
    }
    let mut names = BTreeSet::new();
    for item in &tree.items {
        match item {
            syn::Item::Use(item) => of_use(&item.tree, true, &mut names),
            syn::Item::Mod(item) => drop(names.insert(item.ident.to_string())),
            _ => {}
        }
    }
    names
}

struct Reader<'a> {
    crates: &'a BTreeSet<String>,
    shadowed: BTreeSet<String>,
    at: ModulePath,
    test: bool,
    facts: Facts,
}

impl Reader<'_> {
    fn name(&mut self, parts: &[String], line: usize, in_use: bool) {
        let Some(target) = self.resolve(parts, in_use) else { return };
        let (from, test) = (self.at.clone(), self.test);
        self.facts.names.push(Named { line, from, target, test });
    }

    fn resolve(&self, parts: &[String], in_use: bool) -> Option<Target> {
        let (first, rest) = parts.split_first()?;
        let inner = |mut base: ModulePath, rest: &[String]| {
            let ups = rest.iter().take_while(|part| *part == "super").count();
            base.truncate(base.len().saturating_sub(ups));
            base.extend_from_slice(&rest[ups..]);
            Some(Target::Inner(base))
        };
        match first.as_str() {
            "crate" | "oncekey" => inner(Vec::new(), rest),
            "self" => inner(self.at.clone(), rest),
            "super" => inner(self.at.clone(), parts),
            "" => Some(Target::Outer(rest.to_vec())),
            _ if rest.is_empty() && !in_use => None,
            own if self.declares(own) => inner(self.at.clone(), parts),
            other if self.crates.contains(other) && (in_use || !self.shadowed.contains(other)) => {
                Some(Target::Outer(parts.to_vec()))
            }
            _ => Some(Target::Local(parts.to_vec())),
        }
    }

    fn declares(&self, name: &str) -> bool {
        let mut child = self.at.clone();
        child.push(name.to_owned());
        self.facts.declared.iter().any(|declared| declared.module == child)
    }

    fn use_tree(&mut self, tree: &syn::UseTree, before: &mut Vec<String>) {
        match tree {
            syn::UseTree::Path(path) => {
                before.push(path.ident.to_string());
                self.use_tree(&path.tree, before);
                before.pop();
            }
            syn::UseTree::Name(syn::UseName { ident, .. })
            | syn::UseTree::Rename(syn::UseRename { ident, .. }) => {
                let mut parts = before.clone();
                if ident != "self" {
                    parts.push(ident.to_string());
                }
                self.name(&parts, ident.span().start().line, true);
            }
            syn::UseTree::Glob(glob) => {
                let line = glob.star_token.spans[0].start().line;
                self.name(&before.clone(), line, true);
            }
            syn::UseTree::Group(group) => {
                group.items.iter().for_each(|tree| self.use_tree(tree, before));
            }
        }
    }

    /// Paths in tokens: identifiers joined by two colons.
    fn tokens(&mut self, tokens: TokenStream) {
        let mut path: Vec<Ident> = Vec::new();
        let mut colons = 0;
        let mut tokens = tokens.into_iter().peekable();
        while let Some(token) = tokens.next() {
            match token {
                TokenTree::Punct(mark) if mark.as_char() == ':' => colons += 1,
                TokenTree::Ident(ident) => {
                    if colons != 2 {
                        self.end_of_path(&mut path);
                    }
                    path.push(ident);
                    colons = 0;
                }
                TokenTree::Group(group) => {
                    self.end_of_path(&mut path);
                    self.tokens(group.stream());
                    colons = 0;
                }
                TokenTree::Punct(mark)
                    if mark.as_char() == '!'
                        && path.len() == 1
                        && matches!(tokens.peek(), Some(TokenTree::Group(_))) =>
                {
                    self.macro_called(&path[0]);
                    path.clear();
                }
                TokenTree::Punct(_) | TokenTree::Literal(_) => {
                    self.end_of_path(&mut path);
                    colons = 0;
                }
            }
        }
        self.end_of_path(&mut path);
    }

    fn end_of_path(&mut self, path: &mut Vec<Ident>) {
        let parts: Vec<String> = path.iter().map(Ident::to_string).collect();
        if let Some(first) = path.first() {
            self.name(&parts, first.span().start().line, false);
        }
        path.clear();
    }

    fn macro_called(&mut self, name: &Ident) {
        let (from, test) = (self.at.clone(), self.test);
        let target = Target::Macro(name.to_string());
        self.facts.names.push(Named { line: name.span().start().line, from, target, test });
    }

    /// Everything below is test code where the attributes say so.
    fn below(&mut self, attributes: &[syn::Attribute], visit: impl FnOnce(&mut Self)) {
        let before = self.test;
        self.test |= is_test(attributes);
        visit(self);
        self.test = before;
    }
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        self.at.push(item.ident.to_string());
        self.below(&item.attrs, |reader| visit::visit_item_mod(reader, item));
        self.at.pop();
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        let mut before = match item.leading_colon {
            Some(_) => vec![String::new()],
            None => Vec::new(),
        };
        self.below(&item.attrs, |reader| reader.use_tree(&item.tree, &mut before));
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.below(&item.attrs, |reader| visit::visit_item_fn(reader, item));
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        self.below(&item.attrs, |reader| visit::visit_item_impl(reader, item));
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.below(&item.attrs, |reader| visit::visit_impl_item_fn(reader, item));
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let mut parts: Vec<String> =
            path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        let line = path.segments.first().map_or(0, |first| first.ident.span().start().line);
        if path.leading_colon.is_some() {
            parts.insert(0, String::new());
        }
        self.name(&parts, line, false);
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, called: &'ast syn::Macro) {
        if let Some(name) = called.path.get_ident() {
            self.macro_called(name);
        }
        visit::visit_macro(self, called);
        self.tokens(called.tokens.clone());
    }

    fn visit_attribute(&mut self, attribute: &'ast syn::Attribute) {
        if let syn::Meta::List(list) = &attribute.meta {
            self.tokens(list.tokens.clone());
        }
        visit::visit_attribute(self, attribute);
    }

    fn visit_signature(&mut self, signature: &'ast syn::Signature) {
        if let (Some(word), false) = (&signature.asyncness, self.test) {
            self.facts.asynchronous.push((word.span.start().line, "an async fn"));
        }
        visit::visit_signature(self, signature);
    }

    fn visit_expr_async(&mut self, block: &'ast syn::ExprAsync) {
        self.facts.asynchronous.push((block.async_token.span.start().line, "an async block"));
        visit::visit_expr_async(self, block);
    }

    fn visit_expr_await(&mut self, wait: &'ast syn::ExprAwait) {
        self.facts.asynchronous.push((wait.await_token.span.start().line, "an await"));
        visit::visit_expr_await(self, wait);
    }
}

/// `#[cfg(test)]`, `#[test]`, or another crate's `#[…::test]`.
fn is_test(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let path = attribute.path();
        let tokens = attribute.meta.require_list().map(|list| list.tokens.to_string());
        (path.is_ident("cfg") && tokens.is_ok_and(|tokens| tokens == "test"))
            || path.segments.last().is_some_and(|last| last.ident == "test")
    })
}
