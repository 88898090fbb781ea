#!/usr/bin/env bash
# `kestrel webdav`: litmus; calls and input that is none; directories of many names and of great
# depth; kill -9 in the middle of a PUT; tokens of a served volume beside a mount; snapshots; an
# orderly end. With WEBDAV_NIGHT=1 also davfs2 and rclone.
set -euo pipefail
. "$(dirname "$0")/../lib.sh"
needs_kestrel
here=$ROOT/tests/access

DAV_PID=
# webdav VOLUME OPTION…: starts one; sets DAV_URL, DAV_PID, and DAV_KEY and DAV_SECRET where it has
# a file of keys.
webdav() {
    local volume=$1 port
    shift
    port=$(free_ports 1)
    timeout 60 "$KESTREL" webdav "$volume" --listen "127.0.0.1:$port" "$@" \
        >"$WORK/webdav.out" 2>&1 9>&- || { cat "$WORK/webdav.out" && return 1; }
    DAV_PID=$(sed -n 's/.*process \([0-9]*\).*/\1/p' "$WORK/webdav.out")
    DAV_URL=http://127.0.0.1:$port
    if [ -e "$volume/gateway.keys" ]; then
        read -r DAV_KEY DAV_SECRET < <(grep -v '#' "$volume/gateway.keys")
    fi
}
# stop [SIGNAL]: ends it, and waits for its end.
stop() {
    [ -n "$DAV_PID" ] || return 0
    kill "-${1:-TERM}" "$DAV_PID" 2>/dev/null || true
    while alive "$DAV_PID"; do sleep 0.02; done
    DAV_PID=
}
at_end() {
    [ -z "$DAV_PID" ] || kill -9 "$DAV_PID" 2>/dev/null
}
AT_END=at_end
# dav METHOD PATH CURL-OPTION…
dav() {
    curl -sf -u "$DAV_KEY:$DAV_SECRET" -X "$1" "$DAV_URL$2" "${@:3}"
}

fails() {
    ! "$@"
}

echo "-- calls and input"
volume=$WORK/volume MNT=$WORK/mounted
"$KESTREL" format "$volume" >/dev/null
check "starts" webdav "$volume"
check "the first start tells a key" grep -q "access key $DAV_KEY" "$WORK/webdav.out"
refuses "a second process" 'in use' "$KESTREL" webdav "$volume" --listen "127.0.0.1:$(free_ports 1)"
stop
echo "READER reader-secret-1 read-only" >>"$volume/gateway.keys"
check "starts again" webdav "$volume"
counted "$here/webdav_checks.py" "$DAV_URL" "$DAV_KEY" "$DAV_SECRET" READER reader-secret-1
for wrong in "0.0.0.0:0" nowhere "0.0.0.0:$(free_ports 1)"; do
    refuses "--listen $wrong" 'webdav: ' "$KESTREL" webdav "$volume" --listen "$wrong"
done

echo "-- litmus"
if command -v litmus >/dev/null; then
    (cd "$WORK" && timeout 300 litmus -k "$DAV_URL/" "$DAV_KEY" "$DAV_SECRET") >"$WORK/litmus.out" \
        2>&1 </dev/null || true
    summary_line='^<- summary for .*: of ([0-9]*) tests run: ([0-9]*) passed, ([0-9]*) failed.*'
    tests=$(sed -nE "s/$summary_line/\1 \2 \3/p" "$WORK/litmus.out")
    check "all five suites ran" test "$(wc -l <<<"$tests")" = 5
    while read -r _ passed failed; do
        PASSED=$((PASSED + passed)) FAILED=$((FAILED + failed))
    done <<<"$tests"
    grep -E 'FAIL|WARNING|summary' "$WORK/litmus.out" || true
else
    echo "skipped: litmus is not installed"
fi

echo "-- many names, a deep tree, kill -9"
stop
mount_volume "$volume" "$MNT"
python3 - "$MNT" <<'PY'
import os, sys
os.chdir(sys.argv[1])
os.mkdir("many")
for n in range(2500):
    open(f"many/n{n:04}", "w").close()
os.symlink("many", "link")
os.mkdir("deep")
os.chdir("deep")
for _ in range(1500):
    os.mkdir("d")
    os.chdir("d")
os.chdir(sys.argv[1])
with open("script", "w") as script:
    script.write("#!/bin/sh\n")
