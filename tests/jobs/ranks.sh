#!/usr/bin/env bash
# Ranks of jobs, which log what they make for themselves: trees and commands, what of several ranks
# counts, what a rank sees of the job's inputs, processes that are killed and superseded,
# publications that kill -9 ends, a full disk, and bad input.
#
# FILES: how many files the logs of processes that die have.
# JOBS_BUCKET=1: of a volume that a bucket has all of, by its URL.
set -euo pipefail
# shellcheck source=tests/jobs/lib.sh
. "$(dirname "$0")/lib.sh"
FILES=${FILES:-10000}
small=$WORK/small
all_ends() {
    job_servers
    ! mountpoint -q "$small" || umount -l "$small"
}
AT_END=all_ends

# start NAME [INPUT…]: a job without a server.
start() {
    local name=$1 input inputs=()
    for input in "${@:2}"; do inputs+=(--input "$input"); done
    k job start "$vol" "${inputs[@]}" --publish "$name" --log 2>/dev/null
}
# log NAME RANK ARGUMENTS…: a rank of it.
log() {
    k job log "$vol" "$1" --rank "$2" "${@:3}"
}
# publish NAME: its version, as `tree` shows it.
published() {
    k job publish "$vol" "$1" >/dev/null 2>"$WORK/told" && tree "$1"
}
src=$WORK/src
mkdir -p "$src/d/e" "$src/other"
echo one >"$src/d/one"
echo two >"$src/d/e/two"
echo odd >"$src/d/e/"$'odd \xff\n name'
head -c 100000 /dev/urandom >"$src/middle"
head -c 9000000 /dev/urandom >"$src/large"
: >"$src/empty"
ln -s d/one "$src/link"
chmod 4750 "$src/d/one"
chmod 1777 "$src/other"
touch -d '2020-01-02 03:04:05.678901234' "$src/d/one"
# listing DIR: all that a log keeps of what is below it.
listing() {
    (cd "$1" && export LC_ALL=C && find . -mindepth 1 -printf '%p %y %m %U %G %s %l %T@\n' |
        sed -E '/^\.[^ ]* d /s/ [0-9]+  [0-9.]+$//; / l /s/ [0-9.]+$//' | sort)
}
sums() {
    (cd "$1" && find . -type f -exec sha256sum {} + | LC_ALL=C sort)
}

echo "-- a tree, beside commands"
eval "$(start made@1)"
check "its variables" test "$KESTREL_JOB_NUMBER" -gt 0
check "a rank logs a tree" prints '7 files and 3 directories' log made@1 0 --tree "$src"
check "a rank by the variables" k job log --rank 1 --tree "$src" --to /below/here
check "a command in a mount of a log" log made@1 2 -- \
    sh -c 'mkdir d more; echo 2 >d/mine; echo x >more/x; mv more less; ln less/x less/y; rm less/x'
check "a rank that has finished is told" prints 'rank 0 +finished' k job status "$vol" made@1
refuses "it logs nothing any more" "rank 0 of job .* has finished" log made@1 0 --tree "$src"
refuses "neither as a command" "has finished" log made@1 2 -- true
check "one job is listed" same "$(k job list "$vol" --json | python3 -c \
    'import json, sys; print(len(json.load(sys.stdin)["jobs"]))')" 1
refuses "the log of a rank is none to publish" "is the log of rank 0" \
    k job publish "$vol" $((KESTREL_JOB_NUMBER + 1))
check "it is published" k job publish "$vol" made@1
check "no job is left" same "$(k job list "$vol")" ""
k mount "$(url made@1)" "$ver" >/dev/null
mkdir "$WORK/one"
cp -a "$src/." "$WORK/one"
check "all that a tree had, where it was put" \
    same "$(listing "$ver/below/here")" "$(listing "$src")"
check "its content" same "$(sums "$ver/below/here")" "$(sums "$src")"
check "trees of several ranks in one directory" same "$(ls "$ver/d")" "e
mine
one"
check "what a command has made" same "$(cat "$ver/d/mine" "$ver/less/y")" "2
x"
check "links of directories" same "$(stat -c %h "$ver" "$ver/d" "$ver/less" | tr '\n' ' ')" "6 3 2 "
check "figures" prints 'files +16' k version info "$vol" made@1
k umount "$ver"

