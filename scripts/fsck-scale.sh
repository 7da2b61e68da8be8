#!/usr/bin/env bash
# Full checks side by side: the same tree of small files on ext4 and on C-FFS, each on a loop device
# with direct I/O. Prints requests, bytes, seconds and memory of `e2fsck -f -n` and `cffs fsck -f -n`
# with cold caches.
#
#   scripts/fsck-scale.sh [FILES [DIRECTORY FOR THE IMAGES]]      (root; 1,000,000 files take 6 GB)
set -euo pipefail
cd "$(dirname "$0")/.."

files=${1:-1000000}
work=$(mktemp -d "${2:-${TMPDIR:-/tmp}}/fsck-scale.XXXXXX")
loops=()

clean_up() {
    umount "$work/tree" 2>/dev/null || true
    local loop
    for loop in "${loops[@]}"; do
        losetup -d "$loop" || true
    done
    rm -rf "$work"
}
trap clean_up EXIT

if ((EUID != 0)); then
    echo "fsck-scale: loop devices need root" >&2
    exit 1
fi
cargo build --quiet --release --locked -p cffs-cli
cffs=${CARGO_TARGET_DIR:-target}/release/cffs

attach() { # IMAGE: a loop device with direct I/O
    losetup --find --show --direct-io=on "$1"
}

# A hundred files in a directory, a hundred directories in one above it; files of 0 to 8 KiB.
make_tree() {
    python3 - "$work/tree" "$files" <<'PYTHON'
import os, random, sys
root, files = sys.argv[1].encode(), int(sys.argv[2])
rng = random.Random(1)
data = rng.randbytes(8192)
for first in range(0, files, 100):
    directory = b"%s/%03d/%03d" % (root, first // 10_000, first // 100 % 100)
    os.makedirs(directory)
    for number in range(first, min(first + 100, files)):
        with open(b"%s/file-%07d" % (directory, number), "wb") as file:
            file.write(data[:min(8192, int(rng.lognormvariate(7.2, 1.2)))])
PYTHON
}

measure() { # DEVICE COMMAND...: requests, MiB, seconds and peak MiB of memory
    local device=$1
    shift
    echo 3 >/proc/sys/vm/drop_caches
    python3 - "/sys/block/${device##*/}/stat" "$@" <<'PYTHON'
import resource, subprocess, sys, time
stat, command = sys.argv[1], sys.argv[2:]
read = lambda: [int(field) for field in open(stat).read().split()]
before, begun = read(), time.monotonic()
done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
seconds, after = time.monotonic() - begun, read()
if done.returncode != 0:
    sys.exit("%s: %s" % (command, done.stdout.decode(errors="replace")))
peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
print("| %d | %.1f | %.1f | %.0f |"
      % (after[0] - before[0], (after[2] - before[2]) / 2048, seconds, peak))
PYTHON
}

size_gib=$((files / 150000 + 1))
for fs in ext4 cffs; do
    truncate -s "${size_gib}G" "$work/$fs"
done
mkfs.ext4 -q -N "$((files + files / 50 + 1000))" -E lazy_itable_init=0,lazy_journal_init=0 "$work/ext4"
ext4=$(attach "$work/ext4")
loops+=("$ext4")
mkdir "$work/tree"
mount "$ext4" "$work/tree"
make_tree
"$cffs" mkfs -q "$work/cffs"
"$cffs" import "$work/cffs" "$work/tree" / >/dev/null
umount "$work/tree"
volume=$(attach "$work/cffs")
loops+=("$volume")

echo "$files files, $(nproc) processors, $(e2fsck -V 2>&1 | head -1)"
echo
echo "| check | requests | MiB read | seconds | MiB of memory |"
echo "| --- | --- | --- | --- | --- |"
echo "| e2fsck -f -n $(measure "$ext4" e2fsck -f -n "$ext4")"
echo "| cffs fsck -f -n $(measure "$volume" "$cffs" fsck -f -n "$volume")"
