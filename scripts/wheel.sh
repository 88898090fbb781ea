#!/usr/bin/env bash
# Builds the wheel kestrelfs into target/wheels: `make wheel`. Needs Python 3.11 or later with venv,
# and no packages of it: maturin goes to a virtual environment of its own below target/.
#
#   scripts/wheel.sh [PROFILE]   the profile of cargo, `release` by default
set -euo pipefail
cd "$(dirname "$0")/.."
profile=${1:-release}
target=${CARGO_TARGET_DIR:-$PWD/target}
package=$PWD/crates/access/python
build=$target/python-build
if ! cmp -s "$package/requirements-build.txt" "$build/installed.txt"; then
    rm -rf "$build"
    python3 -m venv "$build"
    "$build/bin/pip" install --quiet --disable-pip-version-check \
        -r "$package/requirements-build.txt"
    cp "$package/requirements-build.txt" "$build/installed.txt"
fi
rm -rf "$target/wheels"
"$build/bin/maturin" build --quiet --profile "$profile" --locked --strip \
    --manifest-path "$package/Cargo.toml" --out "$target/wheels"
ls "$target"/wheels/kestrelfs-*.whl
