# Two commands do everything: `make demo` and `make test`. Both install what is missing (as root, Debian 12, Rust present).

.PHONY: help demo build test test-rust test-mount bench lint fmt audit clean

help:
	@echo "make demo    install what is missing, build, mount a volume, ingest a real tree, verify every byte"
	@echo "make test    install what is missing, build, run every test"
	@echo "make bench   mount / local file system / null FUSE side by side: target/bench/results.json, plot.svg"
	@echo "make lint    formatting, clippy with warnings as errors, dependency audit"
	@echo "make fmt     format the code"

build:
	cargo build --release --locked

demo:
	scripts/install-deps.sh --demo
	$(MAKE) build
	scripts/demo.sh

test:
	scripts/install-deps.sh
	$(MAKE) build
	tests/run.sh

bench: build
	mkdir -p target/bench
	cargo run --release --locked -p kestrel-meta --example meta_bench -- target/bench/meta 2000000 > target/bench/meta.json
	cat target/bench/meta.json
	bench/compare.py

lint:
	cargo fmt --all --check
	cargo clippy --locked --workspace --all-targets -- -D warnings
	scripts/audit.py

audit:
	scripts/audit.py

fmt:
	cargo fmt --all

clean:
	cargo clean