os.chmod("script", 0o755)
PY
umount_volume "$MNT"
check "starts" webdav "$volume"
listed() {
    dav PROPFIND /many/ -H 'Depth: 1' | grep -o 'href>/many/n[0-9]*<' | sort -u | wc -l
}
check "a listing has all 2,500 names" test "$(listed)" = 2500
hidden() {
    ! dav PROPFIND / -H 'Depth: 1' | grep -qE 'href>/(link|\.kestrel-s3)'
}
check "links and own directories are not shown" hidden
check "a deep tree is copied" dav COPY /deep/ -H "Destination: $DAV_URL/copy/"
check "a deep tree is removed" dav DELETE /deep/
check "and its copy" dav DELETE /copy/
check "a new content of a script" dav PUT /script -d '#!/bin/bash'
head -c 30000000 /dev/zero >"$WORK/zeros"
for n in 1 2 3; do
    curl -s -u "$DAV_KEY:$DAV_SECRET" -T "$WORK/zeros" --limit-rate 20M "$DAV_URL/script" \
        >/dev/null 2>&1 9>&- &
    putting=$!
    sleep "0.$((n * 2))"
    stop KILL
    wait "$putting" || true
    webdav "$volume"
    check "killed in a PUT: the file is as it was" test "$(dav GET /script)" = '#!/bin/bash'
done
check "an orderly end" stop
mount_volume "$volume" "$MNT"
check "the mode stays with another content" test "$(stat -c %a "$MNT/script")" = 755
check "nothing is left of what was killed" test -z "$(find "$MNT" -path '*/replacing/*')"
umount_volume "$MNT"
check "the volume is whole" "$KESTREL" fsck --data "$volume"

echo "-- a snapshot"
"$KESTREL" snapshot create "$volume" before >/dev/null
cp -p "$volume/gateway.keys" "$WORK/keys"
check "starts at a snapshot" webdav "$volume@before" --access-keys "$WORK/keys"
read -r DAV_KEY DAV_SECRET < <(grep -v '#' "$WORK/keys")
check "reads it" test "$(dav GET /script)" = '#!/bin/bash'
check "changes nothing" fails dav PUT /script -d x
stop

echo "-- a served volume, by tokens"
served=$WORK/served mnt=$WORK/mnt
"$KESTREL" format "$served" >/dev/null
port=$(free_ports 1)
"$KESTREL" serve "$served" --listen "127.0.0.1:$port" --access tokens >"$WORK/serve.out" 9>&-
serve_pid=$(sed -n 's/.*process \([0-9]*\).*/\1/p' "$WORK/serve.out")
served_end() {
    at_end
    kill -9 "$serve_pid" 2>/dev/null
}
AT_END=served_end
umask 077
"$KESTREL" token create "$served" --name all >"$WORK/all.token"
mkdir "$mnt"
"$KESTREL" mount "kestrel://127.0.0.1:$port/served" "$mnt" --token-file "$WORK/all.token" \
    >/dev/null 9>&-
mkdir -p "$mnt/seven" "$mnt/outer"
echo outside >"$mnt/outer/secret"
"$KESTREL" token create "$served" --name seven --subtree /seven >"$WORK/seven.token"
cat "$WORK/all.token" "$WORK/seven.token" >"$WORK/tokens"
# key NAME: its access key and secret.
key() {
    read -r DAV_KEY DAV_SECRET < <("$KESTREL" token s3 --json --token-file "$WORK/$1.token" |
        python3 -c 'import json, sys
found = json.load(sys.stdin)
print(found["access_key"], found["secret"])')
}
check "starts with tokens" webdav "kestrel://127.0.0.1:$port/served" --tokens "$WORK/tokens"
key seven
check "a token confined to a directory writes there" dav PUT /file -d inside
check "the mount sees it" test "$(cat "$mnt/seven/file")" = inside
check "nothing outside is there" fails dav GET /outer/secret
check "nor by dots" fails dav GET /../outer/secret --path-as-is
key all
check "a token for all" test "$(dav GET /seven/file)" = inside
"$KESTREL" token revoke "$served" seven >/dev/null
key seven
revoked() {
    ! dav PROPFIND /
}
check "a token that was revoked" wait_until 10 revoked
stop
umount_volume "$mnt"
kill "$serve_pid"
while alive "$serve_pid"; do sleep 0.02; done
AT_END=at_end
check "fsck of the served volume" "$KESTREL" fsck "$served" --data
if [ -n "${WEBDAV_NIGHT:-}" ]; then
    # shellcheck source=tests/access/webdav-night.sh
    . "$here/webdav-night.sh"
fi
summary
