# `make` or `make help` lists the targets.

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

CARGO ?= cargo
DENY_VERSION := 0.20.2
# a bench of one name: make bench BENCH=throughput
BENCH ?=
# what `make run` serves, and where its state can be read
DIR ?= examples
ADMIN ?= 127.0.0.1:9901

.PHONY: help run test lint deny doc bench fuzz

help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 20

run: ## Build, get a HAProxy, and serve examples/ on loopback addresses, following every change
	$(CARGO) build --bin haproxy-fleet
	@haproxy=$$(tools/haproxy | tail -n 1); \
	HAPROXY=$$haproxy exec $${CARGO_TARGET_DIR:-target}/debug/haproxy-fleet local -f $(DIR) --echo --admin $(ADMIN)

test: ## Run all tests, with real HAProxies of both release lines
	tools/haproxy 3.4
	tools/haproxy 3.2
	$(CARGO) test --workspace --doc
	$(CARGO) test --workspace --tests

lint: ## Check format, lints, dependencies and documentation
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	$(MAKE) --no-print-directory deny doc

# Advisories come from the network; where there is none, the rest is still checked.
deny:
	@if ! $(CARGO) deny --version >/dev/null 2>&1; then \
		echo "installing cargo-deny $(DENY_VERSION), once, which takes minutes"; \
		$(CARGO) install --locked --version $(DENY_VERSION) cargo-deny; \
	fi
	$(CARGO) deny --log-level error check bans licenses sources
	@if $(CARGO) deny --log-level error fetch db 2>/dev/null; then \
		$(CARGO) deny --log-level error check --disable-fetch advisories; \
	else \
		echo "SKIPPED: advisories (the advisory database cannot be fetched from here)"; \
	fi

doc:
	RUSTDOCFLAGS=-Dwarnings $(CARGO) doc --workspace --no-deps

bench: ## Measure the figures (BENCH=name: one of them; ROUTES=100: one size)
	tools/haproxy 3.4
	tools/haproxy 3.2
	BENCH=$(BENCH) $(CARGO) bench --bench figures

fuzz: ## Ten million cases of the test that no input adds a directive
	PROPTEST_CASES=10000000 $(CARGO) test --release --lib --test it -- --nocapture injection
