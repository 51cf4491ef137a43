//! How much code one tag holds.
//!
//! The engine folds constants anew at every level of an expression, which takes quadratic time in the
//! length of a chain such as `1 ~ 1 ~ 1 …`. So a tag's code is limited, not counting string literals,
//! which are long in real templates too.

/// Bytes of code that one tag may have; those in use have some hundreds.
const CODE_BYTES: usize = 2048;

/// The line of the first tag with too much code, from 1.
pub(super) fn first_too_long(source: &str) -> Option<usize> {
    let bytes = source.as_bytes();
    let mut at = 0;
    while let Some(found) = source[at..].find('{') {
        let start = at + found;
        at = match bytes.get(start + 1) {
            Some(b'#') => source[start..]
                .find("#}")
                .map_or(bytes.len(), |n| start + n + 2),
            Some(b'{') => match tag_end(bytes, start + 2, *b"}}") {
                (end, code) if code <= CODE_BYTES => end,
                _ => return Some(line_of(bytes, start)),
            },
            Some(b'%') => match tag_end(bytes, start + 2, *b"%}") {
                (end, code) if code <= CODE_BYTES => end,
                _ => return Some(line_of(bytes, start)),
            },
            _ => start + 1,
        };
    }
    None
}

fn line_of(bytes: &[u8], at: usize) -> usize {
    1 + bytes[..at].iter().filter(|&&b| b == b'\n').count()
}

/// Where the tag that begins before `at` ends, and how many bytes of it are code. A tag that does not
/// end has none: the engine refuses it, unless it is raw text.
fn tag_end(bytes: &[u8], mut at: usize, end: [u8; 2]) -> (usize, usize) {
    let start = at;
    let mut code = 0;
    let mut braces = 0_usize;
    let mut quote = None;
    while let Some(&byte) = bytes.get(at) {
        match (quote, byte) {
            (Some(_), b'\\') => at += 1,
            (Some(open), _) if byte == open => quote = None,
            (Some(_), _) => {}
            (None, b'\'' | b'"') => quote = Some(byte),
            (None, _) if braces == 0 && bytes[at..].starts_with(&end) => return (at + 2, code),
            (None, _) => {
                code += 1;
                match byte {
                    b'{' => braces += 1,
                    b'}' => braces = braces.saturating_sub(1),
                    _ => {}
                }
            }
        }
        at += 1;
    }
    (start, 0)
}

#[cfg(test)]
mod tests {
    use super::first_too_long;

    #[test]
    fn only_code_within_one_tag_counts() {
        let long = "x ".repeat(3000);
        for fine in [
            long.clone(),
            format!("{{{{ '{long}' ~ \"\\\"{long}\" }}}}"),
            format!("{{# {long} #}}"),
            format!("{{% raw %}}{{{{ {long} {{% endraw %}}"),
            "{{ a }}{% if b %}{{ {'c': {'d': 1}} }}{% endif %}".repeat(1000),
        ] {
            assert_eq!(first_too_long(&fine), None);
        }
        for bad in [
            format!("\n{{{{ {long} }}}}"),
            format!("{{{{ a }}}}\n{{% if {long} %}}"),
            format!("\n{{{{ {{1: {{}}}} ~ {long} }}}}"),
            format!("\n{{{{ '}}}}' ~ {long} }}}}"),
            format!("\n{{% set x = {{1: 2}} ~ '%}}' ~ {long} %}}"),
        ] {
            assert_eq!(first_too_long(&bad), Some(2), "{}", &bad[..30]);
        }
    }
}
