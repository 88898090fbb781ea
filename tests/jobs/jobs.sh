#!/usr/bin/env bash
# Jobs: namespaces on published versions, which become versions; what of several inputs counts; jobs
# of several processes; servers that are killed, stopped and superseded; publications that kill -9
# ends; what deletions leave; random inputs against a model (dag.py); and bad input.
#
# JOBS_BUCKET=1: of a volume that a bucket has all of, by its URL.
# DAGS, DAG_JOBS: random graphs of jobs, and how many jobs each has.
set -euo pipefail
# shellcheck source=tests/jobs/lib.sh
. "$(dirname "$0")/lib.sh"
DAGS=${DAGS:-3} DAG_JOBS=${DAG_JOBS:-7}

echo "-- one job after the other"
mkdir -p "$mnt/set/d"
echo one >"$mnt/set/f"
echo two >"$mnt/set/d/g"
head -c 3000000 /dev/urandom >"$mnt/set/big"
sum=$(sha256sum <"$mnt/set/big")
check "a version of a directory" k publish "$mnt/set" raw@1
check "a job on it" job clean@1 raw@1 \
    'test "$(pwd)" = "$KESTREL_JOB_DIR"; test "$(cat d/g)" = two; rm f; mv d e; echo new >h;
     head -c 2000000 /dev/urandom >data; printf X | dd of=big bs=1 seek=7 conv=notrunc 2>&1'
check "the job's version" same "$(tree clean@1)" "big data e/ e/g=two h=new"
check "its input is what it was" same "$(k mount "$(url raw@1)" "$ver" 2>&1 >/dev/null;
    sha256sum <"$ver/big"; cat "$ver/f" "$ver/d/g"; k umount "$ver")" "$sum
one
two" || true
check "a job without inputs" job first@1 "" 'printf 1 >x; mkdir y; echo 2 >y/z'
check "a job on a job's version" job second@1 first@1 'rm -r y; printf .3 >>x'
check "its version" same "$(tree second@1)" "x=1.3"
check "nobody has seen anything of it in the volume" same "$(ls "$mnt")" set
check "sql reads it" prints 'x' k sql "$vol" "select path from entries where version = 'second@1'"
check "lineage" prints 'first@1' k version lineage "$vol" second@1
check "info tells what is below" prints 'below it.*first@1' k version info "$vol" second@1
refuses "a clone of it in the live tree" "made by a job" k clone "$(url second@1)" "$mnt/clone"

check "a job that removes trees on its server" job swept@1 second@1 \
    'mkdir many many/a; for n in $(seq 2000); do echo >many/a/$n; done; "$KESTREL" rm -r many'
check "nothing of them is published" same "$(k sql "$vol" --csv \
    "select path from entries where version = 'swept@1' and path <> ''")" "path
x"
refuses "a job that keeps removed files" "kestrel trash empty" job trash@1 second@1 \
    '"$KESTREL" policy set . trash=1d; rm x'
check "its trash is emptied" k job run "$vol" --resume trash@1 --keep -- "$KESTREL" trash empty .
check "it is published" k job publish "$vol" trash@1
check "its version" same "$(tree trash@1)" ""

echo "-- several inputs"
job left@1 "" 'mkdir both both/deep l; echo L >both/l; echo L >clash; echo L >both/deep/l' \
    >/dev/null
job right@1 "" 'mkdir both both/deep r; echo R >both/r; echo R >clash; echo R >both/deep/r' \
    >/dev/null
