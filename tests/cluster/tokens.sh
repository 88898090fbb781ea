#!/usr/bin/env bash
# Tokens, with real mounts on loopback (`--access tokens`): which clients are let in, what a token
# allows, what is left of it when it is revoked or over, what leads out of a subtree (nothing),
# which clients may administer, and that nothing secret is in logs, process lists and errors.
# shellcheck disable=SC2034 # lib.sh reads what is set here
set -euo pipefail
KESTREL_SERVE=1
. "$(dirname "$0")/../lib.sh"
needs_kestrel
SERVE_OPTIONS=(--lease 4s --access tokens)

volume=$WORK/volume
make_volume "$volume"
chmod 711 "$WORK"
umask 077
# token NAME OPTION…: makes one, in a file of its name.
token() {
    local name=$1
    shift
    "$KESTREL" token create "$volume" --name "$name" "$@" >"$WORK/$name.token"
}
# on NAME: mounts with that token, at $WORK/NAME.
on() {
    mkdir -p "$WORK/$1"
    "$KESTREL" mount "$(serve_url "$volume")" "$WORK/$1" --token-file "$WORK/$1.token" \
        --deadline 5s --allow-other >/dev/null
}

token all
check "a token is text of one line" grep -qxE 'kestrel-token:1:[0-9a-f]{16}:[0-9a-f]{64}:(-|.+)' \
    "$WORK/all.token"
refuses "no token" 'kestrel token create' "$KESTREL" mount "$(serve_url "$volume")" "$WORK" \
    --deadline 3s
on all
mkdir "$WORK/all/tree" "$WORK/all/tree/in" "$WORK/all/out"
chmod 777 "$WORK/all" "$WORK/all/tree" "$WORK/all/tree/in" "$WORK/all/out"
echo inside >"$WORK/all/tree/in/f"
echo outside >"$WORK/all/out/g"
chmod 666 "$WORK/all/tree/in/f" "$WORK/all/out/g"

# What is not a token, or not one of this volume's.
sed 's/:[0-9a-f]\{64\}:/:0000000000000000000000000000000000000000000000000000000000000000:/' \
    "$WORK/all.token" >"$WORK/wrong.token"
sed 's/1:[0-9a-f]\{16\}:/1:0123456789abcdef:/' "$WORK/all.token" >"$WORK/unknown.token"
cut -c1-60 "$WORK/all.token" >"$WORK/cut.token"
cp "$WORK/all.token" "$WORK/seen.token" && chmod 644 "$WORK/seen.token"
mkdir "$WORK/nowhere"
for bad in "wrong:not the one" "unknown:no token" "cut:copy all of it" "seen:others can read it" \
    "none:No such file"; do
    refuses "token file: ${bad%%:*}" "${bad#*:}" "$KESTREL" mount "$(serve_url "$volume")" \
        "$WORK/nowhere" \
        --token-file "$WORK/${bad%%:*}.token" --deadline 3s
done

# Read-only.
token viewer --read-only
on viewer
check "a read-only token reads" grep -qx inside "$WORK/viewer/tree/in/f"
for change in "touch new" "rm out/g" "mkdir d" "mv out/g out/h" "ln out/g out/h" "chmod 600 out/g" \
    "truncate -s 1 out/g"; do
    # shellcheck disable=SC2086
    refuses "read-only: $change" 'read-only file system' env -C "$WORK/viewer" $change
done

# Users.
token users --uid 1000-1999 --gid 1000-1999 --map-uid 500:1500
on users
as() {
    setpriv --reuid "$1" --regid "$2" --clear-groups "${@:3}"
}
refuses "root, which the token does not cover" 'permission denied' touch "$WORK/users/tree/root"
refuses "a user it does not cover" 'permission denied' as 999 1000 touch "$WORK/users/tree/other"
check "a user it covers" as 1000 1000 sh -c "echo own >'$WORK/users/tree/own' && grep -qx own '$WORK/users/tree/own' && ls '$WORK/users/tree'"
check "a user that stands for another" as 500 1000 touch "$WORK/users/tree/mapped"
owners() {
    [ "$(stat -c %u "$WORK/all/tree/own") $(stat -c %u "$WORK/all/tree/mapped")" = "1000 1500" ]
}
check "and the files are theirs" owners
token squashed --squash-root
on squashed
check "root is squashed" touch "$WORK/squashed/tree/squashed"
squashed() {
    [ "$(stat -c %u:%g "$WORK/all/tree/squashed")" = 65534:65534 ]
}
check "and the file is nobody's" squashed

