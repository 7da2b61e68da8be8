use super::is_kernel_thread;

#[test]
fn a_thread_of_the_kernel_is_known_by_its_flags() {
    assert!(is_kernel_thread("2 (kthreadd) S 0 0 0 0 -1 2129984 0 0 0 0 0 0 0 0 20 0 1 0 0 0"));
    // The second process of a container, under a name that misleads.
    assert!(!is_kernel_thread("2 (a) S 2129984) S 1 1 1 0 -1 4194560 0 0 0 0 0 0 0 0 20 0 1 0"));
    assert!(!is_kernel_thread("2 (sh) S 1"));
    assert!(!is_kernel_thread(""));
}
