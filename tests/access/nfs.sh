#!/usr/bin/env bash
# NFS re-export: nfs-ganesha exports a mount, and a client of NFS (libnfs) works through it; beside
# the same on a local directory. Restarts of the server and of the mount, and listings of large
# directories in pieces.
set -euo pipefail
. "$(dirname "$0")/../lib.sh"
needs_kestrel
here=$ROOT/tests/access
if ! command -v ganesha.nfsd >/dev/null || ! ldconfig -p | grep -q 'libnfs.so.13'; then
    echo "skipped: nfs-ganesha-vfs or libnfs13 is not installed"
    summary
    exit
fi

NFS_PID=
at_end() {
    [ -z "$NFS_PID" ] || kill -9 "$NFS_PID" 2>/dev/null
}
AT_END=at_end
answers() {
    python3 -c 'import socket, sys
socket.create_connection(("127.0.0.1", int(sys.argv[1])), 1)' "$PORT" 2>/dev/null
}
# export_dir DIR: starts a server that exports it; sets NFS_PID.
export_dir() {
    cat >"$WORK/ganesha.conf" <<CONF
NFS_CORE_PARAM {
    Protocols = 4;
    NFS_Port = $PORT;
    Bind_addr = 127.0.0.1;
    Enable_NLM = false;
    Enable_RQUOTA = false;
}
NFSV4 {
    Graceless = true;
    RecoveryBackend = fs;
    Only_Numeric_Owners = true;
}
EXPORT {
    Export_Id = 77;
    Path = $1;
    Pseudo = /vol;
    Access_Type = RW;
    Squash = None;
    SecType = sys;
    Protocols = 4;
    Transports = TCP;
    FSAL { Name = VFS; }
}
CONF
    ganesha.nfsd -F -L "$WORK/ganesha.log" -f "$WORK/ganesha.conf" -p "$WORK/ganesha.pid" \
        >/dev/null 2>&1 9>&- &
    NFS_PID=$!
    disown
    wait_until 60 answers
}
end_export() {
    kill "${1:--TERM}" "$NFS_PID"
    while alive "$NFS_PID"; do sleep 0.05; done
    NFS_PID=
}
nfs() {
    timeout 120 "$here/nfs.py" "$PORT" "$@"
}
PORT=$(free_ports 1)

echo "-- a local directory, for comparison"
mkdir "$WORK/local"
export_dir "$WORK/local"
counted nfs "$WORK/local" calls
end_export

echo "-- a volume"
volume=$WORK/volume mnt=$WORK/mnt
make_volume "$volume"
mount_volume "$volume" "$mnt"
export_dir "$mnt"
counted nfs "$mnt" calls
counted nfs "$mnt" before
end_export -KILL
export_dir "$mnt"
counted nfs "$mnt" after

echo "-- the mount begins anew below open files of clients"
mkfifo "$WORK/go"
nfs "$mnt" restart <"$WORK/go" >"$WORK/restart.out" 2>&1 9>&- &
client=$!
exec 8>"$WORK/go"
wait_until 60 grep -q 'restart now' "$WORK/restart.out"
end_export -KILL
umount_volume "$mnt"
mount_volume "$volume" "$mnt"
export_dir "$mnt"
echo go >&8
exec 8>&-
wait "$client" || true
counted cat "$WORK/restart.out"
end_export
umount_volume "$mnt"
fsck_volume "$volume"
summary
