#!/usr/bin/env bash
# Counts the instructions that an idle server executes with no browser at its page, and with fifty. valgrind
# counts only the program's own instructions, without the kernel's for the sockets, so the result does not
# depend on other load.
#
# Then, as root, measures how much fifty browsers reduce a mounted volume's hot throughput: operations per
# second of the server's processor time, including the kernel's part, in rounds without and with browsers,
# medians of five. Other load of the machine changes the medians by some percent in either direction.
#
# usage: scripts/page-cost.sh    (uses target/release/cffs or $CFFS)
set -euo pipefail
cd "$(dirname "$0")/.."

cffs=$(realpath "${CFFS:-${CARGO_TARGET_DIR:-target}/release/cffs}")
scratch=$(mktemp -d)
address=127.0.0.1:${PORT:-18097}
seconds=20
trap cleanup EXIT
cleanup() {
    "$cffs" umount "$scratch/mnt" 2>/dev/null || true
    "$cffs" serve --stop "$scratch/tree.cffs" 2>/dev/null || true
    rm -rf "$scratch"
}
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

if ((EUID != 0)) || [[ ! -r /dev/fuse ]]; then
    echo "not measured: the throughput of a mount, which needs root and /dev/fuse"
    exit
fi
mkdir "$scratch/mnt"
"$cffs" mount --web "$address" --web-token "$scratch/mount-tokens" "$scratch/tree.cffs" "$scratch/mnt" \
    2>/dev/null
python3 - "$scratch/mnt" "$address" "$scratch/mount-tokens" <<'PYTHON'
import json, os, socket, statistics, sys, threading, time, urllib.request
at, address, tokens = sys.argv[1:]
host, port = address.split(":")
token = next(line.split()[1] for line in open(tokens) if line.startswith("look"))
authorization = {"Authorization": f"Bearer {token}"}
status = urllib.request.Request(f"http://{address}/api/v1/status", headers=authorization)
server = json.load(urllib.request.urlopen(status))["server"]["pid"]

def processor_seconds():
    times = open(f"/proc/{server}/stat").read().rsplit(")", 1)[1].split()[11:13]
    return sum(map(int, times)) / os.sysconf("SC_CLK_TCK")

events = [0]
def read(browser):
    try:
        while data := browser.recv(1 << 16):
            events[0] += data.count(b"event: status")
    except OSError:
        pass

def visit():
    browser = socket.create_connection((host, int(port)))
    browser.sendall(f"GET /api/v1/events HTTP/1.1\r\nHost: {address}\r\n"
                    f"Authorization: Bearer {token}\r\n\r\n".encode())
    threading.Thread(target=read, args=(browser,), daemon=True).start()
    return browser

def rate(seconds=6):
    """Files made, written, closed and removed per second of the server."""
    operations, before, end = 0, processor_seconds(), time.monotonic() + seconds
    while time.monotonic() < end:
        for number in range(100):
            name = f"{at}/{number}"
            file = os.open(name, os.O_CREAT | os.O_WRONLY)
            os.write(file, b"x" * 1024)
            os.close(file)
            os.unlink(name)
        operations += 400
    return operations / (processor_seconds() - before)

rate(2)
without, with_browsers = [], []
for _ in range(5):
    without.append(rate())
    browsers = [visit() for _ in range(50)]
    seen = events[0]
    with_browsers.append(rate())
    if events[0] - seen < 50 * 4:
        sys.exit("page-cost: the browsers got no events")
    for browser in browsers:
        browser.shutdown(socket.SHUT_RDWR)
        browser.close()
    time.sleep(1)
without, with_browsers = statistics.median(without), statistics.median(with_browsers)
print(f"a mount, operations per second of its server's processor: {without:,.0f} without a browser, "
      f"{with_browsers:,.0f} with 50 ({(with_browsers / without - 1) * 100:+.1f} %)")
PYTHON
