# Kills servers at random times, over each transport, in each order, and checks that the machine continues:
# the processes end, the mount reports that its server has ended, and sync(1) and df(1) return.
# Arguments: the minimum number of servers to kill, and the moments, all by default.

rounds=$1
moments=${2:-"at_mount at_mount at_mount in_use namespace container notifying notifying"}
# The limit in seconds after which a step counts as hung. A hang never ends, so the limit only has to be long
# enough for an emulated machine on a busy host.
patience=120

mount -t tmpfs -o size=400m tmpfs /tmp
cd /tmp
mkdir mnt names
for name in $(seq 0 999); do echo "$name" >names/f$name; done
touch log
mount -t fusectl none /sys/fs/fuse/connections
truncate -s 48M image
cffs mkfs -q image
cp image empty
if [ -e /sys/module/fuse/parameters/enable_uring ]; then
    transports="rings dev"
else
    transports=dev
fi

# Waits for a condition; returns 1 if it does not become true.
wait_until() { # COMMAND...
    local end=$(($(date +%s) + patience))
    until "$@"; do
        [ "$(date +%s)" -lt $end ] || return 1
        usleep 5000
    done
}

# All threads have ended. The first one of a process stays until the others have, and is a zombie then.
gone() { # PIDS...
    local pid task
    for pid in "$@"; do
        for task in /proc/$pid/task/*/status; do
            ! grep -q '^State:.[^Z]' "$task" 2>/dev/null || return 1
        done
    done
}

stuck() { # WHAT
    echo "FAILED: $1 (round $round: $what)"
    cat /tmp/log 2>/dev/null || true
    for task in $(pidof cffs); do
        echo "$task: $(cut -c1-120 /proc/$task/stat)"
    done
    for task in /proc/[0-9]*/task/*; do
        if grep -q '^State:.D' "$task/status" 2>/dev/null || grep -q fuse "$task/stack" 2>/dev/null; then
            echo "$task $(cat "$task/comm") $(sed -n 's/^State://p' "$task/status")"
            cat "$task/stack" || true
        fi
    done
    exit 1
}

# The machine continues without the servers.
check_machine() { # PIDS of servers and of processes killed with them
    wait_until gone "$@" || stuck "a killed process does not end"
    sync & local sync=$!
    wait_until gone $sync || stuck "sync(2) hangs"
    df >/tmp/df 2>/dev/null & local df=$!
    wait_until gone $df || stuck "df hangs"
    wait $sync || stuck "sync(1) fails"
    wait $df || true
}

is_mounted() {
    grep -q ' /tmp/mnt fuse' /proc/self/mounts
}

# In the machine's namespace the mount stays, and fails every call.
check_mount() {
    is_mounted || return 0
    local said
    said=$(stat -f mnt/f 2>&1) && stuck "the mount answers though its server is dead"
    case $said in
        *"not connected"*) ;;
        *) stuck "the mount says '$said'" ;;
    esac
    umount -l mnt
}

work() { # DIRECTORY: reads, writes, makes durable, lists and looks at the space
    (cd "$1" && while :; do echo x >"f$((RANDOM % 50))"; done) 2>/dev/null &
    (cd "$1" && while :; do cat f* >/dev/null; ls -l >/dev/null; done) 2>/dev/null &
    (cd "$1" && while :; do dd if=/dev/zero of=big bs=64k count=8 conv=fsync; rm big; done) 2>/dev/null &
    (cd "$1" && while :; do stat -f . >/dev/null; sync -f .; done) 2>/dev/null &
}

pause() { # MILLISECONDS: the maximum
    usleep $((RANDOM * $1 / 33))
}

servers() {
    pidof cffs || true
}

# The server is killed as soon as the kernel has the mount, or a few milliseconds later.
kill_at_mount() { # OPTIONS
    cffs mount -f -o "$1" image mnt >/dev/null 2>&1 &
    local server=$!
    until is_mounted; do
        kill -0 $server 2>/dev/null || break
    done
    [ $((round % 3)) = 0 ] || pause 15
    kill -9 $server 2>/dev/null || true
    check_machine $server
    check_mount
}

# A server with its users, in the machine's namespace.
kill_in_use() { # OPTIONS ORDER
    cffs mount -o "$1" image mnt >/dev/null 2>&1 || stuck "it does not mount"
    setsid sh -c ". /script.functions; work mnt; wait" &
    local users=$! all
    pause 200
    all=$(servers)
    kill_in_order "$2" "$all" "$users"
    check_machine $all
    kill -9 -- -$users 2>/dev/null || true
    check_mount
}

# A server in a mount namespace that ends with it.
kill_namespace() { # OPTIONS ORDER
    setsid unshare -m --propagation private sh -c "
        . /script.functions
        cffs mount -o $1 image mnt >/dev/null 2>&1
        touch /tmp/ready
        work mnt
        wait" &
    local users=$! all
    wait_until [ -e /tmp/ready ] || stuck "it does not mount"
    rm /tmp/ready
    pause 200
    all=$(servers)
    kill_in_order "$2" "$all" "$users"
    check_machine $all
    kill -9 -- -$users 2>/dev/null || true
}

# A container with a PID namespace, whose first process is killed, and with it all others.
kill_container() { # OPTIONS ORDER
    setsid unshare -m -p -f --propagation private sh -c "
        . /script.functions
        mount -t proc proc /proc
        cffs mount -o $1 image mnt >/dev/null 2>&1
        touch /tmp/ready
        work mnt
        wait" &
    local outside=$! all first
    wait_until [ -e /tmp/ready ] || stuck "it does not mount"
    rm /tmp/ready
    pause 200
    all=$(servers)
    first=$(cat /proc/$outside/task/$outside/children)
    kill -9 $first
    check_machine $all $first
}

# A server that notifies the kernel of changes, while callers have the locks that a notification takes. The
# monitor lives, and aborts the connection of a thread that waits for such a lock.
kill_notifying() { # OPTIONS
    rm image
    cp empty image
    cffs mount -o "$1,logfile=/tmp/log" image mnt >/dev/null 2>&1 || stuck "it does not mount"
    local all=$(servers) server users
    server=$(child_of $all)
    mkdir mnt/d
    # These start slowly, so the other programs begin when they have.
    setsid sh -c ". /script.functions
        cffs import -q mnt/d /tmp/names &
        cffs import -q mnt/d /tmp/names &
        wait_until has_names mnt/d
        work mnt/d
        while :; do ls -l mnt/d; done" >/dev/null 2>&1 &
    users=$!
    wait_until has_names mnt/d || stuck "no program attaches"
    pause 1000
    kill -9 "$server"
    check_machine $all
    kill -9 -- -$users 2>/dev/null || true
    check_mount
}

has_names() { # DIRECTORY
    ls "$1" | grep -q 00
}

# The one of the processes whose parent is one of them.
child_of() { # PIDS
    local pid parent
    for pid in "$@"; do
        parent=$(sed -n 's/^PPid:[^0-9]*//p' /proc/$pid/status)
        case " $* " in *" $parent "*) echo $pid ;; esac
    done
}

