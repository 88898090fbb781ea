#!/usr/bin/env bash
# pjdfstest: POSIX, call by call. Expected failures stand in expected-failures.txt, each with its
# reason; one that passes after all is a failure of that list.
set -euo pipefail
. "$(dirname "$0")/../lib.sh"

volume=$WORK/volume mnt=$WORK/mnt second=$WORK/second
list=$(dirname "$0")/expected-failures.txt
make_volume "$volume"
mount_volume "$volume" "$mnt"
chmod 755 "$mnt"
# The suite wants another file system, to see EXDEV.
mkdir "$second"
mount -t tmpfs -o size=64m tmpfs "$second"

expected=$(sed -e 's/#.*//' -e 's/[[:space:]].*//' -e '/^$/d' "$list")
cat >"$WORK/pjdfstest.toml" <<TOML
[features]
posix_fallocate = {}
rename_ctime = {}
utime_now = {}
utimensat = {}

[settings]
naptime = 0.01
allow_remount = false

[dummy_auth]
entries = [["nobody", "nogroup"], ["tests", "tests"]]
TOML

cd "$mnt"
pjdfstest -c "$WORK/pjdfstest.toml" -p "$mnt" -s "$second" >"$WORK/out" 2>&1 || true
cd /
if ! grep -q '^Summary:' "$WORK/out"; then
    tail -n 40 "$WORK/out"
    fail "pjdfstest did not finish"
fi
while read -r name result; do
    case $result in
        ok)
            PASSED=$((PASSED + 1))
            if grep -qxF "$name" <<<"$expected"; then fail "$name passes: take it off $list"; fi
            ;;
        skipped) ;;
        *)
            if grep -qxF "$name" <<<"$expected"; then
                echo "expected failure: $name"
            else
                grep -A 6 -F "$name " "$WORK/out" | head -n 8
                fail "$name"
            fi
            ;;
    esac
done < <(sed -n 's/^\([a-z_0-9]*::[^ ]*\) *\([A-Za-z]*\).*/\1 \2/p' "$WORK/out")
grep '^Summary:' "$WORK/out" || true
[ "$PASSED" -ge 300 ] || fail "only $PASSED tests passed: did they run?"
close_and_check "$volume" "$mnt"
summary
