//! Drives Chromium by its DevTools protocol over a pair of pipes: keys, colours, and the accessibility tree.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// How long to wait for a condition on the page.
const PATIENCE: Duration = Duration::from_secs(30);

/// A browser with one page open.
pub struct Browser {
    process: Child,
    commands: File,
    answers: BufReader<File>,
    session: Value,
    number: u64,
    _profile: tempfile::TempDir,
}

impl Browser {
    /// Opens the page at an address; `None` without chromium.
    pub fn open(url: &str) -> Option<Browser> {
        if !super::browser::has_chromium() {
            return None;
        }
        let profile = tempfile::tempdir().expect("a directory");
        let pipe = |name: &str| profile.path().join(name);
        let made = Command::new("mkfifo").args([pipe("commands"), pipe("answers")]).status();
        assert!(made.expect("run").success());
        // The protocol uses descriptors 3 and 4. The browser ends when the command pipe is closed.
        let process = Command::new("sh")
            .args(["-c", "exec timeout 120 chromium \"$@\" 3<\"$0/commands\" 4>\"$0/answers\""])
            .arg(profile.path())
            .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"])
            .args(["--remote-debugging-pipe", "--window-size=1000,900"])
            .arg(format!("--user-data-dir={}", pipe("profile").display()))
            .arg("about:blank")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("started");
        let open = |path: &Path, write| File::options().write(write).read(!write).open(path);
        let commands = open(&pipe("commands"), true).expect("opened");
        let answers = BufReader::new(open(&pipe("answers"), false).expect("opened"));
        let (session, number) = (Value::Null, 0);
        let mut browser =
            Browser { process, commands, answers, session, number, _profile: profile };
        let target = browser.call("Target.createTarget", json!({ "url": url }));
        let id = &target["targetId"];
        let attached = json!({ "targetId": id, "flatten": true });
        browser.session = browser.call("Target.attachToTarget", attached)["sessionId"].clone();
        browser.wait_until_loaded();
        Some(browser)
    }

    /// Until the page is loaded, expressions may have no context to be evaluated in.
    fn wait_until_loaded(&mut self) {
        self.wait_for("document.readyState === 'complete' && location.protocol === 'http:'");
    }

    /// Sends the browser a command, which must succeed, and returns its answer.
    pub fn call(&mut self, method: &str, parameters: Value) -> Value {
        self.try_call(method, parameters).unwrap_or_else(|error| panic!("{method}: {error}"))
    }

    fn try_call(&mut self, method: &str, parameters: Value) -> Result<Value, Value> {
        self.number += 1;
        let mut message = json!({ "id": self.number, "method": method, "params": parameters });
        if !self.session.is_null() {
            message["sessionId"] = self.session.clone();
        }
        let mut bytes = message.to_string().into_bytes();
        bytes.push(0);
        self.commands.write_all(&bytes).expect("sent");
        loop {
            let mut bytes = Vec::new();
            self.answers.read_until(0, &mut bytes).expect("read");
            assert_eq!(bytes.pop(), Some(0), "chromium has ended");
            let mut answer: Value = serde_json::from_slice(&bytes).expect("JSON");
            if answer["id"] == self.number {
                let error = answer["error"].take();
                return if error.is_null() { Ok(answer["result"].take()) } else { Err(error) };
            }
        }
    }

    /// The value of an expression on the page, awaited if it is a promise.
    pub fn value(&mut self, expression: &str) -> Value {
        let value = self.try_value(expression);
        value.unwrap_or_else(|error| panic!("{expression}: {error}"))
    }

    /// The same, or the browser's error while no page is loaded.
    fn try_value(&mut self, expression: &str) -> Result<Value, Value> {
        let asked =
            json!({ "expression": expression, "returnByValue": true, "awaitPromise": true });
        let mut answer = self.try_call("Runtime.evaluate", asked)?;
        assert!(answer["exceptionDetails"].is_null(), "{expression}: {answer}");
        Ok(answer["result"]["value"].take())
    }

    /// Role and name of every node in the accessibility tree.
    pub fn roles_and_names(&mut self) -> Vec<(String, String)> {
        let tree = self.call("Accessibility.getFullAXTree", json!({}));
        let text = |of: &Value| of["value"].as_str().unwrap_or_default().to_owned();
        let nodes = tree["nodes"].as_array().into_iter().flatten();
        let nodes = nodes.filter(|node| node["ignored"] != true);
        nodes.map(|node| (text(&node["role"]), text(&node["name"]))).collect()
    }

    /// Waits until an expression is true, on this page or on one that replaces it.
    pub fn wait_for(&mut self, expression: &str) {
        let began = Instant::now();
        loop {
            let value = self.try_value(expression);
            if value.as_ref().is_ok_and(|value| value == true) {
                return;
            }
            assert!(began.elapsed() < PATIENCE, "this did not come: {expression}: {value:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Presses and releases a key.
    pub fn press(&mut self, key: &str) {
        let (code, text) = match key {
            "Tab" => (9, ""),
            "Enter" => (13, "\r"),
            "Escape" => (27, ""),
            other => panic!("the test does not know {other}"),
        };
        for kind in ["keyDown", "keyUp"] {
            let mut event =
                json!({ "type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code });
            if kind == "keyDown" && !text.is_empty() {
                event["text"] = text.into();
            }
            self.call("Input.dispatchKeyEvent", event);
        }
    }

    /// Sets the preferred colour scheme.
    pub fn prefer(&mut self, scheme: &str) {
        let feature = json!([{ "name": "prefers-color-scheme", "value": scheme }]);
        self.call("Emulation.setEmulatedMedia", json!({ "features": feature }));
    }
}

impl Browser {
    /// Sets the width of the page in CSS pixels, as on a telephone.
    pub fn resize(&mut self, width: u32) {
        let metrics =
            json!({ "width": width, "height": 900, "deviceScaleFactor": 1, "mobile": false });
        self.call("Emulation.setDeviceMetricsOverride", metrics);
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
