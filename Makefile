# Everything that people and CI do with this repository. `make` lists it.

CARGO ?= cargo
PREFIX ?= /usr/local
BINDIR ?= $(PREFIX)/bin
SBINDIR ?= $(PREFIX)/sbin
MANDIR ?= $(PREFIX)/share/man
LIBDIR ?= $(PREFIX)/lib
INCLUDEDIR ?= $(PREFIX)/include
PKGCONFIGDIR ?= $(LIBDIR)/pkgconfig
# mount(8) looks for its helpers in /sbin alone, wherever the rest is installed.
MOUNTDIR ?= $(if $(filter /usr /usr/local,$(PREFIX)),/sbin,$(SBINDIR))
SYSCONFDIR ?= $(if $(filter /usr /usr/local,$(PREFIX)),/etc,$(PREFIX)/etc)
UDEVDIR ?= $(PREFIX)/lib/udev/rules.d
UNITDIR ?= $(PREFIX)/lib/systemd/system
MODPROBEDIR ?= $(PREFIX)/lib/modprobe.d
TMPFILESDIR ?= $(PREFIX)/lib/tmpfiles.d
MAGICDIR ?= $(PREFIX)/share/cffs
BASHDIR ?= $(PREFIX)/share/bash-completion/completions
ZSHDIR ?= $(PREFIX)/share/zsh/site-functions
FISHDIR ?= $(PREFIX)/share/fish/vendor_completions.d

# The names under which mkfs(8), fsck(8) and mount(8) look for the program.
SBINNAMES := mkfs.cffs fsck.cffs
PLACECOMMANDS := $(addsuffix .1,show pack warm cat trace disk memory init groups mkdir create cp mv)
MOUNTNAMES := mount.cffs mount.fuse.cffs mount.fuseblk.cffs

TARGET := $(or $(CARGO_TARGET_DIR),target)
# The profile of installed and packaged files. The tests use dev, and everything that they have built.
CFFS_PROFILE ?= release
ifeq ($(CFFS_PROFILE),dev)
BUILT := $(TARGET)/debug
PACKAGES := --workspace --all-targets
else
BUILT := $(TARGET)/$(CFFS_PROFILE)
PACKAGES := -p cffs-cli -p cffs-c -p cffs-place -p place-c
endif
BINARY := $(BUILT)/cffs
PLACE := $(BUILT)/place
# The program and the core's library are both named cffs and are documented in one directory, so one
# follows the other.
DOC := RUSTDOCFLAGS="-D warnings" $(CARGO) doc --no-deps --document-private-items --locked --quiet
LIBRARYNAMES := libcffs libplace
LIBRARIES := $(foreach name,$(LIBRARYNAMES),$(BUILT)/$(name).so $(BUILT)/$(name).a)
PKGCONFIGNAMES := cffs place
HEADERS := bindings/cffs-c/include/cffs.h place/place-c/include/place.h
VERSION = $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
# The number in the SONAME of the libraries, which their build scripts set.
SOVERSION = $(firstword $(subst ., ,$(VERSION)))
# Strips the symbols of installed programs; STRIP=true keeps them.
STRIP ?= strip
# Has the dynamic linker find new libraries, and no longer those removed, where no package is being made.
LDCONFIG = [ -n "$(DESTDIR)" ] || ldconfig 2>/dev/null || true
TOOLS := target/tools/bin
MATURIN := $(CURDIR)/target/tools/python/bin/maturin
GENERATED := $(TARGET)/generated

# For how many seconds `make soak` changes a nearly full compressed volume.
SOAK_CHURN ?= 3600
# How long `make fuzz` spends on each target, and how often `make soak` tries each property.
FUZZ_SECONDS ?= 60
SOAK_CASES ?= 5000
# How many states after a crash `make soak` tries, and with which seed.
SOAK_STATES ?= 10000000
SOAK_SEED ?= 1
# How many schedules of the core's threads `make soak` tries: a few hours.
SOAK_SCHEDULES ?= 300000
# How often `make soak` kills a server with a staging directory.
SOAK_KILLS ?= 300
# How many rounds of its stress `make soak` runs over each transport and in a store, 30 s and a check each.
SOAK_ROUNDS ?= 60

