#!/usr/bin/env bash
# Change feeds as docs/semantics.md says (statements W1 to W8): what programs do, read as it happens
# and afterwards, by cursors, over the death of readers, mounts and servers; refusals; dumps.
#
# SECONDS_LOAD: seconds of each load (default 3).
set -euo pipefail
. "$(dirname "$0")/../lib.sh"
needs_kestrel

volume=$WORK/volume mnt=$WORK/mnt
seconds=${SECONDS_LOAD:-3}
watch_py=$ROOT/tests/posix/watch.py
make_volume "$volume"
mount_volume "$volume" "$mnt"
mkdir "$mnt/t" "$mnt/outside"

watch() { timeout 120 "$KESTREL" watch "$@"; }
# all DIR FILE: the events below DIR that are kept, as JSON.
all() { watch "$1" --since oldest --no-wait --json >"$2"; }
# told DIR [OPTION…]: events without their times, a line each.
told() { watch "$@" --no-wait 2>/dev/null | sed -E 's/^[^ ]+  ([^ ]+) +/\1 /'; }
# now_at DIR: the cursor after all that has happened below DIR.
now_at() { watch "$1" --no-wait --json | sed -n 's/.*"cursor":"\([^"]*\)".*/\1/p'; }

echo "-- the policy"
refuses "without it nothing is recorded" 'no changes are recorded' watch "$mnt/t"
refuses "no time" 'hours or days' "$KESTREL" policy set "$mnt/t" feed=7
check "it is set" "$KESTREL" policy set "$mnt/t" feed=7d
check "and shown" prints "feed +7d +.*/t$" "$KESTREL" policy get "$mnt/t"
check "nothing has happened" [ -z "$(told "$mnt/t" --since oldest)" ]

echo "-- events"
mkdir "$mnt/t/d"
echo one >"$mnt/t/d/f"
mv "$mnt/t/d/f" "$mnt/outside/f"
mv "$mnt/outside/f" "$mnt/t/g"
ln "$mnt/t/g" "$mnt/t/h"
chmod 600 "$mnt/t/d"
mv "$mnt/t/h" "$mnt/t/d/h"
rm "$mnt/t/d/h"
echo two >"$mnt/outside/x"
mv "$mnt/outside/x" "$mnt/t/g"
rm -r "$mnt/t/d"
cat >"$WORK/expected" <<'EOF'
create d
create d/f
modify d/f
moved-out d/f
moved-in g
create h
attributes d
rename h -> d/h
remove d/h
moved-in g
remove d
EOF
check "of each change, in order" diff <(told "$mnt/t" --since oldest) "$WORK/expected"
mkdir -p "$mnt/t/in/ner"
touch "$mnt/t/in/ner/f" "$mnt/t/elsewhere"
mv "$mnt/t/elsewhere" "$mnt/t/in/ner/g"
check "below a directory of it" diff <(told "$mnt/t/in" --since oldest | grep -v ^attributes) \
    <(printf '%s\n' 'create ner' 'create ner/f' 'moved-in ner/g')
mkdir "$mnt/t/scratch"
"$KESTREL" policy set "$mnt/t/scratch" feed=none
touch "$mnt/t/scratch/f"
check "not below one that is left out" bash -c \
    "! '$KESTREL' watch '$mnt/t' --since oldest --no-wait 2>&1 | grep scratch/"
refuses "which has no feed" 'no changes are recorded' watch "$mnt/t/scratch"
python3 "$ROOT/tests/posix/remove.py" make "$mnt/t/tree" 300
before=$(now_at "$mnt/t")
"$KESTREL" rm -r "$mnt/t/tree" >/dev/null
check "a removed tree is one event" [ "$(told "$mnt/t" --since "$before")" = "remove tree" ]

echo "-- a reader beside writers"
"$KESTREL" policy unset "$mnt/t/scratch" feed
mkdir "$mnt/u"
"$KESTREL" policy set "$mnt/u" feed=1d
mkdir "$mnt/u/shared"
other=$mnt
if [ -n "$SERVING" ]; then
    other=$WORK/other
    mount_volume "$volume" "$other"
