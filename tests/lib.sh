# Common to all test scripts. Source it first:
#
#   . "$(dirname "$0")/../lib.sh"
#
# It gives $KESTREL (the binary), $WORK (a directory of this run alone), ok/fail/check, functions to
# make, mount, kill and check a volume, and a trap that takes every mount, process and file of this
# run away, however it ends.
#
# KESTREL=local runs a script on the local file system instead: the test is tested. KESTREL_STORE=s3
# keeps the volumes' data in an object store of this run's own (tests/s3/store.sh).
# KESTREL_METADATA=postgres keeps their metadata in a database of this run's own
# (tests/pg/server.sh), KESTREL_METADATA=bucket in the object store. KESTREL_ENCRYPT=1 encrypts
# them. KESTREL_SERVE=1 puts a server between: volumes are served on a loopback port and mounted
# from there (tests/cluster/serve.sh).
# KESTREL_NODES=3 serves them by a cluster of so many nodes. KESTREL_SHORTCUT=on|off and
# KESTREL_TRANSPORT=uring|device choose how the kernel is served (tests/shortcut/modes.sh).
# shellcheck shell=bash

set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
KESTREL=${KESTREL:-$ROOT/target/release/kestrel}
TOOLS=${KESTREL_TOOLS:-$HOME/.cache/kestrel-tools}
# The judges are built beside the binary.
JUDGES=${KESTREL_JUDGES:-$ROOT/target/release}
PATH=$JUDGES:$TOOLS/bin:$PATH
LOCAL=
[ "$KESTREL" = local ] && LOCAL=1
if [ -z "$LOCAL" ] && [ ! -x "$KESTREL" ]; then
    echo "no binary at $KESTREL: run make build, or set KESTREL" >&2
    exit 2
fi
if [ "$(id -u)" != 0 ]; then
    echo "must run as root" >&2
    exit 2
fi

# Not below /tmp, which may be memory.
WORK=$(mktemp -d "${TMPDIR:-/var/tmp}/kestrel-test.XXXXXX")
chmod 755 "$WORK"
PASSED=0
FAILED=0
SUMMARISED=
# A script's own commands for the end, however it ends: before mounts and servers are taken away,
# and after.
AT_END=true AFTER_ALL=true
# shellcheck source=tests/s3/store.sh
. "$ROOT/tests/s3/store.sh"
# shellcheck source=tests/pg/server.sh
. "$ROOT/tests/pg/server.sh"
# shellcheck source=tests/cluster/serve.sh
. "$ROOT/tests/cluster/serve.sh"
# shellcheck source=tests/shortcut/modes.sh
. "$ROOT/tests/shortcut/modes.sh"

ok() {
    PASSED=$((PASSED + 1))
    echo "ok   $*"
}

fail() {
    FAILED=$((FAILED + 1))
    echo "FAIL $*"
}

# counted COMMAND…: runs what tells "N passed, N failed" in the end, and adds that to ours. What
# does not tell it has failed.
counted() {
    local passed='' failed=''
    # Unbuffered: cut short, it leaves what it has come to.
    PYTHONUNBUFFERED=1 "$@" >"$WORK/counted.out" 2>&1 || true
    cat "$WORK/counted.out"
    read -r passed failed < <(sed -n 's/^\([0-9]*\) passed, \([0-9]*\) failed$/\1 \2/p' \
        "$WORK/counted.out" | tail -n 1) || true
    rm -f "$WORK/counted.out"
    PASSED=$((PASSED + ${passed:-0})) FAILED=$((FAILED + ${failed:-1}))
}

# check TEXT COMMAND…: ok if the command succeeds; its output is shown only if it fails.
check() {
    local text=$1 out=$WORK/check.out
    shift
    if "$@" >"$out" 2>&1; then
        ok "$text"
    else
        tail -n 60 "$out"
        fail "$text"
    fi
}

# prints PATTERN COMMAND…: it succeeds and prints a line that matches.
prints() {
    local pattern=$1
    shift
    "$@" >"$WORK/prints.out" || return
    grep -qE -- "$pattern" "$WORK/prints.out" || { cat "$WORK/prints.out" && return 1; }
}

# changes TEXT COMMAND…: a change of the placement map, tried again while something is in its way.
# CHANGE_SECONDS: how long one attempt may take.
changes() {
    local text=$1 try
    shift
    for ((try = 0; try < 8; try++)); do
        if timeout "${CHANGE_SECONDS:-120}" "$@" >"$WORK/change.out" 2>&1; then
            ok "$text"
            return
        fi
        sleep 1
    done
    cat "$WORK/change.out"
    fail "$text"
}

