#!/usr/bin/env bash
# Installs a program from the package registry into target/tools, unless it has been installed before.
#
# usage: scripts/cargo-tool.sh CRATE VERSION
set -euo pipefail
cd "$(dirname "$0")/.."

crate=$1
version=$2
tools=target/tools

if ! grep -qsF "\"$crate $version " "$tools/.crates.toml"; then
    # These programs run for seconds, so optimising them fully does not pay.
    CARGO_PROFILE_RELEASE_OPT_LEVEL=1 cargo install --quiet --locked --root "$tools" "$crate@$version"
fi
