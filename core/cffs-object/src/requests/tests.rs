//! The kind under which each request is charged.

use super::*;

#[test]
fn requests_are_charged_by_method_and_query() {
    let charged = [
        ("PUT", "", Kind::Put),
        ("POST", "uploads", Kind::Put),
        ("GET", "", Kind::Get),
        ("GET", "versionId=list-type", Kind::Get),
        ("GET", "prefix=a&list-type=2", Kind::List),
        ("HEAD", "", Kind::Head),
        ("DELETE", "", Kind::Delete),
        ("POST", "delete", Kind::Delete),
        ("GET", "restype=container&comp=list&prefix=a", Kind::List),
        ("GET", "comp=listing", Kind::Get),
        ("POST", "restype=container&comp=batch", Kind::Delete),
    ];
    for (method, query, kind) in charged {
        assert_eq!(kind_of(method, query), kind, "{method} ?{query}");
    }
    assert!(is_for_credentials("169.254.169.254"));
    assert!(is_for_credentials("sts.eu-west-1.amazonaws.com"));
    assert!(is_for_credentials("oauth2.googleapis.com"));
    assert!(!is_for_credentials("storage.googleapis.com"));
    assert!(!is_for_credentials("s3.eu-west-1.amazonaws.com"));
}
