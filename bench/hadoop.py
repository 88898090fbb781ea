#!/usr/bin/env python3
"""What TestDFSIO measures: files written and read through Hadoop by several threads of a process,
on a served volume, on the volume itself, and on the local file system (`file://`, without the
checksums that Hadoop writes beside files), which is the limit on one machine. Files are read soon
after they were written, so from memory.

    make bench-hadoop        writes target/bench/hadoop.json, hadoop.svg
"""

import os
import statistics
import subprocess

from common import KESTREL, ROOT, Server, bars, conclude, options_of, run, scratch_for

FILES = 4


def classpath(scratch):
    """The jar, and Hadoop as Maven has it."""
    listed = f"{scratch}/classpath"
    run("mvn", "--batch-mode", "--quiet", "--file", f"{ROOT}/hadoop/pom.xml",
        "dependency:build-classpath", "-Dmdep.includeScope=provided", f"-Dmdep.outputFile={listed}")
    with open(listed, encoding="utf-8") as file:
        return f"{ROOT}/target/hadoop/kestrel-hadoop.jar:{file.read().strip()}"


def measure(scratch, jars, url, where, mebibytes):
    """MiB a second written and read."""
    conf = f"{scratch}/conf"
    os.makedirs(conf, exist_ok=True)
    settings = {"fs.kestrel.data.url": url,
                "fs.kestrel.library": f"{ROOT}/target/c-library/lib/libkestrel.so.0"}
    lines = "".join(f"<property><name>{key}</name><value>{value}</value></property>"
                    for key, value in settings.items())
    with open(f"{conf}/core-site.xml", "w", encoding="utf-8") as file:
        file.write(f"<configuration>{lines}</configuration>")
    done = subprocess.run(
        ["java", "-cp", f"{conf}:{jars}", f"{ROOT}/bench/HadoopIo.java", where, str(FILES),
         str(mebibytes)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    return tuple(map(float, done.stdout.split()))


def plot(path, rows):
    lines = [(row["what"], row["mib_per_s"], row["is_ours"]) for row in rows]
    bars(path, lines, "MiB/s", left=250)


def main():
    parser = options_of(__doc__, "hadoop", 3)
    parser.add_argument("--mib", type=int, default=256, help="mebibytes of each of the files")
    options = parser.parse_args()
    with scratch_for(f"{options.out}.json") as scratch:
        os.environ["KESTREL_STATE_DIR"] = f"{scratch}/state"
        jars = classpath(scratch)
        found = {}
        server = Server(scratch)
        places = {"served": (server.url, "kestrel://data/io"),
                  "local file system": ("", f"file://{scratch}/io")}
        # The ways take turns.
        for _ in range(options.rounds):
            for name, (url, where) in places.items():
                found.setdefault(name, []).append(
                    measure(scratch, jars, url, where, options.mib))
        run(KESTREL, "serve", server.volume, "--stop")
        for _ in range(options.rounds):
            found.setdefault("embedded", []).append(
                measure(scratch, jars, server.volume, "kestrel://data/io", options.mib))
        rows = []
        for name, rates in found.items():
            for at, verb in enumerate(["write", "read"]):
                rate = statistics.median(each[at] for each in rates)
                rows.append({"what": f"{verb}, {name}", "mib_per_s": rate,
                             "is_ours": not name.startswith("local")})
                print(f"{verb}, {name}: {rate:.0f} MiB/s")
        conclude(options.out, rows, [], plot, files=FILES, mebibytes=options.mib)


if __name__ == "__main__":
    main()
