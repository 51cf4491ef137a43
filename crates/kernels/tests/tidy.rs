//! The standard library's float functions stay out of the arithmetic.
//!
//! `f32::exp` and its like come from the platform and differ between platforms; `mul_add` is a slow call
//! where the CPU has no FMA; `f32::max` leaves open which zero it returns. Only `math` and `lanes` may use
//! them, and tests.

use std::fs;
use std::path::{Path, PathBuf};

/// Methods that only floats have, as they are called. (`sqrt` is also a method of `Lanes`, where it is
/// called as `V::sqrt(x)`.)
const METHODS: [&str; 31] = [
    "exp", "exp2", "exp_m1", "ln", "ln_1p", "log", "log2", "log10", "sqrt", "cbrt", "hypot", "sin",
    "cos", "tan", "sin_cos", "asin", "acos", "atan", "atan2", "sinh", "cosh", "tanh", "asinh",
    "acosh", "atanh", "powf", "powi", "mul_add", "recip", "gamma", "ln_gamma",
];
/// Functions that have a name in common with methods of other types, forbidden as paths.
const PATHS: [&str; 4] = ["max", "min", "maximum", "minimum"];

/// The forbidden calls in a source text, each with its line number.
fn forbidden(source: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut lines = source.lines().enumerate().peekable();
    while let Some((number, line)) = lines.next() {
        let inline_tests = line.trim() == "#[cfg(test)]"
            && lines
                .peek()
                .is_some_and(|(_, next)| next.contains("mod ") && next.contains('{'));
        if inline_tests {
            break;
        }
        let code = line.split("//").next().unwrap_or("");
        for method in METHODS {
            let calls = [
                format!(".{method}("),
                format!("f32::{method}"),
                format!("f64::{method}"),
            ];
            found.extend(
                calls
                    .iter()
                    .filter(|call| has(code, call))
                    .map(|call| (number + 1, call.clone())),
            );
        }
        for path in PATHS {
            let calls = [format!("f32::{path}"), format!("f64::{path}")];
            found.extend(
                calls
                    .iter()
                    .filter(|call| has(code, call))
                    .map(|call| (number + 1, call.clone())),
            );
        }
    }
    found
}

/// Whether `code` has `call` as whole words.
fn has(code: &str, call: &str) -> bool {
    code.match_indices(call).any(|(at, _)| {
        let word = |c: char| c.is_alphanumeric() || c == '_';
        let before = code[..at].chars().next_back();
        let after = code[at + call.len()..].chars().next();
        (call.starts_with('.') || !before.is_some_and(word))
            && (call.ends_with('(') || !after.is_some_and(word))
    })
}

fn rust_files(directory: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).expect("a directory") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            rust_files(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}

/// `math`, `lanes`, and test modules in files of their own.
fn may_use_floats(path: &Path) -> bool {
    path.components().any(|part| {
        let part = part.as_os_str().to_string_lossy();
        matches!(
            &*part,
            "math" | "math.rs" | "lanes" | "lanes.rs" | "tests" | "tests.rs"
        )
    })
}

#[test]
fn kernels_use_no_float_functions_of_the_standard_library() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    rust_files(&root, &mut files);
    assert!(files.len() > 10, "only {} files found", files.len());
    let mut complaints = Vec::new();
    for file in files {
        let name = file.strip_prefix(&root).expect("below the root");
        if may_use_floats(name) {
            continue;
        }
        let source = fs::read_to_string(&file).expect("source text");
        for (line, call) in forbidden(&source) {
            complaints.push(format!("src/{}:{line}: {call}", name.display()));
        }
    }
    assert!(
        complaints.is_empty(),
        "use crate::math, Lanes or libm instead of:\n{}",
        complaints.join("\n")
    );
}

#[test]
fn planted_calls_are_caught() {
    let lines = |source| {
        forbidden(source)
            .into_iter()
            .map(|(line, _)| line)
            .collect::<Vec<_>>()
    };
    assert_eq!(lines("let y = x.exp();"), [1]);
    assert_eq!(lines("let a = 1;\nlet y = a.mul_add(b, c);"), [2]);
    assert_eq!(lines("let y = (x * x).sqrt();"), [1]);
    assert_eq!(lines("x.iter().copied().map(f32::tanh)"), [1]);
    assert_eq!(lines("x.iter().copied().fold(0.0, f32::max)"), [1]);
    assert_eq!(lines("let y = f64::powi(x, 2) + x.powf(0.5);"), [1, 1]);
    // A declaration of a test module in another file doesn't end the search.
    assert_eq!(lines("#[cfg(test)]\nmod tests;\nlet y = x.ln();"), [3]);
}

#[test]
fn what_is_allowed_passes() {
    for source in [
        "let y = V::sqrt(x);",
        "let y = libm::exp(x);",
        "let y = math::exp(x); // not x.exp()",
        "/// Like `x.exp()`.",
        "let y = a.max(b).min(c).abs();",
        "let y = n.exp2_integral();",
        "let limit = f32::MAX; let tiny = f32::MIN_POSITIVE;",
        "fn run() {}\n#[cfg(test)]\nmod tests {\n    let y = x.exp();\n}",
    ] {
        assert_eq!(forbidden(source), [], "{source}");
    }
}
