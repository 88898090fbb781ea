//! The tests that compare the library with what a program is told: `kestrel.h` and `kestrel.map`.
//! Both and the sources are read as text, in the one form in which they are written.

use std::collections::{BTreeMap, BTreeSet};

const HEADER: &str = include_str!("../include/kestrel.h");
const MAP: &str = include_str!("../kestrel.map");
const SOURCES: [&str; 10] = [
    include_str!("boundary.rs"),
    include_str!("dirs.rs"),
    include_str!("files.rs"),
    include_str!("log.rs"),
    include_str!("many.rs"),
    include_str!("names.rs"),
    include_str!("queue.rs"),
    include_str!("structs.rs"),
    include_str!("submit.rs"),
    include_str!("volume.rs"),
];

/// A text without what stands between two marks and directives of the preprocessor, and with single
/// spaces.
fn without(text: &str, (begin, end): (&str, &str)) -> String {
    let mut kept = String::new();
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let text = lines.collect::<Vec<_>>().join("\n");
    for part in text.split(begin).enumerate() {
        match part {
            (0, first) => kept.push_str(first),
            (_, rest) => kept.push_str(rest.split_once(end).unwrap().1),
        }
    }
    kept.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// A type of Rust's as C writes it.
fn c_type(rust: &str) -> String {
    if let Some(to) = rust.strip_prefix("*const ") {
        return match to.starts_with('*') {
            // A pointer that is not changed, to pointers.
            true => format!("{}const *", c_type(to)),
            false => format!("const {} *", c_type(to)),
        };
    }
    if let Some(to) = rust.strip_prefix("*mut ") {
        return format!("{} *", c_type(to));
    }
    let name = match rust {
        "c_char" => "char",
        "c_int" => "int",
        "c_void" => "void",
        "usize" => "size_t",
        "u32" => "uint32_t",
        "u64" => "uint64_t",
        "i32" => "int32_t",
        "i64" => "int64_t",
        own => own,
    };
    name.to_string()
}

/// The type of a parameter or field of C: handles are `int64_t`.
fn declared(text: &str) -> String {
    let text = text.trim();
    let name = text.rfind(|at: char| !at.is_alphanumeric() && at != '_').map_or(0, |at| at + 1);
    let kind = text[..name].trim();
    match kind {
        "kestrel_volume" | "kestrel_file" | "kestrel_dir" | "kestrel_queue" | "kestrel_log" => {
            "int64_t".into()
        }
        kind => kind.replace("* const *", "*const *"),
    }
}

/// By name: what each function returns and takes, as C writes it.
type Functions = BTreeMap<String, Vec<String>>;

fn functions_of_header() -> Functions {
    let text = without(HEADER, ("/*", "*/"));
    let mut all = Functions::new();
    for statement in text.split([';', '}', '{']) {
        let Some((before, arguments)) = statement.split_once('(') else { continue };
        let Some(name) = before.rsplit([' ', '*']).next().filter(|it| it.starts_with("kestrel_"))
        else {
            continue;
        };
        let before = before.rsplit('"').next().unwrap();
        let mut types = vec![declared(before)];
        let arguments = arguments.trim_end().strip_suffix(')').unwrap();
        types.extend(arguments.split(',').filter(|it| *it != "void").map(declared));
        all.insert(name.to_string(), types);
    }
    all
}

fn functions_of_sources() -> Functions {
    let mut all = Functions::new();
    for part in SOURCES.iter().flat_map(|source| source.split("extern \"C\" fn ").skip(1)) {
        let (name, rest) = part.split_once('(').unwrap();
        let (arguments, rest) = rest.split_once(')').unwrap();
        let (returned, body) = rest.split_once('{').unwrap();
        let returned = returned.trim().strip_prefix("-> ").unwrap_or("c_void");
        let mut types = vec![c_type(returned)];
        let arguments = arguments.split(',').filter_map(|it| it.split_once(':'));
        types.extend(arguments.map(|(_, kind)| c_type(kind.trim())));
        all.insert(name.to_string(), types);
        let is_guarded = ["guarded", "let text = TEXT.try_with", "const VERSION", "// SAFETY"];
        assert!(is_guarded.iter().any(|word| body.trim_start().starts_with(word)), "{name}");
    }
    all
}

/// Each function has the types that the header declares, and is exported; nothing else is.
#[test]
fn functions_as_declared_and_exported() {
    let (header, sources) = (functions_of_header(), functions_of_sources());
    assert!(sources.len() > 60, "{sources:?}");
    for (name, types) in &sources {
        assert_eq!(header.get(name), Some(types), "{name}");
    }
    let names: BTreeSet<&str> = header.keys().map(String::as_str).collect();
    assert_eq!(names, sources.keys().map(String::as_str).collect());
    let map = without(MAP, ("/*", "*/"));
    let exported = map.split([' ', ';']).filter(|word| word.starts_with("kestrel_"));
    assert_eq!(names, exported.collect());
}

/// Fields of each struct, as C writes them.
fn structs(text: &str, (begin, end): (&str, &str), field: impl Fn(&str) -> String) -> Functions {
    let mut all = Functions::new();
    for part in text.split(begin).skip(1) {
        let (name, rest) = part.split_once('{').unwrap();
        let (body, _) = rest.split_once('}').unwrap();
        let fields = body.split(end).map(str::trim).filter(|it| !it.is_empty());
        all.insert(name.trim().to_string(), fields.map(&field).collect());
    }
    all
}

/// "TYPE NAME", with the length of an array.
fn c_field(text: &str) -> String {
    let (text, len) = text.split_once('[').map_or((text, ""), |(text, len)| (text, len));
    let name = text.rsplit([' ', '*']).next().unwrap();
    format!("{} {name} {}", declared(text), len.trim_end_matches(']'))
}

fn rust_field(text: &str) -> String {
    let (name, kind) = text.trim_start_matches("pub ").split_once(": ").unwrap();
    let kind = kind.trim_start_matches('[').trim_end_matches(']');
    let (kind, len) = kind.split_once("; ").unwrap_or((kind, ""));
    format!("{} {} {len}", c_type(kind), name.trim_start_matches("r#"))
}

/// Each struct has the fields that the header declares, and its size is known.
#[test]
fn structs_as_declared() {
    use crate::structs::*;
    let header = without(HEADER, ("/*", "*/"));
    let header = structs(&header, ("typedef struct ", ";"), c_field);
    let sources = without(include_str!("structs.rs"), ("impl ", "\n}\n"));
    let sources = structs(&sources, ("pub struct ", ","), rust_field);
    assert!(sources.len() == 9, "{sources:?}");
    assert_eq!(header, sources);
    // Of 64-bit machines. A number that changes is another SONAME, but for options.
    let sizes = [
        size_of::<kestrel_attributes>(),
        size_of::<kestrel_dirent>(),
        size_of::<kestrel_room>(),
        size_of::<kestrel_completion>(),
        size_of::<kestrel_content>(),
        size_of::<kestrel_listing>(),
        size_of::<kestrel_name>(),
    ];
    assert_eq!(sizes, [128, 408, 64, 32, 32, 32, 24]);
    assert_eq!((size_of::<kestrel_options>(), size_of::<kestrel_log_options>()), (32, 16));
}
