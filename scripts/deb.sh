#!/usr/bin/env bash
# Builds the Debian packages kestrel (the program, stripped) and kestrel-dbgsym (its debug symbols)
# with dpkg-deb, from what scripts/install.sh installs. `make deb` runs it.
#
#   scripts/deb.sh [--binary FILE] [--out DIR] [--revision N] [--compress xz|none]
#
# The same binary and commit give the same bytes: times are those of $SOURCE_DATE_EPOCH, which is
# the time of the commit unless it is set, owners are root, and one thread compresses. The last
# lines are the packages and their sizes.
set -euo pipefail

ROOT=$(cd "$(dirname "$0")/.." && pwd)
cd "$ROOT"
binary=${CARGO_TARGET_DIR:-target}/release/kestrel out=target/deb revision=1 compress=xz
while [ $# -gt 0 ]; do
    case $1 in
        --binary) binary=$2 ;;
        --out) out=$2 ;;
        --revision) revision=$2 ;;
        --compress) compress=$2 ;;
        *) sed -n '2,10s/^# \{0,1\}//p' "$0" >&2 && exit 2 ;;
    esac
    shift 2
done
[ -x "$binary" ] || { echo "$binary is not there: run make build first" >&2 && exit 1; }
for tool in dpkg-deb dpkg-shlibdeps objcopy; do
    command -v "$tool" >/dev/null ||
        { echo "$tool is missing: run scripts/install-deps.sh --deb" >&2 && exit 1; }
done

version=$(sed -n '/^\[workspace.package\]/,/^$/s/^version = "\(.*\)"/\1/p' Cargo.toml)-$revision
arch=$(dpkg --print-architecture)
maintainer="KestrelFS maintainers <maintainers@users.noreply.a-seed-d7866e7d.example>"
if [ -z "${SOURCE_DATE_EPOCH:-}" ]; then
    SOURCE_DATE_EPOCH=$(git log -1 --format=%ct 2>/dev/null || stat -c %Y CHANGELOG.md)
fi
export SOURCE_DATE_EPOCH
umask 022
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

stage=$work/kestrel debug=$work/kestrel-dbgsym
DESTDIR=$stage PREFIX=/usr ZSHDIR=/usr/share/zsh/vendor-completions scripts/install.sh "$binary"

# Debug symbols lie where gdb and perf look for those of a build.
build_id=$(readelf -n "$stage/usr/bin/kestrel" | sed -n 's/.*Build ID: //p')
[ -n "$build_id" ] || { echo "$binary has no build id: link it with -Wl,--build-id" >&2 && exit 1; }
symbols=$debug/usr/lib/debug/.build-id/${build_id:0:2}/${build_id:2}.debug
mkdir -p "$(dirname "$symbols")"
objcopy --only-keep-debug --compress-debug-sections "$stage/usr/bin/kestrel" "$symbols"
chmod 644 "$symbols"
strip --strip-unneeded --remove-section=.comment "$stage/usr/bin/kestrel"
(cd "$(dirname "$symbols")" && objcopy --add-gnu-debuglink="$symbols" "$stage/usr/bin/kestrel")

doc=$stage/usr/share/doc/kestrel
cp deploy/deb/copyright "$doc/copyright"
cp CHANGELOG.md "$doc/changelog"
cat >"$doc/changelog.Debian" <<END
kestrel ($version) unstable; urgency=medium

  * See changelog.gz.

 -- $maintainer  $(LC_ALL=C date -u -R -d "@$SOURCE_DATE_EPOCH")
END
chmod 644 "$doc"/*[!s]
find "$stage/usr/share/man" "$doc/changelog" "$doc/changelog.Debian" -type f -exec gzip -9n {} +
mkdir -p "$debug/usr/share/doc"
ln -s kestrel "$debug/usr/share/doc/kestrel-dbgsym"

# What it is linked with, and from which versions on.
mkdir -p "$work/debian"
printf 'Source: kestrel\n\nPackage: kestrel\nArchitecture: any\n' >"$work/debian/control"
depends=$(cd "$work" && dpkg-shlibdeps -O --ignore-missing-info "$stage/usr/bin/kestrel" \
    2>/dev/null | sed -n 's/^shlibs:Depends=//p')

# control NAME TREE: its control file and checksums.
control() {
    mkdir -p "$2/DEBIAN"
    sed "s|@VERSION@|$version|; s|@ARCH@|$arch|; s|@MAINTAINER@|$maintainer|
        s|@DEPENDS@|$depends|; s|@BUILD_ID@|$build_id|
        s|@SIZE@|$(du -k -s --apparent-size "$2" | cut -f1)|" "deploy/deb/$1" >"$2/DEBIAN/control"
    (cd "$2" && find . -path ./DEBIAN -prune -o -type f -printf '%P\n' | LC_ALL=C sort |
        xargs md5sum) >"$2/DEBIAN/md5sums"
}
control control.in "$stage"
control dbgsym.in "$debug"
for script in postinst prerm postrm; do
    install -m 755 "deploy/deb/$script" "$stage/DEBIAN/$script"
done

mkdir -p "$out"
for tree in "$stage" "$debug"; do
    find "$tree" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
    package=$out/$(basename "$tree")_${version}_$arch.deb
    dpkg-deb --root-owner-group --uniform-compression --threads-max=1 "-Z$compress" \
        --build "$tree" "$package" >/dev/null
    echo "$package: $(stat -c %s "$package") bytes"
done
echo "program: $(stat -c %s "$stage/usr/bin/kestrel") bytes stripped," \
    "$(stat -c %s "$binary") bytes with symbols; symbols $(stat -c %s "$symbols") bytes"
