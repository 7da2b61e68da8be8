#!/usr/bin/env bash
# Makes Debian packages of the files that `make install` installs: cffs (the programs), libcffs0 (the
# libraries for C) and libcffs-dev (the files for compiling programs). Prints the packages' paths, that of
# cffs last.
#
# usage: scripts/deb.sh      (after make build; DEB_MAINTAINER names who answers for the packages)
#
# The same source gives the same packages: times are those of the last commit.
set -euo pipefail
cd "$(dirname "$0")/.."

target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
work=$target/deb
root=$work/root
maintainer=${DEB_MAINTAINER:-The C-FFS authors <cffs@localhost>}
version=$(sed -nE '/^\[workspace.package\]/,/^\[/s/^version = "(.*)"/\1/p' Cargo.toml)
soversion=${version%%.*}
architecture=$(dpkg --print-architecture)
# The library directory of this architecture.
libraries=usr/lib/$(dpkg-architecture -qDEB_HOST_MULTIARCH)
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || stat -c %Y Cargo.toml)}

move() { # PACKAGE PATH...: from the installed files to that package
    local path to=$work/$1
    shift
    for path; do
        mkdir -p "$to/$(dirname "$path")"
        mv "$root/$path" "$to/$path"
    done
}

documents() { # PACKAGE: the documents that Debian requires in every package
    local to=$work/$1/usr/share/doc/$1
    mkdir -p "$to"
    gzip -9n <CHANGELOG.md >"$to/changelog.gz"
    {
        cat packaging/debian/copyright
        sed 's/^$/./; s/^/ /' LICENSE-MIT
        echo " ."
        sed 's/^$/./; s/^/ /' LICENSE-APACHE
    } >"$to/copyright"
}

needed() { # FILE...: the packages whose libraries these are linked with
    local depends
    depends=$(cd "$work/source" && dpkg-shlibdeps -O "$@" 2>/dev/null)
    echo "${depends#shlibs:Depends=}"
}

package() { # PACKAGE SECTION FIELDS: the control file, with the description from standard input
    local name=$1 root=$work/$1 control=$work/$1/DEBIAN
    mkdir -p "$control"
    {
        cat <<CONTROL
Package: $name
Source: cffs
Version: $version
Architecture: $architecture
Maintainer: $maintainer
Installed-Size: $(du -sk --exclude=DEBIAN "$root" | cut -f1)
Section: $2
Priority: optional
$3
CONTROL
        cat
    } >"$control/control"
    (
        cd "$root"
        find . \( -path ./DEBIAN -o -path ./etc \) -prune -o -type f -printf '%P\0' | sort -z |
            xargs -0 md5sum
    ) >"$control/md5sums"
    find "$root" -exec touch -hd "@$SOURCE_DATE_EPOCH" {} +
    dpkg-deb --root-owner-group --build "$root" "$work/${name}_${version}_$architecture.deb" >&2
    echo "$work/${name}_${version}_$architecture.deb"
}

rm -rf "$work"
mkdir -p "$root" "$work/source/debian"
umask 022
# mount(8) looks in /sbin, which is /usr/sbin here.
# Building does not get the time of the package: cargo would compile what asks for it again.
make --no-print-directory install "DESTDIR=$root" PREFIX=/usr MOUNTDIR=/usr/sbin "LIBDIR=/$libraries" >&2
export SOURCE_DATE_EPOCH
find "$root/usr/share/man" -type f -exec gzip -9n {} +
find "$root/usr/sbin" -type l -exec ln -sf ../bin/cffs {} \;
# dpkg-shlibdeps requires a source package.
printf 'Source: cffs\n\nPackage: cffs\nArchitecture: any\n' >"$work/source/debian/control"

runtime=libcffs$soversion
(cd "$root" && printf '%s\n' "$libraries"/lib*.so."$soversion"*) | while read -r path; do
    move "$runtime" "$path"
done
move libcffs-dev usr/include usr/share/man/man3 "$libraries"
# The remaining files belong to the package of the programs.
mv "$root" "$work/cffs"
rmdir "$work/cffs/usr/lib/"*-linux-* 2>/dev/null || true
mkdir -p "$work/cffs/var/log/cffs"
for name in cffs "$runtime" libcffs-dev; do documents "$name"; done
# All documents, since they refer to each other.
install -m 644 README.md "$work/cffs/usr/share/doc/cffs"
cp -R docs "$work/cffs/usr/share/doc/cffs"

# Packages of programs that are linked with the libraries depend on theirs, and dpkg runs ldconfig.
mkdir -p "$work/$runtime/DEBIAN" "$work/cffs/DEBIAN"
for library in "$work/$runtime/$libraries"/lib*.so."$version"; do
    echo "$(basename "${library%.so.*}") $soversion $runtime (>= $version)"
done >"$work/$runtime/DEBIAN/shlibs"
echo "activate-noawait ldconfig" >"$work/$runtime/DEBIAN/triggers"
echo /etc/logrotate.d/cffs >"$work/cffs/DEBIAN/conffiles"
install -m 755 packaging/debian/{postinst,postrm} "$work/cffs/DEBIAN"

package "$runtime" libs "Multi-Arch: same
Depends: $(needed "$work/$runtime/$libraries"/lib*.so."$version")" <<DESCRIPTION
Description: co-locating fast file system, libraries for C
 libcffs reads and writes the files in a C-FFS image without mounting it. libplace
 shows where files lie on ext4 and other file systems, and moves them together.
DESCRIPTION
package libcffs-dev libdevel "Multi-Arch: same
Depends: $runtime (= $version)" <<DESCRIPTION
Description: co-locating fast file system, development files
 Headers, static libraries, files for pkg-config and the manual of libcffs and
 libplace.
DESCRIPTION
package cffs admin "Depends: $(needed "$work"/cffs/usr/bin/{cffs,place})
Recommends: fuse3" <<DESCRIPTION
Description: co-locating fast file system for millions of small files
 C-FFS puts a file's name, inode and data, and those of its neighbours, side by
 side, and moves them as one request. It runs in user space, mounted by FUSE or
 opened from the command line, survives a crash at any point, and is checked in
 seconds.
 .
 This package has the program cffs, which makes, mounts, checks and copies
 volumes, its names for mkfs(8), fsck(8) and mount(8), a rule for udev and a
 unit for systemd; and the program place, which lays files on ext4 together.
DESCRIPTION
