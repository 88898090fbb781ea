# A store of one's own for a test script: versitygw on a socket below $WORK, kestrel-s3proxy in
# front of it at a free port. Sourced by lib.sh; nothing runs until need_store or start_store is
# called (make_volume does with KESTREL_STORE=s3).
#
# Gives $S3_ENDPOINT, $S3_BUCKET, $CONTROL (the proxy's), $STORE_DIR (where versitygw keeps objects
# as files) and credentials in the environment; volume_url NAME; faults, no_faults, count.
# shellcheck shell=bash disable=SC2034,SC2119,SC2120

S3PY=$ROOT/tests/s3/s3.py
STORE_PID='' PROXY_PID=''

# wait_until SECONDS COMMAND…: true as soon as the command is.
wait_until() {
    local end=$((SECONDS + $1))
    shift
    until "$@" >/dev/null 2>&1; do
        [ "$SECONDS" -lt "$end" ] || return 1
        sleep 0.05
    done
}

# start_gateway: versitygw in the background, when it answers. Its objects outlive it.
start_gateway() {
    rm -f "$WORK/s3.sock"
    versitygw --port "$WORK/s3.sock" --keep-alive --quiet --access "$AWS_ACCESS_KEY_ID" \
        --secret "$AWS_SECRET_ACCESS_KEY" \
        posix "$STORE_DIR" >"$WORK/versitygw.log" 2>&1 9>&- &
    STORE_PID=$!
    disown
    if ! wait_until 60 curl -s --unix-socket "$WORK/s3.sock" http://store/; then
        cat "$WORK/versitygw.log" >&2
        echo "versitygw does not answer" >&2
        exit 1
    fi
}

# start_store [SERVE OPTION OF THE PROXY…]
start_store() {
    command -v versitygw >/dev/null || {
        echo "no versitygw in $TOOLS/bin: run scripts/install-deps.sh" >&2
        exit 2
    }
    STORE_DIR=$WORK/store
    export AWS_ACCESS_KEY_ID=kestreltest AWS_SECRET_ACCESS_KEY=only-for-tests AWS_REGION=us-east-1 \
        S3_BUCKET=kestrel
    # Nothing of the machine's own may be found instead.
    unset AWS_SESSION_TOKEN AWS_PROFILE
    export AWS_EC2_METADATA_DISABLED=true
    mkdir -p "$STORE_DIR"
    start_gateway
    kestrel-s3proxy serve --store "unix:$WORK/s3.sock" --seed "${SEED:-1}" \
        --log "$WORK/requests.log" "$@" \
        >"$WORK/proxy.out" 2>"$WORK/proxy.err" 9>&- &
    PROXY_PID=$!
    disown
    wait_until 30 grep -q listening "$WORK/proxy.out" || {
        cat "$WORK/proxy.err" >&2
        exit 1
    }
    local address
    read -r _ address _ CONTROL <"$WORK/proxy.out"
    export S3_ENDPOINT=http://$address
    "$S3PY" mkbucket
}

# need_store: starts it if it does not run yet.
need_store() {
    [ -n "$PROXY_PID" ] || start_store
}

# volume_url PREFIX: what goes behind --storage.
volume_url() {
    echo "s3://$S3_BUCKET/$1?endpoint=$S3_ENDPOINT&region=us-east-1&path-style=true"
}

# faults RULE…: puts these rules in force in place of all others.
faults() {
    kestrel-s3proxy rules --control "$CONTROL" --set "$*"
}

no_faults() {
    faults
}

# reset_counts: counting begins anew.
reset_counts() {
    kestrel-s3proxy counts --control "$CONTROL" --reset >/dev/null
}

# count PATH…: a figure of the proxy's counts, as `count requests put`. 0 if there is none.
count() {
    kestrel-s3proxy counts --control "$CONTROL" | python3 -c '
import json, sys
found = json.load(sys.stdin)
for name in sys.argv[1:]:
    found = found.get(name, 0)
print(found)' "$@"
}
