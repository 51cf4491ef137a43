//! Prompts of a wanted number of tokens, made of words that are one token each in common vocabularies.

use anyhow::{Result, bail};
use engine::random::{Stream, uniform};
use text::EncodeOptions;

use super::client::Client;
use crate::{report, session};

/// Common words, each one token with a space before it in the vocabularies of SmolLM2, Qwen2.5, Gemma 3 and Llama 3.
const WORDS: &str = "\
time year people way day man thing woman life child world school state family student group country problem hand \
part place case week company system program question work government number night point home water room mother \
area money story fact month lot right study book eye job word business issue side kind head house service friend \
father power hour game line end member law car city community name president team minute idea body information \
back parent face level office door health person art war history party result change morning reason research girl \
guy moment air teacher force education foot boy age policy music market sense paper space ground form event \
official matter center couple site project activity star table need court oil situation cost industry figure street \
image phone data picture practice piece land product doctor wall patient worker news test movie north love support \
step film tree source hair window culture chance brother energy period course summer plant term stage light option \
color style bank box board field rate road card plan deal sound bed top blood order letter fire \
future south west east green blue red black white small large long short high low early late young old new good \
great little own other big different important public able best better sure clear full open free simple real";

/// The first word, so that all begin alike and cost the same beside their words.
const FIRST: &str = "The";
/// Requests to find out how many tokens a prompt has beside its words.
const ATTEMPTS: usize = 4;
/// Words with fewer left in a vocabulary make no distinct prompts.
const WORDS_MIN: usize = 16;
/// The part that all prompts of a run share.
const SHARED: u32 = 0;

/// Makes prompts.
#[derive(Debug)]
pub(super) struct Prompts {
    words: Vec<&'static str>,
    seed: u64,
    /// Tokens beside the words: those of the beginning and of a template.
    overhead: usize,
    /// Whether the server counted a prompt to be exactly what was asked for.
    pub(super) is_exact: bool,
}

impl Prompts {
    /// With the words that are one token each to the model `tokenizer`, or all of them.
    ///
    /// # Errors
    /// When that model can't be had, or knows too few of the words.
    pub(super) fn new(seed: u64, tokenizer: Option<&str>) -> Result<Self> {
        let mut words: Vec<&str> = WORDS.split_whitespace().collect();
        if let Some(model) = tokenizer {
            let tokenizer = session::tokenizer(&session::open(model)?)?;
            let plain = EncodeOptions {
                add_special: false,
                parse_special: false,
            };
            let tokens = |text: String| tokenizer.encode(&text, plain).len();
            let alone = tokens(FIRST.to_owned());
            words.retain(|word| tokens(format!("{FIRST} {word} {word}")) == alone + 2);
        }
        if words.len() < WORDS_MIN {
            let known = report::counted(words.len(), "word");
            bail!("--tokenizer knows only {known} as one token: prompts can't be made of them");
        }
        Ok(Self {
            words,
            seed,
            overhead: 0,
            is_exact: false,
        })
    }

    /// Asks the server how many tokens a prompt of `tokens` has beside its words.
    ///
    /// # Errors
    /// When it can't be asked, or a prompt without words is longer than that.
    pub(super) fn calibrate(&mut self, client: &Client, tokens: usize) -> Result<()> {
        for attempt in 0..ATTEMPTS {
            // Of a domain of its own each time, so that no prompt of the run is in a cache.
            let prompt = self.prompt(tokens, (0, SHARED), u32::MAX - attempt as u32);
            let Some(counted) = client.count_prompt_tokens(&prompt)? else {
                return Ok(());
            };
            self.is_exact = counted == tokens;
            if self.is_exact {
                return Ok(());
            }
            let needed = (self.overhead + counted).saturating_sub(tokens);
            if needed >= tokens {
                bail!(
                    "a prompt of {tokens} tokens can't be made: what the server adds takes about {needed} of them; \
                     ask for more with --prompt-tokens"
                );
            }
            self.overhead = needed;
        }
        Ok(())
    }

    /// The prompt number `index` of `tokens` tokens, of which the first `shared.0` are those of every prompt with
    /// the domain `shared.1`; prompts of other indices differ from the next word on.
    pub(super) fn prompt(&self, tokens: usize, shared: (usize, u32), index: u32) -> String {
        let words = tokens.saturating_sub(self.overhead).max(1);
        let of_shared = shared.0.saturating_sub(self.overhead);
        let mut text = FIRST.to_owned();
        for position in 1..words {
            let domain = match position < of_shared {
                true => shared.1,
                false => index,
            };
            let u = uniform(self.seed, position as u64, Stream::Token, domain);
            let word = (u * self.words.len() as f64) as usize;
            text.push(' ');
            text.push_str(self.words[word.min(self.words.len() - 1)]);
        }
        text
    }

    /// The prompt of request number `index`, its first `shared` tokens being those of all requests.
    pub(super) fn of_request(&self, tokens: usize, shared: usize, index: usize) -> String {
        self.prompt(tokens, (shared, SHARED), index as u32 + 1)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn words(prompt: &str) -> Vec<&str> {
        prompt.split(' ').collect()
    }

    #[test]
    fn words_are_distinct() {
        let mut words: Vec<&str> = WORDS.split_whitespace().collect();
        let count = words.len();
        words.sort_unstable();
        words.dedup();
        assert_eq!(words.len(), count);
    }

    #[test]
    fn prompts_have_their_length_and_share_what_is_asked() {
        let mut prompts = Prompts::new(7, None).unwrap();
        prompts.overhead = 3;
        let (a, b) = (prompts.of_request(40, 20, 0), prompts.of_request(40, 20, 1));
        let (a, b) = (words(&a), words(&b));
        assert_eq!((a.len(), b.len()), (37, 37));
        assert_eq!(a[..17], b[..17]);
        assert_ne!(a[17..], b[17..]);
    }

    #[test]
    fn prompts_follow_the_seed() {
        let prompt = |seed, index| Prompts::new(seed, None).unwrap().of_request(64, 0, index);
        assert_eq!(prompt(1, 5), prompt(1, 5));
        assert_ne!(prompt(1, 5), prompt(2, 5));
        assert_ne!(prompt(1, 5), prompt(1, 6));
    }
}
