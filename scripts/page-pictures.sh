#!/usr/bin/env bash
# Takes the pictures of the page in docs/pictures: a volume with some life in it, in Debian's chromium.
#
# usage: scripts/page-pictures.sh [DIR]    (docs/pictures by default; uses target/release/cffs or $CFFS)
set -euo pipefail
cd "$(dirname "$0")/.."

cffs=$(realpath "${CFFS:-${CARGO_TARGET_DIR:-target}/release/cffs}")
pictures=$(realpath -m "${1:-docs/pictures}")
scratch=$(mktemp -d)
address=127.0.0.1:${PORT:-18099}
trap '"$cffs" serve --stop "$scratch/tree.cffs" 2>/dev/null || true; rm -rf "$scratch"' EXIT
mkdir -p "$pictures"

"$cffs" mkfs --size 1G --label photos --journal 32M "$scratch/tree.cffs" >/dev/null
"$cffs" import "$scratch/tree.cffs" core /core >/dev/null
# Churn: files of several directories made by turns, and every other one taken away.
for round in 1 2 3 4 5 6; do
    for dir in inbox sent drafts; do
        mkdir -p "$scratch/new/$dir"
        for number in {1..40}; do
            head -c $((3000 + number * 131)) /dev/urandom >"$scratch/new/$dir/$round-$number"
        done
    done
    "$cffs" import "$scratch/tree.cffs" "$scratch/new" "/mail-$round" >/dev/null
    rm -r "$scratch/new"
done
nfs=127.0.0.1:$((${address##*:} + 1))
"$cffs" serve --web "$address" --web-token "$scratch/tokens" --nfs "$nfs" --export /:192.0.2.0/24 \
    --export /core:ro "$scratch/tree.cffs" 2>/dev/null
token=$(sed -n 's/^run //p' "$scratch/tokens")
ask() { # PATH
    python3 - "$token" "http://$address$1" <<'PYTHON'
import sys, urllib.request
request = urllib.request.Request(sys.argv[2], headers={"Authorization": f"Bearer {sys.argv[1]}"})
urllib.request.urlopen(request, timeout=60).read()
PYTHON
}
# Some points for the line of the hour.
for _ in {1..12}; do
    for path in /mail-1/inbox/1-1 /serve/cffs-web/Cargo.toml /mail-2/sent/2-7; do
        ask "/api/v1/layout?path=$path"
    done
    sleep 3
done

take() { # FILE SIZE END [OPTION...]
    timeout 60 chromium --headless --no-sandbox --disable-gpu --disable-dev-shm-usage --hide-scrollbars \
        --user-data-dir="$scratch/browser" --virtual-time-budget=6000 --window-size="$2" "${@:4}" \
        --screenshot="$pictures/$1" "http://$address/#$3" 2>/dev/null
    echo "$pictures/$1"
}
take page.png 1280,2000 "$token/"
take page-dark-phone.png 500,2000 "$token" --blink-settings=preferredColorScheme=0
