#!/usr/bin/env bash
# A web server's log, replayed over four sizes of memory on ext4 as a site was made, in one group, packed
# by `place`, and warm, and on C-FFS (PLACE, section 4.1).
#
#   scripts/web-study.sh [--quick]      (root; whole, it takes ten minutes and 1 GB of memory)
#
# The whole run writes docs/performance/web-server.md; a quick one prints what a small site takes.
set -euo pipefail
cd "$(dirname "$0")/.."

if ((EUID != 0)); then
    echo "web-study: mounting, and limiting memory, need root" >&2
    exit 1
fi
arguments=(--output docs/performance)
if [[ ${1-} == --quick ]]; then
    arguments=(--quick)
fi
cargo build --quiet --release --locked -p cffs-cli -p cffs-place -p cffs-bench
source scripts/idle-polls.sh
"${CARGO_TARGET_DIR:-target}/release/cffs-bench" web "${arguments[@]}"
