//! Explanations of real error texts of servers and the client.

use super::*;

fn place(url: &str, endpoint: Option<&str>, keys: Keys) -> Place {
    let endpoint = endpoint.map(str::to_owned);
    Place { url: url.into(), bucket: "bucket".into(), endpoint, keys }
}

/// The client's text for a response with that status and body.
fn answered(status: &str, body: &str) -> String {
    format!(
        "Error performing GET http://127.0.0.1:7070/bucket/tree/format in 2.1ms - Server returned non-2xx \
         status code: {status}: {body}"
    )
}

fn xml(code: &str, message: &str) -> String {
    format!(
        "<?xml version=\"1.0\"?>\n<Error><Code>{code}</Code><Message>{message}</Message></Error>"
    )
}

fn not_found(body: &str) -> StoreError {
    let source = answered("404 Not Found", body).into();
    StoreError::NotFound { path: "tree/format".into(), source }
}

fn generic(text: String) -> StoreError {
    StoreError::Generic { store: "S3", source: text.into() }
}

/// Regression: each 404 was read as "no volume", or for a PUT as "no such bucket".
#[test]
fn a_404_means_what_its_code_says() {
    assert!(lacks_object(&not_found(&xml("NoSuchKey", "x"))));
    assert!(lacks_object(&not_found("")));
    for (body, is_bucket, is_key) in [
        (xml("NoSuchBucket", "x"), true, false),
        (xml("ContainerNotFound", "x"), true, false),
        (xml("InvalidAccessKeyId", "x"), false, true),
        (String::from("<html><body>nginx</body></html>"), false, false),
    ] {
        let error = not_found(&body);
        assert!(!lacks_object(&error), "{body}");
        assert_eq!((lacks_bucket(&error), is_about_keys(&error)), (is_bucket, is_key), "{body}");
    }
    let page = explain(&not_found("<html>\n</html>"), &place("s3://b/t", None, Keys::Client));
    assert!(
        page.ends_with("check that the store at http://127.0.0.1:7070 is an object store"),
        "{page}"
    );
    assert!(page.contains("404 Not Found") && !page.contains('<'), "{page}");
}

#[test]
fn a_refusal_says_what_to_do() {
    let said = |error: StoreError, keys: Keys| explain(&error, &place("s3://b/t", None, keys));
    let wrong = said(not_found(&xml("InvalidAccessKeyId", "x")), Keys::Environment);
    assert!(wrong.contains("does not know these credentials: check AWS_ACCESS_KEY_ID"), "{wrong}");
    let expired = || generic(answered("400 Bad Request", &xml("ExpiredToken", "It expired.")));
    let fixed = said(expired(), Keys::Environment);
    assert!(
        fixed.contains("the environment of this program have expired: run it again"),
        "{fixed}"
    );
    let renewed = said(expired(), Keys::Renewed(Default::default()));
    assert!(renewed.contains("renew them in ~/.aws, and they are read again"), "{renewed}");
    let region = xml(
        "AuthorizationHeaderMalformed",
        "the region &#34;eu-west-9&#34; is wrong; expecting &quot;us-east-1&quot; &amp; &#x6e;ot &more",
    );
    let region = said(generic(answered("400 Bad Request", &region)), Keys::Client);
    let decoded = "the region \"eu-west-9\" is wrong; expecting \"us-east-1\" & not &more";
    assert!(
        region.contains(decoded) && region.ends_with("set AWS_REGION to the region of the bucket"),
        "{region}"
    );
    let metadata =
        "Error performing PUT http://169.254.169.254/latest/api/token in 20s, after 9 retries - x";
    let none = said(generic(metadata.into()), Keys::Client);
    assert!(
        none.starts_with("no credentials were found") && none.contains("AWS_ACCESS_KEY_ID"),
        "{none}"
    );
    assert!(!none.contains("169.254"), "{none}");
    let slow = said(generic(answered("503 Service Unavailable", "")), Keys::Client);
    assert_eq!(slow, "the store answers 503 Service Unavailable");
}

/// Regression: only the client's own text of a failed connection was shown.
#[test]
fn a_server_that_cannot_be_reached_is_named() {
    let refused = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
    let source = Box::new(HttpError::new(HttpErrorKind::Connect, refused));
    let error = StoreError::Generic { store: "S3", source };
    let named = explain(&error, &place("s3://b/t", Some("http://127.0.0.1:1"), Keys::Client));
    assert_eq!(
        named,
        "the store at http://127.0.0.1:1 cannot be reached (connection refused); check AWS_ENDPOINT_URL, \
         that the store runs, and the network"
    );
    let unnamed = explain(&error, &place("gs://b/t", None, Keys::Client));
    assert!(
        unnamed.contains("cannot be reached") && unnamed.contains("check the network"),
        "{unnamed}"
    );
}

/// Regression: "Generic LocalFileSystem error: Unable to open file /dir/file.txt/format#1: Not a directory".
#[test]
fn a_failure_in_a_directory_has_the_path_and_the_cause() {
    let directory = tempfile::tempdir().expect("made");
    let file = directory.path().join("file.txt");
    std::fs::write(&file, "no volume").expect("written");
    let url = format!("file://{}", file.display());
    let location = crate::Location::parse(&url).expect("a place");
    let error = crate::versions::list(&location).expect_err("a file").to_string();
    let path = file.canonicalize().expect("found").join("format");
    assert_eq!(error, format!("{}: Not a directory (os error 20)", path.display()));
}
