# Daily commands; `just` lists them.
default:
    @just --list

# Ask the default model something.
run prompt="Why is the sky blue?":
    cargo run --release -- run "{{prompt}}"

# All tests.
test:
    cargo test --release --workspace

# What must pass before a change lands.
ci:
    .ci/run

# Format and lint.
lint:
    cargo fmt --all
    cargo clippy --workspace --all-targets --release -- -D warnings

# Real models against transformers: all four instead of the default one.
oracle:
    PLAINCHANT_ORACLE=all cargo test --release -p plainchant-engine --test oracle -- --nocapture

# Speed of this machine's kernels, by format and instruction set.
kernels:
    cargo run --release -- bench --kernels

# Ratios against llama.cpp, alternating in one run.
peers *args:
    bench/peers/run {{args}}

# Fuzz the readers for some seconds.
fuzz seconds="60":
    PLAINCHANT_FUZZ_SECONDS={{seconds}} cargo test --release -p plainchant-weights --test fuzz_gguf -- --nocapture

# The official openai client and schemathesis against the server.
openai *args:
    tests/openai/run {{args}}

# The binary as it is given out.
dist:
    cargo build --profile dist
