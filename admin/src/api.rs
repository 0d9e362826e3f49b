//! What each path of the admin side answers.
//!
//! Promises: only GET and HEAD; nothing is changed by a request; a page of another site cannot read an answer
//! by pointing its own name at our address (DNS rebinding), because we answer to addresses and `localhost`
//! only. Leaves to others: connections (`http.rs`) and figures (`metrics.rs`).

use std::net::IpAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HOST, X_CONTENT_TYPE_OPTIONS};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Version};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use gateway::observe::stats::Stats;
use ledger::Status;
use prometheus_client::encoding::text;
use prometheus_client::registry::Registry;
use sys::clock;

use crate::metrics::MetricsSource;

const METRICS_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// What answers are made of.
struct ApiState {
    figures: Arc<MetricsSource>,
    registry: Registry,
}

/// All paths, behind the checks that hold for each.
pub(crate) fn routes(stats: Arc<Stats>, ledger: Box<dyn Fn() -> Status + Send + Sync>) -> Router {
    let figures = Arc::new(MetricsSource { stats, ledger });
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Arc::clone(&figures)));
    Router::new()
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(readiness))
        .route("/metrics", get(metrics))
        .route("/version", get(version))
        .fallback(async || (StatusCode::NOT_FOUND, "try /healthz, /readyz, /metrics or /version\n"))
        .layer(middleware::from_fn(guard))
        .with_state(Arc::new(ApiState { figures, registry }))
}

/// 200 while new flows are welcome, else 503 with each reason on a line.
async fn readiness(State(facts): State<Arc<ApiState>>) -> (StatusCode, String) {
    let stats = &facts.figures.stats;
    let mut reasons = String::new();
    if !stats.is_ready() {
        reasons.push_str("the listeners are not bound yet\n");
    }
    if stats.is_draining() {
        reasons.push_str("draining\n");
    }
    if let Some(shortage) = stats.shortage(clock::monotonic()) {
        reasons.push_str(&format!("{shortage}: new connections wait\n"));
    }
    if let Some(failure) = (facts.figures.ledger)().failing {
        reasons.push_str(&format!("the ledger cannot be written: {failure}\n"));
    }
    match reasons.is_empty() {
        true => (StatusCode::OK, "ready\n".into()),
        false => (StatusCode::SERVICE_UNAVAILABLE, reasons),
    }
}

async fn metrics(State(facts): State<Arc<ApiState>>) -> Response {
    let mut page = String::new();
    text::encode(&mut page, &facts.registry).expect("a string takes whatever is written to it");
    ([(CONTENT_TYPE, METRICS_TYPE)], page).into_response()
}

async fn version(State(facts): State<Arc<ApiState>>) -> String {
    format!("tollgate {}\n", facts.figures.stats.version)
}

/// Turns away what no path may see.
async fn guard(request: Request, next: Next) -> Response {
    let mut response = match refusal(&request) {
        Some(refusal) => refusal,
        None => next.run(request).await,
    };
    let headers = response.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

fn refusal(request: &Request) -> Option<Response> {
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let text = "only GET and HEAD are answered here\n";
        return Some((StatusCode::METHOD_NOT_ALLOWED, [(ALLOW, "GET, HEAD")], text).into_response());
    }
    let named_in_target = request.uri().authority();
    let is_known = match host(request.headers()) {
        // RFC 9112, section 3.2: a request of HTTP/1.1 has one. Browsers always send it; an old probe that
        // speaks HTTP/1.0 and sends none was not led here by a name.
        HostHeader::Nothing if request.version() == Version::HTTP_10 => true,
        HostHeader::Nothing | HostHeader::Nonsense => {
            return Some((StatusCode::BAD_REQUEST, "send one valid Host field\n").into_response());
        }
        HostHeader::Host(authority) => is_ours(&authority) && named_in_target.is_none_or(is_ours),
    };
    if is_known {
        return None;
    }
    let text = "ask by IP address, or as localhost: other names are refused, lest a web page point its own \
                name here\n";
    Some((StatusCode::MISDIRECTED_REQUEST, text).into_response())
}

/// Whom a request names as its host.
enum HostHeader {
    Nothing,
    Nonsense,
    Host(Authority),
}

fn host(headers: &HeaderMap) -> HostHeader {
    let mut fields = headers.get_all(HOST).iter();
    match (fields.next(), fields.next()) {
        (None, _) => HostHeader::Nothing,
        (Some(only), None) => match Authority::try_from(only.as_bytes()) {
            Ok(authority) if !authority.as_str().contains('@') => HostHeader::Host(authority),
            Ok(_) | Err(_) => HostHeader::Nonsense,
        },
        (Some(_), Some(_)) => HostHeader::Nonsense,
    }
}

/// Whether it is an address, which no other site can have for a name, or `localhost`, which browsers keep for
/// the machine itself.
fn is_ours(authority: &Authority) -> bool {
    let host = authority.host();
    let bare = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
    bare.parse::<IpAddr>().is_ok() || host.eq_ignore_ascii_case("localhost")
}
