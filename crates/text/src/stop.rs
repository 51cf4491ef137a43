//! Ending a text at the first of several strings.

/// Stop strings that cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StopError {
    /// An empty string would stop every text before it begins.
    #[error("stop string {index} is empty")]
    Empty {
        /// Its place in the list.
        index: usize,
    },
}

/// What [`StopStrings::push`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StopOutput<'a> {
    /// Text that is certain not to be part of a stop string.
    pub emit: &'a str,
    /// The stop string that ended the text (its place in the list), if one did. Nothing comes after
    /// `emit` then.
    pub stopped: Option<usize>,
}

/// Looks for stop strings in a text that comes in parts.
///
/// The text ends where the first stop string is complete; if several are complete at the same
/// character, the longest counts. The stop string itself is never given out, not even in part, however
/// the text is cut into parts: held back is exactly the longest end of the text that begins a stop
/// string. Time: linear in the text, times the number of stop strings (Knuth, Morris, Pratt 1977).
#[derive(Clone, Debug)]
pub struct StopStrings {
    needles: Vec<Needle>,
    /// Text held back, and before it some that was given out.
    buffer: String,
    /// Bytes at the start of `buffer` already given out.
    emitted: usize,
    stopped: Option<usize>,
}

/// One stop string and how much of it the end of the text matches.
#[derive(Clone, Debug)]
struct Needle {
    bytes: Vec<u8>,
    /// For each length of a prefix: the length of its longest proper end that is again a prefix.
    borders: Vec<usize>,
    matched: usize,
}

impl Needle {
    fn new(text: &str) -> Self {
        let bytes = text.as_bytes().to_vec();
        let mut borders = vec![0, 0];
        for at in 1..bytes.len() {
            let next = advance(&bytes, &borders, borders[at], bytes[at]);
            borders.push(next);
        }
        Self {
            bytes,
            borders,
            matched: 0,
        }
    }

    /// Takes the next byte; says whether the string is now complete.
    fn push(&mut self, byte: u8) -> bool {
        self.matched = advance(&self.bytes, &self.borders, self.matched, byte);
        self.matched == self.bytes.len()
    }
}

/// The length of the longest prefix of `needle` that ends with `byte`, after one of length `matched`,
/// which is below the needle's length.
fn advance(needle: &[u8], borders: &[usize], mut matched: usize, byte: u8) -> usize {
    loop {
        if needle[matched] == byte {
            return matched + 1;
        }
        if matched == 0 {
            return 0;
        }
        matched = borders[matched];
    }
}

impl StopStrings {
    /// Stop strings for one text; none at all is fine.
    ///
    /// # Errors
    /// A stop string is empty.
    pub fn new<S: AsRef<str>>(stops: &[S]) -> Result<Self, StopError> {
        if let Some(index) = stops.iter().position(|s| s.as_ref().is_empty()) {
            return Err(StopError::Empty { index });
        }
        Ok(Self {
            needles: stops.iter().map(|s| Needle::new(s.as_ref())).collect(),
            buffer: String::new(),
            emitted: 0,
            stopped: None,
        })
    }

