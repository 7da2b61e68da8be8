#!/usr/bin/env bash
# The paper's experiment: a server that crashes under the load of NFS clients, and how long its recovery
# takes. Volumes of several sizes on a loop device with direct I/O are served, changed at several rates, the
# server is killed, and the recovery is measured with cold caches, with a full check beside it.
#
#   scripts/nfs-recovery.sh ["FILES…" ["RATES…" [DIRECTORY FOR THE IMAGE]]]    (root)
#
# By default 100,000 and 1,000,000 files, and 0, 50, 200 and 1,000 operations a second for 20 seconds, of
# which half make files of 4 KiB, a quarter write, and a quarter remove. CFFS names another program.
set -euo pipefail
cd "$(dirname "$0")/.."

sizes=${1:-100000 1000000}
rates=${2:-0 50 200 1000}
work=$(mktemp -d "${3:-${TMPDIR:-/tmp}}/nfs-recovery.XXXXXX")
device=

clean_up() {
    [[ -z $device ]] || losetup -d "$device" || true
    rm -rf "$work"
}
trap clean_up EXIT

if ((EUID != 0)); then
    echo "nfs-recovery: loop devices need root" >&2
    exit 1
fi
if [[ -z ${CFFS:-} ]]; then
    cargo build --quiet --release --locked -p cffs-cli
    CFFS=${CARGO_TARGET_DIR:-target}/release/cffs
fi

# A hundred files in a directory, a hundred directories in one above it; files of 0 to 8 KiB.
make_tree() { # FILES
    python3 - "$work/tree" "$1" <<'PYTHON'
import os, random, sys
root, files = sys.argv[1], int(sys.argv[2])
rng = random.Random(1)
data = rng.randbytes(8192)
for first in range(0, files, 100):
    directory = "%s/%03d/%03d" % (root, first // 10_000, first // 100 % 100)
    os.makedirs(directory)
    for number in range(first, min(first + 100, files)):
        with open("%s/file-%07d" % (directory, number), "wb") as file:
            file.write(data[:min(8192, int(rng.lognormvariate(7.2, 1.2)))])
PYTHON
}

# Serves the device, has four clients change it at a rate, and kills the server.
crash_under_load() { # RATE
    python3 - "$CFFS" "$device" "$1" "${LOAD_SECONDS:-20}" <<'PYTHON'
import os, random, socket, subprocess, sys, threading, time
sys.path.insert(0, "tests/acceptance")
sys.dont_write_bytecode = True
from suite import nfs_client
program, device, rate, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3]), float(sys.argv[4])
with socket.socket() as unused:
    unused.bind(("127.0.0.1", 0))
    port = unused.getsockname()[1]
server = subprocess.Popen([program, "serve", "--foreground", "--nfs", "127.0.0.1:%d" % port,
                           "--export", "/:insecure,no_root_squash", device],
                          stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
deadline = time.monotonic() + 60
while True:
    try:
        nfs_client.Client(port).close()
        break
    except ConnectionRefusedError:
        if server.poll() is not None or time.monotonic() > deadline:
            sys.exit("nfs-recovery: the server cannot be reached")
        time.sleep(0.05)
done, ended, clients = [0] * 4, threading.Event(), 4

def load(number):
    client, rng, made = nfs_client.Client(port), random.Random(number), []
    root, begun = client.root(), time.monotonic()
    contents = rng.randbytes(4096)
    try:
        while not ended.is_set():
            due = begun + done[number] * clients / rate
            time.sleep(max(0, due - time.monotonic()))
            kind = done[number] % 4
            if kind < 2 or len(made) < 2:
                name = b"load-%d-%d" % (number, done[number])
                file = client.create(root, name)
                client.write(file, 0, contents, nfs_client.FILE_SYNC)
                made.append((name, file))
            elif kind == 2:
                client.write(rng.choice(made)[1], 0, contents, nfs_client.FILE_SYNC)
            else:
                client.remove(root, made.pop(rng.randrange(len(made)))[0])
            done[number] += 1
    except (ConnectionError, TimeoutError):
        pass

threads = [threading.Thread(target=load, args=(number,)) for number in range(clients if rate else 0)]
for thread in threads:
    thread.start()
time.sleep(seconds if rate else 1)
server.kill()
server.wait()
ended.set()
for thread in threads:
    thread.join()
print("%.0f" % (sum(done) / seconds))
PYTHON
}

# Requests, MiB read and written, and seconds of a command on the device, with cold caches.
measure() { # COMMAND...
    blockdev --flushbufs "$device"
    python3 - "/sys/block/${device##*/}/stat" "$@" <<'PYTHON'
import subprocess, sys, time
stat, command = sys.argv[1], sys.argv[2:]
read = lambda: [int(field) for field in open(stat).read().split()]
before, begun = read(), time.monotonic()
done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
seconds, after = time.monotonic() - begun, read()
if done.returncode > 1:
    sys.exit("%s: %s" % (command, done.stdout.decode(errors="replace")))
print("%d | %d | %.1f | %.2f"
      % (after[0] - before[0], after[4] - before[4], (after[2] - before[2]) / 2048, seconds))
PYTHON
}

echo "| files | operations/s | recovery: reads | writes | MiB read | seconds | full check: reads | writes" \
    "| MiB read | seconds |"
echo "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"
for files in $sizes; do
    mkdir "$work/tree"
    make_tree "$files"
    truncate -s "$((files / 150000 + 1))G" "$work/image"
    "$CFFS" mkfs -q "$work/image"
    "$CFFS" import "$work/image" "$work/tree" / >/dev/null
    rm -rf "$work/tree"
    device=$(losetup --find --show --direct-io=on "$work/image")
    for rate in $rates; do
        reached=$(crash_under_load "$rate")
        recovery=$(measure "$CFFS" fsck -p "$device")
        check=$(measure "$CFFS" fsck -f -n "$device")
        echo "| $files | $reached | $recovery | $check |"
    done
    losetup -d "$device"
    device=
    rm -f "$work/image"
done
