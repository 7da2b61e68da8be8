//! Reading files of profiles.

use super::*;

const CREDENTIALS: &str = "\
[default]
aws_access_key_id = one
aws_secret_access_key = first secret = with signs#
[work]
aws_access_key_id=two
AWS_Secret_Access_Key=second
aws_session_token=token
[half]
aws_access_key_id = three
";
const CONFIG: &str = "\
# a comment
[default]
region = eu-west-1
s3 =
    max_concurrent_requests = 20
    endpoint_url = http://not.this.one
output = json
[profile work]
region = us-west-2
endpoint_url = https://all.example
services = local
aws_access_key_id = the other file goes first
[profile  \"by config\"]
aws_access_key_id = four
aws_secret_access_key = fourth
[profile sso]
sso_session = office
region = eu-central-1
[services local]
s3 =
  endpoint_url = https://s3.example:9000
dynamodb =
  endpoint_url = https://else.example
[work]
region = no profile here
";

fn profile(name: Option<&str>) -> Result<Profile, String> {
    Profile::of_files(name, CREDENTIALS, CONFIG, false)
}

fn key(id: &str, secret: &str, token: Option<&str>) -> Option<(String, String, Option<String>)> {
    Some((id.into(), secret.into(), token.map(Into::into)))
}

#[test]
fn a_profile_is_read_from_both_files() {
    let default = profile(None).expect("read");
    assert_eq!(default.key, key("one", "first secret = with signs#", None));
    assert_eq!(default.region.as_deref(), Some("eu-west-1"));
    assert_eq!(default.endpoint, None);
    assert_eq!(profile(Some("default")).expect("read"), default);
    let work = profile(Some("work")).expect("read");
    assert_eq!(work.key, key("two", "second", Some("token")));
    assert_eq!(work.region.as_deref(), Some("us-west-2"));
    assert_eq!(work.endpoint.as_deref(), Some("https://s3.example:9000"));
    let named = profile(Some("by config")).expect("read");
    assert_eq!(named.key, key("four", "fourth", None));
    assert_eq!(Profile::of_files(None, "", "", false).expect("none is needed"), Profile::default());
}

#[test]
fn a_profile_that_cannot_be_used_is_refused_with_advice() {
    let refused = |name: &str| profile(Some(name)).expect_err("refused");
    assert!(refused("none").contains("has no profile none"));
    assert!(refused("half").contains("only one of aws_access_key_id"));
    let sso = refused("sso");
    assert!(sso.contains("by sso_session") && sso.contains("export-credentials --profile sso"));
    let has_key = Profile::of_files(Some("sso"), CREDENTIALS, CONFIG, true).expect("read");
    assert_eq!((has_key.key, has_key.region.as_deref()), (None, Some("eu-central-1")));
}

/// The debug output of a profile does not contain its secret.
#[test]
fn a_secret_is_not_printed() {
    let shown = format!("{:?}", profile(Some("work")).expect("read"));
    assert!(shown.contains("us-west-2") && !shown.contains("second"), "{shown}");
    assert!(!shown.contains("token") && !shown.contains("two"), "{shown}");
}
