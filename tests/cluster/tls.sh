#!/usr/bin/env bash
# A server, three metadata nodes and clients in network namespaces of their own: what leaves a
# machine is encrypted, and no stranger speaks for a server or a node. What is heard on the
# wire is looked at; what is refused says why and what to do.
# shellcheck disable=SC2034 # lib.sh reads what is set here
set -euo pipefail
KESTREL_SERVE=1
. "$(dirname "$0")/../lib.sh"
# shellcheck source=tests/cluster/network.sh
. "$(dirname "$0")/network.sh"
needs_kestrel

make_network 1 2 3 4 a
volume=$WORK/volume a=$WORK/a marker=a-name-that-nobody-else-uses
SERVE_HOST=$(address_of 1)
IN_SERVER=(nsenter "--net=/run/netns/${net}1")
IN_CLIENT=(nsenter "--net=/run/netns/${net}a")

# sniff MACHINE FILE: begins to note what it hears.
sniff() {
    # Not by a function: its shell would be killed in its place.
    nsenter "--net=/run/netns/$net$1" python3 "$ROOT/tests/cluster/sniff.py" "$2" >"$2.out" &
    sniffer=$!
    wait_until 10 grep -q listening "$2.out"
}

# unsniff: ends that.
unsniff() {
    sleep 0.2
    kill "$sniffer"
    wait "$sniffer" 2>/dev/null || true
}

# kestrel_there ARGUMENT…: kestrel on the client's machine.
kestrel_there() {
    timeout 60 "${IN_CLIENT[@]}" "$KESTREL" "$@"
}

# works DIR: files go there and back.
works() {
    echo "content of $marker" >"$1/$marker" && grep -q "$marker" "$1/$marker" && rm "$1/$marker"
}

# secret_of DIR: the volume's, which nobody may see.
secret_of() {
    python3 -c 'import json, sys
volume = json.load(open(sys.argv[1] + "/kestrel.json"))
print((volume.get("cluster") or volume)["secret"])' "$1"
}

# shows_no SECRET FILE…: nor as bytes.
shows_no() {
    ! python3 - "$@" <<'PY'
import sys
digits = sys.argv[1].encode()
found = [name for name in sys.argv[2:] for secret in (digits, bytes.fromhex(digits.decode())) if secret in open(name, "rb").read()]
print(*found)
sys.exit(not found)
PY
}

# --- one server
mkdir -p "$a"
# Which clients are let in is another matter (tokens.sh), but for what a token says of the server.
SERVE_OPTIONS+=(--access open)
make_volume "$volume"
fingerprint=$(fingerprint_of "$volume")
plain=kestrel://$(serve_address "$volume")/volume
check "the URL that serve prints has the authority's fingerprint" grep \
    -q "served at $plain?ca=$fingerprint " "$WORK/serve.out"
check "the certificate is one" sh -c "'$KESTREL' cluster ca '$volume' | openssl x509 -noout -text | grep -q 'KestrelFS volume authority'"
sniff 1 "$WORK/heard"
serve_mount "$volume" "$a"
check "a client on another machine works" works "$a"
unsniff
(umask 077 && "$KESTREL" token create "$volume" --name client >"$WORK/token")
(umask 077 && sed 's/sha256:../sha256:ff/' "$WORK/token" >"$WORK/token.other")
mkdir -p "$WORK/by-token"
check "a token is enough to know the server by" kestrel_there mount "$plain" "$WORK/by-token" \
    --token-file "$WORK/token" --allow-other
check "and a mount by it works" works "$WORK/by-token"
check "which unmounts" umount "$WORK/by-token"
refuses "a token that names another authority" "not the one it should be" \
    kestrel_there mount "$plain" "$WORK/by-token" --token-file "$WORK/token.other"
check "something was heard" test "$(stat -c %s "$WORK/heard")" -gt 3000
check "no name, no content, and nothing of the protocol is heard" sh \
    -c "! grep -qaE '$marker|KSTL|format_version' '$WORK/heard'"
check "the URL is what mount(8) shows, without the fingerprint" grep -q "^$plain $a " /proc/mounts
kill_server "$volume"
start_server "$volume"
check "it goes on when the server has started again, with another certificate" works "$a"
umount_volume "$a"

refuses "a URL that does not say who the server is" 'another machine.*\?ca=' kestrel_there status \
    "$plain"
