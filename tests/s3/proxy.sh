#!/usr/bin/env bash
# The judge's own test: kestrel-s3proxy in front of versitygw, without the product. Without rules
# everything passes unchanged and signatures verify; each fault does what it says, to the requests
# it should, the same ones for the same seed.
set -euo pipefail
. "$(dirname "$0")/../lib.sh"

start_store --seed 7
if python3 "$ROOT/tests/s3/proxy.py" "$CONTROL" "$WORK"; then
    # proxy.py prints an "ok" line for each of its tests.
    # shellcheck disable=SC2034 # lib.sh's
    PASSED=$(grep -c . "$WORK/proxy.tests")
else
    fail "proxy.py"
fi
check "the request log has lines" grep -q ' put PUT /kestrel/' "$WORK/requests.log"
summary