echo "-- what of several ranks counts"
start both@1 >/dev/null
mkdir -p "$WORK/a1/d/sub" "$WORK/a2/d/sub"
echo L >"$WORK/a1/d/same"
echo L >"$WORK/a1/d/l"
echo R >"$WORK/a2/d/same"
echo R >"$WORK/a2/d/sub/r"
log both@1 7 --tree "$WORK/a2" >/dev/null
log both@1 3 --tree "$WORK/a1" >/dev/null
check "the lower rank counts" same "$(published both@1)" "d/ d/l=L d/same=L d/sub/ d/sub/r=R"
check "the other one is told" grep -q 'd/same: of both@1-rank-3, not of both@1-rank-7' "$WORK/told"
start again@1 >/dev/null
log again@1 0 --tree "$WORK/a1" --keep >/dev/null
check "of one rank the later one counts" log again@1 0 --tree "$WORK/a2"
check "its version" same "$(published again@1)" "d/ d/l=L d/same=R d/sub/ d/sub/r=R"

echo "-- on an input"
start on@1 both@1 >/dev/null
mkdir -p "$WORK/t/d/sub" "$WORK/clash/d"
echo B >"$WORK/t/d/sub/b"
echo B >"$WORK/clash/d/same"
check "into its directories" log on@1 0 --tree "$WORK/t"
refuses "not over its files" "d/same: .*something of this name already" \
    log on@1 1 --tree "$WORK/clash"
check "a command sees it" prints L log on@1 2 -- sh -c 'cat d/same; rm d/same; rm -r d/sub'
refuses "a rank that has not finished" "rank 1 has not finished" k job publish "$vol" on@1
check "it can be published all the same" k job publish "$vol" on@1 --unfinished
check "what one has removed and another filled" same "$(tree on@1)" "d/ d/l=L d/sub/ d/sub/b=B"
start lower@1 both@1 >/dev/null
log lower@1 0 -- rm -r d/sub >/dev/null
log lower@1 1 --tree "$WORK/t" >/dev/null
check "removed by the lower rank" same "$(published lower@1)" "d/ d/l=L d/same=L"
check "that is told" grep -q 'd/sub: of lower@1-rank-0, not of lower@1-rank-1' "$WORK/told"
job side@1 "" 'mkdir d; echo S >d/s' >/dev/null
start two@1 both@1 side@1 >/dev/null
refuses "inputs that are not one on the other" "make one version of them first" \
    log two@1 0 --tree "$WORK/t"
k job abort "$vol" two@1 >/dev/null

echo "-- lists"
eval "$(start list@1 both@1)"
check "a list of paths" prints '4 files' k job log --rank 0 --to /d --list - <<'END'
empty
sub/e1
new/sub/e 2
new/e3
END
refuses "a path that is taken" "something of this name already" \
    k job log --rank 1 --list - <<<'d/same'
check "ranks that have not finished are told" prints 'rank 1 +not finished' \
    k job status "$vol" list@1
check "it is published" k job publish "$vol" list@1 --unfinished
check "its version" same "$(tree list@1)" "d/ d/empty= d/l=L d/new/ d/new/e3= d/new/sub/ \
d/new/sub/e 2= d/same=L d/sub/ d/sub/e1= d/sub/r=R"

echo "-- a plan"
planned=$(k job plan "$vol" --files 100000000 --processes 8,512 --sample 5000 \
    --server-rate 150000 --json 2>/dev/null)
check "what 512 processes would take" python3 - "$planned" <<'PY'
import json, sys
told = json.loads(sys.argv[1])
few, many = told["plans"]
assert few["log_seconds"] > many["log_seconds"] > 0 and many["against_server"] > 0, told
PY
refuses "of no files" "at least one file" k job plan "$vol" --files 0
check "nothing of it is left" same "$(k version list "$vol" | grep -c plan-)" 0

echo "-- compaction"
before=$(tree list@1)
check "a version of ranks is compacted" k version compact "$(url list@1)" --into one@1 --workers 2
check "it is the same" same "$(tree one@1)" "$before"
check "in one run" prints 'runs +1$' k version info "$vol" one@1
check "a job on it" job on-one@1 one@1 'rm d/same; mv d/new d/old; echo 4 >d/old/e4'
check "its version" same "$(tree on-one@1)" "d/ d/empty= d/l=L d/old/ d/old/e3= d/old/e4=4 \
d/old/sub/ d/old/sub/e 2= d/sub/ d/sub/e1= d/sub/r=R"
check "compacted again" k version compact "$(url on-one@1)" --into two@1
check "the same again" same "$(tree two@1)" "$(tree on-one@1)"
refuses "beside a job on what is in it" "was compacted.*both@1" job q@1 "one@1 on@1" true
check "beside one that knows nothing of it" job beside@1 "one@1 side@1" 'cat d/s d/l'
check "what it was made from is deleted" k version delete "$vol" list@1
k version delete "$vol" on-one@1 >/dev/null
check "nothing of it is left over" prints ' 0 objects' k version clean "$vol" --older 0s
check "it is the same still" same "$(tree one@1)" "$before"

