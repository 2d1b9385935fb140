//! Messages to NATS JetStream, one for each row.
//!
//! `Nats-Msg-Id` is the id of the delivery: the stream drops repetitions within its `duplicate_window`.

use std::time::Duration;

use async_nats::connection::State;
use async_nats::header::NATS_MESSAGE_ID;
use async_nats::jetstream::context::{GetStreamByNameErrorKind, PublishError, PublishErrorKind};
use async_nats::jetstream::{Context, ContextBuilder};
use async_nats::{ConnectOptions, HeaderMap};
use futures_util::future::join_all;
use percent_encoding::percent_decode_str;
use tokio::sync::OnceCell;

use crate::auth::read_file;
use crate::dispatch::batch::DueRow;
use crate::dispatch::definition::DispatchDefinition;
use crate::dispatch::sink::Answer;
use crate::dispatch::sink::subject::Subject;
use crate::resource::definition::Mistake;
use crate::resource::due::DueRows;

/// The longest wait for a connection.
const CONNECT_MAX: Duration = Duration::from_secs(5);

/// `NATS/1.0\r\nNats-Msg-Id: …\r\n\r\n`, which `max_payload` counts, without the id.
const HEADER_BYTES: usize = 10 + 13 + 4;

/// A server of NATS that takes rows.
pub(in crate::dispatch) struct NatsSink {
    definition: DispatchDefinition,
    subject: Subject,
    /// The connection, which the client makes anew when it is lost.
    context: OnceCell<Context>,
}

/// Why a stream can't be used.
pub(in crate::dispatch) enum StreamError {
    /// The server can't be reached, or does not say.
    Unreachable(String),
    /// The configuration does not fit, at this property.
    Unfit(&'static str, String),
}

impl NatsSink {
    pub(super) fn new(definition: &DispatchDefinition) -> Self {
        let subject = definition.sink.subject.as_deref().unwrap_or_default();
        Self {
            definition: definition.clone(),
            // It was checked with the configuration.
            subject: Subject::parse(subject).unwrap_or_default(),
            context: OnceCell::new(),
        }
    }

    /// Checks that rows have the members that the subject names, and that a stream takes it. Warns if repetitions may
    /// arrive twice.
    pub(super) async fn check(&self, rows: &DueRows) -> Result<(), StreamError> {
        let fields = &rows.resource.root.fields;
        let mut members = self.subject.members();
        if let Some(member) = members.find(|name| fields.iter().all(|field| field.name != *name)) {
            let message = format!("a row has no member {member:?}");
            return Err(StreamError::Unfit("subject", message));
        }
        let sink = &self.definition.sink;
        for (key, path) in [
            ("credentials_file", &sink.credentials_file),
            ("ca_file", &sink.ca_file),
        ] {
            if let Some(path) = path {
                let read = read_file(path, key);
                let told = |mistake: Mistake| format!("{} {}", path.display(), mistake.message);
                read.map_err(|mistake| StreamError::Unfit(key, told(mistake)))?;
            }
        }
        let context = self.context().await.map_err(StreamError::Unreachable)?;
        let subjects = self.subject.wildcard();
        let name = match context.stream_by_subject(&subjects).await {
            Ok(name) => name,
            Err(error) if error.kind() == GetStreamByNameErrorKind::NotFound => {
                let message = format!("no stream of JetStream takes {subjects}: create one");
                return Err(StreamError::Unfit("subject", message));
            }
            Err(error) => return Err(StreamError::Unreachable(error.to_string())),
        };
        let stream = context.get_stream(&name).await;
        let stream = stream.map_err(|error| StreamError::Unreachable(error.to_string()))?;
        let window = stream.cached_info().config.duplicate_window;
        let needed = self.definition.takeover + sink.timeout;
        if window < needed {
            tracing::warn!(
                "dispatch {}: the stream {name} drops repetitions for {window:?} only: a row that was sent and could not be \
                 rescheduled is sent again up to {needed:?} later, and arrives twice; set its duplicate_window to that at least",
                self.definition.name.value
            );
        }
        Ok(())
    }

