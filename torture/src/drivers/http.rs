//! Targets that are asked over HTTP.

use std::time::Instant;

use crate::Failed;
use crate::judge::Answer;
use crate::target::{Http, HttpWait, filled};

pub(super) struct Client {
    client: reqwest::Client,
    form: Http,
    method: reqwest::Method,
    base: String,
}

impl Client {
    pub(super) fn new(form: &Http, port: u16) -> Result<Self, Failed> {
        let client = reqwest::Client::builder().no_proxy().build()?;
        let method = form.method.parse()?;
        Ok(Self { client, form: form.clone(), method, base: format!("http://127.0.0.1:{port}") })
    }

    pub(super) async fn ask(&self, key: &str, cost: u64) -> (Instant, Answer) {
        let url = format!("{}{}", self.base, filled(&self.form.path, key, cost));
        let mut request = self.client.request(self.method.clone(), url);
        for (name, value) in &self.form.headers {
            request = request.header(name, filled(value, key, cost));
        }
        if !self.form.body.is_empty() {
            request = request.body(filled(&self.form.body, key, cost));
        }
        let answer = self.read(request.send().await).await;
        answer.unwrap_or_else(|error| (Instant::now(), Answer::Failed(error.to_string())))
    }

    async fn read(&self, response: reqwest::Result<reqwest::Response>) -> reqwest::Result<(Instant, Answer)> {
        let response = response?;
        let answered = Instant::now();
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        // The connection is free for the next call when the body has been read.
        let body = response.bytes().await?;
        let answer = if self.form.admitted.contains(&status) {
            Answer::Admitted
        } else if self.form.denied.contains(&status) {
            let (number, unit) = match &self.form.wait {
                None => (None, None),
                Some(HttpWait::Header { header, unit }) => {
                    (headers.get(header).and_then(|value| value.to_str().ok()?.parse().ok()), Some(*unit))
                }
                Some(HttpWait::Json { json, unit }) => {
                    let body: Option<serde_json::Value> = serde_json::from_slice(&body).ok();
                    (body.and_then(|body| body.pointer(json)?.as_f64()), Some(*unit))
                }
            };
            Answer::Denied(number.zip(unit).and_then(|(number, unit)| unit.duration(number)))
        } else {
            Answer::Failed(format!("status {status}"))
        };
        Ok((answered, answer))
    }
}
