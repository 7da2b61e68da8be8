//! Prices of requests.

use serde_json::json;

use super::*;

#[test]
fn requests_have_their_price() {
    let mut stats =
        json!({"store": {"puts": 2000, "gets": 10_000, "received_bytes": 3_000_000_000_u64}});
    Prices::default().add_to(&mut stats);
    assert_eq!(stats["store"]["usd"], json!(0.014));
    let prices: Prices = serde_json::from_str(r#"{"gets": 0, "received_gb": 0.09}"#).unwrap();
    prices.add_to(&mut stats);
    assert_eq!(stats["store"]["usd"], json!(0.28));
    let mut image = json!({"device": {"reads": 1}});
    prices.add_to(&mut image);
    assert_eq!(image, json!({"device": {"reads": 1}}));
    assert!(serde_json::from_str::<Prices>(r#"{"got": 1}"#).is_err());
}
