#!/usr/bin/env bash
# Measures the gain of a journal: C-FFS with one on the disk, as mkfs makes it there, without one, and with
# one on a device without delays, and ext4, XFS and btrfs, on a disk with a write cache and on one that writes
# through. Reports go to docs/performance/; with --quick, to a directory of its own that is printed.
#
#   scripts/bench-journal.sh [--quick]   (root; an interrupt ends it and reports what it has)
set -euo pipefail
cd "$(dirname "$0")/.."

if ((EUID != 0)); then
    echo "bench-journal: comparing means mounting, which only root may do" >&2
    exit 1
fi

cargo build --release --locked -p cffs-cli -p cffs-bench
bench=${CARGO_TARGET_DIR:-target}/release/cffs-bench

source scripts/idle-polls.sh

arguments=()
if [[ ${1-} == --quick ]]; then
    arguments=(--quick --output "$(mktemp -d)")
fi
interrupted=
trap 'interrupted=yes' INT TERM
for profile in hdd7200 hdd7200-write-through; do
    [[ -z $interrupted ]] || exit 130
    "$bench" compare --journal --profile "$profile" --repetitions 1 "${arguments[@]}"
done
