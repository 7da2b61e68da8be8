//! Compares answers with `openapi.json` and with the output of commands.

use std::io::{BufRead, BufReader, Write};
use std::thread;
use std::time::Duration;

use cffs::format::superblock::ErrorsPolicy;
use serde_json::Value;

use super::client::Client;
use super::{LOOK, RUN, Scene};

const SPECIFICATION: &str = include_str!("../../page/openapi.json");

/// Checks a value against the subset of JSON Schema that the specification uses.
fn conforms(spec: &Value, schema: &Value, value: &Value, place: &str) {
    if let Some(name) = schema["$ref"].as_str() {
        let schema = spec.pointer(name.trim_start_matches('#')).expect("the referenced schema");
        return conforms(spec, schema, value, place);
    }
    if let Some(allowed) = schema["enum"].as_array() {
        assert!(allowed.contains(value), "{place}: {value} is none of {allowed:?}");
    }
    let is_of = |kind: &str| match kind {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "boolean" => value.is_boolean(),
        "string" => value.is_string(),
        "integer" => value.is_u64(),
        "number" => value.is_number(),
        "null" => value.is_null(),
        other => panic!("{place}: the test does not know {other}"),
    };
    match &schema["type"] {
        Value::String(kind) => assert!(is_of(kind), "{place}: {value} is no {kind}"),
        Value::Array(kinds) => {
            assert!(kinds.iter().any(|kind| is_of(kind.as_str().unwrap_or(""))), "{place}")
        }
        _ => {}
    }
    for name in schema["required"].as_array().into_iter().flatten() {
        let name = name.as_str().expect("a name");
        assert!(value.get(name).is_some(), "{place}: there is no {name}");
    }
    for (name, schema) in schema["properties"].as_object().into_iter().flatten() {
        if let Some(value) = value.get(name) {
            conforms(spec, schema, value, &format!("{place}.{name}"));
        }
    }
    for item in value.as_array().into_iter().flatten().filter(|_| schema["items"].is_object()) {
        conforms(spec, &schema["items"], item, place);
    }
}

#[test]
fn every_path_of_the_specification_is_answered_as_specified() {
    let scene = Scene::new();
    let spec: Value = serde_json::from_str(SPECIFICATION).expect("JSON");
    let served = scene.client.request("GET /api/v1/openapi.json", "", "");
    assert_eq!(served.json(), spec);
    let paths = spec["paths"].as_object().expect("paths");
    assert_eq!(paths.len(), 10, "a path more needs a line in this test");
    for (path, methods) in paths {
        if path == "/api/v1/events" || methods["get"].is_null() {
            continue;
        }
        let asked = if path.contains("layout") { format!("{path}?path=/") } else { path.clone() };
        let answer = scene.client.get(&asked, RUN);
        assert_eq!(answer.status, 200, "{path}: {answer:?}");
        let content = methods["get"]["responses"]["200"]["content"].as_object().expect("a content");
        let (kind, form) = content.iter().next().expect("one form");
        assert!(answer.head.contains(&format!("content-type: {kind}")), "{path}: {answer:?}");
        for token in [LOOK, RUN] {
            let answer = scene.client.get(&asked, token);
            let may_have_paths =
                token == RUN && ["/api/v1/role", "/metrics"].contains(&path.as_str());
            let has_paths = answer.body.contains("/srv/secret");
            assert_eq!(has_paths, may_have_paths, "{path}, paths of the host: {answer:?}");
        }
        if kind == "application/json" {
            conforms(&spec, &form["schema"], &answer.json(), path);
        }
    }
    let actions = &paths["/api/v1/actions/{action}"]["post"]["parameters"][0]["schema"]["enum"];
    for action in actions.as_array().expect("actions") {
        let action = action.as_str().expect("a name");
        let body = r#"{"label": "holidays", "errors": "continue", "reserve_bytes": 4096,
            "export": "/:ro", "path": "/", "name": "v1"}"#;
        let answer = scene.client.post(action, RUN, body);
        assert_eq!(answer.status, 202, "{action}: {answer:?}");
        assert!(answer.json()["command"].as_str().is_some_and(|line| !line.is_empty()));
    }
}

/// Waits until the status meets a condition, and returns it.
fn wait_for(client: Client, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
    for _ in 0..300 {
        let status = client.get("/api/v1/status", LOOK).json();
        if is_so(&status) {
            return status;
        }
        thread::sleep(Duration::from_millis(100));
    }
    panic!("this did not come: {what}");
}

