//! Size of the repository: lines, imports that run up, circles of files, files that name an operation.
//!
//! It reads the sources and cargo's metadata. It judges nothing: the tidy checks do.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use serde_json::Value;

use crate::tidy::{EDGES, File};

/// The operation whose files are counted: a plain one, which changes a session.
const OPERATION: &str = "unarchive";

/// Lines of Rust.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lines {
    /// Lines of the product.
    pub product: usize,
    /// Lines of tests, benchmarks, examples and test tools.
    pub tests: usize,
}

/// The figures.
#[derive(Debug)]
pub struct Figures {
    /// Lines for each crate, by its folder.
    pub lines: BTreeMap<String, Lines>,
    /// Dependencies between our crates against the order of `EDGES`, in which every crate comes after those that it may use.
    pub climbs: Vec<String>,
    /// Files of one crate that import each other in a loop.
    pub circles: Vec<Vec<String>>,
    /// Files of the product that name one plain operation.
    pub naming: Vec<String>,
}

impl Figures {
    /// Measures these files and packages.
    pub fn of(files: &[File], packages: &[Value]) -> Self {
        let product: Vec<File> = files.iter().filter(|file| is_product(&file.path)).map(without_tests).collect();
        let mut lines: BTreeMap<String, Lines> = BTreeMap::new();
        for file in files.iter().filter(|file| file.path.ends_with(".rs")) {
            let whole = file.text.lines().count();
            let shipped = product.iter().find(|shipped| shipped.path == file.path);
            let shipped = shipped.map_or(0, |shipped| shipped.text.lines().count());
            let of = lines.entry(crate_of(&file.path).to_owned()).or_default();
            of.product += shipped;
            of.tests += whole - shipped;
        }
        let names = |file: &&File| file.text.to_lowercase().contains(OPERATION);
        let naming = product.iter().filter(names).map(|file| file.path.clone()).collect();
        Self { lines, climbs: climbs(packages), circles: circles(&product), naming }
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut all = Lines::default();
        writeln!(out, "{:28}{:>10}{:>10}", "lines of Rust", "product", "tests")?;
        for (name, lines) in &self.lines {
            writeln!(out, "{name:28}{:>10}{:>10}", lines.product, lines.tests)?;
            (all.product, all.tests) = (all.product + lines.product, all.tests + lines.tests);
        }
        writeln!(out, "{:28}{:>10}{:>10}", "all of it", all.product, all.tests)?;
        writeln!(out, "\nimports between crates that run up: {}", self.climbs.len())?;
        self.climbs.iter().try_for_each(|climb| writeln!(out, "  {climb}"))?;
        writeln!(out, "\ncircles of files: {}", self.circles.len())?;
        for circle in &self.circles {
            writeln!(out, "  {} files: {}", circle.len(), circle.join(", "))?;
        }
        writeln!(out, "\nfiles of the product that name the operation {OPERATION}: {}", self.naming.len())?;
        self.naming.iter().try_for_each(|path| writeln!(out, "  {path}"))
    }
}

/// The folder of a file's crate.
fn crate_of(path: &str) -> &str {
    let inner = ["/src/", "/tests/", "/benches/", "/examples/"];
    inner.iter().filter_map(|part| path.find(part)).min().map_or("", |end| &path[..end])
}

/// Whether a file belongs to the product.
fn is_product(path: &str) -> bool {
    let is_test = |part: &str| {
        matches!(
            part,
            "tests" | "tests.rs" | "benches" | "examples" | "conformance" | "parity-tests" | "testkit" | "test_tools"
        )
    };
    path.ends_with(".rs") && !path.split('/').any(is_test)
}

/// A file without its inline modules of tests.
fn without_tests(file: &File) -> File {
    let (mut kept, mut end) = (Vec::new(), None::<String>);
    for line in file.text.lines() {
        let name = line.trim_start().trim_start_matches("pub(crate) ").strip_prefix("mod test");
        match &end {
            Some(brace) if line == brace => end = None,
            Some(_) => {}
            None if name.is_some_and(|name| name.ends_with('{')) => {
                end = Some(format!("{}}}", &line[..line.len() - line.trim_start().len()]));
            }
            None => kept.push(line),
        }
    }
    File::new(&file.path, &kept.join("\n"))
}

/// Dependencies of our crates on others that come after them in `EDGES`.
fn climbs(packages: &[Value]) -> Vec<String> {
    let floor = |name: &str| EDGES.iter().position(|(ours, _)| *ours == name);
    let ours = packages.iter().filter_map(|package| Some((floor(package["name"].as_str()?)?, package)));
    let uses = ours.flat_map(|(at, package)| {
        // Tests may use any crate.
        let used = package["dependencies"].as_array().into_iter().flatten().filter(|used| used["kind"].is_null());
        used.filter_map(move |used| Some((at, package["name"].as_str()?, used["name"].as_str()?)))
    });
    let up = uses.filter(|(at, _, used)| floor(used).is_some_and(|floor| floor >= *at));
    up.map(|(_, name, used)| format!("{name} -> {used}")).collect()
}

