//! Texts that describe the resources that a client may see, joined of a part for each resource.
//!
//! Of 300 resources, `/openapi.json` takes a second to make. So a part is made once for each definition of its resource,
//! and a text once for each set of resources, by threads for blocking work. One request makes parts at a time, and others
//! wait for it; the parts of a request that ends early are kept. Memory holds one part for each resource, and the texts of
//! the last [`KEPT_MAX`] sets, which may share the parts' bytes.

use std::sync::Arc;

use arc_swap::{ArcSwap, ArcSwapOption};
use axum::body::{Body, Bytes};
use axum::http::header::{CACHE_CONTROL, VARY};
use axum::http::request::Parts;
use axum::http::{HeaderValue, Response};
use tokio::sync::Mutex;
use tokio::time::timeout;
use xxhash_rust::xxh3::Xxh3;

use crate::auth::Principal;
use crate::cache::document::{ETAG_BYTES, entity_tag};
use crate::documents::Documents;
use crate::http::auth::Auth;
use crate::http::full_body::FullBody;
use crate::http::headers::JSON;
use crate::http::page::tagged_as;
use crate::http::problem::Problem;
use crate::http::request::RequestContext;
use crate::http::work::{self, Waiting};
use crate::resource::{Resource, ResourceId};

/// The most texts that are kept, each of other resources.
const KEPT_MAX: usize = 16;
/// With authentication, each client may see another text.
const PRIVATE: HeaderValue = HeaderValue::from_static("private, no-cache");
const BY_CREDENTIAL: HeaderValue = HeaderValue::from_static("authorization, cookie, x-api-key");

/// What a text says about resources.
pub(super) trait Description: Send + Sync + 'static {
    /// What it says about one resource.
    type Part: Send + Sync;

    /// Whether it shows a resource to `principal`; `None`: a client without credentials.
    fn is_shown(auth: &Auth, principal: Option<&Principal>, id: ResourceId) -> bool;

    /// Makes the part of `resource`, whose number is `id`.
    fn part(&self, id: ResourceId, resource: &Resource) -> Self::Part;

    /// Joins a text of the parts of these resources.
    fn join(&self, parts: &[Arc<ResourcePart<Self::Part>>]) -> Vec<Bytes>;
}

/// What a text says about one definition of a resource.
pub(super) struct ResourcePart<T> {
    id: ResourceId,
    pub(super) resource: Arc<Resource>,
    pub(super) text: T,
}

/// Answers with the text of the resources that fit the database and that the client may see.
pub(super) struct Described<D: Description> {
    documents: Documents,
    /// `None`: every client sees all resources.
    auth: Option<Arc<Auth>>,
    texts: Arc<Texts<D>>,
}

impl<D: Description> Described<D> {
    pub(super) fn new(description: D, documents: Documents, auth: Option<Arc<Auth>>) -> Self {
        let texts = Texts::new(description, documents.names().count());
        Self {
            documents,
            auth,
            texts: Arc::new(texts),
        }
    }

    /// 200 with the text, or 304 if the client has it.
    pub(super) async fn response(&self, head: &Parts) -> Response<Body> {
        let mut response = match self.text(head).await {
            Ok(text) => {
                let body = FullBody::from_parts(text.pieces.clone());
                tagged_as(&text.etag, &head.headers, JSON, Body::new(body))
            }
            Err(problem) => problem.into_response(),
        };
        if self.auth.is_some() {
            let headers = response.headers_mut();
            headers.insert(CACHE_CONTROL, PRIVATE);
            headers.append(VARY, BY_CREDENTIAL);
        }
        response
    }

    async fn text(&self, head: &Parts) -> Result<Arc<Text<D::Part>>, Problem> {
        let context = head.extensions.get::<RequestContext>();
        let context =
            context.ok_or_else(|| Problem::internal("the request did not pass the middleware"))?;
        let resources = self.resources(context.principal())?;
        let waiting = Waiting {
            client: context.client(),
            wait_max: self.documents.request_timeout(),
        };
        self.texts.of(resources, waiting).await
    }

    /// The resources that `principal` sees and that fit the database.
    ///
    /// # Errors
    /// If none does, why the first one does not.
    fn resources(&self, principal: Option<&Principal>) -> Result<Vec<NumberedResource>, Problem> {
        let auth = self.auth.as_deref();
        let mut resources = Vec::new();
        let mut unfit = None;
        for (_, id) in self.documents.names().zip(ResourceId::in_order()) {
            if auth.is_none_or(|auth| D::is_shown(auth, principal, id)) {
                match self.documents.resource(id) {
                    Ok(resource) => resources.push((id, resource)),
                    Err(error) => unfit = unfit.or(Some(error)),
                }
            }
        }
        match unfit {
            Some(error) if resources.is_empty() => Err(Problem::from(error)),
            _ => Ok(resources),
        }
    }
}