#[test]
fn figures_are_those_of_the_volume_and_actions_have_their_effect() {
    let scene = Scene::new();
    let status = scene.client.get("/api/v1/status", LOOK).json();
    assert_eq!(status["volume"]["label"], "photos");
    assert_eq!(status["stats"]["calls"]["writes"], scene.volume.stats().writes);
    let before = scene.volume.stats();
    assert!(before.dirty_bytes > 100_000, "there was nothing to make durable");

    scene.client.post("sync", RUN, "{}");
    wait_for(scene.client, "a sync", |status| status["jobs"]["sync"]["stage"] == "done");
    let after = scene.volume.stats();
    assert!(after.dirty_bytes < 10_000 && after.device_syncs > before.device_syncs);
    scene.client.post("fsck", RUN, "{\"contents\":true}");
    let status = wait_for(scene.client, "a check", |s| s["jobs"]["fsck"]["stage"] == "done");
    assert_eq!(status["jobs"]["fsck"]["report"]["problem_count"], 0);
    assert_eq!(status["jobs"]["fsck"]["report"]["inodes"], 41);
    scene.client.post("scrub", RUN, "{\"bytes_per_second\":0}");
    let status = wait_for(scene.client, "a scrub", |s| s["jobs"]["scrub"]["stage"] == "done");
    assert_eq!(status["jobs"]["scrub"]["problem_count"], 0);
    scene.client.post("trim", RUN, "{}");
    let status = wait_for(scene.client, "a trim", |s| s["jobs"]["trim"]["stage"] == "done");
    assert!(status["jobs"]["trim"]["trimmed_bytes"].as_u64() > Some(1 << 20), "{status}");
    scene.client.post("regroup", RUN, "{\"path\":\"/\"}");
    let status =
        wait_for(scene.client, "a regrouping", |s| s["jobs"]["regroup"]["stage"] == "done");
    assert_eq!(status["jobs"]["regroup"]["files"], 40);
    scene.client.post("label", RUN, "{\"label\":\"it's new\"}");
    assert_eq!(scene.volume.writer().superblock.get().label, b"it's new");

    scene.client.post("errors", RUN, "{\"errors\":\"remount-ro\"}");
    scene.client.post("reserve", RUN, "{\"reserve_bytes\":1048576}");
    let superblock = scene.volume.writer().superblock.get();
    assert_eq!(superblock.errors_policy, ErrorsPolicy::RemountReadOnly);
    assert_eq!(superblock.reserve.fragments * u64::from(superblock.fragment_bytes), 1 << 20);
    let too_much = format!("{{\"reserve_bytes\":{}}}", u64::MAX);
    assert_eq!(scene.client.post("reserve", RUN, &too_much).status, 422);

    let tree = scene.client.get("/api/v1/layout?path=/", RUN).json();
    assert_eq!(tree["tree"]["totals"]["files"], 40);
    let file = "/api/v1/layout?path=/%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E/f7";
    assert_eq!(scene.client.get(file, RUN).json()["file"]["pieces"], 1);
    let metrics = scene.client.get("/metrics", LOOK).body;
    assert_eq!(metrics.lines().next(), Some("# 40 \"relatime\""));
    // Only full control shows paths, as the metrics of cffs stats do.
    assert!(!metrics.contains("secret"), "{metrics}");
    let with_paths = scene.client.get("/metrics", RUN).body;
    assert!(with_paths.contains("/srv/secret.cffs"), "{with_paths}");
}

#[test]
fn exports_and_clients_are_shown_and_changed_with_full_control_only() {
    let scene = Scene::new();
    let nfs = std::net::TcpStream::connect(scene.nfs_address).expect("connected");
    wait_for(scene.client, "a client", |status| {
        status["nfs"]["clients"][0]["address"] == "127.0.0.1"
    });
    drop(nfs);
    wait_for(scene.client, "its end", |status| status["nfs"]["clients"] == serde_json::json!([]));

    let add = "{\"export\":\"/:ro,192.0.2.0/24\"}";
    assert_eq!(scene.client.post("export-add", LOOK, add).status, 403);
    assert_eq!(scene.client.post("export-add", RUN, add).status, 202);
    let status = wait_for(scene.client, "an export", |status| {
        status["nfs"]["exports"][0]["export"] == "/:ro,192.0.2.0/24"
    });
    assert_eq!(status["nfs"]["exports"][0]["clients"], serde_json::json!(["192.0.2.0/24"]));
    let refused = scene.client.post("export-add", RUN, "{\"export\":\"/nothing\"}");
    assert_eq!(refused.status, 422, "{refused:?}");
    let why = refused.json()["error"].as_str().map(str::to_owned).expect("a reason");
    assert!(why.starts_with("/nothing: no such file"), "{why}");
    wait_for(scene.client, "the refusal", |status| status["nfs"]["refusal"] == why.as_str());
    assert_eq!(scene.client.post("export-remove", RUN, "{\"path\":\"/\"}").status, 202);
    let again = scene.client.post("export-remove", RUN, "{\"path\":\"/\"}");
    assert_eq!((again.status, again.json()["error"].as_str()), (422, Some("/ is not exported")));
    wait_for(scene.client, "no export", |status| status["nfs"]["exports"] == serde_json::json!([]));
}

