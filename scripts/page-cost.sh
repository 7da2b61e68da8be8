#!/usr/bin/env bash
# Counts the instructions that a server without other work takes with no browser at its page, and with fifty:
# in its own program, by valgrind, so that the result does not depend on what else the machine does. What the
# kernel does for the sockets is not in it.
#
# usage: scripts/page-cost.sh    (uses target/release/cffs or $CFFS)
set -euo pipefail
cd "$(dirname "$0")/.."

cffs=$(realpath "${CFFS:-target/release/cffs}")
scratch=$(mktemp -d)
address=127.0.0.1:${PORT:-18097}
seconds=20
trap '"$cffs" serve --stop "$scratch/tree.cffs" 2>/dev/null || true; rm -rf "$scratch"' EXIT
"$cffs" mkfs --size 64M "$scratch/tree.cffs" >/dev/null

count() { # BROWSERS
    timeout 300 valgrind --tool=callgrind --callgrind-out-file=/dev/null "$cffs" serve -f --web "$address" \
        --web-token "$scratch/tokens" "$scratch/tree.cffs" >"$scratch/out" 2>&1 &
    local server=$!
    python3 - "$1" "$address" "$scratch/tokens" "$seconds" <<'PYTHON'
import socket, sys, threading, time
count, (host, port), seconds = int(sys.argv[1]), sys.argv[2].split(":"), int(sys.argv[4])
for _ in range(300):
    try:
        socket.create_connection((host, int(port))).close()
        break
    except OSError:
        time.sleep(0.1)
token = next(line.split()[1] for line in open(sys.argv[3]) if line.startswith("look"))
def read(browser):
    while browser.recv(1 << 16):
        pass
for _ in range(count):
    browser = socket.create_connection((host, int(port)))
    browser.sendall(f"GET /api/v1/events HTTP/1.1\r\nHost: {host}:{port}\r\n"
                    f"Authorization: Bearer {token}\r\n\r\n".encode())
    threading.Thread(target=read, args=(browser,), daemon=True).start()
time.sleep(seconds)
PYTHON
    "$cffs" serve --stop "$scratch/tree.cffs" 2>/dev/null || kill -TERM "$server"
    wait "$server"
    sed -n 's/.*Collected : //p' "$scratch/out"
}

without=$(count 0)
with=$(count 50)
echo "no browser: $without instructions in $seconds seconds, with start and end"
echo "50 browsers: $with, which is $(((with - without) / seconds)) more per second"
