//! Storage classes: which one an object has, copying it to another in its own place, and restoring
//! it from an archive.
//!
//! `object_store` has no calls for these, only for a class at a put: the requests are made and
//! signed here. A copy of an object to itself replaces it as a whole: until the copy is complete
//! the store has the object as it was. What it has become is looked at afterwards, since stores
//! that know nothing of classes answer that all is well.

use bytes::Bytes;
use http::{HeaderMap, Method};
use kestrel_blockstore::error::{Error, Result};
use kestrel_blockstore::store::{RestoreSpeed, RestoreState, TierState, TieredStore, key};
use kestrel_types::ids::ObjectId;
use kestrel_types::tier::Tier;
use object_store::aws::AwsAuthorizer;
use object_store::client::HttpRequest;
use object_store::path::Path;

use super::S3Store;
use super::put::{Kept, MARK_HEADER, unique};
use crate::client::Attempt;
use crate::fault::{Cause, Failure, Fault};
use crate::rate_limiter::Direction;

const CLASS_HEADER: &str = "x-amz-storage-class";
const RESTORE_HEADER: &str = "x-amz-restore";
const COPY_HEADER: &str = "x-amz-copy-source";

/// What the answer to a HEAD says.
pub(super) struct Head {
    size: Option<u64>,
    class: String,
    restore: RestoreState,
    /// The mark of its put.
    pub(super) mark: Option<String>,
}

impl Head {
    fn of(headers: &HeaderMap) -> Self {
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let restore = match text(RESTORE_HEADER) {
            Some(text) if text.contains("ongoing-request=\"true\"") => RestoreState::UnderWay,
            Some(_) => RestoreState::Restored,
            None => RestoreState::None,
        };
        Self {
            size: text("content-length").and_then(|size| size.parse().ok()),
            // S3 does not name the one that objects have by themselves.
            class: text(CLASS_HEADER).unwrap_or(Tier::Standard.s3_class()).to_string(),
            restore,
            mark: text(MARK_HEADER).map(ToString::to_string),
        }
    }

    fn state(&self) -> TierState {
        let tier = Tier::from_s3_class(&self.class);
        TierState { tier, restore: self.restore, size: self.size }
    }
}

/// A request that `object_store` has no call for.
struct Asked<'a> {
    method: Method,
    path: &'a Path,
    /// With its question mark, or empty.
    query: &'static str,
    headers: &'a [(&'static str, String)],
    body: Bytes,
}

impl S3Store {
    /// Makes and signs a request and sends it; status and headers of the answer.
    async fn ask(&self, asked: &Asked<'_>) -> Attempt<(u16, HeaderMap)> {
        let Asked { method, path, query, headers, body } = asked;
        let client = &self.client;
        let unsent = |why: String| Fault::found(Cause::Refused, why);
        let url = format!("{}/{path}{query}", client.bucket_url);
        let mut request = http::Request::builder().method(method.clone()).uri(url);
        for (name, value) in *headers {
            request = request.header(*name, value);
        }
        let mut request: HttpRequest =
            request.body(body.clone().into()).map_err(|why| unsent(why.to_string()))?;
        let credential = client.s3.credentials().get_credential().await?;
        AwsAuthorizer::new(&credential, "s3", &client.region).try_authorize(&mut request, None)?;
        let answer = client.http.execute(request).await.map_err(failed)?;
        let (status, headers) = (answer.status(), answer.headers().clone());
        match status.is_success() {
            true => Ok((status.as_u16(), headers)),
            false => Err(failed(format!("the store answered {status}")).into()),
        }
    }

    /// What the store says of an object.
    pub(super) async fn head_of(&self, path: &Path) -> std::result::Result<Head, Failure> {
        let asked =
            Asked { method: Method::HEAD, path, query: "", headers: &[], body: Bytes::new() };
        let once = async || -> Attempt<Head> { Ok(Head::of(&self.ask(&asked).await?.1)) };
        match self.client.request(Direction::Down, 0, once).await {
            // The answer to a HEAD explains nothing.
            Err(failure) if failure.fault.cause == Cause::Missing => {
                self.size_by_get(path).await?;
                Err(failure)
            }
            done => done,
        }
    }

    /// Copies an object of `size` bytes to itself, in another class.
    async fn copy_to(
        &self,
        path: &Path,
        size: Option<u64>,
        tier: Tier,
    ) -> std::result::Result<(), Failure> {
        let source = format!("/{}/{path}", self.client.options.bucket);
        let headers = [(COPY_HEADER, source), (CLASS_HEADER, tier.s3_class().to_string())];
        let asked =
            Asked { method: Method::PUT, path, query: "", headers: &headers, body: Bytes::new() };
        let once = async || -> Attempt<()> { self.ask(&asked).await.map(drop) };
        let copied = self.client.request(Direction::Up, 0, once).await;
        match copied {
            // An earlier attempt may have done it without an answer: then there is nothing left to
            // do, which stores refuse.
            Err(failure) if failure.fault.cause == Cause::Refused && failure.maybe_done() => {}
            other => other?,
        }
        let now = self.head_of(path).await?;
        if now.size != size {
            let text = format!("after the copy it has {:?} bytes, not {size:?}", now.size);
            return Err(Failure::found(Cause::Refused, text));
        }
        if now.class != tier.s3_class() {
            let text = format!("it keeps the object as {}", now.class);
            return Err(Failure::found(Cause::NoClass, text));
        }
        Ok(())
    }

