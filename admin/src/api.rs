//! The responses of the admin server's paths.
//!
//! Guarantees: only GET and HEAD are served, and no request changes state. A web page of another site cannot
//! read a response by DNS rebinding (pointing its own name at our address): a request's host must be an IP
//! address or `localhost`.

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

const UNKNOWN_PATH: &str = "this path does not exist: use /healthz, /readyz, /metrics or /version\n";

/// The data behind the responses.
struct ApiState {
    source: Arc<MetricsSource>,
    registry: Registry,
}

/// All paths, behind [`check_request`].
pub(crate) fn routes(stats: Arc<Stats>, ledger_status: Box<dyn Fn() -> Status + Send + Sync>) -> Router {
    let source = Arc::new(MetricsSource { stats, ledger_status });
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Arc::clone(&source)));
    Router::new()
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(readiness))
        .route("/metrics", get(metrics))
        .route("/version", get(version))
        .fallback(async || (StatusCode::NOT_FOUND, UNKNOWN_PATH))
        .layer(middleware::from_fn(check_request))
        .with_state(Arc::new(ApiState { source, registry }))
}

/// 200 while new flows are admitted, else 503 with one reason on each line.
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
    text::encode(&mut page, &state.registry).expect("writing to a string cannot fail");
    ([(CONTENT_TYPE, METRICS_TYPE)], page).into_response()
}

async fn version(State(state): State<Arc<ApiState>>) -> String {
    format!("tollgate {}\n", state.source.stats.version)
}

/// Refuses a request that no path may serve; sets the headers of every response.
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
        let text = "this method is not supported here: use GET or HEAD\n";
        return Some((StatusCode::METHOD_NOT_ALLOWED, [(ALLOW, "GET, HEAD")], text).into_response());
    }
    let target_authority = request.uri().authority();
    let is_allowed = match host_header(request.headers()) {
        // RFC 9112, section 3.2: an HTTP/1.1 request has exactly one. HTTP/1.0 may omit it: that is an old
        // probe and no browser, since browsers always send it.
        HostHeader::Missing if request.version() == Version::HTTP_10 => true,
        HostHeader::Missing | HostHeader::Invalid => {
            let text = "the request has no valid Host field, or several: send one\n";
            return Some((StatusCode::BAD_REQUEST, text).into_response());
        }
        HostHeader::Host(authority) => {
            is_address_or_localhost(&authority) && target_authority.is_none_or(is_address_or_localhost)
        }
    };
    if is_allowed {
        return None;
    }
    let text = "the host of this request is a name: use an IP address or localhost. Other names are refused, \
                because a web page could point its own name at this address and read the response\n";
    Some((StatusCode::MISDIRECTED_REQUEST, text).into_response())
}

/// The `Host` field of a request.
enum HostHeader {
    Missing,
    /// More than one, or no valid authority.
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

/// Whether the host is an IP address or `localhost`. No site can own either as its name: browsers resolve
/// `localhost` to the machine itself.
fn is_address_or_localhost(authority: &Authority) -> bool {
    let host = authority.host();
    let bare = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
    bare.parse::<IpAddr>().is_ok() || host.eq_ignore_ascii_case("localhost")
}
