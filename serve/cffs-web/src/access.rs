//! Access control: checks before any handler runs, and the headers of every answer.
//!
//! Any web site can make a browser send requests here. Therefore a request must name this server as its host
//! (otherwise another site's name could be made to resolve to it), must not come from another origin, and
//! must carry its token in a header, which other sites cannot set: cookies are not used.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::header::{self, HeaderMap, HeaderName, HeaderValue};
use axum::http::{Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use serde_json::json;

use crate::tokens::{Role, Tokens};
use crate::{Options, State as Shared};

/// Headers of every answer: browsers load nothing from other sites, and cache nothing.
const HEADERS: [(HeaderName, &str); 7] = [
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; \
         connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::CACHE_CONTROL, "no-store"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
];

/// An answer that refuses a request, with the reason.
#[derive(Debug)]
pub(crate) struct Refusal(pub StatusCode, pub String);

impl Refusal {
    pub fn new(status: StatusCode, why: impl Into<String>) -> Refusal {
        Refusal(status, why.into())
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let Refusal(status, why) = self;
        let mut answer = (status, axum::Json(json!({ "error": why }))).into_response();
        if status == StatusCode::UNAUTHORIZED {
            let headers = answer.headers_mut();
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        answer
    }
}

/// Checks the tokens of callers and the host names in their requests.
pub(crate) struct Gate {
    names: Vec<String>,
    scheme: &'static str,
    tokens: Tokens,
}

impl Gate {
    pub fn new(options: &Options, is_secure: bool) -> Gate {
        Gate {
            names: options.names.clone(),
            scheme: if is_secure { "https" } else { "http" },
            tokens: options.tokens.clone(),
        }
    }

    /// Refuses requests that another site may have made a browser send.
    fn check_site(&self, headers: &HeaderMap) -> Result<(), Refusal> {
        let mut hosts = headers.get_all(header::HOST).iter();
        let host = hosts.next().and_then(|host| host.to_str().ok()).unwrap_or_default();
        if hosts.next().is_some() || !self.is_ours(host) {
            let why = "this server does not have that name; add it with --web-name of cffs serve or cffs mount";
            return Err(Refusal::new(StatusCode::MISDIRECTED_REQUEST, why));
        }
        let ours = format!("{}://{host}", self.scheme);
        let is_foreign = |origin: &HeaderValue| origin.as_bytes() != ours.as_bytes();
        let site = headers.get("sec-fetch-site").map(HeaderValue::as_bytes);
        if headers.get_all(header::ORIGIN).iter().any(is_foreign)
            || !matches!(site, None | Some(b"same-origin" | b"none"))
        {
            return Err(Refusal::new(
                StatusCode::FORBIDDEN,
                "requests from other sites are refused",
            ));
        }
        Ok(())
    }

    /// Whether a host name, with or without a port, belongs to this server. IP addresses do, since they
    /// cannot be made to resolve elsewhere.
    fn is_ours(&self, host: &str) -> bool {
        let name = match host.rsplit_once(':') {
            Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
            _ => host,
        };
        let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
        address.unwrap_or(name).parse::<IpAddr>().is_ok()
            || name.eq_ignore_ascii_case("localhost")
            || self.names.iter().any(|ours| name.eq_ignore_ascii_case(ours))
    }

    /// The caller's role, according to its token.
    fn role(&self, headers: &HeaderMap) -> Option<Role> {
        let shown = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
        self.tokens.role(shown.strip_prefix("Bearer ")?)
    }
}

/// Checks every request, and adds headers to every answer.
pub(crate) async fn check_site(
    State(shared): State<Arc<Shared>>,
    request: Request,
    next: Next,
) -> Response {
    let mut answer = match shared.gate.check_site(request.headers()) {
        Ok(()) => next.run(request).await,
        Err(refusal) => refusal.into_response(),
    };
    for (name, value) in HEADERS {
        answer.headers_mut().entry(name).or_insert(HeaderValue::from_static(value));
    }
    answer
}

/// Passes on requests with a token of either role.
pub(crate) async fn look(state: State<Arc<Shared>>, request: Request, next: Next) -> Response {
    admit(Role::Look, state, request, next).await
}

/// Passes on requests with the token for full control.
pub(crate) async fn run(state: State<Arc<Shared>>, request: Request, next: Next) -> Response {
    admit(Role::Run, state, request, next).await
}

async fn admit(
    least: Role,
    State(shared): State<Arc<Shared>>,
    mut request: Request,
    next: Next,
) -> Response {
    let Some(role) = shared.gate.role(request.headers()) else {
        let why = "send a token in the header Authorization: Bearer TOKEN";
        return Refusal::new(StatusCode::UNAUTHORIZED, why).into_response();
    };
    if role < least {
        let why = "this is a viewing token; the action needs the full-control token";
        return Refusal::new(StatusCode::FORBIDDEN, why).into_response();
    }
    let is_json = |value: &HeaderValue| value.as_bytes().starts_with(b"application/json");
    if request.method() == Method::POST
        && !request.headers().get(header::CONTENT_TYPE).is_some_and(is_json)
    {
        let why = "the body must be JSON, and Content-Type application/json";
        return Refusal::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, why).into_response();
    }
    request.extensions_mut().insert(role);
    next.run(request).await
}
