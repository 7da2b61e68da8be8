#!/usr/bin/env bash
# Makes a Debian machine ready to build and test: installs the programs that are missing, and, as
# root, adds the user "tests".
#
# Quick, and without effect, when nothing is. Needs root only if a package is missing; without it,
# says what to install.
set -euo pipefail
cd "$(dirname "$0")/.."

# Administrators' programs are not on everybody's path.
export PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin:$HOME/.cargo/bin"

# A program that shows whether the package is there, and the package.
needed="
    cc           build-essential
    make         build-essential
    pkg-config   pkg-config
    git          git
    tar          tar
    python3      python3
    losetup      mount
    fusermount3  fuse3
    getfattr     attr
    getfacl      acl
    mkfs.ext4    e2fsprogs
    mkfs.xfs     xfsprogs
    mkfs.btrfs   btrfs-progs
    rsync        rsync
    sqlite3      sqlite3
    strace       strace
    fio          fio
    stress-ng    stress-ng
"

install_packages() {
    local missing=()
    local program package
    while read -r program package; do
        if [[ -n $program ]] && ! command -v "$program" >/dev/null; then
            missing+=("$package")
        fi
    done <<<"$needed"
    if ((${#missing[@]} == 0)); then
        return
    fi

    if ! command -v apt-get >/dev/null; then
        echo "setup: please install what contains these Debian packages: ${missing[*]}" >&2
        exit 1
    elif ((EUID != 0)); then
        echo "setup: please run as root: apt-get install ${missing[*]}" >&2
        exit 1
    fi
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -q
    apt-get install -q -y --no-install-recommends "${missing[@]}"
}

check_rust() {
    if ! command -v cargo >/dev/null; then
        echo "setup: please install Rust from https://rustup.rs" >&2
        exit 1
    fi
    local component
    for component in fmt clippy; do
        if ! cargo "$component" --version >/dev/null 2>&1; then
            rustup component add "${component/#fmt/rustfmt}"
        fi
    done
}

# Tests of permissions need an ordinary user beside nobody.
add_user() {
    if ((EUID != 0)) || id tests >/dev/null 2>&1; then
        return
    fi
    getent group tests >/dev/null || groupadd tests
    useradd -M -d / -s /usr/sbin/nologin -g tests tests
}

install_packages
check_rust
add_user
scripts/cargo-tool.sh pjdfstest 0.2.2
scripts/cargo-tool.sh fsx 0.3.2
