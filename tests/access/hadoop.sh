#!/usr/bin/env bash
# kestrel-hadoop.jar: Hadoop's own contract tests on a served and on an embedded volume, tests of
# what they leave out, the shell of Hadoop with the jar as users get it, and what it says without
# the C library.
#
# HADOOP_SPARK=1: also a job of Spark in local mode, which fetches 300 MB from Maven Central.
set -euo pipefail
. "$(dirname "$0")/../lib.sh"
needs_kestrel
profile=$(basename "$(dirname "$KESTREL")")
pom=$ROOT/hadoop/pom.xml
export KESTREL_STATE_DIR=$WORK/state C_LIBRARY_OUT=$WORK/c-library HADOOP_USER_NAME=root

for program in java mvn; do
    command -v "$program" >/dev/null || { echo "skipped: $program is not installed" && summary &&
        exit; }
done
# Every run has a build directory of its own.
maven() {
    mvn --batch-mode --quiet --file "$pom" -Dkestrel.build="$WORK/build" "$@"
}
if ! maven dependency:build-classpath -Dmdep.includeScope=test \
    -Dmdep.outputFile="$WORK/classpath" >"$WORK/maven.out" 2>&1; then
    tail -n 5 "$WORK/maven.out"
    echo "skipped: Maven can't fetch what the tests need on this machine: nothing was tested"
    summary
    exit
fi
library() {
    if [ -e "${CARGO_TARGET_DIR:-$ROOT/target}/$profile/libkestrel.a" ]; then
        "$ROOT/scripts/c-library.sh" --link "$profile"
    else
        "$ROOT/scripts/c-library.sh" "$profile"
    fi
    "$ROOT/scripts/c-library.sh" --install "$WORK/prefix"
}
check "the C library is installed" library
so=$WORK/prefix/lib/libkestrel.so.0
check "the jar is built" maven -DskipTests package
jar=$WORK/build/kestrel-hadoop.jar

make_volume "$WORK/embedded"
make_volume "$WORK/served"
start_server "$WORK/served"
url=$(serve_url "$WORK/served")

# tested URL [OPTION…]
tested() {
    rm -rf "$WORK/build/surefire-reports"
    maven surefire:test -Dkestrel.test.url="$1" -Dkestrel.test.library="$so" "${@:2}"
    # Without tests it has failed.
    grep -q 'tests="[1-9]' "$WORK"/build/surefire-reports/*.xml
}
check "the tests are compiled" maven test-compile
check "Hadoop's contract, on a served volume" tested "$url"
check "Hadoop's contract, on an embedded volume" tested "$WORK/embedded"

# As a site configures it.
mkdir "$WORK/conf" "$WORK/bare"
echo '<configuration/>' >"$WORK/bare/core-site.xml"
cat >"$WORK/conf/core-site.xml" <<XML
<configuration>
  <property><name>fs.kestrel.data.url</name><value>$url</value></property>
  <property><name>fs.kestrel.library</name><value>$so</value></property>
</configuration>
XML
classpath=$jar:$(tr ':' '\n' <"$WORK/classpath" | grep -v 'jna\|junit\|-tests' | paste -sd:)
# shell ARGUMENT…: hadoop fs, with the jar alone, and Hadoop itself. bare: without a configuration.
shell() {
    java -cp "$WORK/conf:$classpath" org.apache.hadoop.fs.FsShell "$@"
}
bare() {
    java -cp "$WORK/bare:$classpath" org.apache.hadoop.fs.FsShell "$@"
}
printf 'line %s\n' 1 2 3 >"$WORK/lines"
check "hadoop fs -mkdir, -put" shell -mkdir -p kestrel://data/shell/dir
check "hadoop fs -put" shell -put "$WORK/lines" kestrel://data/shell/dir/lines
check "hadoop fs -cat" prints '^line 2$' shell -cat 'kestrel://data/shell/dir/l*'
check "hadoop fs -ls" prints '^-rw-r--r--.* 21 .*kestrel://data/shell/dir/lines$' \
    shell -ls kestrel://data/shell/dir
check "hadoop fs -mv" shell -mv kestrel://data/shell/dir/lines kestrel://data/shell/moved
check "hadoop fs -df" prints 'kestrel://data' shell -df kestrel://data/
refuses "hadoop fs -cat, of what is not there" 'no such file' \
    shell -cat kestrel://data/shell/dir/lines
check "hadoop fs -rm -r" shell -rm -r -skipTrash kestrel://data/shell
refuses "a file that is no library" 'make c-library' \
    shell -Dfs.kestrel.library=/nowhere/libkestrel.so -ls kestrel://data/
if ldconfig -p | grep -q 'libkestrel\.so\.0'; then
    echo "skipped: this machine has libkestrel.so.0, which the jar finds"
else
    refuses "without the C library" 'libkestrel\.so\.0, which is not installed' \
        bare -Dfs.kestrel.data.url="$url" -ls kestrel://data/
fi
refuses "a URI without a volume" 'which volume' shell -ls kestrel:///
refuses "a name without a URL" 'fs\.kestrel\.other\.url is not set' shell -ls kestrel://other/

if [ -n "${HADOOP_SPARK:-}" ]; then
    spark() {
        mvn --batch-mode --quiet --file "$ROOT/hadoop/spark/pom.xml" \
            dependency:build-classpath -Dmdep.outputFile="$WORK/spark"
    }
    if spark >"$WORK/maven.out" 2>&1; then
        opens=()
        for package in lang lang.invoke net nio util util.concurrent; do
            opens+=("--add-opens=java.base/java.$package=ALL-UNNAMED")
        done
        opens+=(--add-opens=java.base/sun.nio.ch=ALL-UNNAMED
            --add-opens=java.base/sun.util.calendar=ALL-UNNAMED)
        check "a job of Spark writes and reads Parquet" prints '^spark: 175100 rows$' \
            env -C "$WORK" java "${opens[@]}" -cp "$WORK/conf:$jar:$(cat "$WORK/spark")" \
            "$ROOT/hadoop/spark/SparkParquet.java" kestrel://data/spark
    else
        tail -n 5 "$WORK/maven.out"
        echo "skipped: Maven can't fetch Spark on this machine"
    fi
fi
stop_server "$WORK/served"
check "fsck --data finds nothing" fsck_volume "$WORK/served" --data
summary
