#!/usr/bin/env bash
# The trash as docs/semantics.md says (statements T1 to T8): what is kept, what goes, programs that
# remove and replace, restoring, other users, expiry, quotas, and kill -9.
#
# FILES: files of the tree (default 2000).
set -euo pipefail
. "$(dirname "$0")/../lib.sh"
needs_kestrel

volume=$WORK/volume mnt=$WORK/mnt
FILES=${FILES:-2000}
make_volume "$volume"
mount_volume "$volume" "$mnt"
chmod 711 "$WORK"
install -m 755 "$KESTREL" "$WORK/kestrel"
kept=$mnt/.trash/kept

trash() { "$KESTREL" trash "$@"; }
listed() { trash list "$@" --json | python3 -c '
import json, sys
print(*sorted(entry["path"] for entry in json.load(sys.stdin)), sep="\n")'; }
# has PATH…: exactly these paths of the volume, below t, are in the trash.
has() { diff <(listed "$mnt/t") <([ $# = 0 ] && echo || printf "$mnt/t/%s\n" "$@" | sort); }
user() { setpriv --reuid 1234 --regid 1234 --clear-groups "$@"; }
nothing_kept() { [ -z "$(ls -A "$kept")" ]; }

echo "-- the policy"
mkdir "$mnt/t" "$mnt/other"
refuses "no time" 'hours or days' "$KESTREL" policy set "$mnt/t" trash=7
check "it is set" "$KESTREL" policy set "$mnt/t" trash=7d
check "and shown" prints "trash +7d +.*/t$" "$KESTREL" policy get "$mnt/t"
check "the trash is root's alone" bash -c "[ \$(stat -c %a%u '$kept') = 7000 ]"
refuses "others do not enter it" 'Permission denied' user ls "$mnt/.trash"
check "nothing is in it" has

echo "-- removed, replaced, restored"
echo one >"$mnt/t/file"
chown 1234:1234 "$mnt/t/file"
setfattr -n user.note -v kept "$mnt/t/file"
touch -d 2020-02-03 "$mnt/t/file"
before=$(stat -c '%i %a %u %g %s %y' "$mnt/t/file")
rm "$mnt/t/file"
check "a removed file is in the trash" has file
check "its name is free" bash -c "! [ -e '$mnt/t/file' ] && echo two >'$mnt/t/file'"
refuses "a name that is taken" 'something else has the name' trash restore "$mnt/t/file"
check "it stays there" has file
check "beside what has its name" trash restore --keep-both "$mnt/t/file"
check "as it was" [ "$(stat -c '%i %a %u %g %s %y' "$mnt/t/file.restored")" = "$before" ]
note=$(getfattr --only-values -n user.note "$mnt/t/file.restored")
check "with its attributes" [ "$note" = kept ]
mv "$mnt/t/file.restored" "$mnt/t/file"
check "what a rename replaced is in the trash" has file
check "replacing" trash restore --replace "$mnt/t/file"
check "has the other content" grep -qx two "$mnt/t/file"
check "and keeps what it replaced" has file
rm "$mnt/t/file"
check "the one removed last comes back" bash -c \
    "'$KESTREL' trash restore '$mnt/t/file' && grep -qx two '$mnt/t/file'"
rm "$mnt/t/file"
check "into another directory" trash restore --to "$mnt/other" "$mnt/t/file"
check "where it is" grep -qx two "$mnt/other/file"
rm "$mnt/other/file"
check "without the policy it is gone" bash -c "! '$KESTREL' trash restore '$mnt/other/file'"
refuses "what was never there" 'nothing that was there' trash restore "$mnt/t/absent"
check "removed for good" prints '1 entries .* removed for good' trash empty "$mnt/t/file"
check "and nothing is left" nothing_kept

echo "-- whole trees"
python3 "$ROOT/tests/posix/remove.py" make "$mnt/t/tree" "$FILES"
# hashed OPTION…: of the whole tree, names, attributes and content.
hashed() { tar -C "$mnt/t" -cf - --sort=name "$@" tree | sha256sum; }
hashed >"$WORK/before"
hashed --mtime=@0 >"$WORK/before.mtime"
check "a tree is removed by kestrel rm -r" prints 'the trash keeps it until' "$KESTREL" rm -r \
    "$mnt/t/tree"
check "as one entry" has tree
check "it is restored" trash restore "$mnt/t/tree"
check "as it was" diff <(hashed) "$WORK/before"
rm -rf "$mnt/t/tree"
names=$(find "$kept" -mindepth 1 | wc -l)
check "rm -rf keeps every name" [ "$names" -gt "$FILES" ]
check "they are restored" prints "names restored" trash restore "$mnt/t/tree"
# The time of a directory is that of the last removal in it.
check "as they were" diff <(hashed --mtime=@0) "$WORK/before.mtime"
check "and the trash is empty" nothing_kept
mkdir -p "$mnt/t/d/e"
echo x >"$mnt/t/d/e/f"
rm "$mnt/t/d/e/f"
rmdir "$mnt/t/d/e"
check "a directory comes back with what was removed before it" bash -c \
    "'$KESTREL' trash restore '$mnt/t/d/e' && grep -qx x '$mnt/t/d/e/f'"
rm -r "$mnt/t/d"
refuses "what was in a directory that is gone" 'restore that first' trash restore "$mnt/t/d/e/f"
check "all of it" bash -c "'$KESTREL' trash restore --below '$mnt/t' && grep -qx x '$mnt/t/d/e/f'"
(cd "$mnt/t/d" && rm -r "$mnt/t/d" && ! touch new 2>"$WORK/new.err") || true
check "nothing is made in a removed directory" grep -q 'No such file' "$WORK/new.err"
check "dry run" prints '3 entries .* would be removed' trash empty --dry-run "$mnt/t/d"
trash empty "$mnt" >/dev/null
check "all is empty" until_so nothing_kept

echo "-- programs"
git -C "$mnt/t" init -q repo
git -C "$mnt/t/repo" config user.email a@b
git -C "$mnt/t/repo" config user.name a
seq 100 >"$mnt/t/repo/a"
git -C "$mnt/t/repo" add a
check "git" bash -c "cd '$mnt/t/repo' && git commit -qm a && git gc -q && git fsck"
seq 200 >"$mnt/t/doc"
sed -i s/100/x/ "$mnt/t/doc"
check "sed -i" grep -qx x "$mnt/t/doc"
check "what an editor replaced" bash -c \
    "'$KESTREL' trash restore --keep-both '$mnt/t/doc' && grep -qx 100 '$mnt/t/doc.restored'"
check "open files" python3 - "$mnt/t" <<'PY'
import os, sys
path = sys.argv[1] + "/opened"
with open(path, "w+b") as file:
    file.write(b"before ")
    file.flush()
    os.unlink(path)
    file.write(b"after")
    file.flush()
    os.fsync(file.fileno())
    file.seek(0)
    assert file.read() == b"before after"
PY
check "come back as they were closed" bash -c \
    "'$KESTREL' trash restore '$mnt/t/opened' && [ \"\$(cat '$mnt/t/opened')\" = 'before after' ]"
ln "$mnt/t/opened" "$mnt/t/second"
rm "$mnt/t/opened"
check "one of two names is not kept" bash -c "! '$KESTREL' trash list '$mnt/t/opened' | grep -q ."
rm "$mnt/t/second"
check "the last one is" prints /t/second trash list "$mnt/t/second"
long=$(printf 'n%.0s' {1..250})
echo x >"$mnt/t/$long"
rm "$mnt/t/$long"
check "a long name is cut" prints '"path": ".*/t/nnnn' trash list --json "$mnt"
cut=$(listed "$mnt/t" | grep /nnnn)
refuses "which is not restored by itself" 'only the beginning of its name' trash restore "$cut"
check "but by a directory for it" trash restore --to "$mnt/other" "$cut"
check "with the beginning of its name" grep -qx x "$mnt/other/${cut##*/}"
check "a directory that keeps nothing" "$KESTREL" policy set "$mnt/t/repo" trash=none
before=$(ls "$kept" | wc -l)
rm -rf "$mnt/t/repo/.git"
check "keeps nothing" [ "$(ls "$kept" | wc -l)" = "$before" ]

echo "-- other users"
mkdir "$mnt/t/hers"
chown 1234 "$mnt/t/hers"
user touch "$mnt/t/hers/file"
user rm "$mnt/t/hers/file"
rm "$mnt/t/doc"
if [ -n "$SERVING" ]; then
    url=$(serve_url "$volume")
    user "$WORK/kestrel" trash list "$url:/" >"$WORK/theirs"
    check "a user sees what is theirs" [ "$(wc -l <"$WORK/theirs")" = 1 ]
    refuses "and does not restore what is not" 'nothing that was there' \
        user "$WORK/kestrel" trash restore "$url:/t/doc"
    chown 0 "$mnt/t/hers"
    refuses "nor to where they may not" 'directory that it goes to' \
        user "$WORK/kestrel" trash restore "$url:/t/hers/file"
    chown 1234 "$mnt/t/hers"
    check "but what is" user "$WORK/kestrel" trash restore "$url:/t/hers/file"
    check "it is there" [ "$(stat -c %u "$mnt/t/hers/file")" = 1234 ]
else
    refuses "by a path in the mount" 'only root and the user of the mount' \
        user "$WORK/kestrel" trash list "$mnt"
fi
check "root restores" trash restore "$mnt/t/doc"

echo "-- expiry"
echo x >"$mnt/t/expires"
mkdir "$mnt/t/expired"
rm "$mnt/t/expires"
rmdir "$mnt/t/expired"
for entry in "$kept"/*-expires "$kept"/*-expired; do
    # An expiry in the past: the name is all that says it.
    mv "$entry" "$kept/0001000020-${entry#*kept/*-}"
done
touch "$kept/0-foreign"
umount_volume "$mnt"
mount_volume "$volume" "$mnt"
check "what has expired goes" until_so bash -c "! compgen -G '$kept/*expire*' >/dev/null"
check "what has not stays" prints /t/second trash list "$mnt/t/second"
check "and what is something else" [ -e "$kept/0-foreign" ]
rm "$kept/0-foreign"

if [ "$NODES" = 1 ]; then
    echo "-- quotas"
    mkdir -p "$mnt/t/limited/a"
    "$KESTREL" quota set "$mnt/t/limited" --files 4 >/dev/null
    touch "$mnt/t/limited/a/"{1,2,3}
    check "below a quota" "$KESTREL" rm -r "$mnt/t/limited/a"
    check "the quota has it back" prints ' 0 +- +4' "$KESTREL" quota get "$mnt/t/limited"
    check "it is restored" trash restore "$mnt/t/limited/a"
    check "and counts again" prints ' 4 +- +4' "$KESTREL" quota get "$mnt/t/limited"
    "$KESTREL" quota remove "$mnt/t/limited" >/dev/null
fi

echo "-- without the trash"
mv "$mnt/.trash" "$mnt/away"
echo x >"$mnt/t/stays"
refuses "nothing is removed" 'Input/output error' rm "$mnt/t/stays"
check "it is there" grep -qx x "$mnt/t/stays"
mv "$mnt/away" "$mnt/.trash"
check "now it is" rm "$mnt/t/stays"
chmod 755 "$mnt/.trash"
touch "$mnt/t/stays"
refuses "nor where others can enter it" 'Input/output error' rm "$mnt/t/stays"
refuses "nor is the policy set" 'not root' "$KESTREL" policy set "$mnt/other" trash=1d
chmod 700 "$mnt/.trash"

echo "-- kill -9"
mkdir "$mnt/t/killed"
python3 - "$mnt/t/killed" >"$WORK/removed" <<'PY' &
import os, sys
number = 0
try:
    while True:
        path = f"{sys.argv[1]}/{number}"
        with open(path, "wb") as file:
            file.write(b"%d" % number)
            os.fsync(file.fileno())
        os.unlink(path)
        print(number, flush=True)
        number += 1
except OSError:
    pass
PY
remover=$!
until_so [ -s "$WORK/removed" ]
sleep 1
kill_mount "$volume" "$mnt"
wait "$remover" || true
[ -z "$SERVING" ] || start_server "$volume"
mount_volume "$volume" "$mnt"
check "what was removed before is restored" trash restore --below "$mnt/t/killed"
check "with its content" python3 - "$mnt/t/killed" "$WORK/removed" <<'PY'
import sys
for line in open(sys.argv[2]):
    number = line.strip()
    assert open(f"{sys.argv[1]}/{number}").read() == number, number
PY
if [ -z "$SERVING" ]; then
    umount_volume "$mnt"
    KESTREL_CRASH_AT=trash.renamed:1 mount_volume "$volume" "$mnt"
    pid=$(volume_pid "$volume")
    "$KESTREL" rm -r "$mnt/t/killed" >/dev/null 2>&1 || true
    while alive "$pid"; do sleep 0.01; done
    umount -l "$mnt"
    mount_volume "$volume" "$mnt"
    check "a tree is in the trash after a death" prints '/t/killed$' trash list "$mnt/t"
    umount_volume "$mnt"
    check "at rest" prints 'removed for good' trash empty "$volume:/t/killed"
    check "listed at rest" bash -c "! '$KESTREL' trash list '$volume:/t/killed' | grep -q ."
    mount_volume "$volume" "$mnt"
fi
close_and_check "$volume" "$mnt"
summary