/// The modules of one crate: each path with its file, and the names that it hands on with the path behind each.
#[derive(Default)]
struct Modules<'a> {
    files: BTreeMap<Vec<&'a str>, &'a File>,
    handed_on: BTreeMap<(Vec<&'a str>, &'a str), Vec<&'a str>>,
}

impl<'a> Modules<'a> {
    /// The module whose file defines a path.
    fn find(&self, path: &[&'a str], depth: usize) -> Option<Vec<&'a str>> {
        let known = (0..=path.len()).rev().map(|end| &path[..end]).find(|part| self.files.contains_key(*part))?;
        let handed_on = path.get(known.len()).and_then(|name| self.handed_on.get(&(known.to_vec(), *name)));
        match handed_on {
            Some(target) if depth < 8 => {
                let rest = path.get(known.len() + 1..).unwrap_or_default();
                self.find(&[target.as_slice(), rest].concat(), depth + 1)
            }
            _ => Some(known.to_vec()),
        }
    }
}

/// The paths that a `use` names, groups taken apart, `as` left out.
fn expanded(tree: &str) -> Vec<String> {
    let tree = tree.trim();
    let Some((prefix, group)) = tree.split_once('{') else {
        return vec![tree.split(" as ").next().unwrap_or_default().trim().to_owned()];
    };
    let (mut parts, mut depth, mut from) = (Vec::new(), 0_usize, 0);
    let group = group.trim_end().strip_suffix('}').unwrap_or(group);
    for (at, byte) in group.bytes().enumerate() {
        match byte {
            b'{' => depth += 1,
            b'}' => depth = depth.saturating_sub(1),
            b',' if depth == 0 => {
                parts.push(&group[from..at]);
                from = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&group[from..]);
    let inner = parts.into_iter().filter(|part| !part.trim().is_empty()).flat_map(expanded);
    inner.map(|path| format!("{prefix}{path}")).collect()
}

/// A name that a file takes from elsewhere.
struct Import {
    /// The path from the crate's root.
    path: Vec<String>,
    /// The path begins with a name: a child of the file's module, or another crate.
    is_relative: bool,
    is_handed_on: bool,
}

impl Import {
    /// The path, empty if it leads to another crate.
    fn inner<'a>(&'a self, module: &[&'a str], modules: &Modules<'a>) -> Vec<&'a str> {
        let path: Vec<&str> = self.path.iter().map(String::as_str).collect();
        let is_foreign = self.is_relative && !modules.files.contains_key(&path[..module.len() + 1]);
        if is_foreign { Vec::new() } else { path }
    }
}

/// Every import of a file.
fn imports(file: &File, module: &[&str]) -> Vec<Import> {
    let code: Vec<&str> = file.text.lines().map(|line| line.split("//").next().unwrap_or_default()).collect();
    let code = code.join(" ");
    let mut found = Vec::new();
    for (at, _) in code.match_indices("use ") {
        if code[..at].ends_with(|before: char| before.is_alphanumeric() || before == '_') {
            continue;
        }
        let Some((tree, _)) = code[at + 4..].split_once(';') else { continue };
        let is_handed_on = code[..at].trim_end().ends_with("pub") || code[..at].trim_end().ends_with(')');
        found.extend(expanded(tree).into_iter().map(|path| (path, is_handed_on)));
    }
    let inline = code.match_indices("crate::").map(|(at, _)| {
        let end = code[at..].find(|byte: char| !byte.is_alphanumeric() && byte != '_' && byte != ':');
        (code[at..end.map_or(code.len(), |end| at + end)].to_owned(), false)
    });
    found.extend(inline.filter(|(path, _)| !path.ends_with("::")));
    let absolute = found.into_iter().map(|(path, is_handed_on)| {
        let mut base: Vec<String> = module.iter().map(|part| (*part).to_owned()).collect();
        let mut parts = path.split("::").map(str::trim).peekable();
        match parts.peek() {
            Some(&"crate") => base.clear(),
            Some(&("self" | "super")) => {}
            _ => {
                base.extend(parts.map(str::to_owned));
                return Import { path: base, is_relative: true, is_handed_on };
            }
        }
        while let Some(part) = parts.next_if(|part| matches!(*part, "crate" | "self" | "super")) {
            if part == "super" {
                base.pop();
            }
        }
        base.extend(parts.map(str::to_owned));
        Import { path: base, is_relative: false, is_handed_on }
    });
    absolute.collect()
}

/// The module of a file, by its path behind `src/`.
fn module(path: &str) -> Vec<&str> {
    let inner = path.split_once("/src/").map_or(path, |(_, inner)| inner);
    let inner = inner.trim_end_matches(".rs").trim_end_matches("/mod");
    if matches!(inner, "lib" | "main" | "mod") { Vec::new() } else { inner.split('/').collect() }
}

/// The circles of all crates, the largest first.
fn circles(product: &[File]) -> Vec<Vec<String>> {
    let crates: BTreeSet<&str> = product.iter().map(|file| crate_of(&file.path)).collect();
    let mut found: Vec<Vec<String>> = crates.into_iter().flat_map(|name| circles_of(name, product)).collect();
    found.sort_by_key(|circle| std::cmp::Reverse(circle.len()));
    found
}

fn circles_of(name: &str, product: &[File]) -> Vec<Vec<String>> {
    let ours: Vec<&File> = product.iter().filter(|file| crate_of(&file.path) == name).collect();
    let of = |file: &&'_ File| imports(file, &module(&file.path));
    let all: Vec<(Vec<&str>, Vec<Import>)> = ours.iter().map(|file| (module(&file.path), of(file))).collect();
    let mut modules = Modules::default();
    for file in &ours {
        modules.files.insert(module(&file.path), file);
    }
    for (module, imports) in &all {
        for import in imports.iter().filter(|import| import.is_handed_on) {
            if let Some(last) = import.path.last() {
                modules.handed_on.insert((module.clone(), last.as_str()), import.inner(module, &modules));
            }
        }
    }
    let mut uses: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (module, imports) in &all {
        let Some(from) = modules.files.get(module) else { continue };
        // A module that hands names on is their face and uses none of them.
        for import in imports.iter().filter(|import| !import.is_handed_on) {
            let target = modules.find(&import.inner(module, &modules), 0);
            // The root is also used for other crates; a module's own names are no import.
            let target = target.filter(|target| !target.is_empty() && target != module);
            let Some(file) = target.and_then(|target| modules.files.get(&target)) else { continue };
            uses.entry(from.path.as_str()).or_default().insert(file.path.as_str());
        }
    }
    loops(&uses)
}

/// The sets of files that reach each other.
fn loops(uses: &BTreeMap<&str, BTreeSet<&str>>) -> Vec<Vec<String>> {
    let reached = |from: &str| {
        let (mut seen, mut next) = (BTreeSet::new(), vec![from]);
        while let Some(file) = next.pop() {
            let unseen = uses.get(file).into_iter().flatten().copied().filter(|used| seen.insert(*used));
            next.extend(unseen.collect::<Vec<_>>());
        }
        seen
    };
    let all: BTreeMap<&str, BTreeSet<&str>> = uses.keys().map(|file| (*file, reached(file))).collect();
    let mut found = BTreeSet::new();
    for (file, reach) in &all {
        let is_back = |other: &&&str| all.get(**other).is_some_and(|back| back.contains(file));
        let circle: Vec<String> = reach.iter().filter(is_back).map(|other| (*other).to_owned()).collect();
        if circle.len() > 1 {
            found.insert(circle);
        }
    }
    found.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> File {
        File::new(path, text)
    }

    #[test]
    fn tests_are_not_product() {
        let files = [
            file("crates/x/src/a.rs", "fn a() {}\n\n#[cfg(test)]\nmod tests {\n    fn b() {}\n}\n"),
            file("crates/x/src/a/tests.rs", "fn c() {}\n"),
            file("crates/x/tests/d.rs", "fn d() {}\nfn e() {}\n"),
        ];
        let figures = Figures::of(&files, &[]);
        assert_eq!(figures.lines["crates/x"], Lines { product: 3, tests: 6 });
    }

    #[test]
    fn a_circle_is_found_through_what_is_handed_on() {
        let files = [
            file("crates/x/src/lib.rs", "mod a;\nmod b;\n"),
            file("crates/x/src/a/mod.rs", "mod inner;\npub(crate) use inner::{One, two as Two};\n"),
            file("crates/x/src/a/inner.rs", "use crate::b::Three;\n"),
            file("crates/x/src/b.rs", "use crate::{\n    a::One,\n};\n// use crate::c::Four;\n"),
            file("crates/x/src/c.rs", "use crate::b::Three;\n"),
        ];
        let circles = Figures::of(&files, &[]).circles;
        assert_eq!(circles, [["crates/x/src/a/inner.rs", "crates/x/src/b.rs"]]);
    }

    #[test]
    fn a_dependency_that_runs_up_is_told() {
        let package = |name: &str, uses: &str| serde_json::json!({ "name": name, "dependencies": [{ "name": uses, "kind": null }] });
        let packages = [package("meerkat-words", "meerkat-service"), package("meerkat-service", "meerkat-words")];
        assert_eq!(climbs(&packages), ["meerkat-words -> meerkat-service"]);
    }
}
