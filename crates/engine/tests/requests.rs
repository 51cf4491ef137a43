//! Requests from submission to their last event, on a tiny model.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::sync::Arc;

use engine::{
    Engine, EngineError, EngineOptions, Event, FinishReason, Finished, Request, RequestId,
};
use kernels::isa::Isa;
use kernels::pages::KvType;
use kernels::pool::Pool;
use model::{Decoder, Logits, Memory, MemoryOptions, Model, Ops, Rows, Span, Step};
use state::TenantId;
use text::Tokenizer;
use weights::gguf::Gguf;
use weights::load::LoadOptions;

fn engine(context: usize, sequences: usize) -> Engine {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/tiny/llama-tied.gguf");
    let file = Gguf::open(path).unwrap();
    let pool = Pool::new(2);
    let model = Arc::new(Model::load(&file, &pool, LoadOptions::default()).unwrap());
    let tokenizer = Arc::new(Tokenizer::from_gguf(&file).unwrap());
    let options = EngineOptions {
        kv_type: KvType::F16,
        context,
        sequences,
        prefill_chunk: 8,
        ..EngineOptions::default()
    };
    Engine::new(model, tokenizer, Isa::best(), pool, options).unwrap()
}

fn request(prompt: &[u32], max_tokens: usize) -> Request {
    Request {
        prompt: prompt.to_vec(),
        max_tokens: Some(max_tokens),
        ignore_end: true,
        logits_hash: true,
        ..Request::default()
    }
}

fn run(engine: &mut Engine) -> Vec<Event> {
    let mut events = Vec::new();
    for _ in 0..10_000 {
        if engine.is_idle() {
            return events;
        }
        engine.step(&mut events).unwrap();
    }
    unreachable!("requests end");
}

fn end(events: &[Event], id: RequestId) -> &Finished {
    let mut ends = events.iter().filter_map(|event| match event {
        Event::Finished(finished) if finished.request == id => Some(finished),
        _ => None,
    });
    let end = ends.next().unwrap();
    assert_eq!(ends.next(), None, "exactly one end");
    end
}

fn answer(events: &[Event], id: RequestId) -> (String, Vec<u32>) {
    let (mut text, mut tokens) = (String::new(), Vec::new());
    for event in events {
        match event {
            Event::Token(token) if token.request == id => {
                text.push_str(&token.text);
                tokens.push(token.token);
            }
            Event::Finished(finished) if finished.request == id => text.push_str(&finished.text),
            _ => {}
        }
    }
    (text, tokens)
}

#[test]
fn many_requests_answer_as_each_alone() {
    let prompts: Vec<Vec<u32>> = (1..8u32)
        .map(|n| (0..n * 5).map(|i| (i * n) % 250).collect())
        .collect();
    let mut together = engine(128, 3);
    let ids: Vec<_> = prompts
        .iter()
        .map(|prompt| together.submit(request(prompt, 9)).unwrap())
        .collect();
    let events = run(&mut together);
    for (prompt, id) in prompts.iter().zip(ids) {
        let mut alone = engine(128, 1);
        let only = alone.submit(request(prompt, 9)).unwrap();
        let expected = run(&mut alone);
        assert_eq!(answer(&events, id), answer(&expected, only));
        assert_eq!(
            end(&events, id).logits_hash,
            end(&expected, only).logits_hash
        );
        assert_eq!(end(&events, id).generated_tokens, 9);
        assert_eq!(end(&events, id).prompt_tokens, prompt.len());
    }
}

#[test]
fn an_answer_ends_where_the_context_does() {
    let mut engine = engine(16, 1);
    let id = engine
        .submit(Request {
            max_tokens: None,
            ..request(&[1, 2, 3], 1)
        })
        .unwrap();
    let events = run(&mut engine);
    assert_eq!(end(&events, id).reason, FinishReason::Length);
    assert_eq!(end(&events, id).generated_tokens, 13);
}

#[test]
fn a_stop_text_ends_the_answer_and_is_not_part_of_it() {
    let prompt = [7, 8, 9, 10];
    let mut plain = engine(128, 1);
    let id = plain.submit(request(&prompt, 40)).unwrap();
    let (whole, _) = answer(&run(&mut plain), id);
    let chars: Vec<char> = whole.chars().collect();
    let stop: String = chars[chars.len() / 2..chars.len() / 2 + 3].iter().collect();
    let at = whole.find(&stop).unwrap();
    let mut stopped = engine(128, 1);
    let id = stopped
        .submit(Request {
            stop: vec![stop],
            ..request(&prompt, 40)
        })
        .unwrap();
    let events = run(&mut stopped);
    assert_eq!(answer(&events, id).0, whole[..at]);
    assert_eq!(end(&events, id).reason, FinishReason::Stop);
}

