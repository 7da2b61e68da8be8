#!/usr/bin/env bash
# Counts requests and distances, and measures times, for the tables and figures of PLACE, and writes
# docs/performance/place.md.
#
#   scripts/place-study.sh      (root; six minutes, and 400 MB in /dev/shm)
set -euo pipefail
cd "$(dirname "$0")/.."

if ((EUID != 0)); then
    echo "place-study: mounting needs root" >&2
    exit 1
fi
cargo build --quiet --release --locked -p cffs-cli -p place-c -p cffs-place -p cffs-bench
scratch=$(mktemp -d /dev/shm/place-study.XXXXXX)
cleanup() {
    umount -q "$scratch/mnt" || umount -ql "$scratch/mnt" || true
    find "$scratch" -name image -o -name disk -type f | while read -r image; do
        losetup --noheadings --output NAME --associated "$image" | xargs -r losetup --detach
    done
    find "$scratch" -name disk -type d -exec umount -q {} \; || true
    rm -rf "$scratch"
}
trap cleanup EXIT
report=docs/performance/place.md
programs=${CARGO_TARGET_DIR:-target}/release
python3 scripts/place_study.py "$programs/place" "$programs/cffs-bench" "$scratch" >"$scratch/report"
cat "$scratch/report" >"$report"
