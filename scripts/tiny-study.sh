#!/usr/bin/env bash
# The experiments of extµ on mounts of C-FFS, ext2, ext3 and ext4. scripts/tiny_study.py has the details;
# this script builds the programs that it needs.
#
#   scripts/tiny-study.sh [--quick]   (root; six minutes and 1 GB in /dev/shm)
set -euo pipefail
cd "$(dirname "$0")/.."

if ((EUID != 0)); then
    echo "tiny-study: mounting, and limiting memory, need root" >&2
    exit 1
fi
cargo build --quiet --release --locked -p cffs-cli -p cffs-bench
source scripts/idle-polls.sh
# Each thread would get a heap of its own, of which the limit on memory counts a part.
MALLOC_ARENA_MAX=1 python3 scripts/tiny_study.py "${CARGO_TARGET_DIR:-target}/release" "$@"
