# shellcheck shell=bash
# Sourced by every suite: a private work directory, volumes and mounts in it, results, and a clean-up that always runs.
#
#   KESTREL   the binary (default target/release/kestrel)
#   WORK      private directory, removed at the end with everything mounted or started below it
#
#   new_volume NAME [format options]     -> $VOLUME
#   mount_volume [mount options]         mounts $VOLUME at $MNT
#   umount_volume                        unmounts $MNT
#   kill_mount                           kill -9 of the mounting process, then clears the dead mount
#   check_volume                         kestrel fsck $VOLUME
#   ok TEXT / fail TEXT / skip TEXT      results;   summary prints and exits
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
KESTREL=${KESTREL:-$ROOT/target/release/kestrel}
TOOLS=${KESTREL_TOOLS:-$HOME/.cache/kestrel-tools}
JUDGE=${KESTREL_JUDGE:-$ROOT/target/release}
SUITE=$(basename "$0" .sh)
WORK=$(mktemp -d "${TMPDIR:-/var/tmp}/kestrel-$SUITE.XXXXXX")
MNT=$WORK/mnt
VOLUME=$WORK/volume
PASSED=0 FAILED=0 SKIPPED=0
PIDS=()
mkdir -p "$MNT"
export KESTREL WORK MNT

# Unmounts everything below WORK, innermost first, whatever state it is in.
clear_mounts() {
    local point pid
    while read -r point; do
        "$KESTREL" umount --force "$point" >/dev/null 2>&1 || umount -l "$point" 2>/dev/null || true
    done < <(awk -v work="$WORK/" 'index($5, work) == 1 { print $5 }' /proc/self/mountinfo | sort -r)
}

# Processes whose command line names WORK and that serve a mount: only our own can.
kill_servers() {
    local pid
    for pid in "${PIDS[@]:-}"; do
        [ -n "$pid" ] && kill -9 "$pid" 2>/dev/null || true
    done
    while read -r pid; do
        kill -9 "$pid" 2>/dev/null || true
    done < <(pgrep -f -- "kestrel mount .*$WORK" || true)
}

clean_up() {
    local status=$?
    trap - EXIT INT TERM
    set +e
    cd /
    kill_servers
    clear_mounts
    if [ "$status" != 0 ] && [ -n "${KEEP:-}" ]; then
        echo "kept: $WORK"
    else
        rm -rf --one-file-system "$WORK"
    fi
    exit "$status"
}
trap clean_up EXIT
trap 'exit 130' INT TERM

ok() { PASSED=$((PASSED + 1)); echo "ok   $SUITE: $*"; }
fail() { FAILED=$((FAILED + 1)); echo "FAIL $SUITE: $*"; }
skip() { SKIPPED=$((SKIPPED + 1)); echo "skip $SUITE: $*"; }

# Runs a command quietly; its output is shown if it fails.
check() {
    local text=$1
    shift
    if "$@" >"$WORK/check.out" 2>&1; then
        ok "$text"
    else
        tail -n 40 "$WORK/check.out"
        fail "$text"
        return 1
    fi
}

summary() {
    echo "$SUITE: $PASSED passed, $FAILED failed, $SKIPPED skipped"
    [ "$FAILED" = 0 ]
    exit
}

new_volume() {
    VOLUME=$WORK/$1
    shift
    "$KESTREL" format "$VOLUME" "$@" >/dev/null
}

mount_volume() { "$KESTREL" mount "$VOLUME" "$MNT" --allow-other "$@" >/dev/null; }
umount_volume() { "$KESTREL" umount "$MNT" >/dev/null; }
check_volume() { "$KESTREL" fsck "$VOLUME" "$@"; }

mount_pid() {
    "$KESTREL" status "$VOLUME" --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["pid"])'
}

kill_mount() {
    local pid
    pid=$(mount_pid)
    kill -9 "$pid"
    wait_gone "$pid"
    umount -l "$MNT"
}

# Waits up to 10 s until a process is gone (it need not be our child).
wait_gone() {
    local i
    for i in $(seq 1000); do
        kill -0 "$1" 2>/dev/null || return 0
        sleep 0.01
    done
    echo "process $1 does not end after $i tries" >&2
    return 1
}
