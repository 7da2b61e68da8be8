//! Figures and messages on the page, and the command shown for each action.

use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use tracing_subscriber::prelude::*;

use super::driver::Browser;
use super::{LOOK, RUN, Scene};
use cffs::format::superblock::Compression;
use cffs::mkfs::MkfsOptions;
use cffs::vfs::Caller;

fn open(scene: &Scene) -> Option<Browser> {
    let mut browser = Browser::open(&format!("http://{}/#{RUN}", scene.client.0))?;
    browser.wait_for("!document.getElementById('main').hidden");
    browser.wait_for("document.querySelector('#actions button:enabled') !== null");
    Some(browser)
}

fn text(id: &str) -> String {
    format!("document.getElementById('{id}').textContent")
}

/// Requests of ended operations stay in the figure of the last hour, but not in the current one.
#[test]
fn the_hour_keeps_what_now_forgets_and_memory_is_listed_by_kind() {
    let scene = Scene::new();
    let Some(mut browser) = open(&scene) else { return };
    let dir = scene.volume.lookup(cffs::units::InodeNo::ROOT, b"<img src=x onerror=alert(1)>");
    let dir = dir.expect("there").ino;
    for number in 0..200 {
        let name = format!("f{}", number % 40);
        let file = scene.volume.lookup(dir, name.as_bytes()).expect("there").ino;
        scene.volume.write(&Caller::ROOT, file, 0, &[1; 5000]).expect("written");
        scene.volume.release(file, 1);
        if number % 20 == 0 {
            scene.volume.sync().expect("synced");
        }
    }
    scene.volume.release(dir, 1);
    let hour = || scene.client.get("/api/v1/status", LOOK).json()["hour"].clone();
    while hour()["operations"].as_u64() < Some(400) {
        thread::sleep(Duration::from_millis(50));
    }
    browser.wait_for(&format!("{} === '–'", text("now-ratio")));
    let ratio = hour()["requests_per_operation"].as_f64().expect("operations");
    let shown = browser.value(&text("hour-ratio"));
    let shown: f64 = shown.as_str().and_then(|shown| shown.parse().ok()).expect("a number");
    assert!(ratio > 0.0 && (shown - ratio).abs() <= ratio / 20.0, "{shown} for {ratio}");
    assert_eq!(browser.value(&text("hour-name")), "last 1 minute");

    let memory = scene.client.get("/api/v1/status", LOOK).json()["stats"]["memory"].clone();
    let memory = memory.as_object().expect("kinds");
    let mut kinds: Vec<String> = memory
        .iter()
        .filter(|(_, kind)| kind.is_object())
        .map(|(name, _)| name.replace('_', " "))
        .collect();
    assert!(kinds.len() >= 3, "{kinds:?}");
    let rows = "[...document.querySelectorAll('#t-memory tbody tr')]
        .map((row) => [...row.cells].map((cell) => cell.textContent))";
    let rows: Vec<Vec<String>> = serde_json::from_value(browser.value(rows)).expect("rows");
    let mut shown: Vec<String> = rows.iter().map(|row| row[0].clone()).collect();
    kinds.sort();
    shown.sort();
    assert_eq!(shown, kinds);
    assert!(rows.iter().all(|row| row[1].ends_with('B')), "no size: {rows:?}");
    assert!(rows.iter().any(|row| row[2].ends_with('B')), "no limit: {rows:?}");
}

#[test]
fn a_volume_with_compressed_contents_shows_their_ratio() {
    let scene = Scene::new();
    let Some(mut browser) = open(&scene) else { return };
    browser.wait_for(&format!("{} === 'none'", text("compression")));
    let compression = Some(Compression::Zstd(1));
    let scene = Scene::of(MkfsOptions { compression, ..MkfsOptions::default() }, None);
    scene.volume.sync().expect("synced");
    let Some(mut browser) = open(&scene) else { return };
    browser.wait_for(&format!("{}.endsWith(' to 1')", text("compression")));
    let note = browser.value(&text("compression-note"));
    let note = note.as_str().expect("text");
    let told = &scene.client.get("/api/v1/status", LOOK).json()["stats"]["compression"];
    assert_eq!(told["clusters"], told["clusters_written"], "{told}");
    let [written, on_volume] =
        ["clusters_written", "clusters"].map(|name| told[name].as_u64().expect("counted"));
    assert!(written > 1 && note.contains(&format!("; {written} clusters written")), "{note}");
    assert!(note.ends_with(&format!(" {on_volume} on the volume")), "{note}");
}

