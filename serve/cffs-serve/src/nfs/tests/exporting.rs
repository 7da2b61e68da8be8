//! Exports that are added and removed while clients use them.

use super::*;

#[test]
fn an_export_is_added_changed_and_removed_while_clients_use_it() {
    let served = Served::new(&["/:no_root_squash,insecure"]);
    let mut client = served.client(0, 0);
    let root = served.root();
    let srv = mkdir(&mut client, &root, "srv", 0o755);
    create(&mut client, &srv, "f", 0o644);
    assert!(served.handle("/srv").is_some(), "a directory below an export can be mounted");

    let exports = Administration::new(Arc::clone(&served.service), Arc::clone(&served.connections));
    exports.add("/srv/:no_root_squash,insecure").expect("added");
    let by_srv = served.handle("/srv").expect("mounted");
    assert_ne!(by_srv.data.as_ref(), srv.data.as_ref(), "it is a handle of the new export");
    let file = ok(lookup(&mut client, &by_srv, "f")).object;
    let write = write_args(&file, 0, b"x", stable_how::FILE_SYNC);
    ok(now(client.write(&write)));

    exports.add("/srv:ro,no_root_squash,insecure").expect("changed");
    assert_eq!(failure(now(client.write(&write))), nfsstat3::NFS3ERR_ROFS);
    assert_eq!(ok(now(client.read(&read_args(&file)))).data.as_ref(), b"x");
    let shown = exports.describe();
    assert_eq!(shown["exports"].as_array().map(Vec::len), Some(2), "{shown}");
    assert_eq!(shown["exports"][1]["export"], "/srv:ro,no_root_squash,insecure");
    assert_eq!(shown["clients"][0]["address"], "127.0.0.1");

    exports.remove("/srv/").expect("removed");
    assert_eq!(failure(now(client.read(&read_args(&file)))), nfsstat3::NFS3ERR_STALE);
    exports.remove("/").expect("removed");
    assert!(served.handle("/srv").is_none(), "nothing is exported any longer");
    assert_eq!(exports.describe()["exports"].as_array().map(Vec::len), Some(0));
}

#[test]
fn an_invalid_export_changes_nothing_and_the_error_says_why() {
    let served = Served::new(&["/:insecure"]);
    let exports = Administration::new(Arc::clone(&served.service), Arc::clone(&served.connections));
    for (text, why) in [
        ("srv", "does not begin with a path"),
        ("/:rx", "is neither an address"),
        ("/nothing", "an export is a directory"),
        ("/../etc", "an export is a directory"),
    ] {
        let refused = exports.add(text).expect_err(text);
        assert!(refused.starts_with(text) && refused.contains(why), "{text}: {refused}");
        assert_eq!(exports.describe()["refusal"], refused);
    }
    assert_eq!(exports.remove("/srv"), Err(String::from("/srv is not exported")));
    assert_eq!(exports.describe()["refusal"], "/srv is not exported");
    assert_eq!(exports.describe()["exports"].as_array().map(Vec::len), Some(1));
    exports.add("/:ro").expect("added");
    assert!(exports.describe()["refusal"].is_null(), "an earlier refusal is not reported again");
}
