#!/usr/bin/env bash
# The paper's experiment: a server crashes under the load of its clients, and its recovery is measured, next
# to that of logging file systems.
# scripts/nfs_recovery.py does that and has the details; this script builds the programs that it needs.
#
#   scripts/nfs-recovery.sh [--quick | --journal | --only c-ffs|peers|reads]
#                                   (root; whole, it takes half an hour and 6 GB of memory)
#
# The whole run writes docs/performance/nfs-recovery.md, --only a section of it; a quick one prints tables of
# small volumes; --journal, how much of a journal is overtaken under that load.
# CFFS and CFFS_BENCH name other programs than those that it builds.
set -euo pipefail
cd "$(dirname "$0")/.."

if ((EUID != 0)); then
    echo "nfs-recovery: loop devices need root" >&2
    exit 1
fi
if [[ -z ${CFFS:-} || -z ${CFFS_BENCH:-} ]]; then
    cargo build --quiet --release --locked -p cffs-cli -p cffs-bench
fi
release=${CARGO_TARGET_DIR:-target}/release
export CFFS=${CFFS:-$release/cffs} CFFS_BENCH=${CFFS_BENCH:-$release/cffs-bench}
exec python3 scripts/nfs_recovery.py "$@"
