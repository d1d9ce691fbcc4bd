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
# what part of the end-to-end suites runs
SUITE ?=
ADMIN ?= 127.0.0.1:9901
# how the operator's image is built: `make image PROFILE=dev` is quick to build and slow to run
PROFILE ?= release
IMAGE ?= haproxy-fleet.dev/haproxy-fleet
VERSION = $(shell $(CARGO) pkgid --package haproxy-fleet | sed -E 's/.*[\#@]//')
TRIPLE = $(shell rustc --version --verbose | sed -n 's/^host: //p')

.PHONY: help run test lint deny doc bench fuzz image image-root cluster-up cluster-down e2e

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
	$(CARGO) clippy --package haproxy-fleet-e2e --test suites -- -D warnings
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

bench: ## Measure the figures (BENCH=name: one of them; ROUTES=100: one size; BENCH=operator: its size with a large cluster)
ifeq ($(BENCH),operator)
	$(MAKE) --no-print-directory image-root
	$(CARGO) run --quiet --package fleet-cluster -- build
	OPERATOR=$(abspath target/image/root/haproxy-fleet) $(CARGO) test --package haproxy-fleet-e2e --bench size
else
	tools/haproxy 3.4
	tools/haproxy 3.2
	BENCH=$(BENCH) $(CARGO) bench --bench figures
endif

fuzz: ## Ten million cases of the test that no input adds a directive
	PROPTEST_CASES=10000000 $(CARGO) test --release --lib --test it -- --nocapture injection

image: image-root ## Pack the operator's image, target/image/haproxy-fleet.tar (PROFILE=dev: without optimising)
	$(CARGO) run --quiet --package fleet-image -- --tag $(IMAGE):$(VERSION) --user 65532 --entrypoint /haproxy-fleet \
		target/image/root target/image/haproxy-fleet.tar
	@echo "$(IMAGE):$(VERSION) is in target/image/haproxy-fleet.tar"

# All that the image holds: the program, linked statically, so that it runs in HAProxy's image as well as in its own. The
# explicit --target keeps the flag from build scripts.
image-root:
	RUSTFLAGS='-C target-feature=+crt-static' $(CARGO) build --profile $(PROFILE) --target $(TRIPLE) --bin haproxy-fleet
	rm -rf target/image/root
	mkdir -p target/image/root
	@program=$${CARGO_TARGET_DIR:-target}/$(TRIPLE)/$(if $(filter dev,$(PROFILE)),debug,$(PROFILE))/haproxy-fleet; \
	if readelf --dynamic "$$program" | grep -q NEEDED; then echo "$$program is not static" >&2; exit 1; fi; \
	strip --strip-debug -o target/image/root/haproxy-fleet "$$program"

e2e: ## Run the suites against the cluster that KUBECONFIG names, else against ours, which is brought up first (SUITE=name: those whose name has it)
ifdef KUBECONFIG
	$(MAKE) --no-print-directory image-root PROFILE=dev
	$(CARGO) test --package haproxy-fleet-e2e --test suites -- --test-threads=1 --nocapture $(SUITE)
else
	$(MAKE) --no-print-directory cluster-up PROFILE=dev
	CARGO_TARGET_$(subst -,_,$(shell echo $(TRIPLE) | tr a-z A-Z))_RUNNER="$(abspath $(or $(CARGO_TARGET_DIR),target))/debug/fleet-cluster enter" \
		$(CARGO) test --package haproxy-fleet-e2e --test suites -- --test-threads=1 --nocapture $(SUITE)
endif

cluster-up: image ## Build and start a Kubernetes cluster of real parts on this machine (as root; see docs/testing.md)
	$(CARGO) build --package fleet-cluster
	$${CARGO_TARGET_DIR:-target}/debug/fleet-cluster build
	$${CARGO_TARGET_DIR:-target}/debug/fleet-cluster up
	$${CARGO_TARGET_DIR:-target}/debug/fleet-cluster load target/image/haproxy-fleet.tar

cluster-down: ## Stop the cluster and remove all that it left
	$(CARGO) build --package fleet-cluster
	$${CARGO_TARGET_DIR:-target}/debug/fleet-cluster down