fi
cursor=$WORK/cursor
# follow FILE: a reader, which begins where the one before has come to.
follow() {
    "$KESTREL" watch "$mnt/u" --since oldest --cursor-file "$cursor" --json >"$1" 2>"$WORK/err" &
    reader=$!
}
follow "$WORK/first.json"
python3 "$watch_py" load "$mnt/u" 1 "$seconds" >"$WORK/load.1" &
one=$!
python3 "$watch_py" load "$other/u" 2 "$seconds" >"$WORK/load.2" &
two=$!
until_so [ -s "$WORK/first.json" ]
sleep 1
kill -9 "$reader"
wait "$reader" 2>/dev/null || true
follow "$WORK/second.json"
wait "$one" "$two"
all "$mnt/u" "$WORK/all.json"
last=$(grep '"event"' "$WORK/all.json" | tail -n 1)
check "a reader comes to the last event" until_so grep -qxF "$last" "$WORK/second.json"
kill "$reader"
wait "$reader" 2>/dev/null || true
check "nothing was skipped by the first reader" python3 "$watch_py" part "$WORK/first.json" \
    "$WORK/all.json"
check "nor by the second" python3 "$watch_py" part "$WORK/second.json" "$WORK/all.json"
check "both together have the tree" python3 "$watch_py" mirror "$mnt/u" "$WORK/first.json" \
    "$WORK/second.json"
check "the loads did what they could" grep -c ' changes$' "$WORK/load.1" "$WORK/load.2"
[ "$other" = "$mnt" ] || umount_volume "$other"

echo "-- programs"
mkdir "$mnt/p"
"$KESTREL" policy set "$mnt/p" feed=1d
cp -a "$ROOT/scripts" "$mnt/p/copied"
tar -C "$ROOT" -cf - tests/posix | tar -C "$mnt/p" -xf -
rsync -a "$ROOT/bench/" "$mnt/p/bench/"
rsync -a --delete "$ROOT/scripts/" "$mnt/p/bench/"
git -C "$mnt/p" init -q repo
git -C "$mnt/p/repo" config user.email a@b
git -C "$mnt/p/repo" config user.name a
seq 100 >"$mnt/p/repo/a"
git -C "$mnt/p/repo" add a
(cd "$mnt/p/repo" && git commit -qm a && git gc -q)
sqlite3 "$mnt/p/db" 'create table t (a); insert into t values (1); update t set a = 2;'
sed -i s/1/2/ "$mnt/p/repo/a"
rm -rf "$mnt/p/copied"
all "$mnt/p" "$WORK/programs.json"
check "cp, tar, rsync, git, sqlite, sed, rm" python3 "$watch_py" mirror "$mnt/p" \
    "$WORK/programs.json"

echo "-- commands for events"
mkdir "$mnt/e"
"$KESTREL" policy set "$mnt/e" feed=1d
touch "$mnt/e/a b"
mv "$mnt/e/a b" "$mnt/e/c"
rm "$mnt/e/c"
line='echo "$KESTREL_EVENT|$KESTREL_PATH|$KESTREL_TO|$KESTREL_TYPE"'
rm -f "$cursor"
watch "$mnt/e" --since oldest --no-wait --exec "$line" >"$WORK/lines"
check "each runs one" diff <(grep -v '^attr' "$WORK/lines") <(printf '%s\n' 'create|a b||file' \
    'rename|a b|c|file' 'remove|c||file')
refuses "one that fails ends the watch" 'exit status: 1, for rename of a b; go on with --since' \
    watch "$mnt/e" --since oldest --no-wait --cursor-file "$cursor" \
    --exec '[ "$KESTREL_EVENT" != rename ]'
watch "$mnt/e" --no-wait --cursor-file "$cursor" --exec "$line" >"$WORK/lines"
check "and its event comes again" [ "$(head -n 1 "$WORK/lines")" = 'rename|a b|c|file' ]
check "what was done does not" [ -z "$(watch "$mnt/e" --no-wait --cursor-file "$cursor" \
    --exec "$line")" ]

echo "-- bad input"
refuses "no cursor" 'is no cursor' watch "$mnt/e" --since yesterday
refuses "a cursor of another feed" 'of another feed' watch "$mnt/e" --since "$before"
echo nonsense >"$WORK/nonsense"
refuses "a file without one" 'is no cursor' watch "$mnt/e" --cursor-file "$WORK/nonsense"
refuses "no directory" 'not a directory' watch "$mnt/t/g"
mkdir "$mnt/t/.snap/monday"
"$KESTREL" policy unset "$mnt/t" feed
"$KESTREL" policy set "$mnt/t" feed=1d
touch "$mnt/t/later"
refuses "a feed that has ended" 'of another feed.*look at the whole directory' \
    watch "$mnt/t" --since "$before"
