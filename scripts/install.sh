#!/usr/bin/env bash
# Installs the program with its manual pages, completions, units of systemd and examples of
# settings, or removes all of it. `make install`, `make uninstall`, the Debian package and the image
# use it.
#
#   scripts/install.sh BINARY       installs BINARY as PREFIX/bin/kestrel
#   scripts/install.sh --remove     removes what it has installed
#
# Environment: PREFIX (/usr/local); SBINDIR, where mount(8) looks for its helpers (/usr/sbin with
# PREFIX=/usr, else none are installed; /sbin is the place on every machine); ZSHDIR (below
# PREFIX/share); DESTDIR, a directory in which all of it is staged.
set -euo pipefail

PREFIX=${PREFIX:-/usr/local}
DESTDIR=${DESTDIR:-}
SBINDIR=${SBINDIR:-}
if [ -z "$SBINDIR" ] && [ "$PREFIX" = /usr ]; then SBINDIR=/usr/sbin; fi
deploy=$(cd "$(dirname "$0")/../deploy" && pwd)
to=$DESTDIR$PREFIX
share=$to/share
zsh=${DESTDIR}${ZSHDIR:-$PREFIX/share/zsh/site-functions}
units=(kestrel-serve@.service kestrel-gateway@.service kestrel-mount@.service)
# mount(8) runs the first for the type kestrel, the second for `-o remount` and lines of /etc/fstab
# with the type fuse.kestrel; umount(8) runs the third for what they have mounted.
helpers=(mount.kestrel mount.fuse.kestrel umount.fuse.kestrel)

if [ "${1:-}" = --remove ]; then
    rm -f "$to/bin/kestrel" "$share"/man/man1/kestrel.1 "$share"/man/man1/kestrel-*.1 \
        "$share/bash-completion/completions/kestrel" "$zsh/_kestrel" \
        "$share/fish/vendor_completions.d/kestrel.fish" \
        "$to/lib/sysusers.d/kestrel.conf" "$to/lib/tmpfiles.d/kestrel.conf"
    for unit in "${units[@]}"; do rm -f "$to/lib/systemd/system/$unit"; done
    for helper in "${helpers[@]}"; do
        rm -f "$share/man/man8/$helper.8"
        [ -z "$SBINDIR" ] || rm -f "$DESTDIR$SBINDIR/$helper"
    done
    rm -rf "$share/doc/kestrel/examples"
    rmdir --ignore-fail-on-non-empty "$share/doc/kestrel" 2>/dev/null || true
    exit
fi

binary=${1:?the binary to install}
[ -x "$binary" ] || { echo "$binary is not there: run make build first" >&2 && exit 1; }
install -D -m 755 "$binary" "$to/bin/kestrel"
# In a directory of its own: the names of zsh's directories are the distribution's.
made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
"$binary" share-files "$made"
(cd "$made" && find man bash-completion fish -type f -print0) |
    while IFS= read -r -d '' file; do
        install -D -m 644 "$made/$file" "$share/$file"
    done
install -D -m 644 "$made/zsh/site-functions/_kestrel" "$zsh/_kestrel"
install -d "$to/lib/systemd/system"
for unit in "${units[@]}"; do
    sed "s|/usr/bin/|$PREFIX/bin/|; s|/usr/share/|$PREFIX/share/|" "$deploy/systemd/$unit" \
        >"$to/lib/systemd/system/$unit"
    chmod 644 "$to/lib/systemd/system/$unit"
done
for kind in sysusers tmpfiles; do
    install -D -m 644 "$deploy/systemd/kestrel.$kind" "$to/lib/$kind.d/kestrel.conf"
done
install -d "$share/doc/kestrel/examples"
install -m 644 "$deploy"/examples/* "$share/doc/kestrel/examples"
if [ -n "$SBINDIR" ]; then
    install -d "$DESTDIR$SBINDIR"
    # Relative within /usr, as Debian wants them; /sbin may itself be a link.
    program=$PREFIX/bin/kestrel
    case $SBINDIR:$PREFIX in
        /usr/*:/usr*) program=$(realpath -ms --relative-to "$SBINDIR" "$program") ;;
    esac
    for helper in "${helpers[@]}"; do
        ln -sfn "$program" "$DESTDIR$SBINDIR/$helper"
    done
fi
