#!/usr/bin/env bash
# Makes a Debian package of what `make install` installs. Prints the package's path.
#
# usage: scripts/deb.sh      (after make build; DEB_MAINTAINER names who answers for the package)
#
# The same source gives the same package: times are those of the last commit.
set -euo pipefail
cd "$(dirname "$0")/.."

target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
work=$target/deb
root=$work/root
maintainer=${DEB_MAINTAINER:-The C-FFS authors <cffs@localhost>}
version=$(sed -nE '/^\[workspace.package\]/,/^\[/s/^version = "(.*)"/\1/p' Cargo.toml)
architecture=$(dpkg --print-architecture)
package=$work/cffs_${version}_$architecture.deb
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || stat -c %Y Cargo.toml)}
export SOURCE_DATE_EPOCH

rm -rf "$work"
mkdir -p "$root"
umask 022
# mount(8) looks in /sbin, which is /usr/sbin here.
make --no-print-directory install "DESTDIR=$root" PREFIX=/usr MOUNTDIR=/usr/sbin >&2

strip --strip-unneeded "$root"/usr/bin/{cffs,place} "$root"/usr/lib/lib*.so."$version"
strip --strip-debug "$root"/usr/lib/lib*.a
find "$root/usr/share/man" -type f -exec gzip -9n {} +
find "$root/usr/sbin" -type l -exec ln -sf ../bin/cffs {} \;
mkdir -p "$root/var/log/cffs"

documents=$root/usr/share/doc/cffs
mkdir -p "$documents"
# All of them, since they refer to each other.
install -m 644 README.md "$documents"
cp -R docs "$documents"
gzip -9n <CHANGELOG.md >"$documents/changelog.gz"
{
    cat packaging/debian/copyright
    sed 's/^$/./; s/^/ /' LICENSE-MIT
    echo " ."
    sed 's/^$/./; s/^/ /' LICENSE-APACHE
} >"$documents/copyright"

# dpkg-shlibdeps wants to see a source package.
mkdir -p "$work/source/debian"
printf 'Source: cffs\n\nPackage: cffs\nArchitecture: any\n' >"$work/source/debian/control"
depends=$(cd "$work/source" && dpkg-shlibdeps -O "$root"/usr/bin/{cffs,place} \
    "$root"/usr/lib/lib*.so."$version" 2>/dev/null)
depends=${depends#shlibs:Depends=}

control=$root/DEBIAN
mkdir -p "$control"
cat >"$control/control" <<CONTROL
Package: cffs
Version: $version
Architecture: $architecture
Maintainer: $maintainer
Installed-Size: $(du -sk --exclude=DEBIAN "$root" | cut -f1)
Depends: $depends
Recommends: fuse3
Section: admin
Priority: optional
Description: co-locating fast file system for millions of small files
 C-FFS puts a file's name, inode and data, and those of its neighbours, side by
 side, and moves them as one request. It runs in user space, mounted by FUSE or
 opened from the command line, behaves as a UNIX file system in every detail,
 survives a crash at any point, and is checked in seconds.
 .
 This package has the program cffs, which makes, mounts, checks and copies
 volumes, its names for mkfs(8), fsck(8) and mount(8), a rule for udev and a
 unit for systemd. For programs in C it has libcffs, which reads and writes the
 files in an image without mounting it, and libplace, with their headers.
CONTROL
echo /etc/logrotate.d/cffs >"$control/conffiles"
install -m 755 packaging/debian/{postinst,postrm} "$control"
# Packages of programs that are linked with the libraries depend on this one, and dpkg runs ldconfig.
for library in "$root"/usr/lib/lib*.so."$version"; do
    echo "$(basename "${library%.so.*}") ${version%%.*} cffs (>= $version)"
done >"$control/shlibs"
echo "activate-noawait ldconfig" >"$control/triggers"
(
    cd "$root"
    find . \( -path ./DEBIAN -o -path ./etc \) -prune -o -type f -printf '%P\0' | sort -z | xargs -0 md5sum
) >"$control/md5sums"
find "$root" -exec touch -hd "@$SOURCE_DATE_EPOCH" {} +
dpkg-deb --root-owner-group --build "$root" "$package" >&2
echo "$package"
