# `make demo` and `make test` need nothing before them: they install what is missing (as root, on
# Debian 12 with Rust).

.PHONY: help demo demo-s3 demo-cluster demo-ha demo-workflow build wheel c-library hadoop deb \
	install install-c uninstall docs test test-all test-build sim proptest test-rust test-mount \
	bench bench-s3 bench-cluster bench-balance bench-shortcut bench-passthrough bench-supervised \
	bench-listing bench-versions bench-sql bench-jobs bench-access bench-hadoop \
	bench-compression bench-compact bench-datasets bench-gateway lint fmt audit clean

help:
	@echo "make demo    install what is missing, build, mount a volume, ingest a real tree, verify every byte"
	@echo "make demo-s3 the same with the files in an S3 store (versitygw): requests, hit rates, throughput, gc, fsck"
	@echo "make demo-cluster  three metadata nodes, two mounts: ingest through one, kill -9 and restart a node, add a fourth, verify through the other"
	@echo "make demo-ha    three nodes on PostgreSQL with a standby, coordinator on etcd: kill -9 one of each kind under load; a table of pauses"
	@echo "make demo-workflow  seven jobs in a row on an S3 store: time, CPU, every listing"
	@echo "make test    install what is missing, build, run the test suites of CI"
	@echo "make test-all every suite in every mode, in the sizes of the night: hours"
	@echo "make test-build  build what tests/run.sh needs, once for all suites: target/ci"
	@echo "make build   build the release binary, target/release/kestrel"
	@echo "make wheel   build the Python package: target/wheels/kestrelfs-*.whl"
	@echo "make c-library build the C library: target/c-library; make install-c copies it to PREFIX"
	@echo "make hadoop  build the jar for Hadoop and Spark: target/hadoop/kestrel-hadoop.jar"
	@echo "make deb     build the Debian packages: target/deb/kestrel_*.deb, kestrel-dbgsym_*.deb"
	@echo "make install program, manual pages, completions, units to PREFIX; make uninstall"
	@echo "make docs    a site of docs/ with search: target/docs-site/index.html"
	@echo "make sim     simulate a node and its clients, or NODES=N nodes, under faults, SEEDS=FROM..TO"
	@echo "make proptest property tests with random seeds, PROPTEST_SEEDS=N of them"
	@echo "make bench   mount / local file system / null FUSE side by side: target/bench/results.json, plot.svg"
	@echo "make bench-s3 stores with 0, 5, 20, 50 ms latency: target/bench/s3.json, s3.svg"
	@echo "make bench-cluster one server, several nodes: loopback echo, native client, mount: target/bench/cluster.json, cluster.svg"
	@echo "make bench-shortcut requests, memory and latency of walks, both transports: target/bench/shortcut.json, shortcut.svg"
	@echo "make bench-passthrough read and mmap of a cached 1 GiB file, against the local file system: target/bench/passthrough.json, passthrough.svg"
	@echo "make bench-supervised a supervised mount, and its upgrades: target/bench/supervised.json"
	@echo "make bench-listing ls -l, find, du, rm -rf of 20,000 and 200,000 files served, beside a local directory: target/bench/listing.json, listing.svg"
	@echo "make bench-versions snapshots (VERSIONS=--full: 1 M files): target/bench/versions.json, .svg"
	@echo "make bench-sql SQL over a version of 1 M files: target/bench/sql.json, sql.svg"
	@echo "make bench-jobs jobs and ranks (JOBS=--full: 1 M files): target/bench/jobs.json, ranks.json"
	@echo "make bench-access small files by Python and by C: target/bench/access.json, .svg"
	@echo "make bench-hadoop files through Hadoop, beside file://: target/bench/hadoop.json"
	@echo "make bench-compact compaction of versions: target/bench/compact.json, .svg"
	@echo "make bench-compression bytes stored and MB/s by policy: target/bench/compression.json, .svg"
	@echo "make bench-gateway kestrel gateway beside versitygw: target/bench/gateway.json"
	@echo "make bench-datasets du, large directories, quotas, rm -r, feeds, tiers (DATASETS=--full)"
	@echo "make bench-balance real trees on 16 metadata nodes: target/bench/balance.json, balance.svg"
	@echo "make lint    formatting, clippy, dependencies, style, crates, circles of modules"
	@echo "make fmt     format the code"

build:
	cargo build --release --locked

# The Python package: pip install target/wheels/kestrelfs-*.whl
wheel:
	scripts/wheel.sh

# The jar for Hadoop and Spark.
hadoop:
	scripts/install-deps.sh --hadoop
	scripts/hadoop-jar.sh

# libkestrel.so, kestrel.h and kestrel.pc.
c-library:
	scripts/c-library.sh

# The program, manual pages, completions, units of systemd, examples of settings. SBINDIR=/sbin adds
# the helpers of mount(8) and umount(8), which look only there; with PREFIX=/usr they come by
# themselves.
PREFIX ?= /usr/local
SBINDIR ?=
ZSHDIR ?=
BUILT = $(or $(CARGO_TARGET_DIR),target)/release/kestrel
install uninstall: export PREFIX := $(PREFIX)
install uninstall: export DESTDIR := $(DESTDIR)
install uninstall: export SBINDIR := $(SBINDIR)
install uninstall: export ZSHDIR := $(ZSHDIR)
install:
	scripts/install.sh "$(BUILT)"

# The machine's linker finds it below /usr/local after `ldconfig`.
install-c:
	DESTDIR="$(DESTDIR)" scripts/c-library.sh --install "$(PREFIX)"

