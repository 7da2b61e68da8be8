//! Checks every state of the page, including empty and failed ones, against the rules of WCAG 2.2 (AA) that a
//! program can check: names, references, headings, sizes of controls, contrasts in light and in dark, and no
//! horizontal scrolling at 320 pixels. axe-core checks each state as well, if scripts/setup.sh could fetch
//! it.

use std::path::Path;

use serde_json::{Value, json};

use super::driver::Browser;
use super::{LOOK, RUN, Scene};

/// The width from which on no horizontal scrolling may be needed (1.4.10).
const NARROW: u32 = 320;
const WIDE: u32 = 1200;

/// The faults of the current page, in words. The numbers are those of the success criteria.
const AUDIT: &str = r#"(() => {
    const wrong = [];
    const all = [...document.querySelectorAll("*")];
    const seen = (one) => one.checkVisibility({ visibilityProperty: true });
    const say = (criterion, one) => wrong.push(`${criterion}: ${one.outerHTML.slice(0, 120)}`);
    const ids = all.map((one) => one.id).filter((id) => id !== "");
    for (const id of new Set(ids.filter((id, at) => ids.indexOf(id) !== at))) wrong.push(`twice: #${id}`);
    for (const one of all) {
      for (const name of ["for", "aria-labelledby", "aria-describedby", "aria-controls"]) {
        for (const id of (one.getAttribute(name) ?? "").split(" ").filter((id) => id !== "")) {
          if (document.getElementById(id) === null) say(`1.3.1 ${name} leads nowhere`, one);
        }
      }
      if (one.tabIndex > 0) say("2.4.3 an order of its own", one);
      if (one.tagName === "IMG" && !one.hasAttribute("alt")) say("1.1.1 no text", one);
    }
    const dialog = document.querySelector("dialog[open]");
    let level = dialog ? 1 : 0;
    for (const one of (dialog ?? document).querySelectorAll("h1, h2, h3, h4")) {
      if (!seen(one)) continue;
      if (Number(one.tagName[1]) > level + 1) say("1.3.1 a level of headings is missing", one);
      level = Number(one.tagName[1]);
    }
    if (!document.documentElement.lang) wrong.push("3.1.1 no language");
    if (document.title === "") wrong.push("2.4.2 no title");
    for (const one of document.querySelectorAll("button, input, select, summary")) {
      const { width, height } = one.getBoundingClientRect();
      if (seen(one) && (width < 24 || height < 24)) say(`2.5.8 ${width} x ${height}`, one);
    }
    for (const one of document.querySelectorAll(".word")) {
      if (one.textContent.length < 20 && one.offsetHeight > 36) say("a word of a command is broken", one);
    }
    const wide = document.documentElement.scrollWidth;
    if (wide > innerWidth) {
      wrong.push(`1.4.10 ${wide} pixels in ${innerWidth}`);
      for (const one of all) if (one.getBoundingClientRect().right > innerWidth) say("there", one);
    }
    return wrong;
  })()"#;

/// The roles that require a name (4.1.2).
const NAMED: [&str; 11] = [
    "button",
    "textbox",
    "searchbox",
    "combobox",
    "spinbutton",
    "progressbar",
    "region",
    "link",
    "image",
    "list",
    "dialog",
];

/// The nodes that lack a required name.
pub fn unnamed(nodes: &[(String, String)]) -> Vec<(String, String)> {
    let is_unnamed =
        |(role, name): &&(String, String)| NAMED.contains(&role.as_str()) && name.trim().is_empty();
    nodes.iter().filter(is_unnamed).cloned().collect()
}

/// Runs axe-core on the page, and returns the violations. All its rules are on, including best practices;
/// rules that need a human decision are not counted.
fn broken_rules(browser: &mut Browser) -> Value {
    let axe = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../target/tools/axe/axe_playwright_python/axe.min.js");
    let Ok(script) = std::fs::read_to_string(axe) else {
        eprintln!("not run: there is no axe-core (scripts/setup.sh fetches it)");
        return json!([]);
    };
    browser.value(&format!("if (!window.axe) {{ {script} }}; 0"));
    let report = browser.value(
        "axe.run(document, { resultTypes: ['violations'] }).then((report) => ({
           rules: report.passes.length,
           broken: report.violations.map(({ id, help, nodes }) =>
             [id, help, nodes.slice(0, 3).map((node) => node.html.slice(0, 120))]),
         }))",
    );
    assert!(report["rules"].as_u64() > Some(10), "axe-core looked at little: {report}");
    report["broken"].clone()
}

/// Checks the current page against the criteria.
fn audit(browser: &mut Browser, state: &str) {
    for (width, scheme) in [(NARROW, "light"), (WIDE, "dark"), (WIDE, "light")] {
        browser.resize(width);
        browser.prefer(scheme);
        let at = format!("{state}, {scheme}, {width} pixels wide");
        assert_eq!(browser.value(AUDIT), json!([]), "{at}");
        assert_eq!(broken_rules(browser), json!([]), "axe-core: {at}");
        if width == NARROW {
            continue;
        }
        let texts = browser.value(super::people::CONTRASTS);
        let texts = texts.as_array().expect("texts");
        assert!(!texts.is_empty(), "{at}: nothing is to be read");
        let faint: Vec<_> = texts.iter().filter(|text| text[0].as_f64() < Some(4.5)).collect();
        assert!(faint.is_empty(), "1.4.3 {at}: {faint:?}");
    }
    let unnamed = unnamed(&browser.roles_and_names());
    assert!(unnamed.is_empty(), "4.1.2 {state}: {unnamed:?}");
}

fn has_text(id: &str, text: &str) -> String {
    format!("document.getElementById('{id}').textContent.includes({})", json!(text))
}

