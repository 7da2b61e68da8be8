//! Accessibility: the keyboard, screen readers and dark mode; and the page while something is wrong.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::driver::Browser;
use super::{RUN, Scene};

/// The focusable controls in page order; numbers them.
const CONTROLS: &str = "
    [...document.querySelectorAll('a[href], button, input, select, summary, [tabindex=\"0\"]')]
      .filter((one) => !one.disabled && one.checkVisibility({ visibilityProperty: true }))
      .map((one, number) => { one.dataset.number = number; return number; })";

/// Texts with too little contrast to their background, and all contrast ratios.
pub const CONTRASTS: &str = "(() => {
    const channels = (text) => text.match(/[\\d.]+/g).map(Number);
    const light = (rgb) => {
      const [r, g, b] = rgb.map((one) => one / 255)
        .map((one) => (one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4));
      return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const behind = (one) => {
      for (let at = one; at; at = at.parentElement) {
        const [r, g, b, a = 1] = channels(getComputedStyle(at).backgroundColor);
        if (a === 1) return [r, g, b];
      }
      return channels(getComputedStyle(document.documentElement).backgroundColor).slice(0, 3);
    };
    const texts = [...document.querySelectorAll('body *')].filter((one) =>
      [...one.childNodes].some((node) => node.nodeType === 3 && node.data.trim() !== '')
      && one.checkVisibility() && !one.disabled && one.tagName !== 'OPTION');
    return texts.map((one) => {
      const pair = [light(channels(getComputedStyle(one).color).slice(0, 3)), light(behind(one))];
      const ratio = (Math.max(...pair) + 0.05) / (Math.min(...pair) + 0.05);
      return [Math.round(ratio * 100) / 100, `${one.tagName} ${one.id}.${one.className}`];
    });
  })()";

fn open(scene: &Scene) -> Option<Browser> {
    let mut browser = Browser::open(&format!("http://{}/#{RUN}", scene.client.0))?;
    browser.wait_for("!document.getElementById('main').hidden");
    browser.wait_for("document.querySelector('#exports button:enabled') !== null");
    Some(browser)
}

#[test]
fn the_tab_key_reaches_every_control_in_order_and_shows_where_it_is() {
    let scene = Scene::new();
    let Some(mut browser) = open(&scene) else { return };
    let count = browser.value(CONTROLS).as_array().map_or(0, Vec::len);
    assert!(count > 20, "{count} controls");
    let mut visited = Vec::new();
    for _ in 0..count {
        browser.press("Tab");
        let at = browser.value(
            "(() => {
                const at = document.activeElement, style = getComputedStyle(at);
                const shown = style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 2;
                return [Number(at.dataset.number ?? -1), shown, at.outerHTML.slice(0, 90)];
            })()",
        );
        assert_eq!(at[1], true, "the focus is not to be seen: {at}");
        visited.push(at[0].as_i64().unwrap_or(-1));
    }
    let all: Vec<i64> = (0..count as i64).collect();
    assert_eq!(visited, all, "each control once, in the order of the page");
}

