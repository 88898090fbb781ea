#!/usr/bin/env bash
# Strangers that crowd a server on loopback: connections that send a byte and no more, hundreds of
# them, opened again whenever they are cut off, keep no mount waiting; and thousands of refused
# connections leave a few lines in the log.
# shellcheck shell=bash disable=SC2034
set -euo pipefail
KESTREL_SERVE=1
. "$(dirname "$0")/../lib.sh"
needs_kestrel
here=$(cd "$(dirname "$0")" && pwd)

volume=$WORK/volume
make_volume "$volume"
check "3000 connections are refused" timeout 120 python3 "$here/crowd.py" refused \
    "$(serve_address "$volume")" 3000
few() {
    [ "$(grep -c 'connection refused' "$volume/serve.log")" -le "$1" ] &&
        [ "$(stat -c %s "$volume/serve.log")" -lt 65536 ]
}
# 5 a minute about one address.
check "and few are told of in the log" few 15

# crowded COUNT: mounts while so many strangers hold connections. The server gives a stranger 10 s;
# the mount does not wait for that.
crowded() {
    local count=$1 kept mounted=
    coproc CROWD { exec python3 "$here/crowd.py" slow "$(serve_address "$volume")" "$count"; }
    read -r -t 60 kept <&"${CROWD[0]}" && [ "$kept" = ready ] || return 1
    # A busy machine may keep a mount from running for that long: one of three is enough.
    for _ in 1 2 3; do
        "$KESTREL" mount "$(serve_url "$volume")" "$WORK/mnt" --deadline 7s >/dev/null &&
            mounted=1 && break
    done
    local input=${CROWD[1]} output=${CROWD[0]}
    eval "exec $input>&-"
    read -r -t 60 kept <&"$output" || return 1
    wait "$CROWD_PID" || return 1
    [ -n "$mounted" ] && umount_volume "$WORK/mnt"
}
mkdir "$WORK/mnt"
for count in 100 300 600; do
    check "a mount does not wait for $count slow strangers" crowded "$count"
done
check "and serves" sh \
    -c "'$KESTREL' mount '$(serve_url "$volume")' '$WORK/mnt' >/dev/null && touch '$WORK/mnt/file'"
check "unmounts" umount_volume "$WORK/mnt"
stop_server "$volume"
summary