type NumberedResource = (ResourceId, Arc<Resource>);

/// The parts of a description, and the texts that were joined of them.
struct Texts<D: Description> {
    description: D,
    /// By resource, each of the newest definition that was asked for.
    parts: Vec<ArcSwapOption<ResourcePart<D::Part>>>,
    /// Those of different resources, oldest first.
    joined: ArcSwap<Vec<Arc<Text<D::Part>>>>,
    /// Held while a request makes parts and a text.
    making: Mutex<()>,
}

struct Text<T> {
    /// Of the resources that it describes.
    parts: Vec<Arc<ResourcePart<T>>>,
    pieces: Vec<Bytes>,
    etag: [u8; ETAG_BYTES],
}

impl<D: Description> Texts<D> {
    fn new(description: D, resources: usize) -> Self {
        let parts = std::iter::repeat_with(ArcSwapOption::empty);
        Self {
            description,
            parts: parts.take(resources).collect(),
            joined: ArcSwap::default(),
            making: Mutex::default(),
        }
    }

    /// The text of these resources. Cancel safe.
    ///
    /// # Errors
    /// 503 if it could not be made in time: the next request has less to make.
    async fn of(
        self: &Arc<Self>,
        resources: Vec<NumberedResource>,
        waiting: Waiting,
    ) -> Result<Arc<Text<D::Part>>, Problem> {
        if let Some(text) = self.find(&resources) {
            return Ok(text);
        }
        let made = timeout(waiting.wait_max, self.make(resources, waiting)).await;
        made.unwrap_or(Err(Problem::LONG_REQUESTS))
    }

    fn find(&self, resources: &[NumberedResource]) -> Option<Arc<Text<D::Part>>> {
        let joined = self.joined.load();
        joined.iter().find(|text| text.is_of(resources)).cloned()
    }

    async fn make(
        self: &Arc<Self>,
        resources: Vec<NumberedResource>,
        waiting: Waiting,
    ) -> Result<Arc<Text<D::Part>>, Problem> {
        let _making = self.making.lock().await;
        // The request before may have made it.
        if let Some(text) = self.find(&resources) {
            return Ok(text);
        }
        let mut parts = Vec::with_capacity(resources.len());
        for (id, resource) in resources {
            parts.push(self.part(id, resource, waiting).await?);
        }
        let this = Arc::clone(self);
        let join = move || Arc::new(Text::join(&this.description, parts));
        let text = work::run_elsewhere(waiting, Problem::NOT_DESCRIBED, join).await?;
        self.keep(&text);
        Ok(text)
    }

    /// The part of a resource, which is made unless it is there.
    async fn part(
        self: &Arc<Self>,
        id: ResourceId,
        resource: Arc<Resource>,
        waiting: Waiting,
    ) -> Result<Arc<ResourcePart<D::Part>>, Problem> {
        let place = self.parts.get(id.index());
        let kept = place.and_then(ArcSwapOption::load_full);
        if let Some(part) = kept.filter(|part| Arc::ptr_eq(&part.resource, &resource)) {
            return Ok(part);
        }
        let this = Arc::clone(self);
        let make = move || {
            let text = this.description.part(id, &resource);
            Arc::new(ResourcePart { id, resource, text })
        };
        let part = work::run_elsewhere(waiting, Problem::NOT_DESCRIBED, make).await?;
        if let Some(place) = place {
            place.store(Some(Arc::clone(&part)));
        }
        Ok(part)
    }

    /// Keeps a text, and drops those with a part of an older definition.
    fn keep(&self, text: &Arc<Text<D::Part>>) {
        let joined = self.joined.load();
        let current = joined.iter().filter(|text| self.is_current(text)).rev();
        let mut newest: Vec<_> = [text].into_iter().chain(current).take(KEPT_MAX).collect();
        newest.reverse();
        let newest = newest.into_iter().map(Arc::clone).collect();
        self.joined.store(Arc::new(newest));
    }

    fn is_current(&self, text: &Text<D::Part>) -> bool {
        text.parts.iter().all(|part| {
            let kept = self.parts.get(part.id.index()).map(ArcSwapOption::load);
            let kept = kept.as_ref().and_then(|kept| kept.as_ref());
            kept.is_some_and(|kept| Arc::ptr_eq(kept, part))
        })
    }
}