#[test]
fn an_export_can_be_removed_by_keyboard_and_only_after_confirmation() {
    let scene = Scene::new();
    let Some(mut browser) = open(&scene) else { return };
    let is_open = "document.getElementById('confirm').open";
    let at = |browser: &mut Browser| browser.value("document.activeElement.textContent");
    let exports = "document.querySelectorAll('#exports li').length";
    browser.value("document.querySelector('#exports button').focus()");
    browser.press("Enter");
    browser.wait_for(is_open);
    assert_eq!(at(&mut browser), "Keep it", "the harmless one comes first");
    let command = browser.value("document.getElementById('confirm-command').textContent");
    assert_eq!(command, "cffs serve --export-remove / /srv/secret.cffs");
    browser.press("Escape");
    browser.wait_for(&format!("!{is_open}"));
    assert_eq!(at(&mut browser), "Remove", "the focus comes back");
    browser.press("Enter");
    browser.wait_for(is_open);
    browser.press("Enter");
    browser.wait_for(&format!("!{is_open}"));
    // By now, an unintended removal would be visible.
    let samples = || scene.page.as_ref().map_or(0, cffs_web::Page::samples);
    let (seen, began) = (samples(), Instant::now());
    while samples() < seen + 2 {
        assert!(began.elapsed() < Duration::from_secs(30), "there are no samples");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(browser.value("document.getElementById('said').textContent"), "");
    assert_eq!(browser.value(exports), 1, "it was removed without a confirmation");
    browser.press("Enter");
    browser.wait_for(is_open);
    browser.press("Tab");
    assert_eq!(at(&mut browser), "Remove it");
    browser.press("Enter");
    browser.wait_for(&format!("{exports} === 0"));
    browser.wait_for("!document.getElementById('exports-none').hidden");
    assert_eq!(browser.value("document.activeElement.id"), "export", "the focus is lost");
}

/// The list is the server's; the page explains how to make an export permanent, and why one was refused.
#[test]
fn exports_are_added_on_the_page_with_instructions_to_make_them_permanent() {
    let scene = Scene::new();
    let Some(mut browser) = open(&scene) else { return };
    let text = |id: &str| format!("document.getElementById('{id}').textContent");
    assert_eq!(browser.value(&text("export-options")), "--export /:insecure");
    let enter = |browser: &mut Browser, export: &str| {
        browser.value(&format!(
            "document.getElementById('export').value = '{export}';
             document.getElementById('export-form').requestSubmit()"
        ));
    };
    enter(&mut browser, "/nothing");
    browser.wait_for(&format!("{}.startsWith('Not exported: /nothing: ')", text("export-error")));
    assert_eq!(browser.value("document.getElementById('export').value"), "/nothing");
    enter(&mut browser, "/:ro,192.0.2.0/24");
    browser.wait_for(&format!("{} === '--export /:ro,192.0.2.0/24'", text("export-options")));
    assert_eq!(browser.value(&text("export-error")), "");
    assert_eq!(
        browser.value(&text("exports")).as_str().map(|all| all.contains("192.0.2")),
        Some(true)
    );
    scene.client.post("export-remove", RUN, "{\"path\":\"/\"}");
    browser.wait_for(&format!("{} === 'none, and no --nfs'", text("export-options")));
}

#[test]
fn a_wrong_token_is_refused_with_a_message_and_the_right_one_opens_the_page() {
    let scene = Scene::new();
    let url = format!("http://{}/#wrong", scene.client.0);
    let Some(mut browser) = Browser::open(&url) else { return };
    let error = "document.getElementById('sign-in-error').textContent";
    browser.wait_for(&format!("{error} === 'Wrong token for this volume.'"));
    assert_eq!(browser.value("document.getElementById('sign-in-error').role"), "alert");
    assert_eq!(browser.value("document.getElementById('main').hidden"), true);
    assert_eq!(browser.value("document.getElementById('state').textContent"), "locked");
    assert_eq!(browser.value("document.activeElement.id"), "token", "one can type at once");
    assert_eq!(browser.value("document.body.textContent.includes('photos')"), false);
    assert_eq!(browser.value("location.hash"), "", "the token stays in the address bar");
    for (token, opens) in [("wrong again", false), (RUN, true)] {
        browser.value("document.getElementById('sign-in-error').textContent = ''");
        browser.value(&format!("document.getElementById('token').value = '{token}'"));
        browser.value("document.getElementById('token').focus()");
        browser.press("Enter");
        match opens {
            false => browser.wait_for(&format!("{error} !== ''")),
            true => browser.wait_for("!document.getElementById('main').hidden"),
        }
    }
    assert_eq!(browser.value("document.getElementById('sign-in').hidden"), true);
    // Clicked after the answer, since a page that is being unloaded could not send it any more.
    browser.value("void setTimeout(() => document.getElementById('sign-out').click())");
    browser.wait_for("document.getElementById('state')?.textContent === 'locked'");
    assert_eq!(browser.value("sessionStorage.getItem('token')"), Value::Null);
}

#[test]
fn a_screen_reader_gets_names_landmarks_and_changes() {
    let scene = Scene::new();
    let Some(mut browser) = open(&scene) else { return };
    let nodes = browser.roles_and_names();
    let unnamed = super::states::unnamed(&nodes);
    assert!(unnamed.is_empty(), "{unnamed:?}");
    let has = |role: &str, name: &str| nodes.iter().any(|(r, n)| r == role && n.contains(name));
    for (role, name) in [
        ("banner", ""),
        ("main", ""),
        ("contentinfo", ""),
        ("region", "At a glance"),
        ("region", "NFS: exports and clients"),
        ("button", "Remove the export /"),
        ("textbox", "Export a directory, with options"),
        ("combobox", "On corruption"),
        ("spinbutton", "Reserve in MiB"),
        ("progressbar", "Space in use"),
        ("status", ""),
    ] {
        assert!(has(role, name), "there is no {role} named {name}: {nodes:?}");
    }
    let live = browser.value(
        "['state', 'said', 'why', 'lost', 'export-error', 'snapshot-error', 'sign-in-error']
            .every((id) => ['status', 'alert'].includes(document.getElementById(id).role))",
    );
    assert_eq!(live, true, "something changes and is not announced");
}

/// Regression: it was one long column at all widths, with eight equal buttons.
#[test]
fn a_wide_page_has_two_columns_and_groups_of_actions() {
    let scene = Scene::new();
    let Some(mut browser) = open(&scene) else { return };
    let in_two_columns = "(() => {
        const [first, second] = [...document.querySelectorAll('.column')]
          .map((one) => one.getBoundingClientRect());
        return first.right <= second.left && first.top === second.top;
      })()";
    for (width, has_two) in [(1280, true), (390, false)] {
        browser.resize(width);
        assert_eq!(browser.value(in_two_columns), has_two, "{width} pixels wide");
    }
    let groups = "[...document.querySelectorAll('#actions ul')].map((one) =>
        [one.getAttribute('aria-label'), [...one.children].map((item) => item.id.slice(7)).join()])";
    let expected = json!([
        ["Change nothing", "sync,fsck,scrub"],
        ["Move or discard data", "regroup,trim"],
        ["Change settings of the volume", "label,errors,reserve"],
    ]);
    assert_eq!(browser.value(groups), expected);
}

