use serde_json::json;

use super::has_syncfs;

#[test]
fn a_server_that_was_queried_is_not_queried_again() {
    assert!(has_syncfs(&json!({ "requests": { "lookup": 3, "syncfs": 1 } })));
    assert!(!has_syncfs(&json!({ "requests": { "lookup": 3 } })));
    assert!(!has_syncfs(&json!({ "requests": { "syncfs": 0 } })));
    assert!(!has_syncfs(&json!(null)));
}