#[test]
fn without_a_token_with_a_wrong_one_and_with_the_viewing_token() {
    let scene = Scene::new();
    let Some(mut browser) = Browser::open(&format!("http://{}/", scene.client.0)) else { return };
    browser.wait_for("!document.getElementById('sign-in').hidden");
    audit(&mut browser, "no token");
    let submit = |browser: &mut Browser, token: &str| {
        browser.value(&format!(
            "document.getElementById('token').value = '{token}';
             document.getElementById('sign-in-form').requestSubmit()"
        ));
    };
    submit(&mut browser, "wrong");
    browser.wait_for(&has_text("sign-in-error", "Wrong token"));
    audit(&mut browser, "a wrong token");
    submit(&mut browser, LOOK);
    browser.wait_for("!document.getElementById('look-only').hidden");
    browser.wait_for("document.querySelector('#actions button:disabled') !== null");
    audit(&mut browser, "the token for looking");
}

fn open(scene: &Scene) -> Option<Browser> {
    let mut browser = Browser::open(&format!("http://{}/#{RUN}", scene.client.0))?;
    browser.wait_for("!document.getElementById('main').hidden");
    browser.wait_for("document.querySelector('#exports button:enabled') !== null");
    browser.value("document.querySelectorAll('details').forEach((one) => { one.open = true; })");
    Some(browser)
}

#[test]
fn with_results_errors_and_empty_lists() {
    let scene = Scene::new();
    let Some(mut browser) = open(&scene) else { return };
    audit(&mut browser, "opened, with all details");
    let press = |browser: &mut Browser, button: &str| {
        browser.value(&format!("document.querySelector('{button}').click()"));
    };
    for (action, result) in [("fsck", "no problem."), ("scrub", "no problem.")] {
        press(&mut browser, &format!("#action-{action} button"));
        browser.wait_for(&has_text(&format!("action-{action}"), result));
    }
    press(&mut browser, "#action-regroup button");
    browser.wait_for("document.getElementById('confirm').open");
    audit(&mut browser, "asked to confirm a regrouping");
    press(&mut browser, "#confirm-yes");
    browser.wait_for(&has_text("action-regroup", "none scattered."));
    audit(&mut browser, "with results");
    press(&mut browser, "#exports button");
    browser.wait_for("document.getElementById('confirm').open");
    audit(&mut browser, "asked to confirm");
    press(&mut browser, "#confirm-yes");
    browser.wait_for("!document.getElementById('exports-none').hidden");
    audit(&mut browser, "nothing exported");
    let enter = |browser: &mut Browser, field: &str, text: &str| {
        browser.value(&format!(
            "document.getElementById('{field}').value = {};
             document.getElementById('{field}').form.requestSubmit()",
            json!(text)
        ));
    };
    let long = format!("/a-name-that-is-longer-than-the-page-is-wide-{}", "x".repeat(80));
    enter(&mut browser, "export", &long);
    browser.wait_for(&has_text("export-error", "Not exported: "));
    // Regression: it was shown above the actions as well.
    assert_eq!(browser.value("document.getElementById('said').textContent"), "");
    enter(&mut browser, "snapshot", &"n".repeat(120));
    browser.wait_for("document.querySelector('#snapshot-list li') !== null");
    enter(&mut browser, "snapshot", &"n".repeat(120));
    browser.wait_for(&has_text("snapshot-error", "Not done: version "));
    press(&mut browser, "#snapshot-list button");
    browser.wait_for("document.getElementById('confirm').open");
    audit(&mut browser, "asked to confirm for a long name");
    press(&mut browser, "#confirm button[value=no]");
    enter(&mut browser, "path", &long);
    browser.wait_for(&has_text("layout", "It cannot be shown: "));
    browser.value(
        "document.getElementById('log-text').value = 'nothing has this';
         document.getElementById('log-form').dispatchEvent(new Event('input'))",
    );
    browser.wait_for("!document.getElementById('log-empty').hidden");
    audit(&mut browser, "with errors, long names and no messages");
}

#[test]
fn with_the_layout_of_a_tree_and_of_a_file() {
    let scene = Scene::new();
    let Some(mut browser) = open(&scene) else { return };
    let enter = |browser: &mut Browser, path: &str| {
        browser.value(&format!(
            "document.getElementById('path').value = {};
             document.getElementById('layout-form').requestSubmit()",
            json!(path)
        ));
    };
    enter(&mut browser, "/");
    browser.wait_for("document.querySelector('#layout details') !== null");
    browser.value("document.querySelector('#layout details').open = true");
    audit(&mut browser, "the layout of a tree");
    let words = browser.value("document.getElementById('layout').textContent");
    assert!(words.as_str().is_some_and(|words| words.contains("40 files in ")), "{words}");
    enter(&mut browser, "/<img src=x onerror=alert(1)>/f1");
    browser.wait_for(&has_text("layout", "Inode "));
    audit(&mut browser, "the layout of a file");
    // Regression: one was shown as "1 pieces".
    let words = browser.value("document.getElementById('layout').textContent");
    assert!(
        words.as_str().is_some_and(|words| words.contains(", 1 piece in 2 segments; ")),
        "{words}"
    );
}

#[test]
fn latched_and_then_without_its_server() {
    let mut scene = Scene::new();
    let Some(mut browser) = open(&scene) else { return };
    scene.volume.writer().distrust("the test says so");
    browser.wait_for(&has_text("state", "latched"));
    audit(&mut browser, "latched");
    drop(scene.page.take());
    browser.wait_for("!document.getElementById('lost').hidden");
    audit(&mut browser, "no server");
}
