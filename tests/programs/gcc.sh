#!/usr/bin/env bash
# gcc: many sources compiled in parallel, archived, linked, run, rebuilt by time stamps, all on the
# mount.
set -euo pipefail
. "$(dirname "$0")/../lib.sh"

volume=$WORK/volume mnt=$WORK/mnt
make_volume "$volume"
mount_volume "$volume" "$mnt"
mkdir "$mnt/src"
cd "$mnt/src"
for ((i = 0; i < 60; i++)); do
    printf '#include "all.h"\nint f%d(int x) { return x + %d; }\n' "$i" "$i" >"f$i.c"
    echo "int f$i(int);"
done >all.h
{
    printf '#include <stdio.h>\n#include "all.h"\nint main(void) { int s = 0;\n'
    for ((i = 0; i < 60; i++)); do echo "s = f$i(s);"; done
    printf 'printf("%%d\\n", s); return 0; }\n'
} >main.c
# All rules of a plain C project; make decides by modification times.
cat >Makefile <<'MAKE'
objects = $(patsubst %.c,%.o,$(wildcard f*.c))
program: main.o libf.a
	$(CC) -o $@ main.o -L. -lf
libf.a: $(objects)
	$(AR) rcs $@ $(objects)
%.o: %.c all.h
	$(CC) -O1 -g -c -o $@ $<
MAKE
cd /
runs() {
    [ "$("$mnt/src/program")" = "$1" ]
}
rebuild_one() {
    sed -i 's/x + 59/x + 1059/' "$mnt/src/f59.c"
    make -C "$mnt/src" CC=gcc >"$WORK/make.out"
    [ "$(grep -c -- '-c -o' "$WORK/make.out")" = 1 ] && runs 2770
}
up_to_date() {
    make -C "$mnt/src" CC=gcc -q
}
check "make -j4" make -j4 -C "$mnt/src" CC=gcc
check "the program runs from the mount" runs 1770
check "nothing to do" up_to_date
check "one change rebuilds one object" rebuild_one
check "strip and run" strip "$mnt/src/program"
check "still runs" runs 2770
close_and_check "$volume" "$mnt"
summary