kill_in_order() { # ORDER SERVERS GROUP
    case $1 in
        servers-first) kill -9 $2; pause 300; kill -9 -- -$3 ;;
        users-first) kill -9 -- -$3; pause 300; kill -9 $2 ;;
        at-once) kill -9 $2 -$3 ;;
        all-of-them) kill -9 -1 ;;
        server-stopped) kill -STOP $2; pause 100; kill -9 $2; kill -9 -- -$3 ;;
    esac 2>/dev/null || true
}

# State that the processes of a round share with this one.
for function in work wait_until has_names; do
    sed -n "/^$function() {/,/^}/p" /script
done >/script.functions
echo "patience=$patience" >>/script.functions

round=0
while [ $round -lt "$rounds" ]; do
    for transport in $transports; do
        for type in auto no; do
            options=transport=$transport,fuseblk=$type
            for moment in $moments; do
                case $moment in
                    at_mount) orders=server ;;
                    container) orders=first ;;
                    notifying) orders=server ;;
                    *) orders="servers-first users-first at-once all-of-them server-stopped" ;;
                esac
                for order in $orders; do
                    round=$((round + 1))
                    what="$options $moment $order"
                    echo "$round: $what"
                    kill_$moment "$options" "$order"
                done
            done
        done
    done
done
echo "killed $round servers; monitors aborted $(grep -c 'aborted its' /tmp/log) connections"
