#!/usr/bin/env bash
# Shuffled reads of many small files from Python: an image, ext4, a tar, SQLite, LMDB and a zip; and an
# epoch of a set twice as large as memory. The workloads are described in python/pycffs/benchmark.py.
#
# usage: scripts/bench-python.sh [--quick] [--only-epochs] [--read-seconds-max SECONDS]
#        (root, /dev/fuse, the network for LMDB)
#
# $BINARIES: a directory with cffs-bench, and a module built before (--built), in the place of what would be
# compiled.
set -euo pipefail
cd "$(dirname "$0")/.."

if ((EUID != 0)); then
    echo "bench-python: this mounts volumes, which only root may do" >&2
    exit 1
fi
target=${CARGO_TARGET_DIR:-target}
if [[ -z ${BINARIES-} ]]; then
    cargo build --release --locked -p cffs-cli -p cffs-bench
    BINARIES=$target/release
    modules=$(scripts/python-module.sh --release)
else
    modules=$(scripts/python-module.sh --built)
fi
packages=target/tools/lmdb
if [[ ! -d $packages ]]; then
    python3 -m pip install --quiet --root-user-action=ignore --target "$packages" lmdb==3.0.0 || {
        rm -rf "$packages"
        echo "bench-python: without LMDB, which pip cannot fetch"
    }
fi
PYTHONPATH=$modules:$PWD/$packages PYTHONDONTWRITEBYTECODE=1 \
    exec python3 python/pycffs/benchmark.py "$(realpath "$BINARIES")" "$@"
