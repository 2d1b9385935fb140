//! `larder status`: how a running larder is, through its admin address.

mod table;
pub(super) mod units;

use std::io::{IsTerminal, stdout};
use std::time::Duration;

use anyhow::Context;
use hyper::Method;
use rustix::termios::tcgetwinsize;
use tokio::signal::ctrl_c;
use tokio::time::{MissedTickBehavior, interval};

use crate::cli::{StatusArgs, StatusFormat};
use crate::commands::admin::AdminClient;
use crate::commands::output::{is_read, print, print_error, shown};
use crate::config::Config;
use crate::unseen::{escaped, escaped_json};

/// `--watch` asks once in this time.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);

/// Turns off and on that a terminal wraps lines (DECAWM; VT510 manual, chapter 5).
const NO_WRAP: &str = "\x1b[?7l";
const WRAP: &str = "\x1b[?7h";

/// larder responds, but is not ready.
#[derive(Clone, Debug, thiserror::Error)]
#[error("not ready: {0}")]
pub struct NotReady(String);

/// What a running larder says of itself.
struct Report {
    /// As `/readyz` says it, why it is not ready or which resources are not.
    readiness: Result<String, NotReady>,
    /// The JSON of `/status`.
    status: String,
}

/// Prints the state of the larder at the configured admin address to stdout, with `--watch` each second until SIGINT.
///
/// # Errors
/// [`NotReady`], the state is printed nevertheless; [`NoResponse`](crate::commands::admin::NoResponse);
/// [`ConfigError`](crate::config::ConfigError) for a token that can't be read; a response that refuses.
pub async fn run(config: &Config, args: &StatusArgs) -> anyhow::Result<()> {
    let client = AdminClient::new(config)?;
    if args.watch {
        watch(&client, args.format).await
    } else {
        let report = report(&client).await?;
        let text = text(&client, &report, args.format)?;
        print(&mut stdout(), &text)?;
        Ok(report.readiness.map(drop)?)
    }
}

async fn report(client: &AdminClient) -> anyhow::Result<Report> {
    let ready = client.send(Method::GET, "/readyz").await?;
    let said = escaped(ready.body.trim_end());
    Ok(Report {
        readiness: if ready.is_success {
            Ok(said)
        } else {
            Err(NotReady(said))
        },
        status: client.request(Method::GET, "/status").await?,
    })
}

fn text(client: &AdminClient, report: &Report, format: StatusFormat) -> anyhow::Result<String> {
    if format == StatusFormat::Json {
        return Ok(format!("{}\n", escaped_json(report.status.trim_end())));
    }
    let status = serde_json::from_str(&report.status);
    let status = status.context("the admin address answers no JSON")?;
    let readiness = match &report.readiness {
        Ok(ready) => ready.clone(),
        Err(error) => error.to_string(),
    };
    Ok(table::text(
        &format!("larder at {}: {readiness}", client.address()),
        &status,
    ))
}

/// Prints the state each second, as long as it is read. On a terminal, it replaces what was printed before.
async fn watch(client: &AdminClient, format: StatusFormat) -> anyhow::Result<()> {
    let is_screen = stdout().is_terminal() && format == StatusFormat::Human;
    let mut ticks = interval(WATCH_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut last = Ok(());
    let mut is_first = true;
    loop {
        let asked = async {
            ticks.tick().await;
            report(client).await
        };
        let asked = tokio::select! {
            asked = asked => asked,
            interrupted = ctrl_c() => {
                interrupted.context("waiting for SIGINT")?;
                return last;
            }
        };
        let text = match &asked {
            Ok(report) => text(client, report, format)?,
            Err(error) => format!("{}\n", shown(error)),
        };
        let printed = match (is_screen, format, &asked) {
            (true, ..) => {
                let size = tcgetwinsize(stdout());
                let (rows, columns) =
                    size.map_or((0, 0), |size| (size.ws_row.into(), size.ws_col.into()));
                screen(&text, rows, columns, is_first)
            }
            // What reads the lines expects JSON.
            (false, StatusFormat::Json, Err(error)) => {
                print_error(error);
                String::new()
            }
            (false, StatusFormat::Human, _) if !is_first => format!("\n{text}"),
            (false, ..) => text,
        };
        is_first = false;
        last = asked.and_then(|report| Ok(report.readiness.map(drop)?));
        // Nothing is printed of a larder that does not respond, and an empty text is never refused.
        if !print(&mut stdout(), &printed)? || !is_read() {
            return last;
        }
    }
}

/// What shows `text` on a terminal from its first line on, as far as there is room, in place of what is there.
///
/// The terminal does not wrap lines meanwhile: it alone knows how many columns a character takes.
fn screen(text: &str, rows: usize, columns: usize, is_first: bool) -> String {
    // Clears the rest of each line and of the screen, so that nothing flickers.
    let clear = if is_first { "\x1b[2J" } else { "" };
    let lines = fitted(text, rows, columns).into_iter();
    let lines: String = lines.map(|line| format!("{line}\x1b[K\n")).collect();
    format!("{NO_WRAP}{clear}\x1b[H{lines}\x1b[J{WRAP}")
}

/// The lines of `text` that a terminal has room for; 0 is a size that is not known.
fn fitted(text: &str, rows: usize, columns: usize) -> Vec<String> {
    let columns = if columns == 0 { usize::MAX } else { columns };
    let mut lines: Vec<String> = text
        .lines()
        .map(|line| line.chars().take(columns).collect())
        .collect();
    // The cursor takes the last line, and what is left out is told in the one before.
    let room = rows.saturating_sub(1);
    if rows > 0 && lines.len() > room {
        let kept = room.saturating_sub(1);
        let left_out = lines.len() - kept;
        lines.truncate(kept);
        lines.push(format!("… {left_out} lines more"));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A wide character takes two columns, and the line would go on in the next.
    #[test]
    fn a_terminal_does_not_wrap_lines() {
        let shown = screen("日本語\n", 5, 4, false);
        assert_eq!(shown, "\x1b[?7l\x1b[H日本語\x1b[K\n\x1b[J\x1b[?7h");
    }

    #[test]
    fn a_terminal_shows_the_first_lines() {
        let text = "one\ntwo\nthree\nfour\n";
        assert_eq!(fitted(text, 0, 0), ["one", "two", "three", "four"]);
        assert_eq!(fitted(text, 5, 3), ["one", "two", "thr", "fou"]);
        assert_eq!(fitted(text, 4, 80), ["one", "two", "… 2 lines more"]);
        assert_eq!(fitted(text, 1, 80), ["… 4 lines more"]);
    }
}