now=$(now_at "$mnt/t")
"$KESTREL" policy unset "$mnt/t" feed
"$KESTREL" policy set "$mnt/t" feed=1d
refuses "one by which there is a snapshot" 'kestrel snapshot diff DIRECTORY monday' \
    watch "$mnt/t" --since "$now"
chmod 711 "$WORK"
install -m 755 "$KESTREL" "$WORK/kestrel"
if [ -n "$SERVING" ]; then
    refuses "a user reads none" 'only the superuser' setpriv --reuid 1234 --regid 1234 \
        --clear-groups "$WORK/kestrel" watch "$(serve_url "$volume"):/e"
else
    refuses "a user reads none" . setpriv --reuid 1234 --regid 1234 --clear-groups \
        "$WORK/kestrel" watch "$mnt/e"
fi

echo "-- kill -9"
mkdir "$mnt/k"
"$KESTREL" policy set "$mnt/k" feed=1d
mkdir "$mnt/k/shared"
for seed in 3 4; do
    python3 "$watch_py" load "$mnt/k" $seed 60 >"$WORK/load.$seed" &
done
sleep "$seconds"
kill_mount "$volume" "$mnt"
wait
[ -z "$SERVING" ] || start_server "$volume"
mount_volume "$volume" "$mnt"
all "$mnt/k" "$WORK/killed.json"
check "what is told is what is there" python3 "$watch_py" mirror "$mnt/k" "$WORK/killed.json"
python3 "$watch_py" load "$mnt/k" 5 1 >"$WORK/load.5"
all "$mnt/k" "$WORK/killed.json"
check "and what comes after it" python3 "$watch_py" mirror "$mnt/k" "$WORK/killed.json"

if [ "$NODES" != 1 ]; then
    echo "-- a node that is killed"
    mkdir "$mnt/n"
    "$KESTREL" policy set "$mnt/n" feed=1d
    mkdir "$mnt/n/shared"
    rm -f "$cursor"
    "$KESTREL" watch "$mnt/n" --since oldest --cursor-file "$cursor" --json >"$WORK/node.json" &
    reader=$!
    loads=()
    for seed in 6 7; do
        python3 "$watch_py" load "$mnt/n" $seed $((seconds + 2)) >"$WORK/load.$seed" &
        loads+=($!)
    done
    sleep 1
    kill_node "$volume" 3
    sleep 1
    start_node "$volume" 3
    wait "${loads[@]}"
    check "changes go on" grep -c ' changes$' "$WORK/load.6" "$WORK/load.7"
    all "$mnt/n" "$WORK/all.json"
    last=$(grep '"event"' "$WORK/all.json" | tail -n 1)
    check "a reader goes on" until_so grep -qxF "$last" "$WORK/node.json"
    kill "$reader"
    wait "$reader" 2>/dev/null || true
    check "and has heard of everything" python3 "$watch_py" mirror "$mnt/n" "$WORK/node.json"
fi

if [ -z "$SERVING" ]; then
    echo "-- at rest"
    umount_volume "$mnt"
    watch "$volume:/k" --since oldest --no-wait --json >"$WORK/rest.json"
    check "a volume that nobody serves" cmp <(grep '"event"' "$WORK/killed.json") \
        <(grep '"event"' "$WORK/rest.json")
    refuses "where nothing changes" 'no process serves the volume' watch "$volume:/k"
    "$KESTREL" dump "$volume" "$WORK/dump" >/dev/null
    "$KESTREL" load "$WORK/dump" "$WORK/loaded" --objects "$volume/objects" >/dev/null
    watch "$WORK/loaded:/k" --since oldest --no-wait --json >"$WORK/rest.json"
    check "a volume that was loaded from a dump" cmp <(grep '"event"' "$WORK/killed.json") \
        <(grep '"event"' "$WORK/rest.json")
    mount_volume "$volume" "$mnt"
fi
close_and_check "$volume" "$mnt"
summary