refuses "another volume's authority" 'not the one it should be' kestrel_there status \
    "$plain?ca=sha256:$(printf '0%.0s' {1..64})"
refuses "in clear" 'takes nothing in clear' kestrel_there status "$plain?tls=off"
refuses "in clear, a mount" 'takes nothing in clear' kestrel_there mount "$plain?tls=off" "$a" \
    --deadline 3s
refuses "options that there are not" 'there are ca, tls and cert' kestrel_there status \
    "$plain?cacert=x"
refuses "a file that is none" 'ca.pem' kestrel_there mount "$plain" "$a" --ca "$WORK/no-ca.pem"
"$KESTREL" cluster ca "$volume" >"$WORK/ca.pem"
check "by a file with the authority's certificate" kestrel_there status "$plain?ca=$WORK/ca.pem"
(cd "$WORK" && kestrel_there mount "$plain" "$a" --ca ca.pem >/dev/null 9>&-)
check "a mount by a file" works "$a"
umount_volume "$a"
counted inside a python3 "$ROOT/tests/cluster/strangers.py" "$(serve_address "$volume")"
check "it still serves" kestrel_there status "$plain?ca=$fingerprint"
counted_handshakes() { kestrel_there stats "$plain?ca=$fingerprint" --once --json |
    grep -qE '"server_not_encrypted_total": *[1-9]'; }
check "handshakes that failed are counted" counted_handshakes
secret=$(secret_of "$volume")
check "the secret is in no log" shows_no "$secret" "$volume/serve.log" "$WORK/serve.out" \
    "$WORK/heard" "$WORK/ca.pem"
check "nor in a list of processes" sh -c "! ps -ewwo args | grep -v grep | grep -q '$secret'"
check "the descriptor is its owner's alone" test "$(stat -c %a "$volume/kestrel.json")" = 600
stop_server "$volume"
check "nor in a dump" sh \
    -c "'$KESTREL' dump '$volume' '$WORK/dump' >/dev/null && ! grep -qa '$secret' '$WORK/dump'"

# --- switched off by name
start_server "$volume" --tls off
refuses "TLS asked of a server without" 'answers in clear' kestrel_there status \
    "$plain?ca=$fingerprint"
refuses "nor does a client fall back by itself" 'another machine' kestrel_there status "$plain"
check "in clear, as both were told" kestrel_there status "$plain?tls=off"
stop_server "$volume"

# --- an operator's certificates
openssl req -x509 -newkey ed25519 -nodes -keyout "$WORK/own-ca.key" -out "$WORK/own-ca.pem" \
    -subj /CN=operator -days 2 2>/dev/null
# issue NAME EXTENSIONS: a certificate of the operator's, with its key in one file.
issue() {
    openssl req -newkey ed25519 -nodes -keyout "$WORK/$1.key" -subj "/CN=$1" -out "$WORK/$1.csr" \
        2>/dev/null
    openssl x509 -req -in "$WORK/$1.csr" -CA "$WORK/own-ca.pem" -CAkey "$WORK/own-ca.key" \
        -CAcreateserial -days 2 \
        -extfile <(echo "$2") -out "$WORK/$1.pem" 2>/dev/null
    (umask 077 && cat "$WORK/$1.pem" "$WORK/$1.key" >"$WORK/$1.both")
}
issue server "subjectAltName=IP:$SERVE_HOST"
issue elsewhere "subjectAltName=IP:10.99.0.77"
issue client "extendedKeyUsage=clientAuth"
start_server "$volume" --tls-cert "$WORK/server.pem" --tls-key "$WORK/server.key" \
    --tls-ca "$WORK/own-ca.pem"
refuses "a client without a certificate" '\?cert=FILE' kestrel_there mount \
    "$plain?ca=$WORK/own-ca.pem" "$a" --deadline 2s
check "an operator's certificates on both sides" kestrel_there status \
    "$plain?ca=$WORK/own-ca.pem&cert=$WORK/client.both"
check "by the volume's own authority" kestrel_there status \
    "$plain?ca=$fingerprint&cert=$WORK/client.both"
cp "$WORK/elsewhere.key" "$WORK/server.key"
cp "$WORK/elsewhere.pem" "$WORK/server.pem"
sleep 1.1
refuses "a new file is used, and has another name" 'not the one it should be' kestrel_there status \
    "$plain?ca=$WORK/own-ca.pem&cert=$WORK/client.both"
