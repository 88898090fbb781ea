#!/usr/bin/env bash
# Unit, property and integration tests of all crates, and the examples in their documentation, with
# what `make test-build` has built.
set -euo pipefail
cd "$(dirname "$0")/.."
status=0
cargo test --profile ci --workspace --locked --no-fail-fast --lib --bins --tests || status=$?
cargo test --profile ci --workspace --locked --no-fail-fast --doc || status=$?
exit "$status"
