//! The tags `{% generation %}` and `{% endgeneration %}`.
//!
//! They mark the assistant's text for training and write nothing, but they open a scope and their
//! whitespace marks count. So each becomes a `with` block in place, on the same line.

/// The template with those tags replaced.
pub(super) fn neutralize(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("{%") {
        let (before, tag) = rest.split_at(at + 2);
        out.push_str(before);
        let lead = tag.len() - tag.trim_start_matches(['-', '+']).trim_start().len();
        let (space, body) = tag.split_at(lead);
        out.push_str(space);
        rest = body;
        for (name, replacement) in [("generation", "with"), ("endgeneration", "endwith")] {
            if let Some(after) = body.strip_prefix(name)
                && after
                    .trim_start()
                    .trim_start_matches(['-', '+'])
                    .starts_with("%}")
            {
                out.push_str(replacement);
                rest = after;
            }
        }
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::neutralize;

    #[test]
    fn only_whole_generation_tags_change() {
        assert_eq!(
            neutralize(
                "{% generation %}\n{%- endgeneration -%}{% generations %}{% if generation %}"
            ),
            "{% with %}\n{%- endwith -%}{% generations %}{% if generation %}"
        );
        assert_eq!(neutralize("{%\n generation\n-%}{%"), "{%\n with\n-%}{%");
        assert_eq!(neutralize("no tags"), "no tags");
    }
}
