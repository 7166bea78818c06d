//! Logs and metrics of the process.

use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};

pub fn log(_: impl Iterator<Item = (String, String)>) -> Result<(), std::io::Error> {
    tracing_subscriber::fmt().json().flatten_event(true).init();
    Ok(())
}

pub fn metrics() -> Result<PrometheusHandle, metrics_exporter_prometheus::BuildError> {
    PrometheusBuilder::new().install_recorder()
}
