#!/usr/bin/env bash
# The C library: its symbols, its header as C99, C11 and C++, the installed files by pkg-config, the
# examples of its documentation, and programs that make every call, on an embedded and a served
# volume, by threads that close each other's handles, with a server that is killed during
# operations, and once more with the sanitizers of addresses and undefined behaviour.
#
# C_SECONDS: how long threads close each other's handles. C_KILLS: how often a server is killed.
set -euo pipefail
. "$(dirname "$0")/../lib.sh"
needs_kestrel
seconds=${C_SECONDS:-3}
profile=$(basename "$(dirname "$KESTREL")")
sources=$ROOT/tests/access/c examples=$ROOT/crates/access/c/examples
export KESTREL_STATE_DIR=$WORK/state C_LIBRARY_OUT=$WORK/c-library

for program in gcc g++ pkg-config readelf; do
    command -v "$program" >/dev/null || { echo "skipped: $program is not installed" && summary &&
        exit; }
done

# Built beside the binary by `make test-build`; otherwise here.
build() {
    if [ -e "${CARGO_TARGET_DIR:-$ROOT/target}/$profile/libkestrel.a" ]; then
        "$ROOT/scripts/c-library.sh" --link "$profile"
    else
        "$ROOT/scripts/c-library.sh" "$profile"
    fi
    "$ROOT/scripts/c-library.sh" --install "$WORK/prefix"
}
check "the library is built and installed" build
export PKG_CONFIG_PATH=$WORK/prefix/lib/pkgconfig LD_LIBRARY_PATH=$WORK/prefix/lib
library=$WORK/prefix/lib/libkestrel.so

symbols() {
    readelf --wide --dyn-syms "$library" |
        awk '$5 != "LOCAL" && $7 != "UND" && $8 != "" { print $8 }' |
        grep -v '^KESTREL_\|^Name$'
}
only_versioned() {
    symbols >"$WORK/symbols"
    [ "$(wc -l <"$WORK/symbols")" -gt 60 ] &&
        ! grep -v '^kestrel_[a-z_]*@@KESTREL_0\.[0-9]*$' "$WORK/symbols"
}
check "all symbols are kestrel_… of a version" only_versioned
declared() {
    sed -n 's/^        \(kestrel_[a-z_]*\);$/\1/p' "$ROOT/crates/access/c/kestrel.map" | sort \
        >"$WORK/mapped"
    sed 's/@@.*//' "$WORK/symbols" | sort | diff - "$WORK/mapped"
}
check "they are those of kestrel.map" declared
check "its name is that of its ABI" prints 'SONAME.*libkestrel\.so\.0\]' readelf -d "$library"
check "pkg-config finds it" prints '^-I.* -lkestrel ?$' pkg-config --cflags --libs kestrel

# compiled AS COMMAND…: the header alone, and twice, compiles as a language.
compiled() {
    local name=$1
    shift
    printf '%s\n' '#include <kestrel.h>' '#include <kestrel.h>' \
        'kestrel_options options = KESTREL_OPTIONS_INIT;' \
        'int main() { return kestrel_error()[0]; }' >"$WORK/header.$name"
    # shellcheck disable=SC2046
    "$@" -Wall -Wextra -Werror -pedantic "$WORK/header.$name" \
        $(pkg-config --cflags --libs kestrel) -o "$WORK/header" && "$WORK/header"
}
for standard in c99 c11 c17; do
    check "the header as $standard" compiled c gcc -std=$standard -Wno-strict-prototypes
done
for standard in c++98 c++11 c++20; do
    check "the header as $standard" compiled cc g++ -std=$standard -Wno-long-long
done

# compile NAME [OPTION…]: a program of the tests; compile_example NAME.
compile() {
    local name=$1
    shift
    # shellcheck disable=SC2046
    gcc -std=c11 -O1 -g -Wall -Wextra -Werror -pedantic "$@" "$sources/$name.c" \
        $(pkg-config --cflags --libs kestrel) -lpthread -o "$WORK/bin/$name"
}
compile_example() {
    # shellcheck disable=SC2046
    gcc -std=c99 -D_POSIX_C_SOURCE=200809L -Wall -Wextra -Werror -pedantic "$examples/$1.c" \
        $(pkg-config --cflags --libs kestrel) -o "$WORK/bin/example-$1"
}
programs() {
    local name
    mkdir -p "$WORK/bin"
    for name in calls queue threads log; do compile "$name" "$@"; done
}
check "programs are compiled" programs
documented() {
    # shellcheck disable=SC2016
    sed -n '/^```c$/,/^```$/p' "$ROOT/docs/operations/c.md" | sed '1d;$d' |
        diff - "$examples/files.c"
}
check "the documentation shows an example as it is" documented
for example in files batch queue rank; do
    check "example $example is compiled" compile_example "$example"
