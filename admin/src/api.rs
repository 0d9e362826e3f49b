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
    source: Arc<MetricsSource>,
    registry: Registry,
}

/// All paths, behind the checks that hold for each.
pub(crate) fn routes(stats: Arc<Stats>, ledger_status: Box<dyn Fn() -> Status + Send + Sync>) -> Router {
    let source = Arc::new(MetricsSource { stats, ledger_status });
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Arc::clone(&source)));
    Router::new()
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(readiness))
        .route("/metrics", get(metrics))
        .route("/version", get(version))
        .fallback(async || (StatusCode::NOT_FOUND, "try /healthz, /readyz, /metrics or /version\n"))
        .layer(middleware::from_fn(check_request))
        .with_state(Arc::new(ApiState { source, registry }))
}

/// 200 while new flows are welcome, else 503 with each reason on a line.
async fn readiness(State(state): State<Arc<ApiState>>) -> (StatusCode, String) {
    let stats = &state.source.stats;
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
    if let Some(failure) = (state.source.ledger_status)().failing {
        reasons.push_str(&format!("the ledger cannot be written: {failure}\n"));
    }
    match reasons.is_empty() {
        true => (StatusCode::OK, "ready\n".into()),
        false => (StatusCode::SERVICE_UNAVAILABLE, reasons),
    }
}

async fn metrics(State(state): State<Arc<ApiState>>) -> Response {
    let mut page = String::new();
    text::encode(&mut page, &state.registry).expect("a string takes whatever is written to it");
    ([(CONTENT_TYPE, METRICS_TYPE)], page).into_response()
}

async fn version(State(state): State<Arc<ApiState>>) -> String {
    format!("tollgate {}\n", state.source.stats.version)
}

/// Turns away what no path may see.
async fn check_request(request: Request, next: Next) -> Response {
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
    let target_authority = request.uri().authority();
    let is_allowed = match host_header(request.headers()) {
        // RFC 9112, section 3.2: a request of HTTP/1.1 has one. Browsers always send it; an old probe that
        // speaks HTTP/1.0 and sends none was not led here by a name.
        HostHeader::Missing if request.version() == Version::HTTP_10 => true,
        HostHeader::Missing | HostHeader::Invalid => {
            return Some((StatusCode::BAD_REQUEST, "send one valid Host field\n").into_response());
        }
        HostHeader::Host(authority) => {
            is_address_or_localhost(&authority) && target_authority.is_none_or(is_address_or_localhost)
        }
    };
    if is_allowed {
        return None;
    }
    let text = "ask by IP address, or as localhost: other names are refused, lest a web page point its own \
                name here\n";
    Some((StatusCode::MISDIRECTED_REQUEST, text).into_response())
}

/// Whom a request names as its host.
enum HostHeader {
    Missing,
    Invalid,
    Host(Authority),
}

fn host_header(headers: &HeaderMap) -> HostHeader {
    let mut fields = headers.get_all(HOST).iter();
    match (fields.next(), fields.next()) {
        (None, _) => HostHeader::Missing,
        (Some(field), None) => match Authority::try_from(field.as_bytes()) {
            Ok(authority) if !authority.as_str().contains('@') => HostHeader::Host(authority),
            Ok(_) | Err(_) => HostHeader::Invalid,
        },
        (Some(_), Some(_)) => HostHeader::Invalid,
    }
}

/// Whether it is an address, which no other site can have for a name, or `localhost`, which browsers keep for
/// the machine itself.
fn is_address_or_localhost(authority: &Authority) -> bool {
    let host = authority.host();
    let bare = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
    bare.parse::<IpAddr>().is_ok() || host.eq_ignore_ascii_case("localhost")
}
