#!/usr/bin/env bash
# The Debian packages in a Debian 12 chroot that has nothing else: installs them with what they depend on,
# uses them, installs the program over itself, and removes all. Ends with one line, "N passed, N failed".
#
# usage: scripts/test-deb.sh      (root, the network, /dev/fuse; after make deb)
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/chroot.sh

package=$(ls -t "${CARGO_TARGET_DIR:-target}"/deb/cffs_*.deb | head -n 1)
passed=0
failed=0

check() { # NAME SCRIPT: a test, run in the chroot
    local output
    if output=$(chroot_sh "$2" 2>&1); then
        passed=$((passed + 1))
        echo "passed  $1"
    else
        failed=$((failed + 1))
        printf 'FAILED  %s\n%s\n' "$1" "$(sed 's/^/    /' <<<"$output" | tail -n 20)"
    fi
}

all_files() { # every path in the chroot but for what package managers write down, and mounts
    (cd "$chroot_root" && find . -xdev \( -path ./var/lib/dpkg -o -path ./var/lib/apt -o -path ./var/cache \
        -o -path ./var/log -o -path ./tmp \) -prune -o -print | sort)
}

chroot_begin own-devices
cp "$package" "$chroot_root/tmp/cffs.deb"
cp "$(dirname "$package")"/libcffs*.deb "$chroot_root/tmp"
cp bindings/cffs-c/examples/cffs.c "$chroot_root/tmp/example.c"
# What it recommends, and what reads what it installs.
chroot_sh "apt-get update -q && apt-get install -q -y --no-install-recommends \
    fuse3 man-db groff-base udev systemd logrotate e2fsprogs libgcc-s1" >/dev/null 2>&1
# Debian's images leave man pages out; the package's own are looked at.
rm -f "$chroot_root"/etc/dpkg/dpkg.cfg.d/*excludes*
before=$(all_files)

check "installs with what it depends on" \
    "apt-get install -q -y --no-install-recommends /tmp/cffs.deb && dpkg --verify cffs
     apt-get install -q -y --no-install-recommends /tmp/libcffs[0-9]*.deb /tmp/libcffs-dev*.deb"
check "makes, mounts by mount(8), unmounts and checks an image" "
    mkdir -p /tmp/m && cd /tmp
    mkfs -t cffs -q -s 256M tree.cffs
    mount -t cffs /tmp/tree.cffs /tmp/m
    cp -a /usr/share/doc /tmp/m/
    diff -r /usr/share/doc /tmp/m/doc
    cffs stats --prometheus /tmp/m | grep -q '^cffs_calls_creates_total'
    cffs umount /tmp/m
    fsck.cffs -f -n /tmp/tree.cffs
    cffs ls /tmp/tree.cffs /doc | grep -q cffs"
check "mounts by an entry in fstab" "
    echo '/tmp/tree.cffs /tmp/m cffs noauto,noatime 0 0' >/etc/fstab
    mount /tmp/m && test -d /tmp/m/doc && cffs umount /tmp/m
    fsck -t cffs -a /tmp/tree.cffs
    : >/etc/fstab"
check "shows its man pages" "
    for page in 1/cffs 1/cffs-mount 3/libcffs 8/mount.cffs 8/mount.fuse.cffs; do
        man --warnings \${page%/*} \${page#*/} >/tmp/page 2>/tmp/warnings
        test -s /tmp/page && ! test -s /tmp/warnings
    done"
check "has a unit that systemd understands" "systemd-analyze verify --man=no cffs@srv-tree.service"
check "has a configuration that logrotate understands" "logrotate --debug /etc/logrotate.d/cffs"
check "has a rule by which udev knows the volume, its UUID and its label" "
    mkfs.cffs -q -s 64M -L 'a tree' -U 0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0 /tmp/labelled
    loop=\$(losetup --find --show /tmp/labelled)
    trap 'losetup -d \$loop' EXIT
    udevadm test --action=change /sys/block/\${loop#/dev/} >/tmp/udev 2>&1 || { cat /tmp/udev; exit 1; }
    grep -q 'ID_FS_TYPE=cffs' /tmp/udev
    grep -q 'ID_FS_UUID=0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0' /tmp/udev
    grep -qF 'disk/by-label/a\x20tree' /tmp/udev"
check "has libraries that the dynamic linker knows" "
    ldconfig -p | grep -q 'libcffs\.so\.[0-9]' && ldconfig -p | grep -q 'libplace\.so\.[0-9]'"
check "has what a program in C is compiled with" "
    apt-get install -q -y --no-install-recommends gcc libc6-dev pkg-config
    gcc /tmp/example.c \$(pkg-config --cflags --libs cffs) -o /tmp/example
    /tmp/example /tmp/example.cffs
    man --warnings 3 libcffs | grep -q cffs_read_many
    apt-get purge -q -y --auto-remove gcc libc6-dev pkg-config"
check "installs over itself while a volume is mounted" "
    mount -t cffs /tmp/tree.cffs /tmp/m
    apt-get install -q -y --reinstall /tmp/cffs.deb
    echo after >/tmp/m/after && cat /tmp/m/after
    cffs umount /tmp/m
    fsck.cffs -f -n /tmp/tree.cffs"
check "is removed without a trace" "apt-get purge -q -y cffs libcffs-dev 'libcffs[0-9]*'"
left=$(diff <(echo "$before") <(all_files) | grep '^>' || true)
if [[ -z $left ]]; then
    passed=$((passed + 1))
    echo "passed  leaves no file behind"
else
    failed=$((failed + 1))
    printf 'FAILED  leaves no file behind\n%s\n' "$left"
fi

echo "$passed passed, $failed failed"
((failed == 0))
