//! The files of the page, compiled into the program. They contain no figures, so they require no
//! token.

use axum::Router;
use axum::http::header::CONTENT_TYPE;
use axum::routing::get;

/// A path, its media type, and its contents.
const FILES: [(&str, &str, &str); 5] = [
    ("/", "text/html; charset=utf-8", include_str!("../page/index.html")),
    ("/page.css", "text/css; charset=utf-8", include_str!("../page/page.css")),
    ("/page.js", "text/javascript; charset=utf-8", include_str!("../page/page.js")),
    ("/icon.svg", "image/svg+xml", include_str!("../page/icon.svg")),
    ("/api/v1/openapi.json", "application/json", include_str!("../page/openapi.json")),
];

pub(crate) fn router<S: Clone + Send + Sync + 'static>() -> Router<S> {
    FILES.iter().fold(Router::new(), |router, (path, kind, contents)| {
        router.route(path, get(move || async move { ([(CONTENT_TYPE, *kind)], *contents) }))
    })
}
