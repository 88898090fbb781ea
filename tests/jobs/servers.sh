#!/usr/bin/env bash
# Jobs with several servers: what their processes see, the same job with one server and with
# several, servers that are killed, moved and superseded, publications that kill -9 ends, storms of
# changes under kills (storm.py), and bad input.
#
# JOBS_BUCKET=1: of a volume that a bucket has all of, by its URL.
# STORMS, STORM_KILLS: storms, and how often each kills servers.
set -euo pipefail
# shellcheck source=tests/jobs/lib.sh
. "$(dirname "$0")/lib.sh"
KESTREL=$(realpath "$KESTREL")
STORMS=${STORMS:-2} STORM_KILLS=${STORM_KILLS:-3}
one=$WORK/one two=$WORK/two
mkdir "$one" "$two" "$WORK/storm"

# listing DIR: all that there is, with what is in it.
listing() {
    (cd "$1" && find . -printf '%P %y %m %n %s %l\n' | LC_ALL=C sort && find . -type f -print0 |
        LC_ALL=C sort -z | xargs -0 sha256sum) | sed 's/ 4096 $/ -/'
}
# tree NAME: the listing of a version.
tree() {
    k mount "$(url "$1")" "$ver" >/dev/null || return
    listing "$ver"
    k umount "$ver"
}
# pids NAME [NUMBER]: the processes that serve a job, or one of its servers.
pids() {
    "$KESTREL" job status "$vol" "$1" --json | python3 -c '
import json, re, sys
for server in json.load(sys.stdin)["servers"]:
    found = re.search(r"process (\d+)", server["open_by"] or "")
    if found and sys.argv[1:] in ([], [str(server["number"])]):
        print(found[1])' "${@:2}"
}
# start NAME INPUT OPTION…: a job, with its address and token in the environment.
start() {
    local told input=()
    [ -z "$2" ] || input=(--input "$2")
    told=$(k job start "$vol" "${input[@]}" --publish "$1" "${@:3}") || return
    eval "$told"
}
job_servers() {
    local pid
    for pid in $(pgrep -f "kestrel serve $WORK/[ab]/job-"); do
        kill -CONT "$pid" 2>/dev/null
        kill -9 "$pid" 2>/dev/null
    done
}
AT_END=job_servers

# A tree with names of all servers, files with several names, and one that is large.
mkdir -p "$mnt/set/d/e" "$mnt/set/many" "$mnt/set/gone/g"
for n in $(seq 120); do echo "$n" >"$mnt/set/many/f$n"; done
echo linked >"$mnt/set/d/l1"
ln "$mnt/set/d/l1" "$mnt/set/d/e/l2"
ln -s ../many "$mnt/set/d/link"
echo g >"$mnt/set/gone/g/g"
head -c 3000000 /dev/urandom >"$mnt/set/big"
k publish "$mnt/set" raw@1 >/dev/null

echo "-- one namespace"
check "a job with four servers" start many@1 raw@1 --servers 4
check "its address names all" grep -qE '^kestrel://127[^,]*(,127[^,]*){3}/job-1$' <<<"$KESTREL_JOB"
check "status tells each" same "$(k job status "$vol" many@1 | grep -c '^server .*process')" 4
check "list" prints 'many@1 .*4 of 4 servers' k job list "$vol"
k mount "$KESTREL_JOB" "$one" >/dev/null
k mount "$KESTREL_JOB" "$two" >/dev/null
k mount "$(url raw@1)" "$ver" >/dev/null
check "it begins with its input" same "$(listing "$one")" "$(listing "$ver")"
k umount "$ver"
at_once() {
    local n
    for n in $(seq 30); do
        echo "$n" >"$one/many/new$n" && same "$(cat "$two/many/new$n")" "$n" || return
        mv "$two/many/new$n" "$two/d/moved$n" && [ ! -e "$one/many/new$n" ] || return
        [ "$(ls "$one/d" | grep -c moved)" = "$n" ] || return
    done
}
check "mounts see each other's changes at once" at_once
refuses "another server for it" "not supported: which servers share a job" \
    k cluster add-node "$WORK"/a/job-*/server-1 --node 127.0.0.1:1
