#!/usr/bin/env bash
# Builds the Python package pycffs where it can be imported from, without a wheel, and prints that directory.
#
# usage: PYTHONPATH=$(scripts/python-module.sh [--release|--built]) python3
#
# --built takes the library that `cargo build --workspace --all-targets` has left.
set -euo pipefail
cd "$(dirname "$0")/.."

profile=debug
[[ ${1-} != --release ]] || profile=release
target=${CARGO_TARGET_DIR:-target}
[[ ${1-} == --built ]] || cargo build --quiet --locked -p cffs-python "$@" >&2
to=$target/python-module
rm -rf "$to"
mkdir -p "$to"
cp -r python/pycffs/src/pycffs "$to/pycffs"
cp "$target/$profile/libpycffs_native.so" "$to/pycffs/_native.abi3.so"
realpath "$to"
