#!/usr/bin/env bash
# A mounted volume through its server, compared with the same image unmounted and with ext4: import, walk and
# read_many from Python, and the extraction of an archive. See python/pycffs/benchmark_mounted.py.
#
# usage: scripts/bench-mounted.sh SOURCE [--rounds N] [--scratch DIR]     (root, /dev/fuse)
#
# $BINARIES: a directory with cffs, and a module built before (--built), in the place of what would be
# compiled.
set -euo pipefail
cd "$(dirname "$0")/.."

if ((EUID != 0)); then
    echo "bench-mounted: this mounts volumes, which only root may do" >&2
    exit 1
fi
target=${CARGO_TARGET_DIR:-target}
if [[ -z ${BINARIES-} ]]; then
    cargo build --release --locked -p cffs-cli
    BINARIES=$target/release
    modules=$(scripts/python-module.sh --release)
else
    modules=$(scripts/python-module.sh --built)
fi
PYTHONPATH=$modules PYTHONDONTWRITEBYTECODE=1 \
    exec python3 python/pycffs/benchmark_mounted.py "$(realpath "$BINARIES")" "$@"
