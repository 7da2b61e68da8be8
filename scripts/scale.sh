#!/usr/bin/env bash
# How costs grow: 1 to 16 clients, directories of 1,000 to 1,000,000 names, trees of 10,000 to
# 10,000,000 files, and volumes of 1 GiB to 1 TiB that are 60% full. Images go to TMPDIR.
#
#   scripts/scale.sh [--quick]      (root; whole, it takes ten minutes and 13 GB on the disk)
#
# The whole run writes docs/performance/scale.md; a quick one prints what small sizes cost.
# CFFS and CFFS_BENCH name other programs than those that it builds; `examples/null` is next to cffs.
set -euo pipefail
cd "$(dirname "$0")/.."

if ((EUID != 0)); then
    echo "scale: mounting needs root" >&2
    exit 1
fi
arguments=(--output docs/performance)
if [[ ${1-} == --quick ]]; then
    arguments=(--quick)
fi
if [[ -z ${CFFS:-} || -z ${CFFS_BENCH:-} ]]; then
    cargo build --quiet --release --locked -p cffs-cli -p cffs-bench
    cargo build --quiet --release --locked -p fuse-ring --example null
fi
release=${CARGO_TARGET_DIR:-target}/release
source scripts/idle-polls.sh
"${CFFS_BENCH:-$release/cffs-bench}" scale --cffs "${CFFS:-$release/cffs}" "${arguments[@]}"