impl<T> Text<T> {
    fn join<D: Description<Part = T>>(description: &D, parts: Vec<Arc<ResourcePart<T>>>) -> Self {
        let pieces = description.join(&parts);
        let mut hash = Xxh3::new();
        for piece in &pieces {
            hash.update(piece);
        }
        Self {
            parts,
            pieces,
            etag: entity_tag(hash.digest128().to_be_bytes()),
        }
    }

    /// Whether it describes these resources.
    fn is_of(&self, resources: &[NumberedResource]) -> bool {
        let mut pairs = self.parts.iter().zip(resources);
        self.parts.len() == resources.len()
            && pairs.all(|(part, (_, resource))| Arc::ptr_eq(&part.resource, resource))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread::{self, ThreadId};
    use std::time::Duration;

    use super::*;
    use crate::resource::testing::named;

    const WAITING: Waiting = Waiting {
        client: std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST),
        wait_max: Duration::from_secs(60),
    };

    /// Names resources; made on any thread but that of the test.
    struct Names {
        test: ThreadId,
        made: AtomicUsize,
        joined: AtomicUsize,
    }

    impl Description for Names {
        type Part = Bytes;

        fn is_shown(_: &Auth, _: Option<&Principal>, _: ResourceId) -> bool {
            true
        }

        fn part(&self, _: ResourceId, resource: &Resource) -> Bytes {
            assert_ne!(thread::current().id(), self.test);
            self.made.fetch_add(1, Ordering::Relaxed);
            resource.name.clone().into()
        }

        fn join(&self, parts: &[Arc<ResourcePart<Bytes>>]) -> Vec<Bytes> {
            assert_ne!(thread::current().id(), self.test);
            self.joined.fetch_add(1, Ordering::Relaxed);
            parts.iter().map(|part| part.text.clone()).collect()
        }
    }

    fn texts(resources: usize) -> Arc<Texts<Names>> {
        let names = Names {
            test: thread::current().id(),
            made: AtomicUsize::new(0),
            joined: AtomicUsize::new(0),
        };
        Arc::new(Texts::new(names, resources))
    }

    fn resources(names: &[&str]) -> Vec<NumberedResource> {
        let resources = names.iter().map(|name| Arc::new(named(name)));
        ResourceId::in_order().zip(resources).collect()
    }

    fn made(texts: &Texts<Names>) -> (usize, usize) {
        let Names { made, joined, .. } = &texts.description;
        (made.load(Ordering::Relaxed), joined.load(Ordering::Relaxed))
    }

    #[tokio::test]
    async fn parts_and_texts_are_made_once_and_not_on_the_worker() {
        let texts = texts(3);
        let all = resources(&["a", "b", "c"]);
        let requests = (0..20).map(|_| texts.of(all.clone(), WAITING));
        for text in futures_util::future::join_all(requests).await {
            let text = text.ok().unwrap();
            assert_eq!(text.pieces.concat(), b"abc");
        }
        assert_eq!(made(&texts), (3, 1));
        let fewer = vec![all[0].clone(), all[2].clone()];
        let text = texts.of(fewer, WAITING).await.ok().unwrap();
        assert_eq!(text.pieces.concat(), b"ac");
        assert_eq!(made(&texts), (3, 2));
        assert_eq!(
            text.etag,
            entity_tag(xxhash_rust::xxh3::xxh3_128(b"ac").to_be_bytes())
        );
    }

    #[tokio::test]
    async fn a_new_definition_replaces_its_part_and_the_texts_with_it() {
        let texts = texts(3);
        let mut all = resources(&["a", "b", "c"]);
        let (one, both) = (vec![all[2].clone()], all[..2].to_vec());
        for shown in [&all, &one, &both] {
            texts.of(shown.clone(), WAITING).await.ok().unwrap();
        }
        assert_eq!(made(&texts), (3, 3));
        all[0].1 = Arc::new(named("new"));
        let old = Arc::downgrade(&both[0].1);
        drop(both);
        let text = texts.of(all, WAITING).await.ok().unwrap();
        assert_eq!(text.pieces.concat(), b"newbc");
        assert_eq!(made(&texts), (4, 4));
        assert!(old.upgrade().is_none(), "the old definition is in no text");
        assert!(texts.find(&one).is_some());
    }

    #[tokio::test]
    async fn the_oldest_text_gives_way() {
        let texts = texts(KEPT_MAX + 1);
        let names = vec!["a"; KEPT_MAX + 1];
        let all = resources(&names);
        for one in &all {
            texts.of(vec![one.clone()], WAITING).await.ok().unwrap();
        }
        assert!(texts.find(&all[..1]).is_none());
        assert!(
            all[1..]
                .iter()
                .all(|one| texts.find(std::slice::from_ref(one)).is_some())
        );
    }
}
