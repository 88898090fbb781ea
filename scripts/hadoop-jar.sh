#!/usr/bin/env bash
# Builds target/hadoop/kestrel-hadoop.jar: `make hadoop`. Needs a JDK from 11 on and Maven, which
# fetches what it needs from Maven Central.
#
#   scripts/hadoop-jar.sh [OPTION…]    options of Maven
set -euo pipefail
cd "$(dirname "$0")/.."
for program in java mvn; do
    if ! command -v "$program" >/dev/null; then
        echo "$program is not installed: apt-get install default-jdk-headless maven" >&2
        exit 1
    fi
done
mvn --batch-mode --quiet --file hadoop/pom.xml -DskipTests "$@" package
ls target/hadoop/kestrel-hadoop.jar
