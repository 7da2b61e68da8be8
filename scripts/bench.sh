#!/usr/bin/env bash
# The whole table: C-FFS and other file systems on an emulated disk of today and on memory, and C-FFS with
# and without its techniques on the papers' disks in virtual time. Reports go to docs/performance/.
#
#   scripts/bench.sh [--quick]      (root; an interrupt ends it, and finished measurements are reported)
set -euo pipefail
cd "$(dirname "$0")/.."

if ((EUID != 0)); then
    echo "bench: comparing means mounting, which only root may do" >&2
    exit 1
fi

quick=()
virtual=()
if [[ ${1-} == --quick ]]; then
    # One repetition each: medians are for the full run, which reports them with their spread.
    quick=(--quick --repetitions 1)
    virtual=(--files 2000)
fi

cargo build --release --locked -p cffs-cli -p cffs-bench
cargo build --release --locked -p fuse-ring --example null
bench=${CARGO_TARGET_DIR:-target}/release/cffs-bench

source scripts/idle-polls.sh

interrupted=
trap 'interrupted=yes' INT TERM
measure() { # ARGUMENTS: one report; after an interrupt, none is begun
    [[ -z $interrupted ]] || exit 130
    echo "== cffs-bench $*"
    "$bench" "$@"
}

measure library --profile st31200 "${virtual[@]}"
measure library --profile atlas-ii "${virtual[@]}"
measure compare --profile none "${quick[@]}"
measure compare --profile none --transport dev --peers cffs,null "${quick[@]}"
measure compare --profile hdd7200 "${quick[@]}"
measure compare --profile nvme --peers cffs,ext4,xfs,btrfs "${quick[@]}"
measure compare --profile net3000 --peers cffs,ext4,xfs,btrfs "${quick[@]}"

# Contents that compress as real files do: the sources of the crates that were just built.
real=(--contents "${CARGO_HOME:-$HOME/.cargo}/registry/src"
    --peers "cffs,cffs+zstd,ext4,xfs,btrfs,btrfs+zstd,squashfs,erofs")
measure compare --profile hdd7200 "${real[@]}" --workloads small-4k,fresh-tree,aged-tree,apps "${quick[@]}"
measure compare --profile net3000 "${real[@]}" --workloads unpack,aged-tree "${quick[@]}"