# refuses TEXT PATTERN COMMAND…: ok if the command fails and says something that matches, without a
# panic.
refuses() {
    local text=$1 pattern=$2 out=$WORK/refuses.out
    shift 2
    if "$@" >"$out" 2>&1; then
        fail "$text: it did not refuse"
    elif grep -q 'panicked' "$out" || ! grep -qiE -- "$pattern" "$out"; then
        tail -n 20 "$out"
        fail "$text: refused, without saying: $pattern"
    else
        ok "$text: $(tail -n 1 "$out" | cut -c1-200)"
    fi
}

# The last line and the exit status of a script.
summary() {
    SUMMARISED=1
    echo "$PASSED passed, $FAILED failed"
    [ "$FAILED" = 0 ]
}

# Directories below $WORK where something is mounted, the last first.
work_mounts() {
    awk -v work="$WORK/" 'index($5, work) == 1 { print $5 }' /proc/self/mountinfo | tac
}

cleanup() {
    local status=$? mount job volume
    trap - EXIT
    # Not to be cut short: timeout(1) sends what ends a script twice, to it and to its process
    # group.
    trap : INT TERM
    set +e
    cd /
    "$AT_END"
    for job in $(jobs -p); do
        kill -9 "$job" 2>/dev/null
    done
    # The store is no job: it stays until nothing is mounted any more, and does what it is asked.
    [ -z "$PROXY_PID" ] || no_faults
    if [ "$status" != 0 ] || [ "$FAILED" != 0 ]; then
        # What the mount said is part of a failure's report.
        for volume in "$WORK"/counted.out "$WORK"/*/mount.log "$WORK"/*/*/mount.log \
            "$WORK"/*/serve.log \
            "$WORK"/proxy.err; do
            if [ -s "$volume" ]; then
                echo "--- end of $volume"
                tail -n 25 "$volume"
            fi
        done
    fi
    for mount in $(work_mounts); do
        if [ -z "$LOCAL" ] && findmnt -n -o FSTYPE "$mount" 2>/dev/null | grep -q fuse; then
            timeout 30 "$KESTREL" umount "$mount" >/dev/null 2>&1 ||
                timeout 20 "$KESTREL" umount --force "$mount" >/dev/null 2>&1 || umount -l "$mount"
        else
            umount "$mount" 2>/dev/null || umount -l "$mount"
        fi
    done
    stop_servers
    for job in $STORE_PID $PROXY_PID; do
        kill -9 "$job" 2>/dev/null
    done
    stop_postgres
    "$AFTER_ALL"
    restore_modes
    # Only if nothing is mounted below it any more.
    if [ -n "$(work_mounts)" ]; then
        echo "left mounted, not removed: $WORK" >&2
    else
        rm -rf --one-file-system "$WORK"
    fi
    if [ -z "$SUMMARISED" ]; then
        [ "$status" = 0 ] || fail "the script ended with status $status"
        echo "$PASSED passed, $FAILED failed"
    fi
    [ "$FAILED" = 0 ] || status=1
    exit "$status"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

# needs_kestrel: for scripts that mean nothing on the local file system.
needs_kestrel() {
    [ -z "$LOCAL" ] || { echo "skipped: nothing to kill on the local file system" && summary &&
        exit; }
}

# make_volume VOLUME [FORMAT OPTION…]
make_volume() {
    local volume=$1
    shift
    if [ -n "$LOCAL" ]; then
        mkdir -p "$volume"
    else
        if [ "${KESTREL_STORE:-}" = s3 ]; then
            need_store
            set -- --storage "$(volume_url "$(basename "$volume")")" "$@"
        fi
        if [ "${KESTREL_METADATA:-}" = postgres ]; then
            need_postgres
            set -- --metadata "$(pg_url "$(basename "$volume" | tr -c 'a-z0-9\n' _)")" "$@"
        fi
        if [ "${KESTREL_METADATA:-}" = bucket ]; then
            need_store
            set -- --metadata "$(volume_url "meta-$(basename "$volume")")" "$@"
        fi
        if [ -n "${KESTREL_ENCRYPT:-}" ]; then
            export KESTREL_KEY_FILE=$WORK/volume.key
            [ -e "$KESTREL_KEY_FILE" ] || "$KESTREL" key create "$KESTREL_KEY_FILE" >/dev/null
            set -- --encrypt "$@"
        fi
        if [ "$NODES" = 1 ]; then
            "$KESTREL" format "$volume" "$@" >/dev/null
        else
            make_cluster "$volume" "$@"
        fi
        [ -z "$SERVING" ] || start_server "$volume"
    fi
}

# mount_volume VOLUME DIR [MOUNT OPTION…]: returns when it serves. Open to all users, as the tests
# change users.
mount_volume() {
    local volume=$1 dir=$2
    shift 2
    mkdir -p "$dir"
    # Caches work as well on a machine with a disk that is nearly full.
    case " $* " in *" --free-space-ratio "*) ;; *" --cache-dir "*) set -- "$@" \
        --free-space-ratio 0 ;; esac
    if [ -n "$LOCAL" ]; then
        mount --bind "$volume" "$dir"
    elif [ -n "$SERVING" ]; then
        serve_mount "$volume" "$dir" "${MODE_OPTIONS[@]}" "$@" || return
    else
        timeout 120 "$KESTREL" mount "$volume" "$dir" --allow-other "${MODE_OPTIONS[@]}" "$@" \
            >/dev/null || return
    fi
    [ -n "$LOCAL" ] || check_mode "$dir" "$@"
}

umount_volume() {
    if [ -n "$LOCAL" ]; then umount "$1"; else timeout 120 "$KESTREL" umount "$1" >/dev/null; fi
}

# volume_pid PLACE: the process that serves a volume, or a mount; nothing if none does.
volume_pid() {
    [ -n "$LOCAL" ] && return
    "$KESTREL" status "$1" --json | sed -n 's/.*"pid": *\([0-9][0-9]*\).*/\1/p' | head -n 1
}

