//! `strftime_now`.

use jiff::civil::DateTime;
use minijinja::{Error, ErrorKind};

/// Directives that Python's C locale writes in its own way, by others.
const IN_OTHER_WORDS: [(char, &str); 4] = [
    ('c', "%a %b %e %H:%M:%S %Y"),
    ('r', "%I:%M:%S %p"),
    ('x', "%m/%d/%y"),
    ('X', "%H:%M:%S"),
];

/// The time as Python's `datetime.strftime` writes one without a time zone.
pub(super) fn strftime(now: DateTime, format: &str) -> Result<String, Error> {
    let mut plain = String::with_capacity(format.len());
    let mut characters = format.chars();
    while let Some(c) = characters.next() {
        if c != '%' {
            plain.push(c);
            continue;
        }
        match characters.next() {
            // Without a time zone these are empty.
            Some('z' | 'Z') => {}
            Some('f') => plain.push_str(&format!("{:06}", now.subsec_nanosecond() / 1000)),
            Some(d) => match IN_OTHER_WORDS.iter().find(|(name, _)| *name == d) {
                Some((_, words)) => plain.push_str(words),
                None => plain.extend(['%', d]),
            },
            None => plain.push_str("%%"),
        }
    }
    jiff::fmt::strtime::format(&plain, now).map_err(|e| {
        Error::new(
            ErrorKind::InvalidOperation,
            format!("strftime_now({format:?}): {e}"),
        )
    })
}
