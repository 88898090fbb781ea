#!/usr/bin/env bash
# Builds the C library into target/c-library: `make c-library`. There are then lib/libkestrel.so,
# include/kestrel.h and lib/pkgconfig/kestrel.pc, for programs that are built in that directory.
#
#   scripts/c-library.sh [PROFILE]           the profile of cargo, `release` by default
#   scripts/c-library.sh --link [PROFILE]    links what cargo has built before
#   scripts/c-library.sh --install PREFIX    copies it to $DESTDIR/PREFIX
#
# C_LIBRARY_OUT: another directory than target/c-library, for tests that run side by side.
#
# Cargo makes libkestrel.a; gcc links it, with the versions of symbols in kestrel.map.
set -euo pipefail
cd "$(dirname "$0")/.."
crate=crates/access/c
target=${CARGO_TARGET_DIR:-$PWD/target}
out=${C_LIBRARY_OUT:-$target/c-library}
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
# Changes with the first change of a function or struct that is there already.
abi=0

# write_pc PREFIX FILE
write_pc() {
    sed -e "s|@PREFIX@|$1|" -e "s|@VERSION@|$version|" "$crate/kestrel.pc.in" >"$2"
}

if [ "${1:-}" = --install ]; then
    prefix=${2:?the directory to install to}
    to=${DESTDIR:-}$prefix
    [ -e "$out/lib/libkestrel.so" ] ||
        { echo "$out is not there: run make c-library first" >&2; exit 1; }
    install -D -m 644 "$out/lib/libkestrel.so.$version" "$to/lib/libkestrel.so.$version"
    ln -sfn "libkestrel.so.$version" "$to/lib/libkestrel.so.$abi"
    ln -sfn "libkestrel.so.$abi" "$to/lib/libkestrel.so"
    install -D -m 644 "$out/include/kestrel.h" "$to/include/kestrel.h"
    mkdir -p "$to/lib/pkgconfig"
    write_pc "$prefix" "$to/lib/pkgconfig/kestrel.pc"
    exit
fi

built=
if [ "${1:-}" = --link ]; then
    built=1
    shift
fi
profile=${1:-release}
[ -n "$built" ] || cargo build --quiet --profile "$profile" --locked -p kestrel-c
archive=$target/$profile/libkestrel.a
[ -e "$archive" ] ||
    { echo "$archive is not there: run scripts/c-library.sh $profile" >&2; exit 1; }
rm -rf "$out"
mkdir -p "$out/lib/pkgconfig" "$out/include"
# nodelete: its threads run on when a program has closed the library. The libraries are those that
# `rustc --print native-static-libs` names.
gcc -shared -o "$out/lib/libkestrel.so.$version" \
    -Wl,-soname,"libkestrel.so.$abi" -Wl,--version-script="$crate/kestrel.map" \
    -Wl,--gc-sections -Wl,-z,relro,-z,now,-z,nodelete -Wl,--no-undefined -Wl,--strip-all \
    -Wl,--whole-archive "$archive" -Wl,--no-whole-archive \
    -lgcc_s -lpthread -lm -ldl -lc
ln -s "libkestrel.so.$version" "$out/lib/libkestrel.so.$abi"
ln -s "libkestrel.so.$abi" "$out/lib/libkestrel.so"
cp "$crate/include/kestrel.h" "$out/include/kestrel.h"
write_pc "$out" "$out/lib/pkgconfig/kestrel.pc"
ls "$out/lib/libkestrel.so.$version"
