# A function for scripts that use programs of Debian packages without installing these. To be read by
# another script.

unpack_packages() { # DIRECTORY PACKAGE...: fails, and leaves nothing, where they cannot be downloaded
    local to=$1 package
    shift
    [[ ! -d $to/usr ]] || return 0
    rm -rf "$to.new"
    mkdir -p "$to.new"
    if ! (cd "$to.new" && apt-get download -q "$@"); then
        rm -r "$to.new"
        return 1
    fi
    for package in "$to.new"/*.deb; do
        dpkg-deb -x "$package" "$to.new" || return
    done
    rm "$to.new"/*.deb
    rm -rf "$to"
    mv "$to.new" "$to"
}
