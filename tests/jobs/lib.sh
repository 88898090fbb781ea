# shellcheck shell=bash disable=SC2034
# What the suites of jobs have in common: a volume at $vol, mounted at $mnt, and what is done with
# its jobs and versions.
#
# JOBS_BUCKET=1: the volume is one that a bucket has all of, by its URL.
if [ -n "${JOBS_BUCKET:-}" ]; then
    # shellcheck source=tests/s3/lib.sh
    . "$(dirname "${BASH_SOURCE[0]}")/../s3/lib.sh"
else
    # shellcheck source=tests/lib.sh
    . "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"
fi
needs_kestrel
query=
mnt=$WORK/mnt ver=$WORK/ver volume=$WORK/volume
mkdir "$mnt" "$ver" "$WORK/tmp" "$WORK/dead"
# Where the mounts of jobs are made.
export TMPDIR=$WORK/tmp KESTREL_STATE_DIR=$WORK/a KESTREL

k() {
    timeout 120 "$KESTREL" "$@"
}
# other COMMAND…: kestrel on another machine, which is another state directory.
other() {
    KESTREL_STATE_DIR=$WORK/b timeout 120 "$KESTREL" "$@"
}
same() {
    [ "$1" = "$2" ] || {
        echo "$1 is not $2"
        return 1
    }
}
not() {
    ! "$@"
}
# job NAME "INPUT…" COMMAND: a job that runs a shell command.
job() {
    local name=$1 input inputs=()
    for input in $2; do inputs+=(--input "$input"); done
    k job run "$vol" "${inputs[@]}" --publish "$name" -- sh -ec "$3"
}
# url NAME: a version.
url() {
    echo "${vol%%\?*}//$1${query:+?$query}"
}
# tree NAME: names of a version, and what is in its small files.
tree() {
    k mount "$(url "$1")" "$ver" >/dev/null || return
    python3 - "$ver" <<'PY'
import os, sys
os.chdir(sys.argv[1])
found = []
for where, dirs, files in os.walk("."):
    found += [os.path.relpath(f"{where}/{name}") + "/" for name in dirs]
    for name in files:
        path = os.path.relpath(f"{where}/{name}")
        with open(path, "rb") as file:
            text = file.read()
        found.append(f"{path}={text.decode().strip()}" if len(text) < 40 else path)
print(*sorted(found))
PY
    k umount "$ver"
}
# objects: how many objects the store has that are a job's; their numbers begin with 8 to f.
objects() {
    find "$store" -type f | grep -cE '/[0-9a-f]{2}/[89a-f][0-9a-f]{15}$' || true
}
# field NAME: a field of a JSON object.
field() {
    python3 -c "import json, sys; print(json.load(sys.stdin)['$1'])" 2>/dev/null
}
job_servers() {
    local dir pid
    for dir in "$WORK"/a/job-* "$WORK"/b/job-*; do
        pid=$("$KESTREL" status "$dir" --json 2>/dev/null | field pid) || continue
        kill -CONT "$pid" 2>/dev/null
        kill -9 "$pid" 2>/dev/null
    done
    [ -z "${stopped:-}" ] || kill -9 "$stopped" 2>/dev/null
    # It waits for a server that was killed.
    [ -z "${waiting:-}" ] || kill -9 "$waiting" 2>/dev/null
}
AT_END=job_servers
# server MACHINE: the process that serves the job.
server() {
    "$KESTREL" status "$WORK/$1"/job-* --json | field pid
}

if [ -n "${JOBS_BUCKET:-}" ]; then
    vol=$(volume_url jobs/main) store=$STORE_DIR/$S3_BUCKET/jobs/main
    query=${vol#*\?}
    k format "$vol" --grace 1s >/dev/null
    k mount "$vol" "$mnt" >/dev/null
else
    make_volume "$volume" --grace 1s
    vol=$volume store=$volume/objects
    mount_volume "$volume" "$mnt"
fi
