#!/usr/bin/env bash
# The wheel kestrelfs: built, installed into a clean virtual environment with pip from the file, and
# used without a mount: files, bursts of many files, processes that fork and spawn, fsspec, and bad
# input, on embedded and served volumes, snapshots and versions.
#
# PYTHON_ALL=1: also fsspec's own abstract suites, pandas and pyarrow, the type stubs by mypy, the
# recipes of docs/operations/python.md. PYTHON_TORCH=1: PyTorch, safetensors and zarr, and nothing
# else.
set -euo pipefail
. "$(dirname "$0")/../lib.sh"
needs_kestrel
package=$ROOT/crates/access/python
wheels=${CARGO_TARGET_DIR:-$ROOT/target}/wheels
all=${PYTHON_ALL:-} which=requirements-test.txt
[ -z "$all" ] || which=requirements-all.txt
torch=${PYTHON_TORCH:-}
[ -z "$torch" ] || which=requirements-torch.txt
export KESTREL PYTHONDONTWRITEBYTECODE=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_QUIET=1
# Servers and volumes of the tests are below it.
export TMPDIR=$WORK

# pytest_of DIR ARGUMENT…: runs tests in a directory that has no kestrelfs of its own.
pytest_of() (
    cd "$1"
    shift
    "$WORK/venv/bin/pytest" -q -p no:cacheprovider --timeout 60 "$@"
)
as_nobody() (
    cd "$1"
    shift
    setpriv --reuid 65534 --regid 65534 --clear-groups env \
        HOME="$WORK/nobody" TMPDIR="$WORK/nobody" KESTREL="$WORK/kestrel" \
        "$WORK/venv/bin/pytest" -q -p no:cacheprovider --timeout 60 "$@"
)

# Debian's Python, which every user can run.
python=/usr/bin/python3
[ -x "$python" ] || python=python3
"$python" -m venv "$WORK/probe"
# PyTorch is gigabytes large: once is enough.
probed=$which
[ -z "$torch" ] || probed=requirements-test.txt
if ! "$WORK/probe/bin/pip" install -r "$package/requirements-build.txt" -r "$package/$probed" \
    >"$WORK/pip.out" 2>&1; then
    tail -n 5 "$WORK/pip.out"
    echo "skipped: pip can't install what the tests need on this machine: nothing was tested"
    summary
    exit
fi
check "the wheel is built" "$ROOT/scripts/wheel.sh" ci
"$python" -m venv "$WORK/venv"
check "pip installs the file and nothing else" \
    "$WORK/venv/bin/pip" install --no-index "$wheels"/kestrelfs-*.whl
check "it needs no other package" "$WORK/venv/bin/python" -c 'import kestrelfs'
check "what the tests need is installed" "$WORK/venv/bin/pip" install -r "$package/$which"
# The tests lie elsewhere than the sources, so that the wheel is what is tested.
cp -r "$package/tests" "$WORK/tests"
if [ -n "$torch" ]; then
    check "data sets, loaders, checkpoints; safetensors; zarr" \
        pytest_of "$WORK/tests" --timeout 300 test_torch.py test_zarr.py
    summary
    exit
fi
check "files, bursts, processes, bad input" pytest_of "$WORK/tests" --ignore test_fsspec.py
# Without root, and so without FUSE.
mkdir -m 777 "$WORK/nobody"
cp "$KESTREL" "$WORK/kestrel"
chmod -R go+rX "$WORK/venv" "$WORK/tests" "$WORK/kestrel"
check "the same as a user without rights" \
    as_nobody "$WORK/tests" -k "embedded and not large" test_files.py
if [ -z "$all" ]; then
    # Without fsspec's own suites, and what needs pandas.
    check "fsspec by URL" pytest_of "$WORK/tests" test_fsspec.py \
        -k "not (TestCopy or TestGet or TestPut or TestOpen or TestPipe or pandas)"
else
    check "fsspec, by its own suites, with pandas and pyarrow" \
        pytest_of "$WORK/tests" test_fsspec.py
    check "the type stubs are true" \
        env -C "$package" "$WORK/venv/bin/mypy" --cache-dir "$WORK/mypy" kestrelfs
    check "the recipes of the documents work" \
        pytest_of "$WORK/tests" "$ROOT/tests/access/recipes.py"
fi
summary