uninstall:
	rm -f "$(DESTDIR)$(PREFIX)"/lib/libkestrel.so* "$(DESTDIR)$(PREFIX)/include/kestrel.h"
	rm -f "$(DESTDIR)$(PREFIX)/lib/pkgconfig/kestrel.pc"
	scripts/install.sh --remove

# kestrel_*.deb and kestrel-dbgsym_*.deb in target/deb. From one commit and one toolchain the bytes
# are the same each time (docs/operations/install.md).
deb:
	scripts/install-deps.sh --deb
	$(MAKE) build
	scripts/deb.sh --binary "$(BUILT)"

docs:
	scripts/install-deps.sh --docs
	scripts/docs-site.py

demo:
	scripts/install-deps.sh --demo
	$(MAKE) build
	scripts/demo.sh

demo-s3:
	scripts/install-deps.sh --demo-s3
	$(MAKE) build
	scripts/demo-s3.sh

# FILES=100000 STAGES=7: larger.
demo-workflow:
	scripts/install-deps.sh --demo-s3
	$(MAKE) build
	scripts/demo-workflow.sh

demo-cluster:
	scripts/install-deps.sh --demo
	$(MAKE) build
	scripts/demo-cluster.sh

demo-ha:
	scripts/install-deps.sh --test
	$(MAKE) build
	scripts/demo-ha.sh

test:
	scripts/install-deps.sh --test
	$(MAKE) test-build
	tests/run.sh

# The same tests of the binary that users get.
test-all:
	scripts/install-deps.sh --test
	scripts/install-deps.sh --hadoop
	$(MAKE) build test-build
	KESTREL="$(abspath $(BUILT))" KESTREL_NIGHTLY=1 tests/run.sh

# One cargo command: built apart from the tests, the programs would have other features of their
# dependencies, and most crates would be compiled twice.
test-build:
	cargo build --profile ci --workspace --locked --bins --lib --tests

bench: build
	mkdir -p target/bench
	cargo run --release --locked -p kestrel-meta --example meta_bench -- target/bench/meta 2000000 > target/bench/meta.json
	cat target/bench/meta.json
	bench/compare.py

bench-s3:
	scripts/install-deps.sh --demo-s3
	$(MAKE) build
	bench/s3.py

# BUCKET=--full opens a volume of a million files.
bench-bucket:
	scripts/install-deps.sh --demo-s3
	$(MAKE) build
	bench/bucket.py $(BUCKET)

bench-publish:
	scripts/install-deps.sh --demo-s3
	$(MAKE) build
	bench/publish.py $(PUBLISH)

# SQL=--full has ten million files.
bench-sql: build
	bench/sql.py $(SQL)

# JOBS=--full has a million files.
bench-jobs: build
	cargo build --release --locked -p kestrel-rpc --example netload --example echo
	cargo build --release --locked -p kestrel-client --example log_bench
	bench/jobs.py $(JOBS)
	bench/ranks.py $(JOBS)

# COMPACT=--full has three million files in the bucket.
bench-compact:
	scripts/install-deps.sh --demo-s3
	$(MAKE) build
	cargo build --release --locked -p kestrel-bucket --example compact_bench
	bench/compact.py $(COMPACT)

# GATEWAY=--full lists a million keys.
bench-gateway:
	scripts/install-deps.sh --demo-s3
	$(MAKE) build
	bench/gateway.py $(GATEWAY)

bench-cluster: build
	cargo build --release --locked -p kestrel-rpc --examples
	bench/cluster.py

bench-passthrough: build
	bench/passthrough.py

bench-supervised: build
	bench/supervised.py

bench-listing: build
	bench/listing.py

# VERSIONS=--full has the sizes of a dataset; it takes much longer.
bench-versions: build
	bench/versions.py $(VERSIONS)

# The package as users install it, in an environment of its own.
bench-access: build wheel c-library
	rm -rf target/python-bench
	python3 -m venv target/python-bench
	target/python-bench/bin/pip install --quiet fsspec target/wheels/kestrelfs-*.whl
	target/python-bench/bin/python bench/access.py $(ACCESS)

# MIB=1024: the size of each of the files.
bench-hadoop: build c-library hadoop
	bench/hadoop.py $(HADOOP)

bench-compression: build
	bench/compression.py

bench-datasets: build
	bench/datasets.py $(DATASETS)
	bench/large_dirs.py $(DATASETS)
	bench/quotas.py $(DATASETS)
	bench/remove.py $(DATASETS)
	bench/feed.py $(DATASETS)
	bench/tiers.py $(DATASETS)

bench-shortcut: build
	cargo build --release --locked -p kestrel-rpc --examples
	bench/shortcut.py

# Deterministic simulation: make sim SEEDS=1..10000; of several nodes: make sim NODES=3
SEEDS ?= 1..1000
sim:
	cargo run --locked --profile ci -p kestrel-sim -- $(if $(NODES),--nodes $(NODES)) --seeds $(SEEDS)

# Property tests with seeds other than CI's: make proptest PROPTEST_SEEDS=20
PROPTEST_SEEDS ?= 5
proptest:
	SEEDS=$(PROPTEST_SEEDS) tests/proptest.sh

bench-balance:
	scripts/install-deps.sh --demo
	$(MAKE) build
	bench/balance.py

# .ci/run sets the profile of test-build, which then need not run build scripts again.
LINT_PROFILE ?= dev
lint:
	cargo fmt --all --check
	cargo clippy --profile $(LINT_PROFILE) --locked --workspace --all-targets -- -D warnings
	scripts/audit.py
	scripts/draw-overview.py --check
	scripts/lint-style.py
	scripts/lint-crates.py
	scripts/lint-modules.py
	python3 tests/scripts/lint_test.py

audit:
	scripts/audit.py

fmt:
	cargo fmt --all

clean:
	cargo clean