refuses "one process for it" "not supported: job 1 has several servers" \
    k job run "$vol" --resume many@1 -- true
k umount "$one"
k umount "$two"
check "publish stops all servers" k job publish "$vol" many@1
check "none is left" same "$(pgrep -fc "kestrel serve $WORK/a/job-")" 0 || true
check "no job is left" same "$(k job list "$vol")" ""

echo "-- the same with one server and with three"
changes='
set -e
rm -r gone
for n in $(seq 10 40); do rm many/f$n; done
for n in $(seq 200); do echo new$n >many/new$n; done
mkdir -p p/q/r
for n in $(seq 50 70); do mv many/f$n p/q/r/m$n; done
mv d/e p/e
mv p/q q2
echo more >>p/e/l2
rm d/l1
ln q2/r/m55 d/l55
chmod 600 many/f1
printf X | dd of=big bs=1 seek=7 conv=notrunc 2>&1
head -c 2000000 /dev/zero >zeros
truncate -s 100 many/f2
ln -sf elsewhere d/link
mkdir x y; mv -T x y
mkdir -p deep/$(seq -s / 30) swept/$(seq -s / 5)
"$KESTREL" rm -r swept'
check "one server" k job run "$vol" --input raw@1 --publish alone@1 -- sh -c "$changes"
start three@1 raw@1 --servers 3
check "three servers" k job join -- sh -c "$changes"
check "publish" k job publish "$vol" three@1
check "their versions are the same" same "$(tree three@1)" "$(tree alone@1)"
info() {
    k version info "$vol" "$1" --json | python3 -c '
import json, sys
told = json.load(sys.stdin)
print(told["files"], told["directories"], told["bytes"])'
}
check "and their figures" same "$(info three@1)" "$(info alone@1)"
start again@1 three@1 --servers 2
check "a job with two servers on that" k job join -- sh -ec '
    rm -r q2 many; mv p z; echo 1 >z/new; test "$(cat z/e/l2)" = "linked
more"'
check "publish" k job publish "$vol" again@1
check "a job with one server on that" k job run "$vol" --input again@1 --publish last@1 -- \
    sh -ec 'test ! -e many; cat z/new; mv z zz; echo 2 >>zz/new'
check "what both have made" prints 'zz/new f 644 1 4' tree last@1

echo "-- servers that die"
start died@1 raw@1 --servers 3
k mount "$KESTREL_JOB" "$one" >/dev/null
echo before >"$one/before"
sync "$one/before"
before=$(listing "$one")
kill -9 "$(pids died@1 2)"
for n in $(seq 20); do echo "$n" >"$one/many/late$n"; done &
writer=$!
check "the one that was killed is resumed" k job resume "$vol" died@1
check "a program that waited goes on" wait "$writer"
check "everything is there" same "$(cat "$one"/many/late* "$one/before" | sort -n | tail -n 1)" 20
rm "$one"/many/late*
check "nothing is lost" same "$(listing "$one")" "$before"
refuses "resume of what is served" "have all of its servers open" k job resume "$vol" died@1
sync "$one/before"
for pid in $(pids died@1); do kill -9 "$pid"; done
check "all that were killed are resumed" k job resume "$vol" died@1
check "nothing is lost of what was synced" same "$(listing "$one")" "$before"
k umount "$one"
killed=$(pids died@1)
for pid in $killed; do kill -9 "$pid"; done
for pid in $killed; do while kill -0 "$pid" 2>/dev/null; do sleep 0.1; done; done
eval "$(other job resume "$vol" died@1 --listen 127.0.0.1:0)"
check "another machine goes on, at other addresses" prints before \
    other job join -- cat before
stopped=$(pids died@1 1)
kill -STOP "$stopped"
refuses "publish while a server there is stopped" "has .*open|take-over" k job publish "$vol" died@1
check "another process takes that server over" k job serve "$vol" died@1 1 --take-over
kill -CONT "$stopped"
check "the job goes on" k job join "$KESTREL_JOB" -- sh -c 'echo late >late'
kill -9 "$stopped" 2>/dev/null || true
refuses "publish while another machine has servers" "has .*open|take-over" \
    k job publish "$vol" died@1
