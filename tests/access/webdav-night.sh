# A part of webdav.sh for the night: other clients.
# shellcheck shell=bash disable=SC2034,SC2154

echo "-- other clients"
volume=$WORK/clients
"$KESTREL" format "$volume" >/dev/null
webdav "$volume"
mkdir -p "$WORK/tree/a/b" "$WORK/back"
for n in $(seq 200); do echo "file $n" >"$WORK/tree/a/f$n"; done
head -c 40000000 /dev/urandom >"$WORK/tree/a/b/large"
same_tree() {
    diff -r "$WORK/tree" "$1"
}
if command -v rclone >/dev/null; then
    password=$(rclone obscure "$DAV_SECRET")
    remote=":webdav,url='$DAV_URL',user=$DAV_KEY,pass='$password':"
    check "rclone: copy there" rclone copy -q "$WORK/tree" "${remote}tree"
    check "rclone: check" rclone check -q --download "$WORK/tree" "${remote}tree"
    check "rclone: move" rclone moveto -q "${remote}tree/a/b/large" "${remote}tree/large"
    check "rclone: copy back" rclone copy -q "${remote}tree" "$WORK/back"
    check "rclone: the same" cmp "$WORK/tree/a/b/large" "$WORK/back/large"
    check "rclone: purge" rclone purge -q "${remote}tree"
else
    echo "SKIPPED: rclone is not installed"
fi
if command -v mount.davfs >/dev/null; then
    mkdir "$WORK/davfs"
    printf 'secrets %s\nuse_locks 1\nask_auth 0\ncache_dir %s\n' "$WORK/davfs-secrets" \
        "$WORK/davfs-cache" >"$WORK/davfs.conf"
    # It gives up root's rights.
    install -d -m 1777 "$WORK/davfs-cache"
    chmod 644 "$WORK/davfs.conf"
    echo "$DAV_URL $DAV_KEY $DAV_SECRET" >"$WORK/davfs-secrets"
    chmod 600 "$WORK/davfs-secrets"
    check "davfs2 mounts it" mount -t davfs -o "conf=$WORK/davfs.conf" "$DAV_URL" "$WORK/davfs" 9>&-
    check "davfs2: cp -r there" cp -r "$WORK/tree" "$WORK/davfs/"
    # davfs2 1.6 cannot list directories on every kernel (EINVAL), so names are given.
    check "davfs2: the same" cmp "$WORK/tree/a/f77" "$WORK/davfs/tree/a/f77"
    edit() (
        cd "$WORK/davfs"
        echo new >.x.tmp
        mv .x.tmp tree/a/f1
    )
    check "davfs2: an editor's way" edit
    check "davfs2: unmounts, and stores" umount "$WORK/davfs"
    check "what it stored" test "$(dav GET /tree/a/f1)" = new
    check "davfs2: the large file" cmp <(dav GET /tree/a/b/large) "$WORK/tree/a/b/large"
else
    echo "SKIPPED: davfs2 is not installed"
fi
stop
check "the volume is whole" "$KESTREL" fsck --data "$volume"
