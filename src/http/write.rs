//! `POST`, `PUT`, `PATCH` and `DELETE`: what changes documents.
//!
//! `document` writes one document, `bulk` inserts many. Requests that are invalid by themselves are refused without
//! PostgreSQL. A write is answered once this node has applied its changes, so a read after the response sees them.

mod bulk;
mod document;

use axum::body::Body;
use axum::http::{Method, Response};

use crate::auth::Right;
use crate::documents::Scope;
use crate::http::problem::Problem;
use crate::http::request::{Request, TargetPart};
use crate::http::state::HttpState;
use crate::http::write::bulk::BulkWrite;
use crate::http::write::document::DocumentWrite;
use crate::resource::{Resource, ResourceId};

/// Answers a request with a method that writes.
pub(super) async fn write_documents(
    state: &HttpState,
    request: &Request<'_>,
    id: ResourceId,
    part: TargetPart,
    mut body: Body,
) -> Result<Response<Body>, Problem> {
    let documents = &state.documents;
    let resource = documents.resource(id)?;
    let inserts = *request.method == Method::POST && part == TargetPart::Collection;
    if inserts && resource.writable.is_ok() {
        let framing;
        (framing, body) = bulk::detect_framing(request, body).await?;
        if let Some(framing) = framing {
            let bulk = BulkWrite {
                documents,
                answers: &state.answers,
                clients: &state.bulk_clients,
                request,
                id,
                resource,
            };
            return bulk.insert(framing, body).await;
        }
    }
    let write = DocumentWrite {
        documents,
        answers: &state.answers,
        request,
        id,
        resource,
        part,
    };
    let body = state.bodies.hold(body, request.client());
    write.write(body).await
}

/// The documents that a request may write, and those that it may be shown.
#[derive(Clone)]
struct WriteScopes {
    writer: Scope<'static>,
    reader: Scope<'static>,
}

impl WriteScopes {
    fn of(request: &Request<'_>, id: ResourceId, resource: &Resource) -> Self {
        let scope = |right| request.scope(id, resource, right).into_owned();
        Self {
            writer: scope(Right::Write),
            reader: if request.may_read(id) {
                scope(Right::Read)
            } else {
                Scope::Own(None)
            },
        }
    }

    /// Whether it may be shown any document.
    fn may_read(&self) -> bool {
        self.reader != Scope::Own(None)
    }

    /// Whether it may be shown every document that it may write, if there are any.
    fn may_read_written(&self) -> bool {
        let may_read =
            self.may_read() && (self.writer.is_restricted() || !self.reader.is_restricted());
        may_read || self.writer == Scope::Own(None)
    }
}
