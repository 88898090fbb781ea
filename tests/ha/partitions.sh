#!/usr/bin/env bash
# Three metadata nodes with their rows in one PostgreSQL, that and two clients on machines of their
# own (network namespaces). A node is cut off from the database, from the other nodes, both ways and
# one way, and stopped; each time it loses its lease and answers nobody, another machine takes it
# over, the mount sees a pause and no error, and when all is as before the old process is refused by
# the engine, says so and ends. A load with a log outside goes on through all of it. Where clients
# reach the stale process it is asked all the time by one that reaches nobody else and has files
# open there: it hears nothing, or what is true.
#
# PAUSE_MAX: longest call in ms (default 30000), LOAD_MS: how long the load of each case works
# (default 10000)
# CASES: which (default "database mute answers others stopped"; deaf, the reverse of mute, besides
# takes 13 s more)
# shellcheck disable=SC2034,SC2004 # lib.sh reads what is set here; indices are no arithmetic
set -euo pipefail
KESTREL_NODES=3
. "$(dirname "$0")/../lib.sh"
. "$(dirname "$0")/lib.sh"
# shellcheck source=tests/cluster/network.sh
. "$ROOT/tests/cluster/network.sh"
needs_kestrel

volume=$WORK/volume a=$WORK/a b=$WORK/b
pause_max=${PAUSE_MAX:-30000} load_ms=${LOAD_MS:-10000}
make_network 1 2 3 p a b
SERVE_HOST="10.99.0.{}"
IN_SERVER=(nsenter "--net=/run/netns/$net{}")
# Longer than any pause: a client that has not heard of a node for that long has lost what it has
# there.
SERVE_OPTIONS=(--lease 40s --access open --metadata-memory 64M)