.DEFAULT_GOAL := help
.PHONY: help setup build run test test-quick test-minio fmt lint install uninstall
.PHONY: deb test-deb clean-room wheel
.PHONY: fuzz soak fsck-scale nfs-recovery scale web-study place-study tiny-study place-disk questions figures
.PHONY: page-pictures page-cost
.PHONY: bench bench-quick bench-journal bench-nfs
.PHONY: bench-objects bench-python bench-mounted deny clean

help: ## List what can be done
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' Makefile

setup: ## Install what building and testing need (Debian, as root); the other targets do it themselves
	scripts/setup.sh

build: ## Build the programs cffs and place, and the libraries for C, optimised
	scripts/setup.sh build
	$(CARGO) build --profile $(CFFS_PROFILE) --locked $(PACKAGES)

run: ## Show it at work: a volume at ./mnt, a real tree in it, requests per file, and ext4's
	scripts/run.sh

test: ## Run every test, those with a mounted volume too; ends with the numbers
	scripts/test.sh

test-quick: ## Run the tests that need no mount, with fewer random cases
	scripts/test.sh --quick

test-minio: ## Run the tests of volumes in S3 on MinIO, too, which Go builds (minutes the first time)
	scripts/setup.sh test-minio
	$(CARGO) build --locked -p cffs-cli -p cffs-bench
	CFFS_STORE_SERVER=minio $(CARGO) test --locked -p cffs-cli --test integration -- object_store:: staging::

fmt: ## Format the source
	$(CARGO) fmt --all

lint: ## Check formatting, warnings, documentation, the order of the layers, and tidiness
	scripts/setup.sh lint
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	$(CARGO) clippy --workspace --features cffs/schedules --test schedules --locked -- -D warnings
	$(CARGO) check --release --locked -p cffs
	$(DOC) --workspace --exclude cffs-cli
	$(DOC) -p cffs-cli
	$(CARGO) run --quiet --locked --bin xtask

