#!/usr/bin/env bash
# Installs a program from the package registry into target/tools, unless it is there already.
#
# usage: scripts/cargo-tool.sh CRATE VERSION
set -euo pipefail
cd "$(dirname "$0")/.."

crate=$1
version=$2
tools=target/tools

if ! grep -qsF "\"$crate $version " "$tools/.crates.toml"; then
    cargo install --quiet --locked --root "$tools" "$crate@$version"
fi