#[test]
fn text_has_enough_contrast_in_light_and_in_dark() {
    let scene = Scene::new();
    let Some(mut browser) = open(&scene) else { return };
    let mut grounds = Vec::new();
    for scheme in ["light", "dark"] {
        browser.prefer(scheme);
        grounds.push(browser.value("getComputedStyle(document.body).backgroundColor"));
        let all = browser.value(CONTRASTS);
        let all = all.as_array().expect("texts");
        assert!(all.len() > 50, "{} texts", all.len());
        let faint: Vec<_> = all.iter().filter(|one| one[0].as_f64() < Some(4.5)).collect();
        assert!(faint.is_empty(), "{scheme}: {faint:?}");
    }
    assert_ne!(grounds[0], grounds[1], "dark looks as light does");
}

#[test]
fn fields_are_preset_to_the_volumes_state_so_that_submitting_changes_nothing() {
    let scene = Scene::new();
    let body = |text: Value| text.to_string();
    scene.client.post("reserve", RUN, &body(json!({ "reserve_bytes": 3 << 20 })));
    scene.client.post("errors", RUN, &body(json!({ "errors": "remount-ro" })));
    let before = scene.volume.writer().superblock.get();
    assert!(before.reserve.fragments > 0);
    let Some(mut browser) = open(&scene) else { return };
    browser.wait_for("document.getElementById('in-errors').value === 'remount-ro'");
    browser.wait_for("document.getElementById('in-reserve').value === '3'");
    for field in ["label", "errors", "reserve"] {
        browser.value("document.getElementById('said').textContent = ''");
        browser.value(&format!(
            "document.getElementById('in-{field}').closest('li').querySelector('button').click()"
        ));
        browser.wait_for("document.getElementById('said').textContent.startsWith('Begun')");
    }
    let after = scene.volume.writer().superblock.get();
    assert_eq!(after.label, before.label);
    assert_eq!((after.reserve, after.errors_policy), (before.reserve, before.errors_policy));
}

#[test]
fn a_latched_volume_and_an_unreachable_server_are_announced() {
    let mut scene = Scene::new();
    let Some(mut browser) = open(&scene) else { return };
    let text = |browser: &mut Browser, id: &str| {
        browser.value(&format!("document.getElementById('{id}').textContent"))
    };
    scene.volume.writer().distrust("the test says so");
    browser.wait_for("document.getElementById('state').textContent === 'latched'");
    assert_eq!(browser.value("document.getElementById('state').className"), "badge bad");
    assert_eq!(browser.value("document.getElementById('why').hidden"), false);
    let why = text(&mut browser, "why");
    assert!(why.as_str().is_some_and(|why| why.contains("the test says so")), "{why}");

    drop(scene.page.take());
    browser.wait_for("!document.getElementById('lost').hidden");
    assert_eq!(text(&mut browser, "state"), "not reached");
    assert_eq!(browser.value("document.getElementById('lost').role"), "alert");
}
