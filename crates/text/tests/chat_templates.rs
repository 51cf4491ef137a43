//! Chat templates against what `transformers` renders (`tools/oracle_text/templates.py`).
#![allow(clippy::print_stderr)]

mod common;

use std::{collections::BTreeSet, fs};

use common::{fixtures, json, model_tokenizer};
use serde_json::{Map, Value, json};
use text::{ChatTemplate, RenderInput, TemplateError};

/// The time at which the reference rendered.
fn now() -> text::template::DateTime {
    text::template::DateTime::new(2024, 7, 6, 9, 5, 3, 42_000).unwrap_or_else(|e| panic!("{e}"))
}

fn template(source: &str) -> ChatTemplate {
    ChatTemplate::new(source, Some("<bos>"), Some("<eos>")).unwrap_or_else(|e| panic!("{e}"))
}

fn render(template: &ChatTemplate, conversation: &Value) -> Result<String, TemplateError> {
    template.render(&RenderInput {
        messages: conversation["messages"]
            .as_array()
            .map_or(&[], Vec::as_slice),
        tools: conversation.get("tools"),
        add_generation_prompt: conversation["add_generation_prompt"] == true,
        extra: conversation.get("extra").and_then(Value::as_object),
        now: now(),
    })
}

/// What differs between a rendering and its expectation, if anything does.
fn difference(found: &Result<String, TemplateError>, wanted: &Value) -> Option<String> {
    let fits = match (found, wanted.get("text"), wanted.get("raised")) {
        (Ok(text), Some(wanted), _) => text == wanted,
        (Err(TemplateError::Raised { message, .. }), _, Some(wanted)) => message == wanted,
        (Err(TemplateError::Template { .. }), None, None) => true,
        _ => false,
    };
    if fits {
        return None;
    }
    let found = match found {
        Ok(text) => text.clone(),
        Err(error) => error.to_string(),
    };
    let wanted = wanted["text"]
        .as_str()
        .map_or_else(|| wanted.to_string(), str::to_owned);
    let lines = found.lines().zip(wanted.lines()).filter(|(a, b)| a != b);
    let lines: Vec<String> = lines
        .take(5)
        .map(|(a, b)| format!("  found  {a:?}\n  wanted {b:?}"))
        .collect();
    Some(match lines.is_empty() {
        true => format!("found {found:?}\nwanted {wanted:?}"),
        false => lines.join("\n"),
    })
}

