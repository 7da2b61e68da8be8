use super::has_sigkill;

#[test]
fn a_killed_thread_is_recognised_by_its_pending_signals() {
    assert!(has_sigkill("Name:\tcat\nSigPnd:\t0000000000000100\nShdPnd:\t0000000000000000\n"));
    assert!(has_sigkill("Name:\tcat\nSigPnd:\t0000000000000000\nShdPnd:\t0000000000004102\n"));
    // SIGTERM for a program that handles it, and blocked signals.
    assert!(!has_sigkill(
        "SigPnd:\t0000000000004000\nShdPnd:\t0000000000000000\nSigBlk:\t0000000000000100\n"
    ));
    assert!(!has_sigkill(""));
}