#[test]
fn the_log_shows_the_messages_that_the_filter_lets_through() {
    let scene = Scene::new();
    let Some(mut browser) = open(&scene) else { return };
    let log = tracing_subscriber::registry().with(scene.log.clone());
    tracing::subscriber::with_default(log, || {
        tracing::debug!("a detail");
        tracing::info!("it begins");
        tracing::warn!("a slow disk");
        tracing::error!("a broken disk");
    });
    let filter = |browser: &mut Browser, field: &str, value: &str, expected: &[&str]| {
        browser.value(&format!(
            "document.getElementById('{field}').value = '{value}';
             document.getElementById('log-form').dispatchEvent(new Event('input'))"
        ));
        let levels = "[...document.querySelectorAll('#log li')].map((one) => one.className)";
        browser.wait_for(&format!("{levels}.join() === '{}'", expected.join(",")));
    };
    // It appears without a reload, the newest first.
    filter(&mut browser, "log-text", "", &["error", "warn", "info"]);
    filter(&mut browser, "level", "debug", &["error", "warn", "info", "debug"]);
    filter(&mut browser, "level", "error", &["error"]);
    filter(&mut browser, "level", "warn", &["error", "warn"]);
    filter(&mut browser, "log-text", "SLOW", &["warn"]);
    assert_eq!(browser.value("document.getElementById('log-empty').hidden"), true);
}

#[test]
fn each_action_shows_the_command_that_the_server_executes() {
    let scene = Scene::new();
    let Some(mut browser) = open(&scene) else { return };
    let begun = |browser: &mut Browser, name: &str, command: &Value| {
        let said = format!("Begun, as by: {}", command.as_str().expect("a command"));
        assert!(said.contains("cffs "), "{name}: {said}");
        browser.wait_for(&format!("{} === {}", text("said"), json!(said)));
    };
    let field = |browser: &mut Browser, id: &str, value: &str| {
        browser.value(&format!(
            "document.getElementById('{id}').value = {};
             document.getElementById('{id}').dispatchEvent(new Event('input'))",
            json!(value)
        ));
    };
    for (id, value) in [("label", "it's new"), ("errors", "remount-ro"), ("reserve", "2")] {
        field(&mut browser, &format!("in-{id}"), value);
    }
    let count = browser.value("document.querySelectorAll('#actions li').length");
    let mut asked = Vec::new();
    assert_eq!(count, 8, "an action more needs nothing here; one fewer is missing");
    for number in 0..8 {
        let item = format!("document.querySelectorAll('#actions li')[{number}]");
        browser.wait_for(&format!("!{item}.querySelector('button').disabled"));
        let command = browser.value(&format!("{item}.querySelector('code').textContent"));
        browser.value(&format!("{}=''", text("said")));
        browser.value(&format!("{item}.querySelector('button').click()"));
        // Actions that move or discard data need confirmation, and do nothing before it.
        if browser.value("document.getElementById('confirm').open") == true {
            asked.push(browser.value(&format!("{item}.id")));
            assert_eq!(browser.value(&text("confirm-command")), command);
            assert_eq!(browser.value(&text("said")), "");
            browser.value("document.getElementById('confirm-yes').click()");
        }
        begun(&mut browser, &format!("action {number}"), &command);
    }
    assert_eq!(asked, ["action-regroup", "action-trim"]);
    for (id, value) in [("export", "/:ro,192.0.2.0/24"), ("snapshot", "monday")] {
        field(&mut browser, id, value);
        let command = browser.value(&text(&format!("{id}-command")));
        browser.value(&format!("document.getElementById('{id}').form.requestSubmit()"));
        begun(&mut browser, id, &command);
    }
}