check "with --take-over" k job publish "$vol" died@1 --take-over
job_servers || true
check "its version" prints '^late f 644 1 5' tree died@1
rm -rf "$WORK"/b/job-*

echo "-- servers at addresses that are told"
free() {
    python3 -c '
import socket
taken = [socket.socket() for _ in range(2)]
for one in taken: one.bind(("127.0.0.1", 0))
print(*("127.0.0.1:%d" % one.getsockname()[1] for one in taken))'
}
read -r first second < <(free)
check "the first of two" start told@1 raw@1 --server-at "$first" --server-at "$second"
check "the other one on its machine" other job serve "$vol" told@1 2
check "its address" grep -q "^kestrel://$first,$second/job-" <<<"$KESTREL_JOB"
check "a command in the job" k job join -- sh -c 'echo told >told; rm -r many'
k serve "$WORK"/b/job-*/server-2 --stop
check "publish" k job publish "$vol" told@1
check "its version" prints '^told f 644 1 5' tree told@1
rm -rf "$WORK"/b/job-*

echo "-- publications that kill -9 ends"
for point in job.servers-sealed job.servers-gathered job.sealed job.written job.named \
    job.rows-removed; do
    name=cut-${point#job.}@1
    start "$name" raw@1 --servers 2
    k job join -- sh -c 'rm -r many gone; echo kept >kept' >/dev/null
    KESTREL_CRASH_AT=$point:1 k job publish "$vol" "$name" >/dev/null 2>&1 || true
    case $point in
    job.servers-* | job.sealed)
        refuses "$point: it is served no more" "being published" k job resume "$vol" "$name"
        ;;
    esac
    check "$point: published after all" k job publish "$vol" "$name" || true
    check "$point: the version" same "$(tree "$name" | grep -cE '^(many|gone|kept f 644 1 5)')" 1
done
check "no job is left" same "$(k job list "$vol")" ""

echo "-- jobs that are given up"
before=$(objects)
start dropped@1 raw@1 --servers 3
k job join -- sh -c 'head -c 3000000 /dev/urandom >data; sync data; rm -r many' >/dev/null
check "a job has objects" test "$(objects)" -gt "$before"
kill -9 "$(pids dropped@1 3)"
check "abort" k job abort "$vol" dropped@1
check "they are gone" same "$(objects)" "$before"
check "its directory, too" same "$(ls "$WORK/a" | grep -c job-)" 0 || true

echo "-- bad input"
refuses "no server" "0 is not in 1..=64" k job start "$vol" --publish q@1 --servers 0
refuses "too many servers" "65 is not in 1..=64" k job start "$vol" --publish q@1 --servers 65
refuses "one address" "two servers or more" k job start "$vol" --publish q@1 --server-at 127.0.0.1:1
refuses "an address twice" "two servers cannot have one address" \
    k job start "$vol" --publish q@1 --server-at 127.0.0.1:1 --server-at 127.0.0.1:1
refuses "all addresses" "at which the other servers" \
    k job start "$vol" --publish q@1 --servers 2 --listen 0.0.0.0:0
check "no job was begun" same "$(k job list "$vol")" ""
start bad@1 raw@1 --servers 2
refuses "a server that there is not" "has no server 3.*1 to 2" k job serve "$vol" bad@1 3
check "abort" k job abort "$vol" bad@1
k job start "$vol" --publish bad@2 >/dev/null
refuses "a second server of a job with one" "it has one server" k job serve "$vol" bad@2 2
check "abort" k job abort "$vol" bad@2

echo "-- storms"
for ((seed = 1; seed <= STORMS; seed++)); do
    check "storm $seed" timeout 300 python3 "$ROOT/tests/jobs/storm.py" run "$KESTREL" "$vol" \
        "$WORK/storm" "$seed" "$STORM_KILLS"
done
summary
