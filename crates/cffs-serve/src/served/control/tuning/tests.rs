//! Encoding and decoding of changes.

use cffs::format::superblock::Compression;

use super::*;

#[test]
fn changes_survive_encoding() {
    let all = SetVolume {
        label: Some(b"\xff \" name".to_vec()),
        uuid: Some([7; 16]),
        errors: Some(ErrorsPolicy::RemountReadOnly),
        reserve: Some(Reserve { fragments: 1 << 40, uid: 3, gid: 4 }),
        compression: Some(Compression::Zstd(19)),
    };
    for changes in [SetVolume::default(), all] {
        assert_eq!(from_text(&to_text(&changes)), Some(changes));
    }
    for wrong in
        ["", "{", "[]", "{\"label\": 3}", "{\"errors\": \"panic\"}", "{\"compression\": \"zip\"}"]
    {
        assert_eq!(from_text(wrong), None, "{wrong}");
    }
}
