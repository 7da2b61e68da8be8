//! The HTTP interface of the page, described by `page/openapi.json`, and the metrics.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::rejection::{JsonRejection, QueryRejection};
use axum::extract::{DefaultBodyLimit, Path, Query, State};
use axum::http::StatusCode;
use axum::http::header::{ALLOW, CONTENT_TYPE};
use axum::middleware::{from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use cffs::error::Error;
use cffs::files::layout;
use cffs::format::inode::FileType;
use cffs::vfs::types::Attr;
use cffs_serve::describe;
use cffs_serve::layout::LayoutReport;
use cffs_serve::served::{Served, control};
use futures_util::stream;
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::timeout;
use tracing::Level;

use crate::access::{self, Refusal};
use crate::actions::{self, Action};
use crate::tokens::Role;
use crate::{State as Shared, files, snapshots};

/// The longest body of a request.
const BODY_BYTES_MAX: usize = 8 << 10;
/// How long an answer may take, except for events. The layout of a large tree takes longest.
const ANSWER_TIME: Duration = Duration::from_secs(120);
/// Messages in an answer.
const MESSAGES_MAX: usize = 500;
/// Directories of a layout in an answer: those whose scan takes most requests.
const DIRECTORIES_MAX: usize = 100;

type Answer = Result<Response, Refusal>;

pub(crate) fn router(shared: Arc<Shared>) -> Router {
    let for_lookers = Router::new()
        .route("/api/v1/status", get(status))
        .route("/api/v1/history", get(history))
        .route("/api/v1/log", get(log))
        .route("/api/v1/role", get(role))
        .route("/metrics", get(metrics))
        .route_layer(from_fn_with_state(Arc::clone(&shared), access::look));
    let events = Router::new()
        .route("/api/v1/events", get(events))
        .route_layer(from_fn_with_state(Arc::clone(&shared), access::look));
    let for_runners = Router::new()
        .route("/api/v1/layout", get(layout_of))
        .route("/api/v1/layout.svg", get(picture_of))
        .route("/api/v1/snapshots", get(snapshots_of))
        .route("/api/v1/actions/{action}", post(act))
        .route_layer(from_fn_with_state(Arc::clone(&shared), access::run));
    files::router()
        .merge(for_lookers)
        .merge(for_runners)
        .layer(from_fn(in_time))
        .merge(events)
        .fallback(|| async { Refusal::new(StatusCode::NOT_FOUND, "not found") })
        .method_not_allowed_fallback(|| async {
            let refusal =
                Refusal::new(StatusCode::METHOD_NOT_ALLOWED, "this method is not supported");
            ([(ALLOW, "GET, HEAD, POST")], refusal)
        })
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .layer(from_fn_with_state(Arc::clone(&shared), access::check_site))
        .with_state(shared)
}

async fn in_time(request: axum::extract::Request, next: axum::middleware::Next) -> Response {
    timeout(ANSWER_TIME, next.run(request)).await.unwrap_or_else(|_| {
        let why = "the device is slow; the action continues";
        Refusal::new(StatusCode::GATEWAY_TIMEOUT, why).into_response()
    })
}

fn json_text(text: Bytes) -> Response {
    ([(CONTENT_TYPE, "application/json")], text).into_response()
}

async fn status(State(shared): State<Arc<Shared>>) -> Response {
    let latest = shared.samples.watch().borrow().clone();
    json_text(latest)
}

/// The role of the token. Paths of the host are shown only to callers with full control.
async fn role(State(shared): State<Arc<Shared>>, Extension(role): Extension<Role>) -> Response {
    let target = &shared.options.target;
    let described = match role {
        Role::Look => json!({ "role": "look" }),
        Role::Run => json!({
            "role": "run",
            "target": target.path(),
            "image": target.image.to_string_lossy(),
        }),
    };
    Json(described).into_response()
}

async fn history(State(shared): State<Arc<Shared>>) -> Response {
    Json(shared.samples.history()).into_response()
}

/// The metrics; with full control, their labels have the paths, as `cffs stats --prometheus` shows them.
async fn metrics(State(shared): State<Arc<Shared>>, Extension(role): Extension<Role>) -> Response {
    let served = shared.samples.served();
    let info = match role {
        Role::Look => served.info(),
        Role::Run => served.info_with_paths(),
    };
    let measured = waiting(move || {
        let mut stats = served.stats();
        if let Ok(quotas) = control::quotas_of(&served.volume()) {
            stats["quotas"] = json!(quotas);
        }
        (shared.options.forms.metrics)(&stats, &info)
    });
    let text = match measured.await {
        Ok(text) => text,
        Err(refusal) => return refusal.into_response(),
    };
    ([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response()
}

/// The snapshots as events: the latest at once, and then each new one. A slow browser skips some.
async fn events(State(shared): State<Arc<Shared>>) -> Response {
    let mut latest = shared.samples.watch();
    latest.mark_changed();
    let next = async |mut latest: watch::Receiver<Bytes>| {
        latest.changed().await.ok()?;
        let text = latest.borrow_and_update().clone();
        let parts =
            [Bytes::from_static(b"event: status\ndata: "), text, Bytes::from_static(b"\n\n")];
        Some((stream::iter(parts.map(Ok::<Bytes, Infallible>)), latest))
    };
    let events = futures_util::StreamExt::flatten(stream::unfold(latest, next));
    ([(CONTENT_TYPE, "text/event-stream")], Body::from_stream(events)).into_response()
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct LogFilter {
    after: u64,
    level: String,
    text: String,
    count: usize,
}

impl Default for LogFilter {
    fn default() -> LogFilter {
        let level = String::from("trace");
        LogFilter { after: 0, level, text: String::new(), count: MESSAGES_MAX }
    }
}

async fn log(
    State(shared): State<Arc<Shared>>,
    filter: Result<Query<LogFilter>, QueryRejection>,
) -> Answer {
    let Query(filter) = filter.map_err(|error| unusable(error.body_text()))?;
    let level: Level = filter
        .level
        .parse()
        .map_err(|_| unusable("level must be error, warn, info, debug or trace".to_owned()))?;
    let count = filter.count.min(MESSAGES_MAX);
    let messages = shared.options.log.messages(filter.after, level, &filter.text, count);
    Ok(Json(json!({ "messages": messages, "newest": shared.options.log.newest() })).into_response())
}

fn unusable(why: String) -> Refusal {
    Refusal::new(StatusCode::UNPROCESSABLE_ENTITY, why)
}

/// A file or directory of the volume.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct At {
    path: String,
}

/// A layout: of a tree, or of one file.
enum Found {
    Tree(LayoutReport),
    File(Value),
}

async fn look_at(shared: &Arc<Shared>, path: &str) -> Result<Found, Refusal> {
    let (served, path) = (shared.samples.served(), path.to_owned());
    let alone = Arc::clone(&shared.looking);
    let found = waiting(move || look(&served, &path, &alone)).await?;
    found.map_err(|error| shared.actions.refused(&error))
}

fn look(served: &Served, path: &str, alone: &Mutex<()>) -> Result<Found, Error> {
    let volume = served.volume();
    let Attr { ino, file_type, .. } = actions::find(&volume, path)?;
    if file_type != FileType::Directory {
        return Ok(Found::File(describe::placement(&volume.admin().explain(ino)?)));
    }
    let _alone = alone.lock();
    Ok(Found::Tree(LayoutReport::from(&layout::survey_in_use(&volume, ino)?)))
}

/// Runs a function that waits for the device in one of a few threads.
async fn waiting<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Refusal> {
    tokio::task::spawn_blocking(work).await.map_err(|_| {
        let why = "the server's log says what went wrong";
        Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, why)
    })
}

async fn layout_of(
    State(shared): State<Arc<Shared>>,
    at: Result<Query<At>, QueryRejection>,
) -> Answer {
    let Query(At { path }) = at.map_err(|error| unusable(error.body_text()))?;
    Ok(match look_at(&shared, &path).await? {
        Found::File(placement) => Json(json!({ "file": placement })).into_response(),
        Found::Tree(report) => Json(json!({ "tree": summary(report) })).into_response(),
    })
}

/// A layout without the device addresses, which only the picture uses.
fn summary(mut report: LayoutReport) -> Value {
    let count = report.directories.len();
    let sum = |of: fn(&cffs_serve::layout::DirectoryReport) -> u64| -> u64 {
        report.directories.iter().map(of).sum()
    };
    let totals = json!({
        "directories": count,
        "files": sum(|dir| dir.files),
        "places": sum(|dir| dir.places),
        "scattered_files": sum(|dir| dir.scattered_files),
        "requests": report.requests,
        "read_bytes": report.read_bytes,
    });
    report.directories.sort_by_key(|dir| std::cmp::Reverse((dir.requests, dir.places)));
    let shown = report.directories.iter().take(DIRECTORIES_MAX).map(|dir| {
        json!({
            "path": dir.path,
            "files": dir.files,
            "bytes": dir.bytes,
            "places": dir.places,
            "scattered_files": dir.scattered_files,
            "requests": dir.requests,
            "read_bytes": dir.read_bytes,
        })
    });
    json!({
        "totals": totals,
        "clusters": report.clusters,
        "directories": shown.collect::<Vec<_>>(),
    })
}

async fn picture_of(
    State(shared): State<Arc<Shared>>,
    at: Result<Query<At>, QueryRejection>,
) -> Answer {
    let Query(At { path }) = at.map_err(|error| unusable(error.body_text()))?;
    match look_at(&shared, &path).await? {
        Found::Tree(report) => {
            let draw = shared.options.forms.picture;
            let drawn = waiting(move || draw(&report, &path)).await?;
            Ok(([(CONTENT_TYPE, "image/svg+xml")], drawn).into_response())
        }
        Found::File(_) => Err(unusable(
            "only directories have a picture; request the layout of the file".to_owned(),
        )),
    }
}

/// Each call asks the device, which may be remote, so it requires the token for full control.
async fn snapshots_of(State(shared): State<Arc<Shared>>) -> Answer {
    let Some(snapshots) = shared.options.snapshots.clone() else {
        let why = "the device of this volume keeps no snapshots";
        return Err(Refusal::new(StatusCode::NOT_FOUND, why));
    };
    let listed = waiting(move || snapshots.list()).await?;
    let failed = |why: String| {
        Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, shared.options.log.clear(&why))
    };
    Ok(Json(snapshots::described(&listed.map_err(failed)?)).into_response())
}

async fn act(
    State(shared): State<Arc<Shared>>,
    Path(name): Path<String>,
    body: Result<Json<actions::Body>, JsonRejection>,
) -> Answer {
    let Json(body) = body.map_err(|error| Refusal::new(error.status(), error.body_text()))?;
    let action = Action::new(&name, body)?;
    let command = action.command(&shared.options.target);
    let (served, actions) = (shared.samples.served(), Arc::clone(&shared.actions));
    waiting(move || actions.start(&served, &action)).await??;
    tracing::info!(command, "requested on the page");
    Ok((StatusCode::ACCEPTED, Json(json!({ "command": command }))).into_response())
}