    async fn probe(&self, tier: Tier) -> std::result::Result<(), Failure> {
        let path = self.client.path(&unique("kestrel-tier"));
        let turn = self.client.turn(Direction::Up).await?;
        let put = self.put_bytes(&path, "a tier is tried".into(), &Kept::in_tier(Some(tier))).await;
        drop(turn);
        put?;
        let seen = self.head_of(&path).await;
        let delete =
            async || Ok(object_store::ObjectStoreExt::delete(&self.client.s3, &path).await?);
        self.client.request(Direction::Up, 0, delete).await?;
        let class = seen?.class;
        if class != tier.s3_class() {
            let text = format!("it keeps an object as {class}");
            return Err(Failure::found(Cause::NoClass, text));
        }
        Ok(())
    }
}

/// An error by which the attempt's trace is asked what came back.
fn failed(source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> object_store::Error {
    object_store::Error::Generic { store: "S3", source: source.into() }
}

fn no_tier(failure: Failure, tier: Tier, during: &'static str, object: Option<ObjectId>) -> Error {
    match failure.fault.cause {
        Cause::NoClass => Error::NoTier { tier, why: failure.text().into() },
        _ => failure.into_error(during, object),
    }
}

impl TieredStore for S3Store {
    fn check_tier(&self, tier: Tier) -> Result<()> {
        if tier == Tier::Standard {
            return Ok(());
        }
        let probed = self.client.block(self.probe(tier));
        probed.map_err(|failure| no_tier(failure, tier, "trying a tier", None))
    }

    fn tier_of(&self, object: ObjectId) -> Result<TierState> {
        let path = self.client.path(&key::key(object));
        let head = self.client.block(self.head_of(&path));
        head.map(|head| head.state()).map_err(|failure| failure.into_error("looking", Some(object)))
    }

    fn move_to(&self, object: ObjectId, from: &TierState, tier: Tier) -> Result<()> {
        if from.tier == Some(tier) {
            return Ok(());
        }
        let path = self.client.path(&key::key(object));
        let copied = self.client.block(self.copy_to(&path, from.size, tier));
        copied.map_err(|failure| no_tier(failure, tier, "moving to another tier", Some(object)))
    }

    fn restore(&self, object: ObjectId, days: u32, speed: RestoreSpeed) -> Result<RestoreState> {
        let path = self.client.path(&key::key(object));
        let speed = match speed {
            RestoreSpeed::Expedited => "Expedited",
            RestoreSpeed::Standard => "Standard",
            RestoreSpeed::Bulk => "Bulk",
        };
        let body = format!(
            "<RestoreRequest xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><Days>{days}</Days>\
             <GlacierJobParameters><Tier>{speed}</Tier></GlacierJobParameters></RestoreRequest>"
        );
        let (method, body) = (Method::POST, Bytes::from(body));
        let asked = Asked { method, path: &path, query: "?restore", headers: &[], body };
        let once = async || -> Attempt<u16> { Ok(self.ask(&asked).await?.0) };
        match self.client.block(self.client.request(Direction::Up, 0, once)) {
            Ok(200) => Ok(RestoreState::Restored),
            Ok(_) => Ok(RestoreState::UnderWay),
            Err(failure) => match failure.fault.cause {
                Cause::Restoring => Ok(RestoreState::UnderWay),
                Cause::Archived => Err(Error::Invalid { what: "the object is in no archive" }),
                _ => Err(failure.into_error("restoring", Some(object))),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the headers of an answer say of class and restoring.
    #[test]
    fn heads_of_objects() {
        let head = |headers: &[(&'static str, &'static str)]| {
            let mut map = HeaderMap::new();
            for (name, value) in headers {
                map.insert(*name, http::HeaderValue::from_static(value));
            }
            Head::of(&map).state()
        };
        let state = |tier, restore| TierState { tier, restore, size: None };
        assert_eq!(head(&[]), state(Some(Tier::Standard), RestoreState::None));
        let archived = head(&[(CLASS_HEADER, "GLACIER")]);
        assert_eq!(archived, state(Some(Tier::Archive), RestoreState::None));
        assert!(!archived.is_readable());
        let asked =
            head(&[(CLASS_HEADER, "DEEP_ARCHIVE"), (RESTORE_HEADER, "ongoing-request=\"true\"")]);
        assert_eq!(asked, state(Some(Tier::DeepArchive), RestoreState::UnderWay));
        assert!(!asked.is_readable());
        let there = head(&[
            (CLASS_HEADER, "GLACIER"),
            (RESTORE_HEADER, "ongoing-request=\"false\", expiry-date=\"Fri, 21 Dec 2030\""),
        ]);
        assert!(there.is_readable());
        let other = head(&[(CLASS_HEADER, "EXPRESS_ONEZONE")]);
        assert_eq!(other.tier, None);
        assert!(other.is_readable());
    }
}
