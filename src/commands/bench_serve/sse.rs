//! Server-sent events, as far as OpenAI's streams use them.
//! Source: the HTML standard, section "Server-sent events".

use std::fmt;

/// The longest line that is read, in bytes.
const LINE_BYTES_MAX: usize = 1 << 20;

/// What comes of a stream.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// Data of an event, its lines joined.
    Data(String),
    /// What llama.cpp's older servers send in a field of its own.
    Error(String),
}

/// The stream is none of events.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Malformed(pub(super) String);

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Puts events together from bytes as they come.
#[derive(Debug, Default)]
pub(super) struct Parser {
    line: Vec<u8>,
    data: Option<String>,
}

impl Parser {
    /// Takes bytes and gives the events that they end.
    ///
    /// # Errors
    /// When a line is too long or not UTF-8.
    pub(super) fn push(&mut self, bytes: &[u8], events: &mut Vec<Event>) -> Result<(), Malformed> {
        let mut rest = bytes;
        while let Some(end) = rest.iter().position(|&byte| byte == b'\n') {
            self.extend(&rest[..end])?;
            rest = &rest[end + 1..];
            self.end_line(events)?;
        }
        self.extend(rest)
    }

    fn extend(&mut self, bytes: &[u8]) -> Result<(), Malformed> {
        let held = self.data.as_ref().map_or(0, String::len);
        if held + self.line.len() + bytes.len() > LINE_BYTES_MAX {
            let problem = format!("an event is longer than {LINE_BYTES_MAX} bytes");
            return Err(Malformed(problem));
        }
        self.line.extend_from_slice(bytes);
        Ok(())
    }

    fn end_line(&mut self, events: &mut Vec<Event>) -> Result<(), Malformed> {
        let line = std::mem::take(&mut self.line);
        let line = line.strip_suffix(b"\r").unwrap_or(&line);
        let line = std::str::from_utf8(line)
            .map_err(|error| Malformed(format!("an event is not UTF-8: {error}")))?;
        if line.is_empty() {
            events.extend(self.data.take().map(Event::Data));
            return Ok(());
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "data" => match &mut self.data {
                Some(data) => {
                    data.push('\n');
                    data.push_str(value);
                }
                None => self.data = Some(value.to_owned()),
            },
            "error" => events.push(Event::Error(value.to_owned())),
            // Comments have no name; other fields mean nothing here, as the standard wants it.
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// The events of a stream that comes in pieces of so many bytes.
    fn events(stream: &[u8], piece: usize) -> Result<Vec<Event>, Malformed> {
        let (mut parser, mut events) = (Parser::default(), Vec::new());
        for piece in stream.chunks(piece) {
            parser.push(piece, &mut events)?;
        }
        Ok(events)
    }

    #[test]
    fn events_are_the_same_however_the_bytes_come() {
        let stream = ": hello\r\n\r\nid: 1\ndata: {\"é\":1}\n\ndata:a\r\ndata: b\r\n\r\n\n\nerror: e\ndata: lost";
        let expected = [
            Event::Data("{\"é\":1}".into()),
            Event::Data("a\nb".into()),
            Event::Error("e".into()),
        ];
        for piece in 1..=stream.len() {
            assert_eq!(events(stream.as_bytes(), piece).unwrap(), expected);
        }
    }

    #[test]
    fn what_is_no_stream_of_events_is_told() {
        assert!(
            events(b"data: \xff\n\n", 3)
                .unwrap_err()
                .0
                .contains("UTF-8")
        );
        let long = vec![b'x'; LINE_BYTES_MAX + 1];
        assert!(events(&long, 4096).unwrap_err().0.contains("longer than"));
        // Many short lines of one event are no way around it.
        let lines = b"data: 0123456789\n".repeat(LINE_BYTES_MAX / 10);
        assert!(events(&lines, 4096).unwrap_err().0.contains("longer than"));
    }
}