# ours: the processes that serve a node of this run.
ours() {
    local line
    for line in /proc/[0-9]*/cmdline; do
        if tr '\0' ' ' 2>/dev/null <"$line" | grep -qF "serve $WORK/volume"; then
            line=${line#/proc/} && echo "${line%/*}"
        fi
    done
}
stale='' asker=''
at_end() {
    local pid
    # One that is stopped answers no client, also not one that asks for its number.
    for pid in $stale $asker; do kill -9 "$pid" 2>/dev/null; done
    heal_all
}
after_all() {
    local pid try
    # Those that were left may have taken others over when these were ended.
    for ((try = 0; try < 20; try++)); do
        for pid in $(ours); do kill -9 "$pid" 2>/dev/null; done
        sleep 0.2
        [ -n "$(ours)" ] || break
    done
    remove_network
}
AT_END=at_end AFTER_ALL=after_all

# The database, on a machine of its own; here by its socket.
PG_PORT=5432
pg_home
as_postgres "$PG_BIN/initdb" -A trust -E UTF8 --no-locale -N -U kestrel -D "$PG_HOME/one" >/dev/null
echo "host all all 10.99.0.0/24 trust" >>"$PG_HOME/one/pg_hba.conf"
(cd / && exec nsenter "--net=/run/netns/${net}p" setpriv --reuid postgres --regid postgres \
    --clear-groups -- "$PG_BIN/postgres" -D "$PG_HOME/one" \
    -k "$PG_HOME" -h "$(address_of p)" -p "$PG_PORT" >>"$PG_HOME/one.log" 2>&1) &
PG_PIDS['one']=$!
disown
check "a database on a machine of its own" wait_for 20 "$PG_BIN/pg_isready" -q -h "$PG_HOME" \
    -p "$PG_PORT"

at() { echo "$(address_of "$1"):944$1"; }
check "a cluster with its rows there" inside 1 "$KESTREL" cluster init "$volume" --name volume \
    --grace 1s --node "$(at 1)" --node "$(at 2)" \
    --node "$(at 3)" --metadata "postgres://kestrel@$(address_of p):$PG_PORT/postgres?schema=volume"
for node in 2 3; do
    inside 1 "$KESTREL" cluster token "$volume" | inside "$node" "$KESTREL" cluster join - \
        "$(node_dir "$volume" "$node")" --node "$node" >/dev/null
done
# addresses_of NODE…
addresses_of() {
    local node all=''
    for node in "$@"; do all+="${all:+,}$(at "$node")"; done
    echo "$all"
}
SERVE_PORT[$volume]=9441 NODE_ADDRESSES[$volume]=$(addresses_of 1 2 3)
IN_CLIENT=(nsenter "--net=/run/netns/${net}b")
check "nodes serve, and a client mounts" mount_volume "$volume" "$b" --no-shortcut
IN_CLIENT=(nsenter "--net=/run/netns/${net}a")
check "another one" mount_volume "$volume" "$a"
check "all nodes reach each other" settled "$volume"
ca=$(fingerprint_of "$volume")

mkdir "$a/probe" "$a/pinned"
python3 "$ROOT/tests/ha/pauses.py" run "$a/probe" "$WORK/pauses" &
probe=$!

# A client that asks by handle how large files are, which is asked where they lie, again and again:
# a line for each answer, BEGIN END FILE SIZE-OR-ERROR.
cat >"$WORK/pinned.py" <<'PY'
import os, signal, sys, threading, time
place, log, files = sys.argv[1], open(sys.argv[2], "w", buffering=1), int(sys.argv[3])
fds = [os.open(f"{place}/{number}", os.O_RDONLY) for number in range(files)]
def ask(number):
    while True:
        begun = time.monotonic()
        try:
            got = str(os.fstat(fds[number]).st_size)
        except OSError as why:
            got = os.strerror(why.errno).replace(" ", "_")
        log.write(f"{begun:.4f} {time.monotonic():.4f} {number} {got}\n")
        time.sleep(0.1)
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
for number in range(files): threading.Thread(target=ask, args=(number,), daemon=True).start()
while True: signal.pause()
PY
# LOG SIZE PINNED CUT CHANGED: it was answered while it reached one node only, which had not been
# cut off then, and whenever it asked after files had changed elsewhere it was told so, or nothing.
cat >"$WORK/judge.py" <<'PY'
import sys
log, new, (pinned, cut, changed) = sys.argv[1], sys.argv[2], map(float, sys.argv[3:6])
lines = [line.split() for line in open(log) if line.endswith("\n")]
lines = [(float(begun), float(ended), file, got) for begun, ended, file, got in lines]
before = {file for begun, ended, file, _ in lines if pinned <= begun and ended <= cut}
after = [line for line in lines if line[0] >= changed]
old = [line for line in after if line[3] != new]
wrong = [line for line in lines if not line[3].isdigit()]
print(f"{len(before)} of its files lie there; {len(after)} answers since they changed elsewhere")
for line in old[:10] + wrong[:10]: print("old or wrong:", *line)
sys.exit(not before or bool(old) or bool(wrong))
PY
files=24
every_file_answered() \
    { [ "$(awk -v since="$1" '$1 >= since { print $3 }' "$WORK/asked" | sort -u | wc -l)" = \
    "$files" ]; }

# cut ONE OTHER…, deaf ONE OTHER…, mute ONE OTHER…: no packet between them arrives; it hears nothing
# of them; they hear nothing of it.
cut() { deaf "$@" && mute "$@"; }
deaf() {
    local other
    for other in "${@:2}"; do lose "$1" "$other"; done
}
mute() {
    local other
    for other in "${@:2}"; do lose "$other" "$1"; done
}

# said PATTERN: whether the old process of the node has said so in this case.
said() { grep -qE "$1" <(tail -c "+$mark" "$log"); }
unsaid() { ! said "$1"; }

# mended: nobody is cut off any more but the client that reaches one node only.
mended() {
    local which
    for which in 1 2 3 p a; do heal "$which"; done
}

# outage NAME NODE WORDS COMMAND…: the command cuts it off; HEALING (default mended) ends that. With
# PINNED a client that has files open reaches that node only, until all is over.
outage() {
    local name=$1 node=$2 words=$3 others home pid begun log mark load status=0 ms errors pinning \
        cutting changing ahead
    shift 3
    others=$(echo 123 | tr -d "$node" | sed 's/./& /')
    pid=$(serving_pid "$volume" "$node")
    stale=$pid log=$(node_dir "$volume" "$node")/serve.log
    mark=$(($(stat -c %s "$log") + 1))
    echo "--- $words"
    # The others know where it is; one that hangs is waited for.
    # shellcheck disable=SC2086 # words
    NODE_ADDRESSES[$volume]=$(addresses_of $others)
    mkdir "$a/$name"
    begun=$(now)
    kestrel-crashload run --dir "$a/$name" --log "$WORK/$name.log" --threads 3 --seed 7 \
        --ms "$load_ms" >"$WORK/$name.out" 2>&1 &
    load=$!
    if [ -n "$PINNED" ]; then
        for ((number = 0; number < files; number++)); do echo old >"$a/pinned/$number"; done
        : >"$WORK/asked"
        python3 "$WORK/pinned.py" "$b/pinned" "$WORK/asked" "$files" &
        asker=$!
        disown
        check "a client has files open" wait_for 20 every_file_answered 0
        # shellcheck disable=SC2086 # words
        cut b $others
        pinning=$(now)
    fi
    sleep 0.6
    cutting=$(now)
    "$@"
    check "node $node: another machine takes it over" wait_for 40 has_moved "$volume" "$node" "$pid"
    home=$(stands_in "$volume" "$node")
    check "by the process of another node's machine" test -n "$home"
    echo "     after $(python3 \
        -c "print(round($(now) - $cutting, 1))") s, by the machine of node $home"
    if [ -n "$PINNED" ]; then
        for ((number = 0; number < files; number++)); do
            echo "new, and longer" >"$a/pinned/$number"
        done
        changing=$(now)
        if inside b timeout 1 "$KESTREL" cluster status "kestrel://$(at "$node")/volume?ca=$ca" \
            >"$WORK/stale.out" 2>&1; then
            cat "$WORK/stale.out"
            fail "its own process lets a client in"
        else ok "its own process lets no client in"; fi
    fi
    # (An old process that reaches the database may have ended by now.)
    if alive "$pid"; then echo "     its own process lives on, for now"; fi
    ahead=$(now)
    "$HEALING"
    check "its own process ends" wait_for 40 gone "$pid"
    stale=
    if [ "$name" != stopped ]; then
        # Its lease has ended. All of its threads may have waited for the database until now, so
        # that none could write this earlier.
        check "its own process said that it answers nobody" said "answers nobody"
    fi
    echo "     $(python3 -c "print(round($(now) - $ahead, 1))") s after that"
    if said "another process has taken this metadata over \(epoch"; then
        ok "the engine refused it: $(tail -c "+$mark" "$log" |
            grep -oE -m 1 'another process has taken this metadata over \(epoch[^)]*\)')"
    else
        tail -c "+$mark" "$log"
        fail "it does not say that the engine refused it"
    fi
    check "it has not answered again" unsaid "so does this one"
    heal_all
    check "it is taken back" start_node "$volume" "$node" --take-over
    taken_back=$SECONDS
    check "all is well" settled "$volume"
    NODE_ADDRESSES[$volume]=$(addresses_of 1 2 3)
    if [ -n "$PINNED" ]; then
        kill -KILL "$asker"
        asker=
        if python3 "$WORK/judge.py" "$WORK/asked" 16 "$pinning" "$cutting" "$changing" \
            >"$WORK/judged.out"; then
            ok "a client that reached only its own process was told nothing that is not true: $(cat "$WORK/judged.out")"
        else
            cat "$WORK/judged.out"
            fail "what a client was told that reached only its own process"
        fi
    fi
    wait "$load" || status=$?
    if [ "$status" = 0 ] && grep -q 'ended by: done' "$WORK/$name.out"; then
        ok "the load saw no error: $(grep acknowledged "$WORK/$name.out")"
    else
        cat "$WORK/$name.out"
        fail "the load saw an error"
    fi
    read -r ms errors < <(python3 "$ROOT/tests/ha/pauses.py" longest "$WORK/pauses" "$begun")
    if [ "$errors" = 0 ] && [ "$ms" -le "$pause_max" ]; then
        ok "longest call $ms ms, no error"
    else
        tail -n 20 "$WORK/pauses"
        fail "longest call $ms ms (at most $pause_max), $errors errors"
    fi
    check "everything acknowledged is there" kestrel-crashload verify --dir "$a/$name" \
        --log "$WORK/$name.log" --mode process
    done_cases+=("$name")
}
HEALING=mended PINNED='' done_cases=() taken_back=-9
go_on() { kill -CONT "$stale"; }
hang() { kill -STOP "$stale"; }
wanted() { case " ${CASES:-database mute answers others stopped} " in *" $1 "*) ;; *) return 1 ;; \
    esac; }

