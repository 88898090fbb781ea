#!/usr/bin/env bash
# The first contact: a client that names a server that is not there hears so at once, and waits for
# it with --wait; of a cluster of which one node is down the others' state is told at once, and its
# own in few words, and a mount goes on without it; a mount that hangs is taken away at once by
# force. Limits are several times what it takes; before, these took 20 and 60 s.
set -euo pipefail
. "$(dirname "$0")/../lib.sh"

mnt=$WORK/mnt volume=$WORK/volume
mkdir -p "$mnt"
read -r port < <(free_ports 1)

# soon COMMAND…: fails if the command takes longer than any first contact may.
soon() {
    timeout 10 "$@"
    local status=$?
    [ "$status" != 124 ] || echo "it took more than 10 s" >&2
    return "$status"
}

for url in "kestrel://127.0.0.1:$port/v" kestrel://no-such-host.invalid/v; do
    for verb in "stats --once" status fsck gc "cluster status" "mount"; do
        place=()
        [ "$verb" != mount ] || place=("$mnt")
        # shellcheck disable=SC2086
        refuses "$verb of $url" 'refused|not known|resolution|lookup' soon "$KESTREL" $verb "$url" \
            "${place[@]}"
    done
done
check "what is waited for is told" grep -q "waiting up to 2 s for kestrel://no-such-host.invalid" \
    "$WORK/refuses.out"

# With --wait a server may come later.
"$KESTREL" format "$volume" >/dev/null
SERVE_PORT[$volume]=$port
timeout 120 "$KESTREL" status "$(serve_url "$volume")" --wait 90s >"$WORK/status.out" 2>&1 &
asked=$!
timeout 120 "$KESTREL" mount "$(serve_url "$volume")" "$mnt" --wait 90s >"$WORK/mount.out" 2>&1 &
mounted=$!
# until_it COMMAND…: tries for 30 s.
until_it() {
    local try
    for ((try = 0; try < 300; try++)); do
        "$@" && return
        sleep 0.1
    done
    return 1
}
both_told() \
    { [ "$(grep -l 'waiting up to 90 s for kestrel://.*refused' "$WORK/status.out" \
    "$WORK/mount.out" | wc -l)" = 2 ]; }
check "a verb and a mount with --wait say what they wait for" until_it both_told
start_server "$volume"
check "and a verb goes on when the server is there" wait "$asked"
check "and so does a mount" wait "$mounted"
check "which is then mounted" mountpoint -q "$mnt"

# A mount in use keeps its patience: the server goes and comes, and a call that waited is done.
kill_server "$volume"
(sleep 3 && echo later >"$mnt/file") &
writing=$!
sleep 5
start_server "$volume"
check "a call of a mount in use waited for the server" wait "$writing"
check "and did what was asked" grep -q later "$mnt/file"
"$KESTREL" umount "$mnt"
stop_server "$volume"

# A process that hangs, as one with a store that does not answer does.
"$KESTREL" mount "$volume" "$mnt" >/dev/null
pid=$(server_pid "$volume")
kill -STOP "$pid"
check "umount --force of a mount that hangs returns at once" timeout 6 "$KESTREL" umount \
    --force "$mnt"
check "and it is gone" sh -c '! mountpoint -q "$1"' sh "$mnt"
kill -9 "$pid"

# Of three nodes one is down.
NODES=3
volume=$WORK/nodes
make_cluster "$volume"
start_server "$volume"
settled "$volume" >/dev/null
"$KESTREL" mount "$(serve_url "$volume")" "$mnt" >/dev/null
for name in 1 2 3 4 5 6 7 8 9; do echo "$name" >"$mnt/$name"; done
"$KESTREL" umount "$mnt"
kill_node "$volume" 3
soon "$KESTREL" cluster status "$(serve_url "$volume")" >"$WORK/cluster.out" 2>&1 && status=0 ||
    status=$?
check "the state of a cluster with a node down is told at once, as not well" test "$status" = 1
check "in a table" grep -Eq '^ +1 .* up ' "$WORK/cluster.out"
check "in which the lost node has few words" sh \
    -c 'grep -E "^ +3 .* down " "$1" | grep -i refused | awk "length > 160 { exit 1 }"' sh \
    "$WORK/cluster.out"
check "stats leave it out, at once" soon "$KESTREL" stats --once "$(serve_url "$volume")"
check "and so does status" soon "$KESTREL" status "$(serve_url "$volume")"
# A mount goes on without the lost node; what the others own is there, and the rest when it is back.
check "a mount goes on without it, at once" soon sh -c '"$1" mount "$2" "$3" >"$4" 2>&1' sh \
    "$KESTREL" "$(serve_url "$volume")" "$mnt" "$WORK/mount.out"
check "and says which node is missing" grep -q 'going on without node 3: .*refused' \
    "$WORK/mount.out"
one_of_them() {
    for name in 1 2 3 4 5 6 7 8 9; do
        ! timeout 5 grep -q "$name" "$mnt/$name" 2>/dev/null || return 0
    done
    return 1
}
check "a file of the other nodes can be read" one_of_them
start_node "$volume" 3
check "and all of them when the node is back" sh \
    -c 'for name in 1 2 3 4 5 6 7 8 9; do grep -q "$name" "$1/$name" || exit 1; done' sh "$mnt"
"$KESTREL" umount "$mnt"
kill_node "$volume" 3
# With --wait a mount waits for it first, as long as told, whatever a call's deadline is.
timeout 120 "$KESTREL" mount "$(serve_url "$volume")" "$mnt" --deadline 1s --wait 90s \
    >"$WORK/mount.out" 2>&1 &
mounted=$!
check "a mount says for which node it waits" until_it grep \
    -q 'waiting up to 90 s for node 3 of .*refused' "$WORK/mount.out"
sleep 2
start_node "$volume" 3
check "and goes on when that is there" wait "$mounted"
check "and is mounted" mountpoint -q "$mnt"
"$KESTREL" umount "$mnt"
# Without most of them there is no mount.
kill_node "$volume" 1
kill_node "$volume" 3
refuses "a mount without most of the nodes" 'node 1: .*refused' soon "$KESTREL" mount \
    "$(serve_url "$volume")" "$mnt"
check "which names each of them" grep -q 'node 3: .*refused' "$WORK/refuses.out"
kill_node "$volume" 2
summary
