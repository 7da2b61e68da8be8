//! Small manifests that break the order, and their findings.

use super::*;

fn findings(path: &str, text: &str) -> Vec<String> {
    let mut tree = Tree::default();
    tree.files.insert(path.into(), text.to_owned());
    check(&tree).iter().map(ToString::to_string).collect()
}

fn manifest(name: &str, dependencies: &str) -> Vec<String> {
    let text = format!("[package]\nname = \"{name}\"\n\n{dependencies}");
    let (folder, ..) =
        crates().find(|&(_, known, _)| known == name).expect("a crate of the workspace");
    findings(format!("{folder}/{name}/Cargo.toml").trim_start_matches('/'), &text)
}

#[test]
fn an_upward_dependency_is_found_where_it_stands() {
    assert_eq!(
        manifest("fuse-ring", "[dependencies]\nlibc = \"1\"\ncffs.workspace = true\n"),
        ["libs/fuse-ring/Cargo.toml:6: fuse-ring depends on cffs, but it may only use no other \
          crate of the workspace"]
    );
    assert_eq!(
        manifest("cffs-cli", "[dependencies]\nfuse-ring = { workspace = true }\n"),
        ["bin/cffs-cli/Cargo.toml:5: cffs-cli depends on fuse-ring, but it may only use cffs, \
          cffs-object, cffs-serve, cffs-web, man-page, mount-list, tar-wire"]
    );
}

#[test]
fn dependencies_of_every_kind_count() {
    for dependencies in [
        "[dependencies.cffs-serve]\nworkspace = true",
        "[dev-dependencies]\ncffs-serve.workspace = true",
        "[build-dependencies]\ncffs-serve.workspace = true",
        "[target.'cfg(unix)'.dependencies]\ncffs-serve.workspace = true",
        "[dependencies]\nserve = { package = \"cffs-serve\", path = \"../cffs-serve\" }",
    ] {
        assert_eq!(manifest("cffs", dependencies).len(), 1, "{dependencies}");
    }
}

#[test]
fn nothing_depends_on_the_measurements() {
    for (_, name, _) in crates() {
        let found = manifest(name, "[dev-dependencies]\ncffs-bench.workspace = true\n");
        assert_eq!(found.len(), 1, "{name}");
    }
}

#[test]
fn allowed_dependencies_are_not_reported() {
    assert!(manifest("cffs", "[dependencies]\nserde = \"1\"\n").is_empty());
    assert!(manifest("cffs-cli", "[dev-dependencies]\nfuse-ring.workspace = true\n").is_empty());
    let both = "[dependencies]\ncffs.workspace = true\nfuse-ring.workspace = true\n";
    assert!(manifest("cffs-serve", both).is_empty());
    assert!(manifest("cffs-bench", both).is_empty());
    assert!(findings("Cargo.toml", "[workspace.dependencies]\ncffs = \"1\"\n").is_empty());
    let fuzz = "[package]\nname = \"cffs-fuzz\"\n[dependencies]\ncffs = \"1\"\n";
    assert!(findings("fuzz/Cargo.toml", fuzz).is_empty());
}

#[test]
fn a_crate_without_a_place_or_in_another_folder_is_refused() {
    for path in ["core/cffs-utils/Cargo.toml", "serve/cffs-object/Cargo.toml"] {
        let name = path.split('/').nth(1).expect("a folder of the crate");
        let found = findings(path, &format!("[package]\nname = \"{name}\"\n"));
        assert!(found[0].contains("has no place in"), "{found:?}");
    }
}

#[test]
fn crates_depend_on_crates_before_them() {
    let mut before = Vec::new();
    for (_, name, allowed) in crates() {
        assert!(allowed.iter().all(|used| before.contains(used)), "{name}: {allowed:?}");
        before.push(name);
    }
}

#[test]
fn a_malformed_manifest_is_reported_and_not_skipped() {
    assert!(findings("core/cffs/Cargo.toml", "[package")[0].contains("not a manifest"));
}
