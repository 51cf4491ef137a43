//! `models`: what is known by name, and what is in the cache.

use std::fmt::Write;
use std::path::Path;

use anyhow::Result;
use serde::Serialize;
use weights::catalogue::{self, CatalogueModel};
use weights::source::{Cache, CachedModel};

use crate::cli::ModelsArgs;
use crate::report;

#[derive(Serialize)]
struct Listing<'a> {
    cache_folder: &'a Path,
    models: Vec<Known<'a>>,
    others: Vec<Other<'a>>,
}

/// A model of the catalogue.
#[derive(Serialize)]
struct Known<'a> {
    name: &'a str,
    title: &'a str,
    architecture: &'a str,
    parameters: u64,
    quantisation: &'a str,
    licence: &'a str,
    bytes: u64,
    sha256: &'a str,
    is_default: bool,
    cached: bool,
    path: Option<&'a Path>,
}

/// A file of the cache that the catalogue doesn't know.
#[derive(Serialize)]
struct Other<'a> {
    reference: Option<&'a str>,
    path: &'a Path,
    bytes: u64,
}

/// Lists the models.
///
/// # Errors
/// When the cache can't be read.
pub(crate) fn run(args: &ModelsArgs) -> Result<()> {
    let cache = Cache::from_env()?;
    let cached = cache.list()?;
    let listing = Listing {
        cache_folder: cache.folder(),
        models: catalogue::models()
            .iter()
            .enumerate()
            .map(|(i, m)| known(i == 0, m, &cached))
            .collect(),
        others: cached
            .iter()
            .filter(|file| !is_known(file))
            .map(other)
            .collect(),
    };
    if args.json {
        return report::print_json(&listing, false);
    }
    report::print(&table(&listing)?)
}

fn known<'a>(is_default: bool, model: &'a CatalogueModel, cached: &'a [CachedModel]) -> Known<'a> {
    let is_it = |file: &&CachedModel| file.reference.as_deref() == Some(model.name.as_str());
    // One of another size is not taken for the model when it is run, either.
    let file = cached
        .iter()
        .find(|file| is_it(file) && file.bytes == model.bytes);
    Known {
        name: &model.name,
        title: &model.title,
        architecture: &model.architecture,
        parameters: model.parameters,
        quantisation: &model.quantisation,
        licence: &model.licence,
        bytes: model.bytes,
        sha256: &model.sha256,
        is_default,
        cached: file.is_some(),
        path: file.map(|file| file.path.as_path()),
    }
}

fn is_known(file: &CachedModel) -> bool {
    file.reference
        .as_deref()
        .is_some_and(|name| catalogue::find(name).is_some())
}

fn other(file: &CachedModel) -> Other<'_> {
    Other {
        reference: file.reference.as_deref(),
        path: &file.path,
        bytes: file.bytes,
    }
}

/// A file of the cache can be asked for by its name alone.
fn name_of_file(path: &Path) -> String {
    let name = path.file_name().unwrap_or(path.as_os_str());
    name.to_string_lossy().into_owned()
}

fn table(listing: &Listing<'_>) -> Result<String> {
    let mut text = String::new();
    let header = ["NAME", "SIZE", "CACHED", "FORMAT", "LICENCE", "TITLE"];
    let mut rows = vec![header.map(str::to_owned)];
    rows.extend(listing.models.iter().map(|model| {
        let default = if model.is_default { " (default)" } else { "" };
        [
            model.name.to_owned(),
            report::bytes(model.bytes),
            if model.cached { "yes" } else { "no" }.to_owned(),
            model.quantisation.to_owned(),
            model.licence.to_owned(),
            format!("{}{default}", model.title),
        ]
    }));
    let widths: [usize; 6] = std::array::from_fn(|i| {
        rows.iter()
            .map(|row| row[i].chars().count())
            .max()
            .unwrap_or(0)
    });
    for row in &rows {
        let cells: Vec<String> = row
            .iter()
            .zip(widths)
            .map(|(cell, w)| format!("{cell:<w$}"))
            .collect();
        writeln!(text, "{}", cells.join("  ").trim_end())?;
    }
    if !listing.others.is_empty() {
        writeln!(text, "\nAlso in the cache:")?;
    }
    for other in &listing.others {
        let name = other
            .reference
            .map_or_else(|| name_of_file(other.path), str::to_owned);
        writeln!(text, "{name}  {}", report::bytes(other.bytes))?;
    }
    writeln!(text, "\nCache: {}", listing.cache_folder.display())?;
    Ok(text)
}
