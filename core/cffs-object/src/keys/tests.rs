//! Tests of keys that change while a volume is open.

use std::fs;
use std::path::Path;

use super::*;

fn files(at: &Path) -> Files {
    Files::named(None, at.join("credentials"), at.join("config"))
}

fn keys(files: &Files) -> ProfileKeys {
    let profile = files.profile(false).expect("read");
    ProfileKeys::of(files.clone(), &profile).expect("no program fails").expect("it has keys").0
}

fn id(keys: &ProfileKeys) -> String {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(keys.get_credential()).expect("given").key_id.clone()
}

/// Regression: expired keys were used again and again, since the file was read only once.
#[test]
fn a_file_that_changes_is_read_again() {
    let scratch = tempfile::tempdir().expect("made");
    let write = |id: &str| {
        let text = format!("[default]\naws_access_key_id = {id}\naws_secret_access_key = x\n");
        fs::write(scratch.path().join("credentials"), text).expect("written");
    };
    write("first");
    let keys = keys(&files(scratch.path()));
    assert_eq!(id(&keys), "first");
    write("second one");
    assert_eq!(id(&keys), "second one");
    // A file that is being written has no keys yet.
    fs::write(scratch.path().join("credentials"), "").expect("written");
    assert_eq!(id(&keys), "second one");
    write("third");
    assert_eq!(id(&keys), "third");
}

/// The program runs once, and again after the store has rejected its keys.
#[test]
fn rejected_keys_are_requested_from_the_program_again() {
    let scratch = tempfile::tempdir().expect("made");
    let count = scratch.path().join("count");
    fs::write(&count, "").expect("written");
    let program = format!(
        "echo x >> {0}; echo '{{\"Version\": 1, \"AccessKeyId\": \"'$(wc -l < {0} | tr -d \" \")'\", \
         \"SecretAccessKey\": \"s\", \"SessionToken\": \"t\"}}'",
        count.display()
    );
    let config = format!("[default]\ncredential_process = {program}\n");
    fs::write(scratch.path().join("config"), config).expect("written");
    let files = files(scratch.path());
    let profile = files.profile(false).expect("read");
    let (keys, renewal) = ProfileKeys::of(files, &profile).expect("it runs").expect("it has keys");
    assert_eq!([id(&keys), id(&keys)], ["1", "1"]);
    assert!(Keys::Renewed(renewal).renew());
    assert_eq!([id(&keys), id(&keys)], ["2", "2"]);
}

#[test]
fn a_program_that_prints_no_keys_is_an_error() {
    let given = |program: &str| run(program).map(|keys| keys.key_id).expect_err("no keys");
    assert!(given("exit 3").contains("exit status: 3"));
    assert!(given("echo hello").contains("not JSON"));
    assert!(given("echo '{}'").contains("no AccessKeyId"));
}