    /// Takes the next part of the text. After a stop, nothing more is taken or given.
    pub fn push(&mut self, text: &str) -> StopOutput<'_> {
        self.compact();
        let begin = self.emitted;
        if self.stopped.is_none() {
            let start = self.buffer.len();
            self.buffer.push_str(text);
            match self.search(text, start) {
                Some((index, end)) => {
                    self.stopped = Some(index);
                    self.buffer.truncate(end);
                    self.emitted = end;
                }
                None => {
                    let held = self.needles.iter().map(|n| n.matched).max().unwrap_or(0);
                    self.emitted = self.buffer.len() - held;
                }
            }
        }
        StopOutput {
            emit: &self.buffer[begin..self.emitted],
            stopped: self.stopped,
        }
    }

    /// The text has ended; returns what was held back.
    pub fn finish(&mut self) -> &str {
        let begin = std::mem::replace(&mut self.emitted, self.buffer.len());
        &self.buffer[begin..]
    }

    /// Forgets what was given out, once it is most of the buffer: so each byte moves but a few times.
    fn compact(&mut self) {
        if self.emitted > self.buffer.len() / 2 {
            self.buffer.drain(..self.emitted);
            self.emitted = 0;
        }
    }

    /// The stop string that ended the text (its place in the list), if one did.
    #[must_use]
    pub fn stopped(&self) -> Option<usize> {
        self.stopped
    }

    /// The first complete stop string in `text`, which lies at `start` in the buffer, and where it
    /// begins in the buffer.
    fn search(&mut self, text: &str, start: usize) -> Option<(usize, usize)> {
        for (end, byte) in (start + 1..).zip(text.bytes()) {
            let mut found: Option<(usize, usize)> = None;
            for (index, needle) in self.needles.iter_mut().enumerate() {
                let length = needle.bytes.len();
                if needle.push(byte) && found.is_none_or(|(_, begin)| end - length < begin) {
                    found = Some((index, end - length));
                }
            }
            if found.is_some() {
                return found;
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The definition, over a whole text: where it is cut and by which stop string.
    fn naive(stops: &[String], text: &str) -> (String, Option<usize>) {
        for end in 1..=text.len() {
            let complete = |stop: &String| text.as_bytes()[..end].ends_with(stop.as_bytes());
            let longest = (0..stops.len())
                .filter(|&at| complete(&stops[at]))
                .max_by_key(|&at| (stops[at].len(), std::cmp::Reverse(at)));
            if let Some(at) = longest {
                return (text[..end - stops[at].len()].to_owned(), Some(at));
            }
        }
        (text.to_owned(), None)
    }

    fn stop_strings(stops: &[String]) -> StopStrings {
        StopStrings::new(stops).unwrap_or_else(|e| panic!("{e}"))
    }

    /// Bytes of the longest end of `text` that is a proper prefix of a stop string.
    fn longest_held(stops: &[String], text: &str) -> usize {
        (0..=text.len())
            .rev()
            .find(|&n| {
                let end = &text.as_bytes()[text.len() - n..];
                n == 0
                    || stops
                        .iter()
                        .any(|s| s.len() > n && s.as_bytes().starts_with(end))
            })
            .unwrap_or(0)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        #[test]
        fn any_cut_gives_what_a_search_of_the_whole_gives(
            stops in proptest::collection::vec("[abé中]{1,4}", 0..4),
            parts in proptest::collection::vec("[abcé中è]{0,5}", 0..8),
        ) {
            let (want, by) = naive(&stops, &parts.concat());
            let mut machine = stop_strings(&stops);
            let mut got = String::new();
            let mut seen = String::new();
            for part in &parts {
                seen.push_str(part);
                let output = machine.push(part);
                got.push_str(output.emit);
                if output.stopped.is_some() {
                    break;
                }
                prop_assert_eq!(seen.len() - got.len(), longest_held(&stops, &seen));
            }
            prop_assert_eq!(machine.stopped(), by);
            got.push_str(machine.finish());
            prop_assert_eq!(got, want);
        }
    }

    #[test]
    fn a_stop_over_several_parts_is_never_shown() {
        let stops = ["</tool>".to_owned(), "<|end|>".to_owned()];
        let mut machine = stop_strings(&stops);
        let mut shown = String::new();
        for part in ["a <", "|e", "x <|en", "d|", ">", "after"] {
            shown.push_str(machine.push(part).emit);
        }
        assert_eq!(shown, "a <|ex ");
        assert_eq!(machine.stopped(), Some(1));
        assert_eq!(machine.finish(), "");
    }

    #[test]
    fn held_text_is_released_at_the_end() {
        let mut machine = stop_strings(&["END".to_owned()]);
        assert_eq!(machine.push("the EN").emit, "the ");
        assert_eq!(machine.finish(), "EN");
        assert_eq!(machine.finish(), "");
    }

    #[test]
    fn an_empty_stop_is_refused_and_a_long_text_is_linear() {
        assert_eq!(
            StopStrings::new(&["a", ""]).err(),
            Some(StopError::Empty { index: 1 })
        );
        let long = "a".repeat(100_000);
        let mut machine = stop_strings(&[format!("{long}b")]);
        for _ in 0..20 {
            machine.push(&long);
        }
        assert_eq!(machine.finish().len(), long.len());
    }
}