stop_server "$volume"
refuses "a key of another certificate" 'another key' "${IN_SERVER[@]}" "$KESTREL" serve "$volume" \
    --listen "$SERVE_HOST:1" \
    --tls-cert "$WORK/client.pem" --tls-key "$WORK/server.key"
chmod 604 "$WORK/client.both"
refuses "a key that others can read" 'chmod 600' kestrel_there status \
    "$plain?ca=$fingerprint&cert=$WORK/client.both"

# --- certificates of tokens
open=("${SERVE_OPTIONS[@]}")
SERVE_OPTIONS=("${SERVE_OPTIONS[@]/#open/tokens}")
start_server "$volume"
# certificate NAME OPTION…: makes a token of this name; its holder shows a certificate.
certificate() {
    (umask 077 && "$KESTREL" token create "$volume" --certificate --name "$@" >"$WORK/$1.pem")
}
certificate reader --read-only
certificate chief --admin
check "a certificate and its key are printed" sh -c "openssl x509 -in '$WORK/reader.pem' -noout -dates && grep -q 'BEGIN PRIVATE KEY' '$WORK/reader.pem'"
refuses "who has none" 'show a token' kestrel_there status "$plain?ca=$fingerprint"
check "a client with one that may administer" kestrel_there status \
    "$plain?ca=$fingerprint&cert=$WORK/chief.pem"
refuses "and with one that may not" 'may not administer' kestrel_there status \
    "$plain?ca=$fingerprint&cert=$WORK/reader.pem"
refuses "one made from afar" 'on a machine of the volume' \
    kestrel_there token create "$plain?ca=$fingerprint&cert=$WORK/chief.pem" --name other \
    --certificate
check "a mount with a certificate" kestrel_there mount \
    "$plain?ca=$fingerprint&cert=$WORK/reader.pem" "$a" --allow-other
check "which reads" ls "$a"
refuses "what its token does not allow" 'read-only' touch "$a/new"
check "it is revoked as any other token" "$KESTREL" token revoke "$volume" reader
refuses "and lets nobody in any more" 'revoked' \
    kestrel_there mount "$plain?ca=$fingerprint&cert=$WORK/reader.pem" "$WORK/by-token" \
    --deadline 3s
check "its mount is taken away" "$KESTREL" umount --force "$a"
SERVE_OPTIONS=("${open[@]}")
stop_server "$volume"

# --- nodes
NODES=3 SERVE_HOST="10.99.0.{}" IN_SERVER=(nsenter "--net=/run/netns/$net{}") cluster=$WORK/cluster
make_cluster "$cluster"
sniff 2 "$WORK/nodes"
start_server "$cluster"
check "three nodes find each other" settled "$cluster"
serve_mount "$cluster" "$a"
mkdir "$a/$marker"
for number in {1..20}; do echo "$number" >"$a/$marker/$marker-$number"; done
check "what all have to know of" test "$(find "$a" -name "$marker-*" | wc -l)" = 20
unsniff
check "nodes say nothing in clear" sh -c "! grep -qaE '$marker|KSTL' '$WORK/nodes'"
"$KESTREL" cluster add-node "$cluster" --node "$(address_of 4):9440" 2>/dev/null >"$WORK/token"
inside 4 "$KESTREL" cluster join "$WORK/token" "$cluster-node4" >/dev/null
check "a node joins" inside 4 timeout 60 "$KESTREL" serve "$cluster-node4" --lease 4s --access open
check "it has a part" kestrel_there cluster balance "$(serve_url "$cluster")"
check "clients go on" works "$a/$marker"
secret=$(secret_of "$cluster")
shown=("$WORK/nodes" "$WORK/client-a/mount.log" "$cluster/serve.log" "$cluster-node2/serve.log" \
    "$cluster-node4/serve.log")
check "the cluster's secret is in no log, and was never sent" shows_no "$secret" "${shown[@]}"
# A node that is told to speak in clear reaches nobody, and says why.
kill_node "$cluster" 3
start_node "$cluster" 3 --tls off
in_clear() { grep -q 'takes nothing in clear' <("$KESTREL" status "$cluster-node3" --json); }
check "a node in clear is refused by the others, and says so" wait_until 20 in_clear
kill_node "$cluster" 3
start_node "$cluster" 3
check "and is let in when it encrypts" wait_until 30 works "$a/$marker"
umount_volume "$a"
kill_pid "$(server_pid "$cluster-node4")"
stop_server "$cluster"
summary