# Under sudo there often is no cargo: then what was built before is installed.
install: ## Install cffs and place, links, man pages and completions below PREFIX (and DESTDIR)
	@if command -v $(CARGO) >/dev/null; then $(MAKE) --no-print-directory build; \
	elif ls $(BINARY) $(PLACE) $(LIBRARIES) >/dev/null 2>&1; then \
	echo "there is no $(CARGO) here: installing what is in $(BUILT) as it is"; \
	else echo "there is no $(CARGO) here: run 'make build' as a user with it" >&2; exit 1; fi
	rm -rf $(GENERATED)
	$(BINARY) generate man $(GENERATED)
	$(BINARY) generate completions $(GENERATED)/completions
	$(PLACE) generate man $(GENERATED)
	$(PLACE) generate completions $(GENERATED)/completions
	install -d $(addprefix $(DESTDIR),$(BINDIR) $(SBINDIR) $(MOUNTDIR) $(BASHDIR) $(ZSHDIR) $(FISHDIR))
	install -d $(addprefix $(DESTDIR)$(MANDIR)/,man1 man3 man8)
	install -d $(addprefix $(DESTDIR),$(UDEVDIR) $(UNITDIR) $(MODPROBEDIR) $(TMPFILESDIR))
	install -d $(addprefix $(DESTDIR),$(SYSCONFDIR)/logrotate.d $(SYSCONFDIR)/cffs)
	install -m 755 $(BINARY) $(DESTDIR)$(BINDIR)/cffs
	install -m 755 $(PLACE) $(DESTDIR)$(BINDIR)/place
	install -d $(addprefix $(DESTDIR),$(LIBDIR) $(INCLUDEDIR) $(PKGCONFIGDIR))
	for name in $(LIBRARYNAMES); do \
		install -m 644 $(BUILT)/$$name.a $(DESTDIR)$(LIBDIR) && \
		install -m 644 $(BUILT)/$$name.so $(DESTDIR)$(LIBDIR)/$$name.so.$(VERSION) && \
		ln -sf $$name.so.$(VERSION) $(DESTDIR)$(LIBDIR)/$$name.so.$(SOVERSION) && \
		ln -sf $$name.so.$(SOVERSION) $(DESTDIR)$(LIBDIR)/$$name.so && \
		$(STRIP) --strip-debug $(DESTDIR)$(LIBDIR)/$$name.a && \
		$(STRIP) --strip-unneeded $(DESTDIR)$(LIBDIR)/$$name.so.$(VERSION) || exit; \
	done
	$(STRIP) $(DESTDIR)$(BINDIR)/cffs $(DESTDIR)$(BINDIR)/place
	install -m 644 $(HEADERS) $(DESTDIR)$(INCLUDEDIR)
	for name in $(PKGCONFIGNAMES); do \
		sed 's|@PREFIX@|$(PREFIX)|; s|@LIBDIR@|$(LIBDIR)|; s|@INCLUDEDIR@|$(INCLUDEDIR)|; s|@VERSION@|$(VERSION)|' \
			packaging/pkgconfig/$$name.pc >$(DESTDIR)$(PKGCONFIGDIR)/$$name.pc || exit; \
	done
	for name in $(SBINNAMES); do ln -sf $(BINDIR)/cffs $(DESTDIR)$(SBINDIR)/$$name || exit; done
	for name in $(MOUNTNAMES); do ln -sf $(BINDIR)/cffs $(DESTDIR)$(MOUNTDIR)/$$name || exit; done
	install -m 644 $(GENERATED)/man1/* $(DESTDIR)$(MANDIR)/man1
	install -m 644 bindings/cffs-c/man/libcffs.3 $(DESTDIR)$(MANDIR)/man3
	install -m 644 $(GENERATED)/man8/* $(DESTDIR)$(MANDIR)/man8
	for name in cffs place; do \
		install -m 644 $(GENERATED)/completions/$$name.bash $(DESTDIR)$(BASHDIR)/$$name && \
		install -m 644 $(GENERATED)/completions/_$$name $(DESTDIR)$(ZSHDIR)/_$$name && \
		install -m 644 $(GENERATED)/completions/$$name.fish $(DESTDIR)$(FISHDIR)/$$name.fish || exit; \
	done
	sed 's|@BINDIR@|$(BINDIR)|' packaging/udev/61-cffs.rules >$(DESTDIR)$(UDEVDIR)/61-cffs.rules
	sed 's|@BINDIR@|$(BINDIR)|; s|@SYSCONFDIR@|$(SYSCONFDIR)|' packaging/systemd/cffs@.service \
		>$(DESTDIR)$(UNITDIR)/cffs@.service
	install -m 644 packaging/logrotate/cffs $(DESTDIR)$(SYSCONFDIR)/logrotate.d/cffs
	install -m 644 packaging/modprobe/cffs.conf $(DESTDIR)$(MODPROBEDIR)/cffs.conf
	install -m 644 packaging/tmpfiles/cffs.conf $(DESTDIR)$(TMPFILESDIR)/cffs.conf
	install -d $(DESTDIR)$(MAGICDIR)
	install -m 644 packaging/magic/cffs $(DESTDIR)$(MAGICDIR)/magic
	$(LDCONFIG)

uninstall: ## Remove what `make install` with the same PREFIX and DESTDIR has installed
	rm -f $(addprefix $(DESTDIR)$(BINDIR)/,cffs place)
	for name in $(LIBRARYNAMES); do \
		rm -f $(foreach end,a so so.$(SOVERSION) so.$(SOVERSION).*,$(DESTDIR)$(LIBDIR)/$$name.$(end)); \
	done
	rm -f $(PKGCONFIGNAMES:%=$(DESTDIR)$(PKGCONFIGDIR)/%.pc)
	rm -f $(addprefix $(DESTDIR)$(INCLUDEDIR)/,$(notdir $(HEADERS))) $(DESTDIR)$(MANDIR)/man3/libcffs.3
	rm -f $(addprefix $(DESTDIR)$(SBINDIR)/,$(SBINNAMES))
	rm -f $(addprefix $(DESTDIR)$(MOUNTDIR)/,$(MOUNTNAMES))
	rm -f $(DESTDIR)$(MANDIR)/man1/cffs.1 $(DESTDIR)$(MANDIR)/man1/cffs-*.1
	rm -f $(DESTDIR)$(MANDIR)/man1/place.1 $(addprefix $(DESTDIR)$(MANDIR)/man1/place-,$(PLACECOMMANDS))
	rm -f $(patsubst %,$(DESTDIR)$(MANDIR)/man8/%.8,$(SBINNAMES) $(MOUNTNAMES))
	rm -f $(addprefix $(DESTDIR)$(BASHDIR)/,cffs place) $(addprefix $(DESTDIR)$(ZSHDIR)/_,cffs place)
	rm -f $(addprefix $(DESTDIR)$(FISHDIR)/,cffs.fish place.fish)
	rm -f $(DESTDIR)$(UDEVDIR)/61-cffs.rules $(DESTDIR)$(UNITDIR)/cffs@.service
	rm -f $(DESTDIR)$(SYSCONFDIR)/logrotate.d/cffs
	rm -f $(DESTDIR)$(MODPROBEDIR)/cffs.conf $(DESTDIR)$(TMPFILESDIR)/cffs.conf
	rm -f $(DESTDIR)$(MAGICDIR)/magic
	rmdir $(DESTDIR)$(MAGICDIR) $(DESTDIR)$(SYSCONFDIR)/cffs 2>/dev/null || true
	$(LDCONFIG)

deb: build ## Make Debian packages in target/deb: cffs, libcffs0 and libcffs-dev
	scripts/setup.sh deb
	scripts/deb.sh

# What maturin runs takes a relative directory from where it runs.
wheel: ## Make a wheel of the Python package pycffs and its source archive, in target/wheels
	scripts/setup.sh wheel
	export CARGO_TARGET_DIR=$(abspath $(TARGET)) && cd python/pycffs && \
		$(MATURIN) build --profile $(CFFS_PROFILE) --locked --out $(abspath $(TARGET))/wheels && \
		$(MATURIN) sdist --out $(abspath $(TARGET))/wheels

test-deb: deb ## Install, use, upgrade and remove the package in a Debian chroot (root, network; minutes)
	scripts/test-deb.sh

clean-room: ## Run what README shows in a Debian chroot that has only Rust and make (root, network; hours)
	scripts/clean-room.sh

fuzz: ## Fuzz every target for FUZZ_SECONDS, guided by coverage (needs a nightly compiler)
	scripts/fuzz.sh $(FUZZ_SECONDS)

soak: ## Try every property SOAK_CASES times, optimised, and run the tests that need root
	CFFS_CRASH_STATES=$(SOAK_STATES) CFFS_CRASH_SEED=$(SOAK_SEED) \
		$(CARGO) test --release --locked -p cffs --test crash -- --nocapture
	CFFS_SCHEDULES=$(SOAK_SCHEDULES) CFFS_SCHEDULE_FROM=$(SOAK_SEED) $(CARGO) test --locked -p cffs \
		--features schedules --test schedules every_schedule -- --nocapture
	PROPTEST_CASES=$(SOAK_CASES) CFFS_CRASH_STATES=200000 \
		$(CARGO) test --release --locked --workspace -- --include-ignored
	CFFS_CHURN_SECONDS=$(SOAK_CHURN) CFFS_CHURN_SEED=$(SOAK_SEED) \
		$(CARGO) test --release --locked -p cffs --test integration nearly_full:: -- --nocapture
	$(CARGO) build --release --locked -p cffs-cli -p cffs-bench
	CFFS_STAGING_KILLS=$(SOAK_KILLS) CFFS_STAGING_SEED=$(SOAK_SEED) \
		$(CARGO) test --release --locked -p cffs-cli --test integration staging:: -- --nocapture
	tests/acceptance/run --full --only killed-server --only power-cut --only nfs-killed --only nfs-power-cut
	for kind in "--mount-options transport=auto --only nfs-stress" "--mount-options transport=dev" \
		"--fs cffs-store"; do \
		SEED=$(SOAK_SEED) STRESS_ROUNDS=$(SOAK_ROUNDS) tests/acceptance/run --full --only stress $$kind || exit 1; \
	done

fsck-scale: ## Compare a full check of a million files with e2fsck's (needs root and 6 GB)
	scripts/fsck-scale.sh

nfs-recovery: ## Crash C-FFS, ext4 and XFS under load, and recover them (needs root; half an hour)
	scripts/nfs-recovery.sh

scale: ## Measure how costs grow with clients, names, files and volumes (needs root; ten minutes)
	scripts/scale.sh

web-study: ## Replay a web server's log on ext4, packed ext4 and C-FFS (needs root; ten minutes)
	scripts/web-study.sh

place-study: ## Measure the tables and figures of PLACE (needs root; six minutes)
	scripts/place-study.sh

tiny-study: ## Measure the tables and figures of extµ on C-FFS, ext2, ext3 and ext4 (needs root; six minutes)
	scripts/tiny-study.sh

place-disk: ## Hold `place disk` to emulated disks through the kernel (needs root, alone; six minutes)
	CFFS_PLACE_DISK_RUNS=10 $(CARGO) test --release --locked -p cffs-bench --test place accuracy:: -- --nocapture

questions: ## Measure the papers' open questions (some of it needs root; minutes)
	$(CARGO) build --release --locked -p cffs-cli -p cffs-bench
	$(TARGET)/release/cffs-bench questions

figures: ## Measure the tables in virtual time that README and docs quote, and compare them (two minutes)
	$(CARGO) build --release --locked -p cffs-cli -p cffs-bench
	$(TARGET)/release/cffs-bench figures

page-pictures: ## Take the pictures of the page in docs/pictures, in chromium
	scripts/page-pictures.sh

page-cost: ## Measure what fifty browsers at the page cost its server: instructions, and hot throughput
	scripts/page-cost.sh

bench: ## Compare with other file systems on emulated disks (needs root; hours)
	scripts/bench.sh

bench-quick: ## The same with small workloads, once each (needs root; under ten minutes)
	scripts/bench.sh --quick

bench-journal: ## Measure the gain of the journal, and other file systems (needs root; minutes)
	scripts/bench-journal.sh

bench-nfs: ## Compare `cffs serve` with nfs-ganesha over ext4 (needs root and Debian; five minutes)
	scripts/bench-nfs.sh

bench-python: ## Compare shuffled reads from Python with ext4 and formats that pack files (needs root)
	scripts/bench-python.sh

bench-mounted: ## Compare a mounted volume with its image unmounted, for the tree $SOURCE (needs root)
	scripts/bench-mounted.sh "$(SOURCE)"

bench-objects: ## Count requests to an object store, also of JuiceFS, s3fs and rclone (needs root, Debian, Go)
	scripts/bench-objects.sh

# The list of advisories comes from the network, so this is no part of the gate in .ci/run.
deny: ## Check licences and security advisories of all dependencies (needs the network)
	scripts/cargo-tool.sh cargo-deny 0.20.2
	PATH="$(CURDIR)/$(TOOLS):$$PATH" $(CARGO) deny --locked check

clean: ## Remove everything that was built
	$(CARGO) clean
