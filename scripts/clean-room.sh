#!/usr/bin/env bash
# What README shows, as a new user finds it: `make run`, `make test`, `make install` and `make deb` in a
# Debian 12 chroot that has Rust and make, and nothing else. Clones the committed state. Ends with one line
# per target, and "N passed, N failed".
#
# usage: scripts/clean-room.sh [run|test|install|deb...]      (all of them by default; root, the network)
#
# Rust is this machine's: the toolchain that runs here, and the packages that cargo has fetched, so that
# it asks the network for as little as possible.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/chroot.sh

targets=("$@")
((${#targets[@]} > 0)) || targets=(run test install deb)
cargo_home=${CARGO_HOME:-$HOME/.cargo}
sysroot=$(rustc --print sysroot)

chroot_begin
chroot_sh "apt-get update -q && apt-get install -q -y --no-install-recommends make ca-certificates" >/dev/null
# This machine may reach the network by way of a proxy whose certificates it alone trusts.
cp -L "${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt}" "$chroot_root/etc/ssl/certs/ca-certificates.crt"
mkdir -p "$chroot_root/root/.cargo/bin" "$chroot_root/opt"
cp -a "$sysroot" "$chroot_root/opt/rust"
for program in cargo rustc rustdoc cargo-fmt rustfmt cargo-clippy clippy-driver; do
    ln -s "/opt/rust/bin/$program" "$chroot_root/root/.cargo/bin/$program"
done
[[ ! -d $cargo_home/registry ]] || cp -a "$cargo_home/registry" "$chroot_root/root/.cargo/registry"
git clone -q . "$chroot_root/root/cffs"

passed=0
failed=0
verdicts=()
for target in "${targets[@]}"; do
    arguments=("$target")
    [[ $target != install ]] || arguments+=(DESTDIR=/root/installed)
    printf '\n== make %s\n' "${arguments[*]}"
    status=0
    chroot_run make --no-print-directory -C /root/cffs "${arguments[@]}" || status=$?
    case $target in
        run) chroot_run /root/cffs/target/release/cffs umount /root/cffs/mnt || status=1 ;;
        install) chroot_run /root/installed/usr/local/bin/cffs --version || status=1 ;;
        deb) chroot_sh "dpkg -i /root/cffs/target/deb/*.deb && mkfs.cffs --version" || status=1 ;;
    esac
    if ((status == 0)); then
        passed=$((passed + 1))
        verdicts+=("passed  make $target")
    else
        failed=$((failed + 1))
        verdicts+=("FAILED  make $target")
    fi
done

printf '\n'
printf '%s\n' "${verdicts[@]}" "$passed passed, $failed failed"
((failed == 0))
