use super::is_kernel_thread;

#[test]
fn a_kernel_thread_is_recognised_by_its_flags() {
    assert!(is_kernel_thread("2 (kthreadd) S 0 0 0 0 -1 2129984 0 0 0 0 0 0 0 0 20 0 1 0 0 0"));
    // The second process of a container, with a misleading name.
    assert!(!is_kernel_thread("2 (a) S 2129984) S 1 1 1 0 -1 4194560 0 0 0 0 0 0 0 0 20 0 1 0"));
    assert!(!is_kernel_thread("2 (sh) S 1"));
    assert!(!is_kernel_thread(""));
}