#[test]
fn cancelling_ends_a_request_and_spares_its_neighbours() {
    let mut engine = engine(128, 2);
    let ids: Vec<_> = (0..3)
        .map(|i| engine.submit(request(&[i, 20, 30], 30)).unwrap())
        .collect();
    let mut events = Vec::new();
    for _ in 0..5 {
        engine.step(&mut events).unwrap();
    }
    // One that runs, and one that waits.
    events.extend(engine.cancel(ids[0]).unwrap());
    events.extend(engine.cancel(ids[2]).unwrap());
    assert_eq!(engine.cancel(ids[0]).unwrap(), None, "it is gone");
    events.extend(run(&mut engine));
    assert_eq!(end(&events, ids[0]).reason, FinishReason::Cancelled);
    assert_eq!(end(&events, ids[2]).reason, FinishReason::Cancelled);
    assert_eq!(end(&events, ids[1]).generated_tokens, 30);
    let mut alone = self::engine(128, 1);
    let only = alone.submit(request(&[1, 20, 30], 30)).unwrap();
    assert_eq!(answer(&events, ids[1]), answer(&run(&mut alone), only));
}

#[test]
fn what_cannot_be_done_is_refused_with_the_numbers() {
    let mut engine = engine(16, 1);
    let refused = engine.submit(request(&[], 4)).unwrap_err();
    assert!(matches!(refused, EngineError::EmptyPrompt));
    let refused = engine.submit(request(&[1; 16], 4)).unwrap_err().to_string();
    assert!(
        refused.contains("16 tokens") && refused.contains("holds 16"),
        "{refused}"
    );
    let refused = engine
        .submit(request(&[999_999], 4))
        .unwrap_err()
        .to_string();
    assert!(
        refused.contains("999999") && refused.contains("280"),
        "{refused}"
    );
    assert!(engine.submit(request(&[1], 0)).is_err());
    let empty_stop = Request {
        stop: vec![String::new()],
        ..request(&[1], 4)
    };
    assert!(engine.submit(empty_stop).is_err());
    assert!(engine.is_idle());
}

/// The hash is over the little-endian bits of all rows but the last generated token's.
#[test]
fn the_logits_hash_is_what_it_is_said_to_be() {
    let prompt = [3, 1, 4, 1, 5];
    let mut engine = engine(64, 1);
    let id = engine.submit(request(&prompt, 6)).unwrap();
    let events = run(&mut engine);
    let (_, generated) = answer(&events, id);
    let tokens: Vec<u32> = prompt.iter().chain(&generated[..5]).copied().collect();
    let options = MemoryOptions {
        kv_type: KvType::F16,
        context: 64,
        sequences: 1,
        state_bytes: None,
        swap_bytes: 0,
    };
    let model = Arc::clone(engine.model());
    let mut memory = Memory::new(&model.architecture, options).unwrap();
    let mut decoder = Decoder::new(model, Ops::new(Isa::Scalar, Pool::new(1)), 64, 64).unwrap();
    let sequence = memory.create(TenantId::LOCAL).unwrap();
    let spans = [Span::tokens(sequence, 0, &tokens, Rows::All)];
    let mut hasher = blake3::Hasher::new();
    let mut rows = 0;
    let take = &mut |logits: Logits<'_>| {
        rows += 1;
        for value in logits.values {
            hasher.update(&value.to_le_bytes());
        }
    };
    decoder
        .forward(&mut memory, Step { spans: &spans }, take)
        .unwrap();
    assert_eq!(rows, prompt.len() + 6 - 1);
    let expected = hasher.finalize().to_hex().to_string();
    assert_eq!(end(&events, id).logits_hash, Some(expected));
}

#[test]
fn a_step_without_work_does_nothing() {
    let mut events = Vec::new();
    engine(16, 1).step(&mut events).unwrap();
    assert_eq!(events, []);
}

#[test]
fn more_prompt_than_a_step_holds_waits_its_turn() {
    let mut engine = engine(64, 4);
    let ids: Vec<_> = (0..4)
        .map(|i| engine.submit(request(&[i + 1; 60], 3)).unwrap())
        .collect();
    let events = run(&mut engine);
    assert!(ids.iter().all(|&id| end(&events, id).generated_tokens == 3));
}
