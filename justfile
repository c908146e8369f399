# What developers run. `just` alone lists it.

_default:
    @just --list

# The definition of done: what the continuous integration runs.
verify:
    bash .ci/run

# Every test, as in the README.
test:
    cargo test

# Every test at its whole length; `cargo test` runs the long ones in a short form.
campaigns:
    MEERKAT_CAMPAIGNS=all cargo test

# The benchmarks, each with the ratio to its floor.
bench:
    cargo build --release --locked -p meerkat-surface-cli
    cargo bench -p meerkat-service
    cargo bench -p meerkat-recall
    cargo bench -p meerkat-surface-cli
    cargo bench -p meerkat-surface-rest
    cargo bench -p meerkat-surface-rpc
    cargo bench -p meerkat-surface-mcp
    cargo bench -p meerkat-store-postgres

# How large the house is: lines, imports that run up, circles, files that name an operation. Needs no built binary.
measure:
    cargo run --quiet -p meerkat-parity-tests --bin measure

# Writes generated files anew: error and event pages' collections, schemas, the session of docs/agent.md. Expectations are
# never written by a program.
bless:
    MEERKAT_BLESS=1 cargo test -p meerkat-surface-cli --test cli -- page::
    MEERKAT_BLESS=1 cargo test -p meerkat-errors -p meerkat-service -p meerkat-surface-rest -p meerkat-surface-rpc
    MEERKAT_BLESS=1 cargo test -p meerkat-parity-tests --test tidy

# One scenario on every surface and build: `just parity create-and-run`. `just parity F::sdk::000-create-and-run` makes no
# other build, so it is quick.
parity filter="":
    MEERKAT_CAMPAIGNS=parity cargo test -p meerkat-parity-tests --test parity -- {{filter}}
