#!/usr/bin/env bash
# What an installation has besides the program: manual pages, completions, units of systemd, helpers
# of mount(8) and umount(8), examples of settings, the packages, the image's recipe. What a service
# manager is told.
set -euo pipefail
. "$(dirname "$0")/../lib.sh"
needs_kestrel
here=$ROOT/tests/packages
export PYTHONDONTWRITEBYTECODE=1
cd "$ROOT"

stage=$WORK/stage
PREFIX=/usr DESTDIR=$stage make -s install BUILT="$KESTREL"
share=$stage/usr/share

# Manual pages.
pages() (
    cd "$share/man"
    for page in man1/*.1 man8/mount.kestrel.8; do
        said=$(man --warnings -E UTF-8 -l -Tutf8 -Z "$page" 2>&1 >/dev/null) || return
        [ -z "$said" ] || { echo "$page: $said" && return 1; }
    done
)
check "manual pages parse without a warning" pages
check "there are more than 80" test "$(ls "$share"/man/man1/*.1 | wc -l)" -gt 80
shown() {
    man -P cat -l "$share/man/$1"
}
check "kestrel-mount(1) has examples" prints '^EXAMPLES' shown man1/kestrel-mount.1
check "mount.kestrel(8) has _netdev" prints '_netdev' shown man8/mount.kestrel.8
for helper in mount.fuse.kestrel umount.fuse.kestrel; do
    check "$helper(8) is mount.kestrel(8)" \
        grep -qx '\.so man8/mount\.kestrel\.8' "$share/man/man8/$helper.8"
done
again=$WORK/again
"$KESTREL" share-files "$again"
check "pages and completions are the same each time" diff -r "$again/man" "$share/man"

# Completions.
bash=$share/bash-completion/completions/kestrel
# completes WORD LINE: what bash offers for the last word of the line has the word.
completes() {
    local words word=$1
    read -ra words <<<"$2 ."
    words[-1]=${3:-}
    # shellcheck disable=SC2016
    bash -c '. "$0"; word=$1; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
        _kestrel kestrel "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
        printf "%s\n" "${COMPREPLY[@]}" | grep -qx -- "$word"' "$bash" "$word" "${words[@]}"
}
check "bash: the completions parse" bash -n "$bash"
check "bash: kestrel mo" completes mount kestrel mo
check "bash: kestrel token " completes create "kestrel token"
check "bash: kestrel mount --cache-" completes --cache-dir "kestrel mount" --cache-
check "bash: no hidden command" bash -c "! grep -qE 'null-fs|share-files|bench-worker' '$bash'"
for shell in zsh fish; do
    case $shell in
        zsh) file=$share/zsh/site-functions/_kestrel ;;
        fish) file=$share/fish/vendor_completions.d/kestrel.fish ;;
    esac
    if command -v "$shell" >/dev/null; then
        check "$shell: the completions parse" "$shell" -n "$file"
    fi
    check "$shell: they have cache-dir" grep -q cache-dir "$file"
done

# Units. systemd-analyze wants the programs that they name at their places.
units=$WORK/units
mkdir "$units"
for unit in "$stage"/usr/lib/systemd/system/*.service; do
    instance=$(basename "$unit" @.service)@photos.service
    sed "s|/usr/bin/kestrel|$KESTREL|" "$unit" >"$units/$instance"
done
nothing_wrong() {
    local said
    said=$(systemd-analyze verify --man=no "$1" 2>&1) && [ -z "$said" ] || { echo "$said" &&
        return 1; }
}
if command -v systemd-analyze >/dev/null; then
    for unit in "$units"/*; do
        check "$(basename "$unit"): systemd finds nothing wrong" nothing_wrong "$unit"
    done
    for unit in kestrel-serve kestrel-gateway; do
        check "$unit: exposure below 3" systemd-analyze security --offline=true --threshold=30 \
            "$units/$unit@photos.service"
    done
else
    echo "no systemd here: units are not verified"
fi
example() {
    sed "s|/var/lib/kestrel/serve/photos|$WORK/volume|" "$share/doc/kestrel/examples/$1"
}
make_volume "$WORK/volume" --name photos
example serve.toml >"$WORK/serve.toml"
check "the example of settings is one" prints "\"photos\" would be served at 127.0.0.1:9440" \
    "$KESTREL" serve --config "$WORK/serve.toml" --check
for name in gateway mount; do
    # What systemd makes of the file: NAME=VALUE a line.
    check "the example for ${name}s has what the unit reads" bash -c \
        "while IFS='=' read -r name value; do [ -z \"\$name\" ] || declare \"\$name=\$value\"
        done < <(grep -v '^#' '$share/doc/kestrel/examples/$name.env')
        [ -n \"\$VOLUME\" ] && [ -n \"\$OPTIONS\" ]"
done

# What a service manager is told. Ports are the kernel's choice where one may be asked for.
notified() {
    python3 "$here/notified.py" "$@"
}
says_its_life() {
    notified "$@" >"$WORK/notified.out" 2>"$WORK/notified.err" || { cat "$WORK"/notified.* &&
        return 1; }
    [ "$(grep -cx 'READY=1' "$WORK/notified.out")" = 1 ] &&
        grep -qx 'STATUS=.* serves .*' "$WORK/notified.out" &&
        [ "$(grep -cx 'STOPPING=1' "$WORK/notified.out")" = 1 ] || { cat "$WORK"/notified.* &&
        return 1; }
}
mnt=$WORK/mnt
mkdir "$mnt"
check "serve says that it is ready, and that it ends" says_its_life -- \
    "$KESTREL" serve "$WORK/volume" --listen 127.0.0.1:0 --foreground
check "also to an abstract socket" says_its_life --abstract -- \
    "$KESTREL" serve "$WORK/volume" --listen 127.0.0.1:0 --foreground
check "mount says so, and the mount is there by then" says_its_life \
    --when-ready "findmnt -t fuse.kestrel '$mnt'" -- \
    "$KESTREL" mount "$WORK/volume" "$mnt" --foreground
port=$(python3 -c 'import socket
s = socket.socket()
s.bind(("127.0.0.1", 0))
print(s.getsockname()[1])')
check "gateway says so" says_its_life -- \
    "$KESTREL" gateway "$WORK/volume" --listen "127.0.0.1:$port" --foreground
silent() {
    local status=0
    notified -- "$KESTREL" mount "$WORK/volume" "$mnt" >"$WORK/notified.out" || status=$?
    [ "$status" = 99 ] && ! grep -q '^READY' "$WORK/notified.out"
}
check "a process in the background is no service's main process" silent
check "unmounts" umount_volume "$mnt"
check "a manager that does not listen keeps nothing from serving" \
    env NOTIFY_SOCKET="$WORK/nobody" timeout 60 bash -c \
    "'$KESTREL' mount '$WORK/volume' '$mnt' --foreground 2>'$WORK/deaf.log' & pid=\$!
    until grep -q 'serves on' '$WORK/deaf.log'; do kill -0 \$pid && sleep 0.05; done
    kill \$pid && wait \$pid && grep -q 'service manager cannot be told' '$WORK/deaf.log'"

# mount(8), umount(8), /etc/fstab: helpers lie where these look, in a mount name space of its own.
helpers() {
    # shellcheck disable=SC2016
    unshare -m --propagation private bash -euc '
        mkdir "$2/upper" "$2/work" && mount -t tmpfs none "$2/upper"
        mkdir "$2/upper/sbin" "$2/upper/work" "$2/upper/etc" "$2/upper/etc-work"
        mount -t overlay -o "lowerdir=/usr/sbin,upperdir=$2/upper/sbin,workdir=$2/upper/work" \
            overlay /usr/sbin
        # A table of mount(8) that is empty.
        mkdir -p /run/mount && mount -t tmpfs none /run/mount
        mount -t overlay -o "lowerdir=/etc,upperdir=$2/upper/etc,workdir=$2/upper/etc-work" \
            overlay /etc
        for helper in mount.kestrel mount.fuse.kestrel umount.fuse.kestrel; do
            ln -sfn "$1" "/usr/sbin/$helper"
        done
        . "$3"' helpers "$KESTREL" "$WORK" "$here/helpers.sh" "$WORK/volume" "$mnt"
}
counted helpers

# The Debian packages.
if command -v dpkg-shlibdeps >/dev/null; then
    # Else that of the commit, which may be another one by the second build.
    export SOURCE_DATE_EPOCH=1796000000
    deb() {
        scripts/deb.sh --binary "$KESTREL" --out "$WORK/$1" --compress none
    }
    check "packages are built" deb one
    check "again" deb two
    check "the same binary gives the same bytes" diff -r "$WORK/one" "$WORK/two"
    check "the program in it is stripped" prints 'no symbols' bash -c \
        "dpkg-deb -x '$WORK'/one/kestrel_*.deb '$WORK/x' && nm '$WORK/x/usr/bin/kestrel' 2>&1"
    check "it names its symbols" prints 'Build ID' readelf -n "$WORK/x/usr/bin/kestrel"
    check "and runs" prints '^kestrel ' "$WORK/x/usr/bin/kestrel" --version
    check "they are in the other package" prints '/usr/lib/debug/.build-id/../.*debug' \
        dpkg-deb -c "$WORK"/one/kestrel-dbgsym_*.deb
    rm -rf "$WORK/one" "$WORK/two" "$WORK/x"
else
    echo "no dpkg-dev here: the packages are not built"
fi
for script in postinst prerm postrm; do
    check "$script parses" sh -n "deploy/deb/$script"
done

# The image's recipe: there is no engine here that builds it. What it copies is there, and what it
# runs of make exists.
recipe() {
    local source targets
    while read -r source; do
        [ -e "$ROOT/$source" ] || { echo "COPY $source: not there" && return 1; }
    done < <(sed -n 's/^COPY \([^-][^ ]*\) .*/\1/p' deploy/Dockerfile)
    targets=$(grep -oE 'make [a-z-]+' deploy/Dockerfile | sort -u)
    [ -n "$targets" ] || return
    while read -r _ target; do
        make -n "$target" >/dev/null || return
    done <<<"$targets"
    grep -q '^ENTRYPOINT \["/usr/bin/kestrel"\]$' deploy/Dockerfile
}
check "the image's recipe copies and runs what there is" recipe

PREFIX=/usr DESTDIR=$stage make -s uninstall
check "uninstall leaves no file" bash -c "! find '$stage' -type f -o -type l | grep ."
check "fsck --data finds nothing" fsck_volume "$WORK/volume" --data
summary
