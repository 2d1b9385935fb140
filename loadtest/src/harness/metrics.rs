//! The metrics of a larder, read from `/metrics`.

use anyhow::{Context, ensure};

use crate::harness::http;
use crate::harness::larder::Larder;

/// The response of `/metrics`, in the text format of Prometheus.
pub(crate) struct MetricSamples(String);

impl MetricSamples {
    pub(crate) async fn of(larder: &Larder) -> anyhow::Result<Self> {
        let (status, text) = http::get(larder.config.admin, "/metrics").await?;
        ensure!(status == 200, "/metrics: {status}");
        Ok(Self(text))
    }

    /// The sum of all samples of this name, or of the one with these labels; 0 where there is none.
    pub(crate) fn sum(&self, name: &str) -> anyhow::Result<f64> {
        let mut sum = 0.0;
        for line in self.0.lines() {
            let Some(rest) = line.strip_prefix(name) else {
                continue;
            };
            if rest.starts_with(['{', ' ']) {
                let value = rest
                    .rsplit(' ')
                    .next()
                    .context("a sample without a value")?;
                sum += value.parse::<f64>()?;
            }
        }
        Ok(sum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_of_one_name_add_up() {
        let metrics =
            MetricSamples("# TYPE a counter\na{b=\"1\"} 2\na{b=\"2\"} 3.5\nab 4\n".to_owned());
        assert!((metrics.sum("a").unwrap() - 5.5).abs() < 1e-9);
        assert!((metrics.sum("a{b=\"1\"}").unwrap() - 2.0).abs() < 1e-9);
        assert!((metrics.sum("ab").unwrap() - 4.0).abs() < 1e-9);
        assert!(metrics.sum("c").unwrap().abs() < 1e-9);
    }
}