check "both trees are one" job both@1 "left@1 right@1" 'test "$(ls -d both/*)" = "both/deep
both/l
both/r"; test "$(cat both/deep/*)" = "L
R"; test "$(cat clash)" = L; test "$(stat -c %h both)" = 3; rm both/r; mv r both/moved'
# told FIRST SECOND: what a job says of these inputs.
told() {
    k job run "$vol" --input "$1" --input "$2" --publish q@1 --keep -- true 2>&1 || return
    k job abort "$vol" q@1
}
check "a name in both is told" prints 'clash: of left@1, not of right@1' told left@1 right@1
check "the other order" job both@2 "right@1 left@1" 'test "$(cat clash)" = R'
check "changes of directories of both" same "$(tree both@1)" \
    "both/ both/deep/ both/deep/l=L both/deep/r=R both/l=L both/moved/ clash=L l/"
check "a job on that and a third one" job three@1 "both@1 first@1" \
    'test ! -e both/r; test -d both/moved; test "$(cat y/z)" = 2; mv y both/deep/y'
check "its version" same "$(tree three@1)" "both/ both/deep/ both/deep/l=L both/deep/r=R \
both/deep/y/ both/deep/y/z=2 both/l=L both/moved/ clash=L l/ x=1"

echo "-- jobs on one version that know nothing of each other"
job base@1 "" 'mkdir d gone m1 m2; echo f >d/f; echo g >d/g; echo x >gone/x
     head -c 1500000 /dev/zero >d/zeros' >/dev/null
job renames@1 base@1 'mv d e; rm -r gone' >/dev/null
job changes@1 base@1 'echo F >d/f; echo k >gone/k; echo h >d/h' >/dev/null
job moves@1 base@1 'mv d/f d/f2; ln d/g d/g2; printf Y | dd of=d/zeros bs=1 conv=notrunc 2>&1' \
    >/dev/null
job removes@1 base@1 'rm d/f d/zeros; echo G >d/g' >/dev/null
job into1@1 base@1 'mv m1 m2/m1' >/dev/null
job into2@1 base@1 'mv m2 m1/m2' >/dev/null
merged() {
    job "$1" "$2" 'find . -type f -size -100k -printf "%P=" -exec head -c 9 {} \; |
        LC_ALL=C sort | tr "\n" " "
        echo; find . -name zeros -exec sh -c "printf \"zeros \"; head -c 1 \"\$1\" | tr \"\\0\" 0
        head -c 1500000 \"\$1\" | wc -c" _ {} \;'
}
check "a directory renamed here and changed there" prints '^e/f=F e/g=g e/h=h $' \
    merged q@2 "renames@1 changes@1"
check "a removed directory that a more important job has filled stays" \
    prints '^e/f=F e/g=g e/h=h gone/k=k $' merged q@3 "changes@1 renames@1"
check "a file renamed here and changed there, changed first" \
    prints '^d/f=F d/g2=g d/g=g d/h=h gone/k=k gone/x=x $' merged q@4 "changes@1 moves@1"
check "the same, renamed first" prints '^d/f2=f d/g2=g d/g=g d/h=h gone/k=k gone/x=x $' \
    merged q@5 "moves@1 changes@1"
check "a file changed here and removed there, changed first" prints '^zeros Y1500000$' \
    merged q@6 "moves@1 removes@1"
check "the same, removed first" not grep -q zeros <(merged q@7 "removes@1 moves@1")
check "a file that both have changed is told" prints 'd/f2: of changes@1, not of moves@1' \
    told changes@1 moves@1
check "a removed directory that stays is told" prints 'gone: of changes@1, not of renames@1' \
    told changes@1 renames@1
check "one that does not stay, too" prints 'gone: of renames@1, not of changes@1' \
    told renames@1 changes@1
refuses "directories moved into each other" "moved a directory into one that another" \
    job q@8 "into1@1 into2@1" true
check "no job is left" same "$(k job list "$vol")" ""

echo "-- a job of several processes"
eval "$(k job start "$vol" --input first@1 --publish many@1 2>/dev/null)"
check "its address" grep -q '^kestrel://127.0.0.1:' <<<"$KESTREL_JOB"
check "its token is the user's alone" same "$(stat -c %a "$KESTREL_TOKEN_FILE")" 600
sees='echo $1 >from$1; for i in $(seq 100); do [ -e from1 ] && [ -e from2 ] && exit; sleep 0.1; done
      exit 1'
k job join -- sh -c "$sees" _ 1 &
check "processes see each other" k job join "$KESTREL_JOB" -- sh -c "$sees" _ 2
check "the other one, too" wait $!
check "status" prints 'open by .*process' k job status "$vol" many@1
check "list" prints 'many@1 ' k job list "$vol"
refuses "gc of a job" "whole volume" k gc "$WORK"/a/job-*
refuses "fsck of a job" "whole volume" k fsck "$WORK"/a/job-*
refuses "publish of a directory of a job" "kestrel job publish" \
    k publish "$KESTREL_JOB:/y" q@9 --token-file "$KESTREL_TOKEN_FILE"
check "publish stops the server" k job publish "$vol" many@1
check "its version" same "$(tree many@1)" "from1=1 from2=2 x=1 y/ y/z=2"
refuses "a job that has ended" "No such file|refused" \
    k --wait 1s job join "$KESTREL_JOB" -- true
unset KESTREL_JOB KESTREL_TOKEN_FILE

echo "-- servers that die"
eval "$(k job start "$vol" --input first@1 --publish kept@1 2>/dev/null)"
k mount "$KESTREL_JOB" "$WORK/dead" >/dev/null
echo synced >"$WORK/dead/synced"
sync "$WORK/dead/synced"
waiting=$(pgrep -f "kestrel mount kestrel://.* $WORK/dead " | head -n 1)
kill -9 "$(server a)"
k umount --force "$WORK/dead" 2>/dev/null || true
eval "$(other job resume "$vol" kept@1 2>/dev/null)"
check "another machine goes on with what was synced" \
    prints synced other job join -- cat synced
stopped=$(server b)
kill -STOP "$stopped"
refuses "publish while another machine has it" "has .*open|take-over" k job publish "$vol" kept@1
check "a third process takes it over" k job resume "$vol" kept@1 --take-over
kill -CONT "$stopped"
check "the superseded server ends or refuses" \
    not other job join "$KESTREL_JOB" -- sh -c 'echo late >late && sync late'
kill -9 "$stopped" 2>/dev/null || true
stopped=
check "the job is published" k job publish "$vol" kept@1
check "its version" same "$(tree kept@1)" "synced=synced x=1 y/ y/z=2"
rm -rf "$WORK"/b/job-*

echo "-- commands that fail, names that are taken"
refuses "a command that fails" "ended with status 3; job [0-9]+ is kept" \
    job fails@1 first@1 'echo half >half; exit 3'
check "another command in the job" k job run "$vol" --resume fails@1 --keep -- cat half
check "a name that is taken meanwhile" job fails@2 "" true
number=$(k job list "$vol" --json | python3 -c \
    'import json, sys; print(json.load(sys.stdin)["jobs"][0]["job"])')
refuses "publishing it under that" "already.*--as" k job publish "$vol" "$number" --as fails@2
check "under another one" k job publish "$vol" "$number" --as fails@3
check "its version" same "$(tree fails@3)" "half=half x=1 y/ y/z=2"
before=$(objects)
job dropped@1 first@1 'head -c 3000000 /dev/urandom >data; sync data; exit 1' >/dev/null 2>&1 ||
    true
check "a job has objects" test "$(objects)" -gt "$before"
check "abort" k job abort "$vol" dropped@1
check "they are gone" same "$(objects)" "$before"
check "no job is left" same "$(k job list "$vol")" ""

echo "-- publications that kill -9 ends"
for point in job.sealed job.written job.named job.rows-removed; do
    name=cut-${point#job.}@1
    k job run "$vol" --input first@1 --publish "$name" --keep -- \
        sh -c 'echo kept >kept; head -c 100000 /dev/urandom >data' >/dev/null 2>&1
    number=$(k job list "$vol" --json | python3 -c \
        'import json, sys; print(json.load(sys.stdin)["jobs"][0]["job"])')
    KESTREL_CRASH_AT=$point:1 k job publish "$vol" "$name" >/dev/null 2>&1 || true
    if [ "$point" != job.rows-removed ] && [ "$point" != job.named ]; then
        refuses "$point: it is changed no more" "being published" \
            k job run "$vol" --resume "$number" -- true
    fi
    case $point in
    job.named)
        refuses "$point: it cannot be aborted" "has been published as $name" \
            k job abort "$vol" "$number"
        check "$point: the version" same "$(tree "$name")" "data kept=kept x=1 y/ y/z=2"
        continue
        ;;
    job.rows-removed)
        refuses "$point: it gets no other name" "published as $name already.*version rename" \
            k job publish "$vol" "$number" --as other@1
        check "$point: the version" same "$(tree "$name")" "data kept=kept x=1 y/ y/z=2"
        continue
        ;;
    esac
    check "$point: published after all" k job publish "$vol" "$number"
    check "$point: the version" same "$(tree "$name")" "data kept=kept x=1 y/ y/z=2"
done
check "no job is left" same "$(k job list "$vol")" ""

echo "-- what deletions leave"
job lower@1 "" 'head -c 3000000 /dev/urandom >low; echo low >name' >/dev/null
job upper@1 lower@1 'head -c 3000000 /dev/urandom >up' >/dev/null
check "a version that another one is made on is deleted" k version delete "$vol" lower@1
refuses "it has no name" "no version" k mount "$(url lower@1)" "$ver"
reads() {
    job "$1" upper@1 'test "$(cat low up | wc -c) $(cat name)" = "6000000 low"' 
}
check "what is made on it is there" reads q@10
k version delete "$vol" q@10
check "a leftover of neither is removed" prints ' 0 objects' k version clean "$vol" --older 0s
check "it is there still" reads q@11
k version delete "$vol" q@11
k version delete "$vol" upper@1
check "clean removes what nothing needs" prints '[1-9][0-9]* objects of jobs' \
    k version clean "$vol" --older 0s
check "gc leaves objects of jobs alone" prints "0 leaked|no leaked|nothing" k gc "$vol"
check "fsck finds nothing" k fsck "$vol"

echo "-- bad input"
refuses "an input that there is not" "input nope.*no version of this name" job q@12 nope true
refuses "an input twice" "twice" job q@12 "first@1 first@1" true
refuses "a name that is taken" "already" job first@1 "" true
refuses "a bad name" "a name has" job 'q 12' "" true
refuses "a job that there is not" "no such job" k job publish "$vol" 4711
refuses "join without a job" "which job" env -u KESTREL_JOB "$KESTREL" job join -- true
refuses "a volume that there is not" "volume" k job run "$WORK/nowhere" --publish q@12 -- true
refuses "a command that there is not" "No such file" k job run "$vol" --publish q@12 -- nocommand
check "abort of that" k job abort "$vol" q@12

echo "-- random inputs"
for ((seed = 1; seed <= DAGS; seed++)); do
    check "random jobs, seed $seed" timeout 300 python3 "$ROOT/tests/jobs/dag.py" run "$KESTREL" \
        "$vol" "$WORK" "$seed" "$DAG_JOBS"
done
summary
