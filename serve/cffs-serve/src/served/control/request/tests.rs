//! Changes of a volume, as the value of an attribute.

use cffs::format::superblock::{Compression, ErrorsPolicy, Policy, Reserve};

use super::*;

#[test]
fn changes_survive_encoding() {
    let all = SetVolume {
        label: Some(b"\xff \" name".to_vec()),
        uuid: Some([7; 16]),
        errors: Some(ErrorsPolicy::RemountReadOnly),
        reserve: Some(Reserve { fragments: 1 << 40, uid: 3, gid: 4 }),
        compression: Some(Compression::Zstd(19)),
        policy: Some(Policy::Time),
    };
    for changes in [SetVolume::default(), all] {
        let request = Request::Tune(changes);
        let (name, value) = request.to_attribute();
        let found = Request::from_attribute(name.as_bytes(), value.as_bytes());
        assert_eq!(found.unwrap().unwrap(), request, "{value}");
    }
    for wrong in
        ["", "{", "[]", "{\"label\": 3}", "{\"errors\": \"panic\"}", "{\"compression\": \"zip\"}"]
    {
        let found = Request::from_attribute(TUNE_NAME.as_bytes(), wrong.as_bytes());
        assert!(found.unwrap().is_err(), "{wrong}");
    }
}

#[test]
fn limits_of_quotas_survive_encoding() {
    let limits = [None, Some(0), Some(u64::MAX)];
    for request in limits.map(|bytes| Request::SetQuota { bytes, files: Some(3) }) {
        let (name, value) = request.to_attribute();
        let found = Request::from_attribute(name.as_bytes(), value.as_bytes());
        assert_eq!(found.unwrap().unwrap(), request, "{value}");
    }
    for wrong in ["", "set", "set 1", "set 1 x", "set -1 2", "remove 1"] {
        let found = Request::from_attribute(QUOTA_NAME.as_bytes(), wrong.as_bytes());
        assert!(found.unwrap().is_err(), "{wrong}");
    }
}
