#!/usr/bin/env bash
# NFS servers side by side: `cffs serve`, and Debian's nfs-ganesha over ext4, on emulated disks. The report
# goes to docs/performance/nfs.md; with --quick, to a directory of its own that is printed.
#
#   scripts/bench-nfs.sh [--quick]      (root; Debian; minutes)
#
# nfs-ganesha is unpacked below target/tools, not installed. It needs rpcbind and fixed ports, so both servers
# run in a network and with a /run of their own, which end with this script. CFFS and CFFS_BENCH name other
# programs than those that it builds.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/packages.sh

tools=target/tools/ganesha
# The packages whose programs and libraries are used, from Debian 12.
packages=(nfs-ganesha nfs-ganesha-vfs libntirpc4.3 libwbclient0 libwrap0 libnfsidmap1 rpcbind)

fail() {
    echo "bench-nfs: $*" >&2
    exit 1
}

# What follows runs with a network and mounts of its own.
run_apart() { # ARGUMENTS OF cffs-bench nfs
    ip link set lo up
    mount -t tmpfs tmpfs /run
    mkdir /run/rpcbind
    # rpcbind changes to a user that its package would add.
    (cat /etc/passwd; echo "_rpc:x:65533:65534::/run/rpcbind:/usr/sbin/nologin") >/run/passwd
    mount --bind /run/passwd /etc/passwd
    local libraries=$PWD/$tools/usr/lib/x86_64-linux-gnu:$PWD/$tools/lib/x86_64-linux-gnu
    LD_LIBRARY_PATH=$libraries "$tools/sbin/rpcbind" -f &
    local rpcbind=$! status=0
    "$CFFS_BENCH" nfs --cffs "$CFFS" --ganesha "$tools" "$@" || status=$?
    kill "$rpcbind"
    return "$status"
}

((EUID == 0)) || fail "mounting, and a network of its own, need root"
if [[ ${1-} == --apart ]]; then
    shift
    run_apart "$@"
    exit
fi
unpack_packages "$tools" "${packages[@]}" ||
    fail "cannot download the packages ${packages[*]}: they are those of Debian 12"
if [[ -z ${CFFS:-} || -z ${CFFS_BENCH:-} ]]; then
    cargo build --quiet --release --locked -p cffs-cli -p cffs-bench
fi
release=${CARGO_TARGET_DIR:-target}/release
export CFFS=${CFFS:-$release/cffs} CFFS_BENCH=${CFFS_BENCH:-$release/cffs-bench}

source scripts/idle-polls.sh

arguments=()
if [[ ${1-} == --quick ]]; then
    arguments=(--quick --repetitions 1 --output "$(mktemp -d)")
fi
unshare --net --mount --propagation private scripts/bench-nfs.sh --apart "${arguments[@]}"
