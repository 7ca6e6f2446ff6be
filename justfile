# Recipes are one line each; scripts live in ci/. `just` alone lists them.

faultlab := "cargo run --quiet --release --package faultlab --"

_default:
    @just --list

# Run one scenario under every tool, async and sync (a replay where there is no GPU): just scenario label-oob
scenario id *args:
    {{faultlab}} run {{id}} {{args}}

# Everything that CI's test job runs: unit, integration, golden and property tests
test *args:
    cargo test --workspace --locked {{args}}

# Golden captures to reports, against their snapshots: just golden --bless
golden *args:
    {{faultlab}} test {{args}}

# Record golden captures on this machine's GPU: just record --all
record *args:
    {{faultlab}} record {{args}}

# Write a report of an earlier run: just report faultlab-runs/X --format markdown
report dir *args:
    {{faultlab}} report {{dir}} {{args}}

# What this machine has, what is missing, and how to get it
doctor *args:
    {{faultlab}} doctor {{args}}

# The container images that cases run in: just images list, just images build cpu
images *args:
    {{faultlab}} images {{args}}

# Throughput of the parsers, and time of replay and golden suite
bench:
    ci/bench

# Formatting and lints, as CI checks them
lint:
    cargo fmt --all --check && cargo clippy --workspace --all-targets --locked -- -D warnings

# An hour of fuzzing over every parser: just fuzz 3600
fuzz seconds="3600":
    ci/fuzz {{seconds}}

# Remove what builds and runs left
clean:
    cargo clean && rm -rf faultlab-runs