    /// Says why the row can't be sent at any time.
    pub(super) fn fault(&self, row: &DueRow) -> Option<String> {
        if let Err(error) = self.subject.of(&row.element) {
            return Some(error);
        }
        let max = self.context.get()?.client().max_payload();
        let bytes = HEADER_BYTES + row.id.len() + row.element.len();
        (bytes > max)
            .then(|| format!("the message has {bytes} bytes; the server takes {max} (max_payload)"))
    }

    /// Sends a message for each row, and waits until the stream has stored them.
    pub(super) async fn send(&self, rows: &[DueRow]) -> (Answer, String) {
        let failed = |answer| (answer, "error".to_owned());
        let context = match self.context().await {
            Ok(context) => context,
            Err(error) => return failed(Answer::Unreachable(error)),
        };
        let is_connected = || context.client().connection_state() == State::Connected;
        if !is_connected() {
            let error = "the connection to NATS is lost".to_owned();
            return failed(Answer::Unreachable(error));
        }
        let outcomes = join_all(rows.iter().map(|row| self.publish(context, row))).await;
        let first = outcomes.iter().find_map(|outcome| outcome.as_ref().err());
        if let Some(error) = first.filter(|_| outcomes.iter().all(Result::is_err)) {
            let message = error.to_string();
            return failed(match error.kind() {
                PublishErrorKind::StreamNotFound => Answer::Unavailable(message, None),
                _ if !is_connected() => Answer::Unreachable(message),
                _ => Answer::Failed(message),
            });
        }
        let refused = rows.iter().zip(&outcomes);
        let refused = refused.filter_map(|(row, outcome)| {
            let error = outcome.as_ref().err()?;
            Some((row.id.clone(), error.to_string()))
        });
        (
            Answer::Delivered(refused.collect()),
            "acknowledged".to_owned(),
        )
    }

    async fn publish(&self, context: &Context, row: &DueRow) -> Result<(), PublishError> {
        let subject = self.subject.of(&row.element);
        let subject =
            subject.map_err(|error| PublishError::with_source(PublishErrorKind::Other, error))?;
        let mut headers = HeaderMap::new();
        headers.insert(NATS_MESSAGE_ID, row.id.as_str());
        let sent = context.publish_with_headers(subject, headers, row.element.clone());
        sent.await?.await?;
        Ok(())
    }

    /// Connects, if that has not succeeded yet.
    async fn context(&self) -> Result<&Context, String> {
        self.context.get_or_try_init(|| self.connect()).await
    }

    async fn connect(&self) -> Result<Context, String> {
        let sink = &self.definition.sink;
        // Only the first call has an effect. All other calls in larder install ring as well.
        drop(rustls::crypto::ring::default_provider().install_default());
        let mut options = ConnectOptions::new()
            .name("larder dispatch")
            .connection_timeout(sink.timeout.min(CONNECT_MAX))
            .request_timeout(Some(sink.timeout));
        if let Some(path) = &sink.credentials_file {
            let bytes =
                read_file(path, "credentials_file").map_err(|mistake| mistake.to_string())?;
            let text = String::from_utf8_lossy(&bytes);
            let read = options.credentials(&text);
            options = read.map_err(|error| format!("credentials_file: {error}"))?;
        }
        if let Some(path) = &sink.ca_file {
            options = options.add_root_certificates(path.clone());
        }
        let url = sink.url.as_ref().map_or("", |url| url.expose());
        // The client takes none of these from the URL (nats.rs #1623). As for other clients, a user alone is a token.
        if let Ok(url) = reqwest::Url::parse(url)
            && !url.username().is_empty()
        {
            let decoded = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
            let user = decoded(url.username());
            options = match url.password() {
                Some(password) => options.user_and_password(user, decoded(password)),
                None => options.token(user),
            };
        }
        let client = options
            .connect(url)
            .await
            .map_err(|error| error.to_string())?;
        let in_flight = sink.rows.saturating_mul(sink.concurrency);
        let context = ContextBuilder::new().timeout(sink.timeout);
        let context = context
            .ack_timeout(sink.timeout)
            .max_ack_inflight(in_flight);
        Ok(context.build(client))
    }
}