# alive PID: one of its threads runs: not just zombies that init has not taken yet. The first thread
# may be gone while others still hold the process's files. (Not $(<file): bash 5.2 ends the whole
# script when a thread goes between open and read.)
alive() {
    grep -qs ') [^ZX] ' "/proc/$1/task"/*/stat
}

# load_begun PID LOG: waits until a kestrel-crashload has written to its log, or has ended.
load_begun() {
    local try
    for ((try = 0; try < 3000; try++)); do
        [ ! -s "$2" ] && alive "$1" || return 0
        sleep 0.01
    done
}

# kill_mount VOLUME DIR [PID]: kill -9, and takes the dead mount away, unless a process that died
# while it was being unmounted has done so. Returns when the process is gone. Of a served volume the
# server and the mount are killed.
kill_mount() {
    local volume=$1 dir=$2 pid=${3:-}
    if [ -n "$SERVING" ]; then
        serve_kill "$volume" "$dir"
    elif [ -z "$LOCAL" ]; then
        [ -n "$pid" ] || pid=$(volume_pid "$volume")
        kill -9 "$pid" 2>/dev/null || true
        while alive "$pid"; do sleep 0.005; done
    fi
    umount -l "$dir" 2>/dev/null || ! grep -qs " $dir " /proc/self/mounts
}

# fsck_volume VOLUME [OPTION…]: silent and true if clean.
fsck_volume() {
    local volume=$1
    shift
    [ -n "$LOCAL" ] && return
    local fsck=(timeout 300 "$KESTREL" fsck)
    [ -z "$SERVING" ] || fsck=(serve_fsck)
    "${fsck[@]}" "$volume" "$@" >"$WORK/fsck.out" 2>&1 || {
        tail -n 40 "$WORK/fsck.out"
        return 1
    }
}

# close_and_check VOLUME DIR: every script ends with it.
close_and_check() {
    check "unmounts" umount_volume "$2"
    check "fsck --data finds nothing" fsck_volume "$1" --data
}

# load_ended PID WHAT: waits for a kestrel-crashload with its output in $WORK/run.out: it has seen
# no error and was not cut short.
load_ended() {
    local status=0
    wait "$1" || status=$?
    if [ "$status" = 0 ] && grep -q 'ended by: done' "$WORK/run.out"; then
        ok "$2: $(tail -n 1 "$WORK/run.out")"
    else
        cat "$WORK/run.out"
        fail "the load saw an error"
    fi
}

# all_acknowledged MOUNT…: what the log of a load in DIR/load has as acknowledged is there.
all_acknowledged() {
    local mount
    for mount in "$@"; do
        check "everything acknowledged is at $(basename "$mount")" \
            kestrel-crashload verify --dir "$mount/load" --log "$WORK/load.log" --mode process
    done
}

# until_so COMMAND…: it succeeds within two minutes.
until_so() {
    local try
    for ((try = 0; try < 1200; try++)); do
        "$@" && return 0
        sleep 0.1
    done
    return 1
}

# random FROM TO
random() {
    echo $(($1 + (RANDOM * 32768 + RANDOM) % ($2 - $1 + 1)))
}

# seconds as a fraction, from milliseconds
ms() {
    printf '%d.%03d' $(($1 / 1000)) $(($1 % 1000))
}
