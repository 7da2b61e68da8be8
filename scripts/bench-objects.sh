#!/usr/bin/env bash
# Requests to an object store, counted: C-FFS, JuiceFS, s3fs and rclone's mount, each on versitygw behind a
# proxy that takes 30 ms for a request and 85 MB/s. Prints the table; fails where C-FFS misses a bar.
#
#   scripts/bench-objects.sh [--files N] [--json FILE]    (root; Debian; Go; 20 minutes, 10 GB in TMPDIR)
#
# A million files are imported and scanned unless --files says otherwise; the others get a thousand.
#
# The others are unpacked below target/tools, not installed, and left out where they cannot be had. CFFS and
# CFFS_BENCH name other programs than those that it builds.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/packages.sh

tools=target/tools/store-peers
release=${CARGO_TARGET_DIR:-target}/release
packages=(s3fs rclone libfuse2)

fail() {
    echo "bench-objects: $*" >&2
    exit 1
}

((EUID == 0)) || fail "mounting needs root"
unpack_packages "$tools" "${packages[@]}" ||
    echo "not run: ${packages[*]} cannot be downloaded" >&2
scripts/setup.sh bench-objects
[[ -x target/tools/bin/versitygw ]] || fail "there is no versitygw: Go builds it"
if [[ -z ${CFFS:-} || -z ${CFFS_BENCH:-} ]]; then
    cargo build --release --locked --quiet -p cffs-cli -p cffs-bench
fi
peers=()
if [[ -d $tools/usr ]]; then
    export LD_LIBRARY_PATH=$PWD/$tools/lib/x86_64-linux-gnu
    peers=(--s3fs "$tools/usr/bin/s3fs" --rclone "$tools/usr/bin/rclone")
fi
[[ ! -x target/tools/juicefs/bin/juicefs ]] || peers+=(--juicefs target/tools/juicefs/bin/juicefs)
python3 scripts/bench_objects.py --cffs "${CFFS:-$release/cffs}" \
    --cffs-bench "${CFFS_BENCH:-$release/cffs-bench}" --versitygw target/tools/bin/versitygw \
    "${peers[@]}" "$@"
