//! The page in Debian's chromium. Without chromium these tests print that and pass.

use std::path::Path;
use std::process::{Command, Stdio};

use super::{LOOK, RUN, Scene};

/// Whether chromium is installed; prints a line if not.
pub fn has_chromium() -> bool {
    let found = Command::new("chromium").arg("--version").stdout(Stdio::null()).status();
    if found.is_err() {
        eprintln!("not run: chromium is not installed (package chromium)");
    }
    found.is_ok()
}

/// The page after some seconds of virtual time, and the browser's messages.
fn shown(scene: &Scene, end: &str) -> (String, String) {
    let profile = tempfile::tempdir().expect("a directory");
    let run = |path: &Path| {
        Command::new("timeout")
            .args(["60", "chromium", "--headless", "--no-sandbox", "--disable-gpu"])
            .args(["--disable-dev-shm-usage", "--enable-logging=stderr", "--dump-dom"])
            .arg("--virtual-time-budget=3000")
            .arg(format!("--user-data-dir={}", path.display()))
            .arg(format!("http://{}/{end}", scene.client.0))
            .output()
    };
    let output = run(profile.path()).expect("run");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

/// Checks for script errors and violations of the content security policy.
fn assert_quiet(complaints: &str) {
    let of_page: Vec<&str> = complaints.lines().filter(|line| line.contains("CONSOLE")).collect();
    assert!(of_page.is_empty(), "{of_page:#?}");
}

#[test]
fn figures_and_a_layout_appear_and_names_stay_text() {
    if !has_chromium() {
        return;
    }
    let scene = Scene::new();
    let (page, complaints) = shown(&scene, &format!("#{RUN}/"));
    assert_quiet(&complaints);
    for text in [
        "<title>photos: in use</title>",
        "<span class=\"word\">--label</span> <span class=\"word\">photos</span>",
        "40 files in ",
        "&lt;img src=x onerror=alert(1)&gt;",
        "Layout on the device. 40 files",
    ] {
        assert!(page.contains(text), "there is no {text}: {page}");
    }
    assert!(page.contains("MiB free"), "{page}");
    assert!(!page.contains("<img src=x"), "a name became a part of the page: {page}");
    assert!(!page.contains(RUN), "the token is in the page: {page}");
}

#[test]
fn the_viewing_token_disables_actions_and_without_a_token_the_page_asks_for_one() {
    if !has_chromium() {
        return;
    }
    let scene = Scene::new();
    let (page, complaints) = shown(&scene, &format!("#{LOOK}"));
    assert_quiet(&complaints);
    assert!(page.contains("<p id=\"look-only\" class=\"notice\">"), "{page}");
    assert!(page.contains("<button type=\"button\" disabled=\"\">Sync</button>"), "{page}");
    let (page, _) = shown(&scene, "");
    assert!(page.contains("<main id=\"sign-in\">"), "{page}");
    assert!(page.contains("<main id=\"main\" tabindex=\"-1\" hidden=\"\">"), "{page}");
    let (page, _) = shown(&scene, "#wrong");
    assert!(page.contains("Wrong token for this volume."), "{page}");
}