echo "-- beside a server"
eval "$(k job start "$vol" --input both@1 --publish served@1 2>/dev/null)"
check "a process of the server" k job join -- sh -c 'echo S >d/server; echo S >d/clash'
echo R >"$WORK/clash/d/clash"
rm "$WORK/clash/d/same"
check "a rank by the variables" k job log --rank 0 --tree "$WORK/clash"
check "what the server has done counts first" same "$(published served@1)" \
    "d/ d/clash=S d/l=L d/same=L d/server=S d/sub/ d/sub/r=R"
unset KESTREL_JOB KESTREL_TOKEN_FILE KESTREL_JOB_VOLUME KESTREL_JOB_NUMBER
check "a job on that" job on-that@1 served@1 'test "$(cat d/server d/l)" = "S
L"; mv d e'
check "its version" same "$(tree on-that@1)" \
    "e/ e/clash=S e/l=L e/same=L e/server=S e/sub/ e/sub/r=R"

echo "-- processes that die"
many=$WORK/many
python3 - "$many" "$FILES" <<'PY'
import os, sys
for dir in range(40):
    os.makedirs(f"{sys.argv[1]}/{dir}")
    for name in range(int(sys.argv[2]) // 40):
        with open(f"{sys.argv[1]}/{dir}/{name}", "w") as file:
            file.write(f"{dir}.{name}" if name % 10 else "x" * 20_000)
PY
start dies@1 >/dev/null
for try in 1 2 3; do
    "$KESTREL" job log "$vol" dies@1 --rank 0 --tree "$many" --upload-every 10ms --keep \
        >/dev/null 2>&1 &
    pid=$!
    sleep 0.$((try * 2))
    kill -9 $pid 2>/dev/null || true
    wait $pid 2>/dev/null || true
done
for point in job.log.written bucket.ingest.tables bucket.ingest.manifest job.rank.sealed \
    job.rank.written; do
    KESTREL_CRASH_AT=$point:1 k job log "$vol" dies@1 --rank 1 --tree "$many" --to /$point \
        >/dev/null 2>&1 || true
    if [ "${point#job.rank.}" != "$point" ]; then continue; fi
    check "$point: the rank goes on" log dies@1 1 --tree "$many" --to "/$point" --keep
done
check "a rank goes on, and finishes" log dies@1 0 --tree "$many"
check "one that was finishing has all" k job publish "$vol" dies@1 --unfinished
k mount "$(url dies@1)" "$ver" >/dev/null
check "all is there" same "$(cd "$ver" && find [0-9]* -type f | wc -l)" "$FILES"
check "and as it was" diff -r "$many/7" "$ver/7"
for point in job.log.written bucket.ingest.tables bucket.ingest.manifest; do
    check "$point: all is there" diff -r "$many" "$ver/$point"
done
check "the last ones were finishing" diff -r "$many" "$ver/job.rank.sealed"
k umount "$ver"

start held@1 >/dev/null
k job log "$vol" held@1 --rank 0 -- sleep 60 >/dev/null 2>&1 &
pid=$!
held() {
    k job status "$vol" held@1 | grep -q 'rank 0 .*process'
}
until_so held
refuses "a rank that joins twice" "has .*open|in use" other job log "$vol" held@1 --rank 0 -- true
refuses "it cannot be published meanwhile" "rank 0 has not finished" k job publish "$vol" held@1
refuses "a mounted log is not logged by a tree" "has its log mounted" \
    log held@1 0 --tree "$WORK/t"
check "a process that takes it over" other job log "$vol" held@1 --rank 0 --take-over -- \
    sh -c 'echo second >second'
pkill -9 -P "$(pgrep -P $pid -f 'job log' || echo $pid)" 2>/dev/null || true
kill -9 $pid 2>/dev/null || true
wait $pid 2>/dev/null || true
check "its version" same "$(published held@1)" "second=second"

echo "-- publications that kill -9 ends"
for point in job.ranks.sealed job.ranks.merged job.ranks.replaced job.sealed job.written; do
    name=cut-$point
    start "$name" both@1 >/dev/null
    log "$name" 0 --tree "$WORK/t" >/dev/null
    log "$name" 1 -- sh -c 'echo 1 >d/one' >/dev/null
    KESTREL_CRASH_AT=$point:1 k job publish "$vol" "$name" >/dev/null 2>&1 || true
    if [ "$point" = job.ranks.sealed ] || [ "$point" = job.ranks.merged ]; then
        refuses "$point: no rank joins" "is being published" log "$name" 2 --tree "$WORK/t"
    fi
    check "$point: the version" same "$(published "$name")" \
        "d/ d/l=L d/one=1 d/same=L d/sub/ d/sub/b=B d/sub/r=R"
done
check "no job is left" same "$(k job list "$vol")" ""
check "nothing else of them is left" prints '0 objects of jobs' k version clean "$vol" --older 0s

echo "-- a server elsewhere"
eval "$(other job start "$vol" --input both@1 --publish elsewhere@1 2>/dev/null)"
log elsewhere@1 0 --tree "$WORK/t" >/dev/null
refuses "it is in the way" "has .*open" k job publish "$vol" elsewhere@1
check "ranks may still join" log elsewhere@1 1 --tree "$src" --to /more
check "so may processes of the server" other job join -- sh -c 'echo late >d/late'
check "it is cut off" k job publish "$vol" elsewhere@1 --take-over
check "what it had synced, and all ranks" prints '^6 d/sub/b d/late$' sh -c \
    "\"$KESTREL\" mount '$(url elsewhere@1)' '$ver' >/dev/null && cd '$ver' &&
     echo \$(ls more | wc -l) d/sub/b \$(ls d/late); cd / && \"$KESTREL\" umount '$ver'"
unset KESTREL_JOB KESTREL_TOKEN_FILE KESTREL_JOB_VOLUME KESTREL_JOB_NUMBER

echo "-- jobs that are aborted"
before=$(objects)
start dropped@1 >/dev/null
log dropped@1 0 --tree "$src" >/dev/null
log dropped@1 1 --tree "$src" --keep >/dev/null
check "their ranks have objects" test "$(objects)" -gt "$before"
check "abort" k job abort "$vol" dropped@1
check "they are gone" same "$(objects)" "$before"
refuses "a rank of it" "no such job" log dropped@1 0 --tree "$src"

if [ -z "${JOBS_BUCKET:-}" ]; then
    echo "-- a disk that is full"
    mkdir "$small"
    mount -t tmpfs -o size=24m none "$small"
    k format "$small/vol" >/dev/null
    k job start "$small/vol" --publish small@1 --log >/dev/null 2>&1
    check "what fits" k job log "$small/vol" small@1 --rank 0 --tree "$src" --to /one
    check "another rank" k job log "$small/vol" small@1 --rank 1 --tree "$src/d" --to /two --keep
    refuses "what does not" "full|No space|space" \
        k job log "$small/vol" small@1 --rank 1 --tree "$many/.." --to /all
    check "what was synced is published" k job publish "$small/vol" small@1 --unfinished
    k mount "$small/vol//small@1" "$ver" >/dev/null
    check "it is whole" same "$(sums "$ver/one")" "$(sums "$src")"
    check "the other one, too" same "$(sums "$ver/two")" "$(sums "$src/d")"
    k umount "$ver"
    umount "$small"
fi

echo "-- bad input"
start bad@1 >/dev/null
refuses "a rank that there cannot be" "at most 900 ranks" log bad@1 900 --tree "$src"
refuses "no rank" "required" k job log "$vol" bad@1 --tree "$src"
refuses "neither tree nor command" "required" k job log "$vol" bad@1 --rank 1
refuses "a tree that is not there" "No such file" log bad@1 1 --tree "$WORK/nowhere"
refuses "a place that is no path" "not a valid name" log bad@1 1 --tree "$src" --to /x/../y
refuses "a job that there is not" "no such job" log nope@1 1 --tree "$src"
refuses "no job" "which job" env -u KESTREL_JOB_VOLUME "$KESTREL" job log --rank 1 --tree "$src"
k job abort "$vol" bad@1 >/dev/null
summary
