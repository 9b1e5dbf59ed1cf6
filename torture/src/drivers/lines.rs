//! Programs that speak lines on standard input and output, see the README.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::Deserialize;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin};
use tokio::sync::oneshot;

use crate::Failed;
use crate::judge::Answer;
use crate::target::Ability;

/// The first line of a program.
#[derive(Deserialize)]
#[serde(untagged)]
enum First {
    Hello(Hello),
    Error { error: String },
}

#[derive(Deserialize)]
pub(super) struct Hello {
    pub(super) version: String,
    pub(super) can: Vec<Ability>,
}

type Open = Mutex<HashMap<u64, oneshot::Sender<(Instant, Answer)>>>;

pub(super) struct Lines {
    input: tokio::sync::Mutex<Option<ChildStdin>>,
    open: Arc<Open>,
    next: AtomicU64,
}

impl Lines {
    pub(super) async fn new(child: &mut Child) -> Result<(Self, Hello), Failed> {
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err("its input and output are not pipes".into());
        };
        let mut lines = BufReader::new(output).lines();
        let first = lines.next_line().await?.ok_or("it ended without a line")?;
        let hello = match serde_json::from_str(&first) {
            Ok(First::Hello(hello)) => hello,
            Ok(First::Error { error }) => return Err(error.into()),
            Err(error) => return Err(format!("its first line is {first:?}: {error}").into()),
        };
        let open = Arc::<Open>::default();
        let answered = Arc::clone(&open);
        tokio::spawn(async move {
            while let Ok(Some(line)) = lines.next_line().await {
                let now = Instant::now();
                if let Some((id, answer)) = read(&line)
                    && let Some(caller) = lock(&answered).remove(&id)
                {
                    let _ = caller.send((now, answer));
                }
            }
            // The callers see that it has ended.
            lock(&answered).clear();
        });
        Ok((Self { input: Some(input).into(), open, next: AtomicU64::new(0) }, hello))
    }

    /// Ends its input.
    pub(super) async fn end(&self) {
        self.input.lock().await.take();
    }

    pub(super) async fn ask(&self, key: &str, cost: u64) -> (Instant, Answer) {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let (answer, answered) = oneshot::channel();
        lock(&self.open).insert(id, answer);
        let line = format!("{id} {key} {cost}\n");
        let written = match self.input.lock().await.as_mut() {
            Some(input) => input.write_all(line.as_bytes()).await,
            None => Err(std::io::ErrorKind::BrokenPipe.into()),
        };
        let answer = match written {
            Ok(()) => answered.await.map_err(|_| "it ended".to_owned()),
            Err(error) => Err(error.to_string()),
        };
        answer.unwrap_or_else(|error| (Instant::now(), Answer::Failed(error)))
    }
}

fn lock(open: &Open) -> std::sync::MutexGuard<'_, HashMap<u64, oneshot::Sender<(Instant, Answer)>>> {
    open.lock().unwrap_or_else(PoisonError::into_inner)
}

fn read(line: &str) -> Option<(u64, Answer)> {
    let mut words = line.splitn(3, ' ');
    let id = words.next()?.parse().ok()?;
    let answer = match (words.next(), words.next().unwrap_or_default().trim()) {
        (Some("+"), _) => Answer::Admitted,
        (Some("-"), "") => Answer::Denied(None),
        (Some("-"), wait) => match wait.parse::<f64>() {
            Ok(ms) if ms.is_finite() => Answer::Denied(Some(Duration::from_secs_f64(ms.max(0.0) / 1e3))),
            _ => Answer::Failed(format!("{wait:?} is not a wait in milliseconds")),
        },
        (Some("!"), message) => Answer::Failed(message.to_owned()),
        _ => Answer::Failed(format!("{line:?} is not an answer")),
    };
    Some((id, answer))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read() {
        let failed = |message: &str| Answer::Failed(message.to_owned());
        for (line, expected) in [
            ("1 +", Answer::Admitted),
            ("1 -", Answer::Denied(None)),
            ("1 - 42.5", Answer::Denied(Some(Duration::from_micros(42_500)))),
            ("1 - -3", Answer::Denied(Some(Duration::ZERO))),
            ("1 ! out of memory", failed("out of memory")),
            ("1 - soon", failed("\"soon\" is not a wait in milliseconds")),
            ("1 yes", failed("\"1 yes\" is not an answer")),
        ] {
            assert_eq!(read(line), Some((1, expected)), "{line}");
        }
        assert_eq!(read("a line of a log"), None);
    }
}
