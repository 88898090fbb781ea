# How the mounts of a test script serve the kernel: sourced by lib.sh.
#
# KESTREL_SHORTCUT=on|off: every mount must be in shortcut mode, or is a plain one; unset: as the
# program decides. KESTREL_TRANSPORT=uring|device: requests come by io_uring (which root has to
# allow: done while the script runs, and undone by the
#   last of those that run at the same time), or from /dev/fuse.
# A script that the machine cannot serve so says "skipped" and ends well.
# shellcheck shell=bash disable=SC2034

MODE_OPTIONS=()
URING_SWITCH=/sys/module/fuse/parameters/enable_uring
URING_LOCK=/run/lock/kestrel-uring

# uring_on: allows io_uring; false with a reason in $URING_WHY if that cannot be had. Scripts hold
# the lock shared on descriptor 8.
uring_on() {
    [ -e "$URING_SWITCH" ] || modprobe fuse 2>/dev/null || true
    if [ ! -w "$URING_SWITCH" ]; then
        URING_WHY="this kernel has no FUSE over io_uring"
        return 1
    fi
    exec 8>>"$URING_LOCK"
    flock -s 8
    # The file stays: what was set before the first script is what the last one restores.
    [ -s "$URING_LOCK.saved" ] || cat "$URING_SWITCH" >"$URING_LOCK.saved"
    if ! echo Y 2>/dev/null >"$URING_SWITCH"; then
        URING_WHY="$URING_SWITCH cannot be written"
        return 1
    fi
}

# restore_modes: at the end of a script.
restore_modes() {
    if [ -s "$URING_LOCK.saved" ] && { true >&8; } 2>/dev/null && flock -n -x 8; then
        cat "$URING_LOCK.saved" >"$URING_SWITCH" 2>/dev/null
        rm -f "$URING_LOCK.saved"
    fi
}

# skip_all WHY: the script cannot be run here.
skip_all() {
    echo "skipped: $1"
    summary
    exit
}

# status_field DIR NAME: a field of what the mount says of itself.
status_field() {
    "$KESTREL" status "$1" --json |
        python3 -c 'import json, sys; print(json.load(sys.stdin).get(sys.argv[1]))' "$2"
}

# check_mode DIR [MOUNT OPTION…]: the mount serves as the script was told, or the script ends.
check_mode() {
    local dir=$1
    shift
    case " $* " in *" --no-shortcut "* | *" --transport "*) return ;; esac
    if [ "${KESTREL_SHORTCUT:-}" = on ]; then needs_shortcut "$dir"; fi
    if [ "${KESTREL_TRANSPORT:-}" = uring ] && [ "$(status_field "$dir" transport)" != io_uring ]; \
        then
        fail "$dir is not served over io_uring: $(status_field "$dir" transport)"
        summary || true
        exit 1
    fi
}

# needs_shortcut DIR: a mount that is not in shortcut mode because the machine does not allow it
# ends the script.
needs_shortcut() {
    [ "$(status_field "$1" shortcut)" = True ] && return
    skip_all "no shortcut: $(status_field "$1" shortcut_why)"
}

# allowances DIR: a file with what kestrel-compare allows a mount.
allowances() {
    cat "$ROOT/tests/posix/compare-allow.txt" >"$WORK/allow"
    if [ -z "$LOCAL" ] && [ "$(status_field "$1" shortcut)" = True ]; then
        cat "$ROOT/tests/posix/compare-allow-shortcut.txt" >>"$WORK/allow"
    fi
    echo "$WORK/allow"
}

case ${KESTREL_SHORTCUT:-} in
    off) MODE_OPTIONS+=(--no-shortcut) ;;
esac
case ${KESTREL_TRANSPORT:-} in
    uring)
        MODE_OPTIONS+=(--transport uring)
        uring_on || skip_all "$URING_WHY"
        ;;
    device) MODE_OPTIONS+=(--transport device) ;;
esac
