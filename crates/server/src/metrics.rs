//! Figures for Prometheus.

use axum::http::StatusCode;
use engine::EngineStats;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

/// The type of the text.
pub(crate) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Every name begins with it.
const PREFIX: &str = "plainchant";

/// Which answers are counted together. Paths are those of routes, so their number is bounded.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Answered {
    path: String,
    status: u16,
}

/// What the server itself counts; the rest comes from [`EngineStats`].
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    answers: Family<Answered, Counter>,
    pub(crate) connections: Gauge,
    pub(crate) connections_refused: Counter,
    pub(crate) slow_clients: Counter,
    pub(crate) disconnects: Counter,
    pub(crate) ttft_seconds: Histogram,
    pub(crate) inter_token_seconds: Histogram,
    pub(crate) step_seconds: Histogram,
    pub(crate) step_tokens: Histogram,
}

impl Default for Metrics {
    fn default() -> Self {
        // From a tenth of a millisecond to three minutes, and from one token to what a step can hold.
        let seconds = || Histogram::new(exponential_buckets(1e-4, 2.0, 21));
        let mut metrics = Self {
            registry: Registry::with_prefix(PREFIX),
            answers: Family::default(),
            connections: Gauge::default(),
            connections_refused: Counter::default(),
            slow_clients: Counter::default(),
            disconnects: Counter::default(),
            ttft_seconds: seconds(),
            inter_token_seconds: seconds(),
            step_seconds: seconds(),
            step_tokens: Histogram::new(exponential_buckets(1.0, 2.0, 14)),
        };
        metrics.register();
        metrics
    }
}

impl Metrics {
    fn register(&mut self) {
        let registry = &mut self.registry;
        let answers = self.answers.clone();
        registry.register("http_answers", "HTTP answers by path and status", answers);
        let open = self.connections.clone();
        registry.register("http_connections", "Open connections", open);
        let help = "Connections refused because too many were open";
        let refused = self.connections_refused.clone();
        registry.register("http_connections_refused", help, refused);
        let help = "Requests ended because their client read too slowly";
        registry.register("slow_clients", help, self.slow_clients.clone());
        let help = "Requests whose client went away before their end";
        registry.register("disconnects", help, self.disconnects.clone());
        let help = "Time from a request's arrival to its first token";
        let ttft = self.ttft_seconds.clone();
        registry.register("time_to_first_token_seconds", help, ttft);
        let help = "Time between two tokens of an answer";
        let between = self.inter_token_seconds.clone();
        registry.register("inter_token_seconds", help, between);
        let time = self.step_seconds.clone();
        registry.register("step_seconds", "Time of a step of the engine", time);
        let tokens = self.step_tokens.clone();
        registry.register("step_tokens", "Tokens in a step of the engine", tokens);
    }

    /// Counts an answer to a request for the route `path`.
    pub(crate) fn answered(&self, path: &str, status: StatusCode) {
        let labels = Answered {
            path: path.to_owned(),
            status: status.as_u16(),
        };
        self.answers.get_or_create(&labels).inc();
    }

    /// All figures as text.
    ///
    /// # Errors
    /// When formatting fails, which strings don't.
    pub(crate) fn render(&self, stats: EngineStats) -> Result<String, std::fmt::Error> {
        let mut engine = Registry::with_prefix(PREFIX);
        engine.register_collector(Box::new(EngineFigures(stats)));
        let mut text = String::new();
        encode_registry(&mut text, &self.registry)?;
        encode_registry(&mut text, &engine)?;
        encode_eof(&mut text)?;
        Ok(text)
    }
}

/// The engine's figures at one moment.
#[derive(Debug)]
struct EngineFigures(EngineStats);

impl EngineFigures {
    /// Name, help and value of what goes up and down.
    fn gauges(&self) -> [(&'static str, &'static str, u64); 12] {
        let s = &self.0;
        let count = |n: usize| n as u64;
        [
            (
                "requests_waiting",
                "Requests in the queue",
                count(s.waiting),
            ),
            ("requests_running", "Requests that run", count(s.running)),
            (
                "requests_prefilling",
                "Requests whose prompt runs",
                count(s.prefilling),
            ),
            (
                "requests_decoding",
                "Requests that generate",
                count(s.decoding),
            ),
            (
                "requests_preempted",
                "Requests that wait to go on",
                count(s.preempted),
            ),
            (
                "pages_total",
                "Pages of keys and values",
                count(s.pages_total),
            ),
            ("pages_free", "Pages that hold nothing", count(s.pages_free)),
            (
                "pages_held",
                "Pages of requests that run",
                count(s.pages_held),
            ),
            (
                "pages_cached",
                "Pages kept for later prompts",
                count(s.pages_cached),
            ),
            (
                "swapped_bytes",
                "Memory of preempted requests",
                s.swapped_bytes,
            ),
            ("state_bytes", "Memory for keys and values", s.state_bytes),
            (
                "last_step_tokens",
                "Tokens in the last step",
                count(s.last_step_tokens),
            ),
        ]
    }

    /// Name, help and value of what only goes up.
    fn counters(&self) -> [(&'static str, &'static str, u64); 14] {
        let s = &self.0;
        [
            (
                "requests_submitted",
                "Requests that the engine took",
                s.submitted,
            ),
            (
                "requests_rejected",
                "Requests that the engine refused",
                s.rejected,
            ),
            (
                "requests_stopped",
                "Requests that ended by themselves or at a stop text",
                s.stopped,
            ),
            (
                "requests_reached_length",
                "Requests that ended at a limit",
                s.reached_length,
            ),
            (
                "requests_cancelled",
                "Requests that were cancelled",
                s.cancelled,
            ),
            ("requests_failed", "Requests that failed", s.failed),
            ("prompt_tokens", "Tokens of prompts", s.prompt_tokens),
            (
                "prefix_hit_tokens",
                "Tokens of prompts found in the cache",
                s.prefix_hit_tokens,
            ),
            (
                "computed_tokens",
                "Tokens of prompts that were computed",
                s.computed_tokens,
            ),
            (
                "generated_tokens",
                "Tokens that were generated",
                s.generated_tokens,
            ),
            ("swaps", "Preemptions by swapping", s.swaps),
            ("recomputes", "Preemptions by recomputation", s.recomputes),
            (
                "failed_steps",
                "Steps that failed and were run again, request by request",
                s.failed_steps,
            ),
            ("steps", "Steps of the engine", s.steps),
        ]
    }
}

impl Collector for EngineFigures {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        for (name, help, value) in self.gauges() {
            let gauge = ConstGauge::new(value as f64);
            gauge.encode(encoder.encode_descriptor(name, help, None, gauge.metric_type())?)?;
        }
        for (name, help, value) in self.counters() {
            let counter = ConstCounter::new(value);
            counter.encode(encoder.encode_descriptor(
                name,
                help,
                None,
                counter.metric_type(),
            )?)?;
        }
        let times = [
            ("busy_seconds", "Time in the model", self.0.busy_ms),
            (
                "scheduling_seconds",
                "Time in steps outside the model",
                self.0.scheduling_ms,
            ),
        ];
        for (name, help, ms) in times {
            let counter = ConstCounter::new(ms / 1000.0);
            counter.encode(encoder.encode_descriptor(
                name,
                help,
                None,
                counter.metric_type(),
            )?)?;
        }
        Ok(())
    }
}