# A subtree.
token tenant --subtree /tree
on tenant
check "the subtree is the root" grep -qx inside "$WORK/tenant/in/f"
same_root() {
    [ "$(stat -c %i "$WORK/tenant/in/..")" = "$(stat -c %i "$WORK/tenant")" ] &&
        [ ! -e "$WORK/tenant/out" ] && [ ! -e "$WORK/tenant/tree" ]
}
check "\`..\` and names end there" same_root
ln -s ../../out/g "$WORK/all/tree/in/link"
ln -s /out/g "$WORK/all/tree/in/absolute"
refuses "a symbolic link out of it" 'no such file' cat "$WORK/tenant/in/link"
refuses "an absolute one" 'no such file' cat "$WORK/tenant/in/absolute"
check "work within it" sh -c "cd '$WORK/tenant' && mkdir a && echo 1 >a/b && mv a/b in/b && ln in/b a/c && rm in/b && grep -qx 1 a/c && rm -r a"
ln "$WORK/all/tree/in/f" "$WORK/all/out/also"
check "a file that has a name outside as well" grep -qx inside "$WORK/tenant/in/f"
exec 7<"$WORK/tenant/in/f"
mv "$WORK/all/tree/in" "$WORK/all/out/in"
check "an open handle goes on when its directory is moved out" grep -qx inside <&7
exec 7<&-
refuses "and the directory is out of reach" 'no such|stale' ls "$WORK/tenant/in"
mv "$WORK/all/out/in" "$WORK/all/tree/in"

# What a mount tells of itself and of its files without administering.
dd if=/dev/urandom of="$WORK/all/tree/in/big" bs=1M count=5 status=none
for mount in tenant users viewer; do
    check "status of the mount $mount" sh \
        -c "'$KESTREL' status '$WORK/$mount' | grep -q '^mounted *$WORK/$mount '"
done
knows() {
    "$KESTREL" status "$WORK/tenant" --json >"$WORK/status.json"
    "$KESTREL" info "$WORK/tenant/in/big" --json >"$WORK/info.json"
    "$KESTREL" info "$WORK/tenant/in" --json >"$WORK/dir.json"
    KESTREL_TOKEN_FILE=$WORK/chief.token "$KESTREL" info --volume "$(serve_url "$volume")" \
        /tree/in/big --json >"$WORK/told.json"
    python3 - "$WORK" <<'PY'
import json, sys
status, info, dir, told = (json.load(open(f"{sys.argv[1]}/{name}.json")) for name in ("status", "info", "dir", "told"))
assert status["name"] == "volume" and len(status["uuid"]) == 32 and status["connections"][0]["up"], status
assert "may not administer" in status["server"] and status["directories"] >= 2 and status["files"] >= 2, status
assert (info["size"], info["layout"]) == (5 << 20, "chunked") and info["stored_bytes"] == 5 << 20, info
assert info["extents"] == told["extents"] and info["objects"] == told["objects"], (info, told)
assert dir["kind"] == "dir" and dir["tree"]["bytes"] >= 5 << 20, dir
PY
}
# Administration.
token chief --admin
check "what it says is so" knows
check "and for people" sh \
    -c "'$KESTREL' info '$WORK/tenant/in/big' && '$KESTREL' info '$WORK/tenant/in'"
refuses "status with a token that may not" 'may not administer' "$KESTREL" status \
    "$(serve_url "$volume")" --token-file "$WORK/all.token"
# The log takes so many refusals of an address in a second, and all clients here have one address.
recorded() {
    for _ in $(seq 60); do
        ! grep -q 'may not administer' "$volume/audit.log.refused" || return 0
        sleep 0.5
        "$KESTREL" status "$(serve_url "$volume")" --token-file "$WORK/all.token" >/dev/null 2>&1 ||
            true
    done
    return 1
}
check "that is on record" recorded
check "status with one that may" "$KESTREL" status "$(serve_url "$volume")" \
    --token-file "$WORK/chief.token"
check "one that the environment names" env KESTREL_TOKEN_FILE="$WORK/chief.token" "$KESTREL" token \
    list "$(serve_url "$volume")"
refuses "tokens made by one that may not" 'may not administer' \
    "$KESTREL" token create "$(serve_url "$volume")" --name more --token-file "$WORK/all.token"
refuses "a name twice" 'already' "$KESTREL" token create "$volume" --name chief
refuses "a subtree that is none" 'no such entry|not a directory' "$KESTREL" token create "$volume" \
    --name none --subtree /nothing

# Revoked and expired ones.
token brief --expires 3s
on brief
exec 8<"$WORK/viewer/tree/in/f"
"$KESTREL" token revoke "$volume" viewer >/dev/null
ended() {
    local begun=$SECONDS
    until ! cat "$1/tree/in/f" >/dev/null 2>&1; do
        [ $((SECONDS - begun)) -lt "$2" ] || return 1
        sleep 0.1
    done
}
check "a revoked token ends within two seconds" ended "$WORK/viewer" 3
refuses "and its mount says so" 'permission denied|stale' sh -c "ls -l '$WORK/viewer/tree/in'"
refuses "and so does umount" 'viewer\) has been revoked.*--force' "$KESTREL" umount "$WORK/viewer"
check "status of a mount that is not let in" sh \
    -c "'$KESTREL' status '$WORK/viewer' | grep -q 'has been revoked'"
