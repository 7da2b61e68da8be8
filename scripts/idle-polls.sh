# Sourced by scripts that time calls to a server in user space.
#
# A virtual processor that has halted may take 70 µs to wake, ten times as long as a real one, and every
# call to such a server waits for that. So idle ones poll before they halt, as is the kernel's default, until
# the script that sources this ends.
halt_poll=/sys/module/haltpoll/parameters/guest_halt_poll_ns
if [[ -w $halt_poll ]]; then
    halt_poll_before=$(<"$halt_poll")
    trap 'echo "$halt_poll_before" >"$halt_poll"' EXIT
    echo 200000 >"$halt_poll"
fi