#[test]
fn snapshots_of_the_durable_state_are_listed_and_removed_with_full_control() {
    let scene = Scene::new();
    assert!(scene.volume.stats().dirty_bytes > 100_000, "there was nothing to make durable");
    let named = "{\"name\":\"before-2\"}";
    assert_eq!(scene.client.post("snapshot-create", LOOK, named).status, 403);
    assert_eq!(scene.client.get("/api/v1/snapshots", LOOK).status, 403);
    assert_eq!(scene.client.post("snapshot-create", RUN, named).status, 202);
    assert!(scene.volume.stats().dirty_bytes < 10_000, "the changes are not in it");
    let again = scene.client.post("snapshot-create", RUN, named);
    assert_eq!(again.status, 409, "{again:?}");
    let listed = || scene.client.get("/api/v1/snapshots", RUN).json()["snapshots"].clone();
    assert_eq!(listed()[0]["name"], "before-2");
    for name in ["", "a/b", "../x", "a@b", "a b", &"x".repeat(129)] {
        for action in ["snapshot-create", "snapshot-remove"] {
            let body = serde_json::json!({ "name": name }).to_string();
            assert_eq!(scene.client.post(action, RUN, &body).status, 422, "{name}");
        }
    }
    assert_eq!(scene.client.post("snapshot-remove", RUN, named).status, 202);
    assert_eq!(listed(), serde_json::json!([]));
}

#[test]
fn fifty_browsers_cost_the_volume_as_much_as_one() {
    let scene = Scene::new();
    let request = format!(
        "GET /api/v1/events HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {LOOK}\r\n\r\n",
        scene.client.0
    );
    let before = scene.page.as_ref().expect("a page").samples();
    let calls = scene.volume.stats().lookups;
    let browsers: Vec<_> = (0..50)
        .map(|_| {
            let mut stream = scene.client.connect();
            stream.write_all(request.as_bytes()).expect("sent");
            thread::spawn(move || {
                let lines = BufReader::new(stream).lines().map_while(Result::ok);
                lines.filter(|line| line.starts_with("data: ")).take(3).count()
            })
        })
        .collect();
    let seen: Vec<usize> =
        browsers.into_iter().map(|browser| browser.join().expect("read")).collect();
    assert_eq!(seen, [3; 50], "each browser gets every snapshot");
    // The first event is the latest snapshot; the others are new: one a second, for all browsers
    // together.
    let samples = scene.page.as_ref().expect("a page").samples() - before;
    assert!((2..50).contains(&samples), "{samples} samples for 150 events");
    assert_eq!(scene.volume.stats().lookups, calls, "a sample is no operation of the volume");
}

#[test]
fn the_log_is_filtered_and_names_no_path_of_the_host() {
    let scene = Scene::new();
    scene.log.hide("/srv/secret.cffs", "IMAGE");
    use tracing_subscriber::prelude::*;
    tracing::subscriber::with_default(
        tracing_subscriber::registry().with(scene.log.clone()),
        || {
            tracing::info!("quiet");
            tracing::error!("reading /srv/secret.cffs failed");
        },
    );
    let all = scene.client.get("/api/v1/log", LOOK).json();
    assert_eq!(all["newest"], 2);
    let grave = scene.client.get("/api/v1/log?level=warn&text=READING", LOOK).json();
    assert_eq!(grave["messages"][0]["text"], "reading IMAGE failed");
    assert_eq!(grave["messages"].as_array().map(Vec::len), Some(1));
    assert_eq!(scene.client.get("/api/v1/log?level=loud", LOOK).status, 422);
}
