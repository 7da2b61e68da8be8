//! Small manifests that break the order, and their findings.

use super::*;

fn findings(path: &str, text: &str) -> Vec<String> {
    let mut tree = Tree::default();
    tree.files.insert(path.into(), text.to_owned());
    check(&tree).iter().map(ToString::to_string).collect()
}

fn manifest(name: &str, dependencies: &str) -> Vec<String> {
    let text = format!("[package]\nname = \"{name}\"\n\n{dependencies}");
    findings(&format!("crates/{name}/Cargo.toml"), &text)
}

#[test]
fn an_upward_dependency_is_found_where_it_stands() {
    assert_eq!(
        manifest("fuse-ring", "[dependencies]\nlibc = \"1\"\ncffs.workspace = true\n"),
        ["crates/fuse-ring/Cargo.toml:6: fuse-ring depends on cffs, but it may only use no other \
          crate of the workspace"]
    );
    assert_eq!(
        manifest("cffs-cli", "[dependencies]\nfuse-ring = { workspace = true }\n"),
        ["crates/cffs-cli/Cargo.toml:5: cffs-cli depends on fuse-ring, but it may only use cffs, \
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
    for (name, _) in CRATES {
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
fn a_crate_without_a_place_is_refused() {
    assert!(manifest("cffs-utils", "")[0].contains("no place in the order"));
}

#[test]
fn a_malformed_manifest_is_reported_and_not_skipped() {
    assert!(findings("crates/cffs/Cargo.toml", "[package")[0].contains("not a manifest"));
}