! wanted database || PINNED=1 outage database 2 "node 2 is cut off from the database, both ways" \
    cut 2 p
! wanted mute || outage mute 2 "the other nodes do not hear node 2, which hears them" mute 2 1 3
! wanted answers || outage answers 2 "what the database says does not reach node 2" deaf 2 p
# A start that is younger than that does not grant leases yet.
while [ "$SECONDS" -lt $((taken_back + 6)) ]; do sleep 0.1; done
! wanted others ||
    PINNED=1 outage others 1 \
    "node 1 is cut off from the other nodes, and reaches the database and clients" cut 1 2 3
! wanted deaf || outage deaf 1 "node 1 does not hear the other nodes, which hear it" deaf 1 2 3
! wanted stopped || PINNED=1 HEALING=go_on outage stopped 1 \
    "the process of node 1 is stopped, and goes on when another one has its place" hang

kill -TERM "$probe"
wait "$probe" || true
check "fsck --data while all serve" fsck_volume "$volume" --data
for name in "${done_cases[@]}"; do
    check "$name: everything acknowledged is at the other client in the end" kestrel-crashload \
        verify --dir "$b/$name" --log "$WORK/$name.log" --mode process
done
check "unmounts" umount_volume "$b"
check "unmounts the other one" umount_volume "$a"
check "nodes end" stop_server "$volume"
check "fsck --data of all nodes at rest" fsck_volume "$volume" --data
echo "     $SECONDS s"
summary