done

# fresh SUFFIX: two embedded volumes, and three that are served.
fresh() {
    local name
    for name in one two; do SERVING='' make_volume "$WORK/$name$1"; done
    for name in served other killed; do
        SERVING='' make_volume "$WORK/$name$1"
        start_server "$WORK/$name$1"
    done
}
fresh ""
SERVING='' make_volume "$WORK/three"

check "example files" prints '^hello: 12 bytes$' "$WORK/bin/example-files" "$WORK/three"
check "example queue" prints '^100 files$' "$WORK/bin/example-queue" "$WORK/three"
check "example batch" prints '^one of many$' "$WORK/bin/example-batch" "$WORK/three" /many/7 many/8
refuses "example batch, of what is not there" 'many/none: no such file' \
    "$WORK/bin/example-batch" "$WORK/three" /many/none
refuses "example files, without a volume" 'kestrel format' "$WORK/bin/example-files" "$WORK/nothing"

# A volume in a directory is one process's.
start_server "$WORK/three"
refuses "a volume that another process has open" 'in use by' \
    "$WORK/bin/example-files" "$WORK/three"
stop_server "$WORK/three"

# rounds SUFFIX TEXT: every program on both kinds of volumes.
rounds() {
    local url other text=$2
    url=$(serve_url "$WORK/served$1") other=$(serve_url "$WORK/other$1")
    check "calls, embedded$text" "$WORK/bin/calls" "$WORK/one$1" "$WORK/two$1"
    check "calls, served$text" "$WORK/bin/calls" "$url" "$other"
    check "operations that are submitted, embedded$text" "$WORK/bin/queue" "$WORK/one$1" 3
    check "operations that are submitted, served$text" "$WORK/bin/queue" "$url" 3
    check "threads that close each other's handles, embedded$text" \
        "$WORK/bin/threads" "$WORK/one$1" "$seconds"
    check "threads that close each other's handles, served$text" \
        "$WORK/bin/threads" "$url" "$seconds"
    killed "$WORK/killed$1" "$text"
}
# killed VOLUME TEXT: its server is killed while operations are under way, and started again.
killed() {
    local job times
    mkfifo "$WORK/pipe"
    "$WORK/bin/queue" "$(serve_url "$1")" 2 "$WORK/pipe" >"$WORK/queue.out" 2>&1 &
    job=$!
    timeout 60 cat "$WORK/pipe" >/dev/null
    rm -f "$WORK/pipe" "$WORK/pipe.end"
    for ((times = 0; times < ${C_KILLS:-3}; times++)); do
        kill_server "$1"
        start_server "$1"
        sleep "0.$((RANDOM % 4 + 1))"
    done
    touch "$WORK/pipe.end"
    check "operations during kill -9 of the server$2" wait "$job"
    cat "$WORK/queue.out"
    check "fsck --data finds nothing$2" at_rest "$1"
}
at_rest() {
    stop_server "$1"
    SERVING='' fsck_volume "$1" --data
}
rounds "" ""

# A job of two ranks.
job=$(SERVING='' make_volume "$WORK/job" && "$KESTREL" job start "$WORK/job" --publish made@1 --log)
eval "$job"
check "rank 0 of a job" "$WORK/bin/log" 0
check "rank 1 of a job" "$WORK/bin/log" 1
check "rank 2 of a job, the example" "$WORK/bin/example-rank" 2
check "the job is published" "$KESTREL" job publish "$WORK/job" made@1
check "what the ranks made" prints '^1 499$' "$WORK/bin/example-batch" "$WORK/job//made@1" \
    /out/1/499
check "what the example made" prints '^/out/2/0' "$WORK/bin/example-batch" "$WORK/job//made@1" \
    /out/2/0999
unset KESTREL_JOB_VOLUME KESTREL_JOB_NUMBER

# With the sanitizers, and leaks of the library's found as well.
printf 'int main(void) { return 0; }\n' >"$WORK/probe.c"
if gcc -fsanitize=address,undefined "$WORK/probe.c" -o "$WORK/probe" 2>/dev/null &&
    "$WORK/probe"; then
    check "programs are compiled with sanitizers" \
        programs -fsanitize=address,undefined -fno-sanitize-recover=all
    fresh -again
    rounds -again ", with sanitizers"
else
    echo "skipped: gcc has no sanitizers here: the programs ran without them alone"
fi
summary
