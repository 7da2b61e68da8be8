#!/usr/bin/env bash
# Shows C-FFS at work: builds it, makes an image, mounts it at ./mnt, unpacks a real tree of
# thousands of small files into it, reads the tree back cold, and prints how many requests to the
# device a file took. With root, both C-FFS and ext4 get a loop device of their own, and the
# kernel's counters of the two are compared; without, C-FFS counts for itself.
#
# Leaves the volume mounted at ./mnt, and nothing else.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin:$HOME/.cargo/bin"

image=$PWD/demo.cffs
mountpoint=$PWD/mnt
cffs=${CARGO_TARGET_DIR:-target}/release/cffs
scratch=$(mktemp -d)
is_root=$([[ $EUID -eq 0 ]] && echo yes || echo no)
loops=()

say() { printf '\n== %s\n' "$*"; }
fail() { printf 'run: %s\n' "$*" >&2; exit 1; }

clean_up() {
    mountpoint -q "$scratch/ext4" 2>/dev/null && umount "$scratch/ext4"
    for loop in "${loops[@]}"; do losetup -d "$loop" 2>/dev/null || true; done
    rm -rf "$scratch"
}
trap clean_up EXIT

need_programs() {
    scripts/setup.sh build
    [[ $is_root == yes ]] || command -v fusermount3 >/dev/null ||
        fail "needs fusermount3 to mount as an ordinary user; as root: apt-get install fuse3"
    [[ -e /dev/fuse ]] || fail "there is no /dev/fuse; as root: modprobe fuse"
}

# The first of some common trees that is large enough for a demonstration.
choose_tree() {
    local tree
    for tree in "$HOME/.cargo/registry/src" /usr/include /usr/share/doc /usr/share; do
        [[ -d $tree ]] || continue
        if (( $(find "$tree" -xdev -type f 2>/dev/null | head -2000 | wc -l) >= 2000 )); then
            echo "$tree"
            return
        fi
    done
    fail "found no tree of 2000 files to copy"
}

# Reads every file below a directory, directory by directory.
read_all() {
    (cd "$1" && find . -type f -print0 | xargs -0 cat) | wc -c
}

drop_caches() {
    sync
    [[ $is_root == no ]] || echo 3 >/proc/sys/vm/drop_caches 2>/dev/null || true
}

# Requests and bytes read so far: by a block device, in the kernel's count, or else by C-FFS.
reads_of() {
    if [[ -b $1 ]]; then
        awk '{ print $1, $3 * 512 }' "/sys/block/${1##*/}/stat"
    else
        "$cffs" stats --json "$mountpoint" |
            awk -F '[:,]' '/"reads":/ { n = $2 } /"read_bytes":/ { print n + 0, $2 + 0; exit }'
    fi
}

attach() {
    local loop
    loop=$(losetup --find --show --direct-io=on "$1" 2>/dev/null || losetup --find --show "$1") || return 1
    loops+=("$loop")
    attached=$loop
}

report() { # name, "requests bytes" before, the same after
    echo "$2 $3" | awk -v name="$1" -v files="$files" '{
        requests = $3 - $1
        printf "  %-6s %7d requests, %5d MiB: %.2f requests per file\n",
            name, requests, ($4 - $2) / 1048576, requests / files }'
}

need_programs
say "Building"
make --no-print-directory build

if mountpoint -q "$mountpoint" 2>/dev/null; then
    "$cffs" umount "$mountpoint"
fi
mkdir -p "$mountpoint"
rm -f "$image"

tree=$(choose_tree)
tar -C "$tree" -cf "$scratch/tree.tar" . 2>/dev/null || true
archive_bytes=$(stat -c %s "$scratch/tree.tar")
size_mb=$(( archive_bytes * 2 / 1048576 + 512 ))

say "Making an image of $size_mb MiB and mounting it at ./mnt"
"$cffs" mkfs --size "${size_mb}M" --label demo "$image"
source=$image
if [[ $is_root == yes ]] && attach "$image"; then
    source=$attached
fi
"$cffs" mount "$source" "$mountpoint"

say "Unpacking $tree ($(( archive_bytes / 1048576 )) MiB)"
tar -C "$mountpoint" -xf "$scratch/tree.tar"
files=$(find "$mountpoint" -type f | wc -l)
"$cffs" umount "$mountpoint"

say "Reading it back cold"
drop_caches
"$cffs" mount -o noatime "$source" "$mountpoint"
before=$(reads_of "$source")
bytes=$(read_all "$mountpoint")
cffs_report=$(report C-FFS "$before" "$(reads_of "$source")")
"$cffs" umount "$mountpoint"

ext4_report="(as root, this also shows ext4 on the same kind of loop device)"
if [[ $is_root == yes ]] && command -v mkfs.ext4 >/dev/null; then
    truncate -s "${size_mb}M" "$scratch/ext4.img"
    mkdir "$scratch/ext4"
    if attach "$scratch/ext4.img" && mkfs.ext4 -q "$attached" && mount "$attached" "$scratch/ext4"; then
        tar -C "$scratch/ext4" -xf "$scratch/tree.tar"
        umount "$scratch/ext4"
        drop_caches
        mount -o noatime "$attached" "$scratch/ext4"
        before=$(reads_of "$attached")
        read_all "$scratch/ext4" >/dev/null
        ext4_report=$(report ext4 "$before" "$(reads_of "$attached")")
        umount "$scratch/ext4"
    fi
fi

say "Requests to the device for reading all $files files ($(( bytes / 1048576 )) MiB) cold"
echo "$cffs_report"
echo "$ext4_report"

# From here on the image is used without the loop device.
for loop in "${loops[@]}"; do losetup -d "$loop"; done
loops=()
"$cffs" mount "$image" "$mountpoint"

cat <<END

== The volume is mounted at ./mnt. Go on:
  ls mnt                         use it as any other file system
  $cffs stats mnt    what it did
  $cffs explain FILE where a file is, and its neighbours
  $cffs umount mnt   unmount; the image stays in demo.cffs
END
