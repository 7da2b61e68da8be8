# Everything that people and CI do with this repository. `make` lists it.

CARGO ?= cargo
PREFIX ?= /usr/local
BINDIR ?= $(PREFIX)/bin
SBINDIR ?= $(PREFIX)/sbin
MANDIR ?= $(PREFIX)/share/man
# mount(8) looks for its helpers in /sbin alone, wherever the rest is installed.
MOUNTDIR ?= $(if $(filter /usr /usr/local,$(PREFIX)),/sbin,$(SBINDIR))
BASHDIR ?= $(PREFIX)/share/bash-completion/completions
ZSHDIR ?= $(PREFIX)/share/zsh/site-functions
FISHDIR ?= $(PREFIX)/share/fish/vendor_completions.d

TARGET := $(or $(CARGO_TARGET_DIR),target)
BINARY := $(TARGET)/release/cffs
TOOLS := target/tools/bin
GENERATED := $(TARGET)/generated

# How long `make fuzz` spends on each target, and how often `make soak` tries each property.
FUZZ_SECONDS ?= 60
SOAK_CASES ?= 5000
# How many states after a crash `make soak` tries, and with which seed.
SOAK_STATES ?= 10000000
SOAK_SEED ?= 1

.DEFAULT_GOAL := help
.PHONY: help setup build run test test-quick fmt lint install uninstall
.PHONY: fuzz soak fsck-scale bench bench-quick deny clean

help: ## List what can be done
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile

setup: ## Install the programs that building and testing need (Debian; asks for root if any is missing)
	scripts/setup.sh

build: ## Build the cffs program, optimised
	$(CARGO) build --release --locked -p cffs-cli

run: ## Show it at work: a volume at ./mnt, a real tree in it, requests per file beside ext4's
	scripts/run.sh

test: ## Run every test, those with a mounted volume too; ends with the numbers
	scripts/test.sh

test-quick: ## Run the tests that need no mount, with fewer random cases
	scripts/test.sh --quick

fmt: ## Format the source
	$(CARGO) fmt --all

lint: ## Check formatting, warnings, the order of the layers, and tidiness
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	$(CARGO) run --quiet --locked -p xtask

install: build ## Install cffs, its links, man pages and completions below PREFIX (and DESTDIR)
	rm -rf $(GENERATED)
	mkdir -p $(GENERATED)/man $(GENERATED)/completions
	$(BINARY) generate man $(GENERATED)/man
	$(BINARY) generate completions $(GENERATED)/completions
	install -d $(addprefix $(DESTDIR),$(BINDIR) $(SBINDIR) $(MOUNTDIR) $(BASHDIR) $(ZSHDIR) $(FISHDIR))
	install -m 755 $(BINARY) $(DESTDIR)$(BINDIR)/cffs
	ln -sf $(BINDIR)/cffs $(DESTDIR)$(SBINDIR)/mkfs.cffs
	ln -sf $(BINDIR)/cffs $(DESTDIR)$(SBINDIR)/fsck.cffs
	ln -sf $(BINDIR)/cffs $(DESTDIR)$(MOUNTDIR)/mount.cffs
	ln -sf $(BINDIR)/cffs $(DESTDIR)$(MOUNTDIR)/mount.fuse.cffs
	for section in 1 8; do \
		install -d $(DESTDIR)$(MANDIR)/man$$section && \
		install -m 644 $(GENERATED)/man/man$$section/* $(DESTDIR)$(MANDIR)/man$$section || exit; \
	done
	install -m 644 $(GENERATED)/completions/cffs.bash $(DESTDIR)$(BASHDIR)/cffs
	install -m 644 $(GENERATED)/completions/_cffs $(DESTDIR)$(ZSHDIR)/_cffs
	install -m 644 $(GENERATED)/completions/cffs.fish $(DESTDIR)$(FISHDIR)/cffs.fish

uninstall: ## Remove what `make install` with the same PREFIX and DESTDIR has installed
	rm -f $(DESTDIR)$(BINDIR)/cffs
	rm -f $(addprefix $(DESTDIR)$(SBINDIR)/,mkfs.cffs fsck.cffs)
	rm -f $(addprefix $(DESTDIR)$(MOUNTDIR)/,mount.cffs mount.fuse.cffs)
	rm -f $(DESTDIR)$(MANDIR)/man1/cffs.1 $(DESTDIR)$(MANDIR)/man1/cffs-*.1
	rm -f $(addprefix $(DESTDIR)$(MANDIR)/man8/,mkfs.cffs.8 fsck.cffs.8 mount.cffs.8 mount.fuse.cffs.8)
	rm -f $(DESTDIR)$(BASHDIR)/cffs $(DESTDIR)$(ZSHDIR)/_cffs $(DESTDIR)$(FISHDIR)/cffs.fish

fuzz: ## Fuzz every target for FUZZ_SECONDS, guided by coverage (needs a nightly compiler)
	scripts/fuzz.sh $(FUZZ_SECONDS)

soak: ## Try every property SOAK_CASES times, optimised, and run the tests that need root
	CFFS_CRASH_STATES=$(SOAK_STATES) CFFS_CRASH_SEED=$(SOAK_SEED) \
		$(CARGO) test --release --locked -p cffs --test crash -- --nocapture
	PROPTEST_CASES=$(SOAK_CASES) CFFS_CRASH_STATES=200000 \
		$(CARGO) test --release --locked --workspace -- --include-ignored
	$(CARGO) build --release --locked -p cffs-cli -p cffs-bench
	tests/acceptance/run --full --only killed-server --only power-cut

fsck-scale: ## Compare a full check of a million files with e2fsck's (needs root and 6 GB)
	scripts/fsck-scale.sh

bench: ## Compare with other file systems on emulated disks (needs root; hours)
	scripts/bench.sh

bench-quick: ## The same with small workloads, once each (needs root; under ten minutes)
	scripts/bench.sh --quick

# The list of advisories comes from the network, so this is no part of the gate in .ci/run.
deny: ## Check licences and security advisories of all dependencies (needs the network)
	scripts/cargo-tool.sh cargo-deny 0.20.2
	PATH="$(CURDIR)/$(TOOLS):$$PATH" $(CARGO) deny --locked check

clean: ## Remove everything that was built
	$(CARGO) clean
