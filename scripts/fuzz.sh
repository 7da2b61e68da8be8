#!/usr/bin/env bash
# Fuzzes each target in fuzz/ for a while and stops at the first one that finds something.
#
# usage: scripts/fuzz.sh SECONDS
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=$1
scripts/cargo-tool.sh cargo-fuzz 0.13.2
PATH="$PWD/target/tools/bin:$PATH"

for target in $(cargo +nightly fuzz list); do
    echo "fuzzing $target for $seconds seconds"
    cargo +nightly fuzz run "$target" -- -max_total_time="$seconds" -timeout=60 -rss_limit_mb=2048
done
