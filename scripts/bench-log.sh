#!/usr/bin/env bash
# What the stable log gains: programs that make each step durable, on C-FFS without and with a log beside
# ext4, XFS and btrfs, on a disk with a write cache and on one that writes through. Reports go to
# docs/performance/log/; with --quick, to a directory of its own that is printed.
#
#   scripts/bench-log.sh [--quick]      (root; whole, it takes a quarter of an hour)
#
# Each phase runs once: hundreds of turns of the disk make up each figure.
set -euo pipefail
cd "$(dirname "$0")/.."

if ((EUID != 0)); then
    echo "bench-log: comparing means mounting, which only root may do" >&2
    exit 1
fi
output=docs/performance/log
quick=()
if [[ ${1-} == --quick ]]; then
    quick=(--quick)
    output=$(mktemp -d)
fi
cargo build --quiet --release --locked -p cffs-cli -p cffs-bench
source scripts/idle-polls.sh
for profile in hdd7200 hdd7200-write-through; do
    "${CARGO_TARGET_DIR:-target}/release/cffs-bench" compare --profile "$profile" "${quick[@]}" \
        --repetitions 1 --peers cffs,cffs+log,ext4,xfs,btrfs --output "$output" \
        --workloads durable-4k-1,durable-tiny,durable-4k,delivery,transactions,large-file,apps
done
