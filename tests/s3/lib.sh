# Common to the suites below tests/s3: what tests/lib.sh gives, on a store, and helpers of these
# suites. Source it first.
# shellcheck shell=bash disable=SC2034,SC2119

KESTREL_STORE=s3
# Options of the proxy may be set before.
[ -v STORE_OPTIONS ] || STORE_OPTIONS=()
# shellcheck source=tests/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"
needs_kestrel
start_store "${STORE_OPTIONS[@]}"

TREE=$ROOT/tests/s3/tree.py

# remount VOLUME DIR [MOUNT OPTION…]: nothing of it is in memory afterwards.
remount() {
    umount_volume "$2"
    mount_volume "$@"
}

# stat_of DIR FIGURE: a figure of kestrel stats; counters may be named without their _total.
stat_of() {
    "$KESTREL" stats "$1" --once --json | python3 -c '
import json, sys
found, name = json.load(sys.stdin), sys.argv[1]
print(found[name] if name in found else found[name + "_total"])' "$2"
}

# is_more A B: a is more than b (numbers); for check.
is_more() {
    [ "$1" -gt "$2" ] || {
        echo "$1 is not more than $2"
        return 1
    }
}

same() {
    [ "$1" = "$2" ] || {
        echo "$1 is not $2"
        return 1
    }
}

# objects PREFIX: the files in which the store keeps a volume's objects.
objects() {
    # The store removes directories meanwhile: of these find tells, and goes on.
    find "$STORE_DIR/$S3_BUCKET/$1/objects" -type f 2>/dev/null || true
}

# gone PID: it has ended; for wait_until.
gone() {
    ! alive "$1"
}

not() {
    ! "$@"
}
