#!/usr/bin/env bash
# A server and two clients in network namespaces of their own, joined by a bridge. Links are cut,
# one way and both ways, lose packets at random, and heal: within the lease a client sees a pause
# and no error, beyond its deadline an error in bounded time, beyond the lease the loss of its
# locks; nothing acknowledged is lost, and everything goes on when the link is back.
#
# SEED (default: random, printed), ROUNDS of cuts under load (default 6)
# shellcheck disable=SC2034 # lib.sh reads what is set here
set -euo pipefail
KESTREL_SERVE=1
. "$(dirname "$0")/../lib.sh"
# shellcheck source=tests/cluster/network.sh
. "$(dirname "$0")/network.sh"
needs_kestrel

seed=${SEED:-$(date +%s)} rounds=${ROUNDS:-6}
RANDOM=$((seed % 32768))
echo "seed $seed"
volume=$WORK/volume a=$WORK/a b=$WORK/b
lease=6 deadline=4
make_network s a b

# cut WHICH in|out|both: what the client WHICH is told, what it says, or both, is lost.
cut() {
    case $2 in
        in | both) inside "$1" iptables -A INPUT -i eth0 -j DROP ;;&
        out | both) inside "$1" iptables -A OUTPUT -o eth0 -j DROP ;;
    esac
}

SERVE_HOST=$(address_of s)
IN_SERVER=(nsenter "--net=/run/netns/${net}s")
SERVE_OPTIONS=(--lease "${lease}s" --access open)
make_volume "$volume"
IN_CLIENT=(nsenter "--net=/run/netns/${net}a")
mount_volume "$volume" "$a"
IN_CLIENT=(nsenter "--net=/run/netns/${net}b")
mount_volume "$volume" "$b" --deadline ${deadline}s
check "two clients in namespaces mount" test -d "$a" -a -d "$b"

verify() {
    kestrel-crashload verify --dir "$1" --log "$2" --mode process
}

# --- within the lease: pauses, no errors
mkdir "$a/load"
kestrel-crashload run --dir "$a/load" --log "$WORK/load.log" --threads 6 --seed "$seed" \
    --ms $((rounds * 4000)) >"$WORK/run.out" 2>&1 &
load=$!
# What TCP sends again it sends after twice the time it has waited: a pause as long as the cut
# before it lets that through, so that nobody is silent for more than twice as long as a link was
# cut.
was_cut=0
for ((round = 0; round < rounds; round++)); do
    sleep "$(ms $((was_cut + $(random 100 700))))"
    way=(in out both)
    was_cut=$(random 100 2200)
    cut a "${way[$((round % 3))]}"
    sleep "$(ms "$was_cut")"
    heal a
done
wait "$load" || true
check "cuts shorter than the lease: no error" grep -q 'ended by: done' "$WORK/run.out"
tail -n 3 "$WORK/run.out"
check "all acknowledged operations are there, seen by the other client" verify "$b/load" \
    "$WORK/load.log"

# --- packets lost at random, both ways
mkdir "$a/lossy"
inside a iptables -A INPUT -i eth0 -m statistic --mode random --probability 0.05 -j DROP
inside a iptables -A OUTPUT -o eth0 -m statistic --mode random --probability 0.05 -j DROP
kestrel-crashload run --dir "$a/lossy" --log "$WORK/lossy.log" --threads 6 --seed $((seed + 1)) \
    --ms 4000 >"$WORK/run.out" 2>&1 || true
heal a
check "5 % of all packets lost: no error" grep -q 'ended by: done' "$WORK/run.out"
check "nothing acknowledged in this is lost" verify "$b/lossy" "$WORK/lossy.log"

# --- longer than the deadline: an error in bounded time, then all goes on
ends_with_eio() {
    local out
    out=$(timeout 60 stat "$1" 2>&1) && return 1
    grep -qi 'input/output error' <<<"$out" || {
        echo "stat says: $out"
        return 1
    }
}
echo before >"$b/file"
cut b both
check "cut off for longer than the deadline: EIO in bounded time" ends_with_eio "$b/other"
heal b
works_again() {
    [ "$(timeout 10 cat "$b/file")" = before ]
}
check "the link is back: it works again by itself" wait_until 60 works_again

# --- longer than the lease: locks are others', the holder gets EIO, what is open goes on
python3 - "$ROOT/tests/cluster" "$a" "$b" "$net" $((lease * 4 + 30)) >"$WORK/lease.out" \
    2>&1 <<'PY' || true
import errno, subprocess, sys
sys.path.insert(0, sys.argv[1])
from locker import Locker, eventually
one, two, net, patience = sys.argv[2], sys.argv[3], sys.argv[4], int(sys.argv[5])

def iptables(*words):
    subprocess.run(["nsenter", f"--net=/run/netns/{net}b", "iptables", *words], check=True)

holder, bystander, other = Locker(f"{two}/shared"), Locker(f"{two}/quiet"), Locker(f"{one}/shared")
holder.posix("x", 0, 9)
holder.write(0, "old")
holder.sync()
bystander.write(0, "quiet")
bystander.sync()
iptables("-A", "INPUT", "-i", "eth0", "-j", "DROP")
# Its lock is free when its lease is over, not before it is known to be cut off.
other.start("posixw", "x", 0, 9).result(patience)
other.write(0, "new")
other.posix("u")
iptables("-F")
def lost():
    try:
        holder.read(0, 3)
    except OSError as error:
        return error.errno == errno.EIO
    return False
eventually(lost, "the holder of the lost lock gets EIO", patience)
eventually(lambda: bystander.read(0, 5) == "quiet", "a file without locks is still open", patience)
fresh = Locker(f"{two}/shared")
fresh.posixw("x", 0, 9)
assert fresh.read(0, 3) == "new", fresh.read(0, 3)
print("all well")
PY
check "cut off for longer than the lease: locks lost, said with EIO; other files stay open" grep \
    -q 'all well' "$WORK/lease.out"
grep -q 'all well' "$WORK/lease.out" || cat "$WORK/lease.out"

# --- the server is killed and comes back while one client is cut off
mkdir "$a/both"
kestrel-crashload run --dir "$a/both" --log "$WORK/both.log" --threads 4 --seed $((seed + 2)) \
    --ms 5000 >"$WORK/run.out" 2>&1 &
load=$!
sleep 0.5
cut b both
kill_server "$volume"
start_server "$volume"
sleep 1
heal b
wait "$load" || true
check "server restarted while the other client was cut off: no error" grep -q 'ended by: done' \
    "$WORK/run.out"
check "and nothing lost" verify "$b/both" "$WORK/both.log"

check "unmounts the first" umount_volume "$a"
close_and_check "$volume" "$b"
summary