#[test]
fn our_templates_render_as_the_reference_does() {
    let conversations = json("templates/conversations.json");
    let expected = json("templates/expected.json");
    let mut problems = Vec::new();
    for (name, results) in expected.as_object().into_iter().flatten() {
        let path = fixtures().join(format!("templates/{name}.jinja"));
        let source =
            fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let template = match ChatTemplate::new(&source, Some("<bos>"), Some("<eos>")) {
            Ok(template) => template,
            Err(error) => {
                problems.push(format!("{name}: {error}"));
                continue;
            }
        };
        for index in 0..results.as_array().map_or(0, Vec::len) {
            let wanted = results[index]
                .as_u64()
                .map_or(&results[index], |i| &results[i as usize]);
            let found = render(&template, &conversations[index]);
            if let Some(difference) = difference(&found, wanted) {
                problems.push(format!("{name}, conversation {index}:\n{difference}"));
                break;
            }
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn every_template_is_compared() {
    let files: BTreeSet<String> = fs::read_dir(fixtures().join("templates"))
        .unwrap_or_else(|e| panic!("{e}"))
        .filter_map(|entry| {
            Some(
                entry
                    .ok()?
                    .file_name()
                    .to_str()?
                    .strip_suffix(".jinja")?
                    .to_owned(),
            )
        })
        .collect();
    let expected = json("templates/expected.json");
    let compared = expected.as_object().map(|o| o.keys().cloned().collect());
    assert_eq!(Some(files), compared);
}

#[test]
fn the_models_own_templates_render_as_the_reference_does() {
    let conversations = json("templates/conversations.json");
    let expected = json("templates/model_templates.json");
    for (file, results) in expected.as_object().into_iter().flatten() {
        let Some(tokenizer) = model_tokenizer(file) else {
            continue;
        };
        let template = template(tokenizer.chat_template().unwrap_or_default());
        let results = results.as_array().map_or(&[][..], Vec::as_slice);
        for (index, wanted) in results.iter().enumerate() {
            let found = render(&template, &conversations[index]);
            if let Some(difference) = difference(&found, wanted) {
                panic!("{file}, conversation {index}:\n{difference}");
            }
        }
        eprintln!(
            "compared: {} conversations with the template of {file}",
            results.len()
        );
    }
}

#[test]
fn a_conversation_becomes_tokens_with_one_bos() {
    let Some(tokenizer) = model_tokenizer("SmolLM2-135M-Instruct.Q4_1.gguf") else {
        return;
    };
    let template = ChatTemplate::of(&tokenizer).unwrap_or_else(|e| panic!("{e}"));
    let template = template.unwrap_or_else(|| panic!("the model has a template"));
    let messages = [
        json!({"role": "system", "content": "s"}),
        json!({"role": "user", "content": "Hi"}),
    ];
    let text = template
        .render(&RenderInput::new(&messages))
        .unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(
        text,
        "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    );
    let ids = tokenizer.encode_chat(&text);
    assert_eq!(ids, tokenizer.encode(&text, common::SPECIAL));
    assert_eq!(ids.iter().filter(|&&id| id == 1).count(), 3);
}

fn error(source: &str) -> TemplateError {
    match ChatTemplate::new(source, None, None) {
        Ok(template) => match template.render(&RenderInput::new(&[])) {
            Ok(text) => panic!("it rendered {} bytes", text.len()),
            Err(error) => error,
        },
        Err(error) => error,
    }
}

#[test]
fn errors_name_the_line() {
    let cases = [
        ("\n{% if %}", "(line 2)"),
        ("{% for x in y %}\n\n{{ x", "(line 3)"),
        ("a\n\n{{ messages[0].role.x }}", "(line 3)"),
        ("\n{{ 'a' | nofilter }}", "(line 2)"),
        ("\n{{ messages.nomethod() }}", "(line 2)"),
        (
            "\n\n\n{{ raise_exception('no ' ~ 1) }}",
            "refuses these messages: no 1 (line 4)",
        ),
        ("{{ {} | tojson(9, 9, 9, 9, 9) }}", "too many arguments"),
        ("{{ missing | tojson }}", "undefined is not JSON"),
        ("{{ strftime_now('%!') }}", "strftime_now"),
    ];
    for (source, wanted) in cases {
        let found = error(source).to_string();
        assert!(
            found.contains(wanted),
            "{found:?} should contain {wanted:?}"
        );
    }
}

#[test]
fn hostile_templates_end_with_an_error() {
    let nest = "{% set ns = namespace(x=[]) %}{% for i in range(99999) %}{% set ns.x = [ns.x] %}{% endfor %}";
    let cases = [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}".to_owned(),
        "{% for a in range(99999) %}{{ 'x' * 9999 }}{% endfor %}".to_owned(),
        "{{ 'x' * 99999999999 }}".to_owned(),
        "{% set ns = namespace(s='xxxxxxxx') %}{% for i in range(99) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}".to_owned(),
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}".to_owned(),
        format!("{nest}{{{{ ns.x | tojson }}}}"),
        format!("{nest}{{{{ ns.x }}}}"),
        format!("{nest}{{{{ ns.x | string | length }}}}"),
        format!("{nest}{{{{ ns.x == ns.x }}}}{{{{ raise_exception('end') }}}}"),
        format!("{nest}{{{{ raise_exception('dropped') }}}}"),
        "{{ 'a'.ljust(99999999999) }}".to_owned(),
        "{{ [1] | tojson(indent=999999999) | length }}{{ raise_exception('end') }}".to_owned(),
        "(".repeat(100_000),
        "{{".to_owned() + &"(".repeat(100_000),
        "{{ ".to_owned() + &"[".repeat(100_000),
        "{{ a".to_owned() + &".b".repeat(1_000) + " }}",
        "{% if a %}".repeat(6_000),
        "{{ ".to_owned() + &"not ".repeat(15_000) + "a }}",
        "{{ ".to_owned() + &"-".repeat(60_000) + "1 }}",
        "{{ 1".to_owned() + &" + 1".repeat(15_000) + "}}{{ raise_exception('end') }}",
        "{{ 1".to_owned() + &" ~ 1".repeat(15_000) + "}}{{ raise_exception('end') }}",
        ("{{ a".to_owned() + &" + 1".repeat(500) + "}}").repeat(30),
        ("{{ 1".to_owned() + &"~1".repeat(1_000) + "}}").repeat(10),
        ("{{ ".to_owned() + &"not ".repeat(500) + "a }}").repeat(30),
        "{{ x".to_owned() + &"|e".repeat(1_000) + "}}{{ raise_exception('end') }}",
        "{{ x".to_owned() + &"[0]".repeat(600) + "}}",
        "{{ x".to_owned() + &"()".repeat(1_000) + "}}",
        "{{ 1".to_owned() + &" if 1 else 1".repeat(150) + "}}",
        format!("{{% for j in range(40) %}}{nest}{{% endfor %}}{{{{ raise_exception('end') }}}}"),
        format!("{}{}{{{{ nx.x == ns.x }}}}", nest.replace("ns", "nx"), nest),
        format!("{nest}{{{{ {{ns.x: 1}} }}}}"),
        format!("{nest}{{{{ [ns.x, ns.x] | sort | length }}}}"),
        " ".repeat(300_000),
    ];
    for source in cases {
        eprintln!("hostile: {}", &source[..source.len().min(60)]);
        let start = std::time::Instant::now();
        if source.starts_with('(') {
            let text = template(&source).render(&RenderInput::new(&[]));
            assert_eq!(text.as_deref(), Ok(source.as_str()));
        } else {
            let result = ChatTemplate::new(&source, None, None)
                .and_then(|t| t.render(&RenderInput::new(&[])));
            let shown = result.map_or_else(|e| e.to_string(), |t| format!("{} bytes", t.len()));
            eprintln!("  {} {:?}", &shown[..shown.len().min(100)], start.elapsed());
        }
        // Of the clock, for the work is done on another thread.
        assert!(start.elapsed().as_secs() < 600);
    }
}

#[test]
fn inputs_of_the_wrong_form_are_named() {
    let template = template("{{ messages | length }}");
    let render = |messages: &[Value], tools: Option<&Value>, extra: Option<&Map<String, Value>>| {
        let input = RenderInput {
            tools,
            extra,
            ..RenderInput::new(messages)
        };
        template.render(&input).err().map(|e| e.to_string())
    };
    let user = json!({"role": "user"});
    let not_an_object = render(&[user.clone(), json!("text")], None, None);
    assert_eq!(not_an_object.as_deref(), Some("message 1 is not an object"));
    let tools = render(&[], Some(&json!({})), None);
    assert_eq!(tools.as_deref(), Some("tools is not an array"));
    let mut deep = json!(1);
    for _ in 0..200 {
        deep = json!([deep]);
    }
    let content = render(
        &[json!({"role": "user", "content": deep.clone()})],
        None,
        None,
    );
    assert_eq!(
        content.as_deref(),
        Some("message 0 is nested more than 128 levels deep")
    );
    let extra = Map::from_iter([("a".to_owned(), deep)]);
    let extra = render(&[user], None, Some(&extra));
    assert_eq!(
        extra.as_deref(),
        Some("variable a is nested more than 128 levels deep")
    );
}

#[test]
fn fromjson_reads_what_tojson_writes() {
    let template =
        template("{% set v = messages[0].content | fromjson %}{{ v.a[1] }} {{ v | tojson }}");
    let text = template.render(&RenderInput::new(&[
        json!({"content": "{\"b\": 1.5, \"a\": [1, \"é\"]}"}),
    ]));
    assert_eq!(text.as_deref(), Ok("é {\"b\": 1.5, \"a\": [1, \"é\"]}"));
    assert!(
        error("{{ 'x' | fromjson }}")
            .to_string()
            .contains("fromjson")
    );
}