exec 8<&-
check "a token ends when it expires" ended "$WORK/brief" 10
refuses "a revoked token" 'revoked' "$KESTREL" mount "$(serve_url "$volume")" "$WORK/nowhere" \
    --token-file "$WORK/viewer.token" --deadline 3s
check "others go on" grep -qx inside "$WORK/all/tree/in/f"
# A user with files open for writing, one of which is read-only by now, and one that has lost its
# name.
echo secret >"$WORK/all/out/secret"
chmod 600 "$WORK/all/out/secret"
python3 - "$WORK/users/tree" >"$WORK/held" 2>&1 <<'PY' &
import os, sys, time
os.setgroups([])
os.setresgid(1000, 1000, 1000)
os.setresuid(1000, 1000, 1000)
os.chdir(sys.argv[1])
names = ["held", "sealed", "nameless"]
files = {name: os.open(name, os.O_RDWR | os.O_CREAT, 0o644) for name in names}
for name in names:
    os.write(files[name], b"before\n")
    os.fsync(files[name])
os.chmod("sealed", 0o400)
os.unlink("nameless")
open("ready", "w").close()
while not os.path.exists("again"):
    time.sleep(0.1)
for name in names:
    os.write(files[name], b"after\n")
    os.fsync(files[name])
    assert os.pread(files[name], 99, 0) == b"before\nafter\n", name
print("over")
PY
held=$!
until [ -e "$WORK/all/tree/ready" ]; do
    kill -0 "$held" 2>/dev/null || break
    sleep 0.1
done
stop_server "$volume"
start_server "$volume"
touch "$WORK/all/tree/again"
wait "$held" || true
check "a user writes on what he had open, over a restart" sh \
    -c "cat '$WORK/held' >&2; grep -qx over '$WORK/held'"
check "what was stat'ed is read as it is" as 1000 1000 sh \
    -c "ls -l '$WORK/users/out' '$WORK/users/tree' >&2 && grep -qx inside '$WORK/users/tree/in/f'"
refuses "what he may not read" 'permission denied' as 1000 1000 cat "$WORK/users/out/secret"
check "others go on when the server was started again" grep -qx inside "$WORK/tenant/in/f"
refuses "revoked ones do not" 'permission denied|stale' sh -c "ls -l '$WORK/viewer/tree/in'"
check "what is over is forgotten" sh -c "'$KESTREL' token prune '$volume' | grep -q '2 tokens'"

# What is on record of it.
audited() {
    python3 - "$volume/audit.log" <<'PY'
import json, sys
told, refused = ([json.loads(line) for line in open(sys.argv[1] + end)] for end in ("", ".refused"))
assert all(line["event"] == "administration" for line in told) and all("refused" in line["event"] for line in refused)
lines = told + refused
said = {(line["event"], line["what"].split()[0]) for line in lines}
want = {("handshake refused", "connect"), ("operation refused", "create"), ("administration", "token")}
assert want <= said, want - said
assert any("may not administer" in line["result"] and line["token"] for line in lines)
assert all(line["from"] for line in lines)
PY
}
check "the audit log has refusals and administration" audited
secrets() {
    python3 - "$WORK" "$volume" <<'PY'
import glob, os, sys
work, volume = sys.argv[1:]
texts = [open(name).read().split(":") for name in glob.glob(work + "/*.token")]
secrets = [text[3].encode() for text in texts if len(text) >= 5 and text[3].strip("0")]
places = glob.glob(work + "/*.out") + glob.glob("/proc/[0-9]*/cmdline")
places += [os.path.join(at, name) for at, _, names in os.walk(volume) for name in names]
assert len(secrets) > 5
for place in places:
    try:
        said = open(place, "rb").read() if not place.endswith(".sock") else b""
    except OSError:
        continue
    assert not any(secret in said for secret in secrets), place
PY
}
check "no secret is in logs, records, errors or process lists" secrets
for mount in viewer brief; do
    refuses "unmounts $mount, which is not let in" \
        'not let this mount in: .*(revoked|expired|no token).*--force' "$KESTREL" umount \
        "$WORK/$mount"
    check "unmounts $mount all the same" "$KESTREL" umount --force "$WORK/$mount"
done
for mount in users squashed tenant; do
    check "unmounts $mount" umount_volume "$WORK/$mount"
done
check "unmounts" umount_volume "$WORK/all"
stop_server "$volume"
check "fsck finds nothing" "$KESTREL" fsck "$volume" --data
summary
