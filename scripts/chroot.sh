# Functions for scripts that need a Debian 12 system with nothing on it: a new chroot each time.
# To be read by another script, as root.
#
# CHROOT_BASE may name a directory that debootstrap has filled before, to spare the network.

chroot_root=

# Makes the chroot; it goes when the script ends. It has this machine's devices, or with "own-devices"
# a directory of its own for them, for programs that make links there.
chroot_begin() { # [own-devices]
    ((EUID == 0)) || { echo "$0: a chroot needs root" >&2; exit 1; }
    command -v debootstrap >/dev/null || apt-get install -q -y --no-install-recommends debootstrap
    chroot_root=$(mktemp -d "${TMPDIR:-/var/tmp}/cffs-chroot.XXXXXX")
    trap chroot_end EXIT
    trap 'exit 130' INT TERM
    # Its root is a mount point, as that of a machine is: unshare(1) and programs that read the table of
    # mounts look for one.
    mount --bind "$chroot_root" "$chroot_root"
    if [[ -n ${CHROOT_BASE-} ]]; then
        cp -a "$CHROOT_BASE/." "$chroot_root"
    else
        debootstrap --variant=minbase bookworm "$chroot_root" >"$chroot_root.log" ||
            { tail -n 5 "$chroot_root.log"; exit 1; }
        rm -f "$chroot_root.log"
    fi
    # mkdtemp makes it private, and then no other user could search the root.
    chmod 755 "$chroot_root"
    if [[ ${1-} == own-devices ]]; then
        mount -t tmpfs -o mode=755 tmpfs "$chroot_root/dev"
        make_devices "$chroot_root/dev"
    else
        mount --bind /dev "$chroot_root/dev"
    fi
    mount -t proc proc "$chroot_root/proc"
    mount -t sysfs sysfs "$chroot_root/sys"
    mount -t tmpfs tmpfs "$chroot_root/run"
    [[ ! -e /etc/resolv.conf ]] || cp -L /etc/resolv.conf "$chroot_root/etc/resolv.conf"
}

make_devices() { # DIRECTORY: what programs need
    local name number
    for name in null zero full random urandom tty fuse loop-control; do
        cp -a "/dev/$name" "$1/$name"
    done
    for number in {0..63}; do
        mknod -m 660 "$1/loop$number" b 7 "$number"
    done
    mkdir -m 1777 "$1/shm"
    ln -s /proc/self/fd "$1/fd"
}

chroot_end() { # unmounts and removes everything, whatever is left
    [[ -n $chroot_root ]] || return 0
    local point
    while read -r point; do
        umount -l "$point" || true
    done < <(awk -v root="$chroot_root/" 'index($5 "/", root) == 1 { print $5 }' /proc/self/mountinfo | tac)
    # Never into what could not be unmounted.
    rm -rf --one-file-system "$chroot_root"
    chroot_root=
}

chroot_run() { # COMMAND...: in the chroot, with an empty environment and as root's login has it
    chroot "$chroot_root" /usr/bin/env -i HOME=/root TERM=dumb LANG=C.UTF-8 DEBIAN_FRONTEND=noninteractive \
        PATH="/root/.cargo/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin" \
        "$@" </dev/null
}

chroot_sh() { # SCRIPT: a piece of shell that ends at the first failure
    chroot_run bash -euo pipefail -c "$1"
}
