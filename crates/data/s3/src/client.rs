//! One request: its turn, its attempts, its deadline.

use std::sync::Arc;
use std::time::{Duration, Instant};

use object_store::RetryConfig;
use object_store::aws::{AmazonS3, AmazonS3Builder, S3ConditionalPut};
use object_store::client::HttpClient;
use object_store::path::Path;
use tokio::sync::SemaphorePermit;

use crate::credentials::{self, Environment};
use crate::executors::Executors;
use crate::fault::{Cause, Failure, Fault};
use crate::open_error::OpenError;
use crate::options::{S3Limits, S3Options};
use crate::rate_limiter::{Direction, NoTurn, RateLimiter};
use crate::retry::{Jitter, attempt_limit, wait};
use crate::stats::S3Stats;
use crate::wire::{self, Connector, Traced, Wire};

/// So many whole answers that cannot be right are enough.
const INCONSISTENT_ANSWERS_MAX: u32 = 3;

/// An error of one attempt, as it happens.
#[derive(Debug)]
pub(crate) enum Hitch {
    /// `object_store` failed.
    Client(object_store::Error),
    /// The client does not believe the answer, or the answer is a failure under status 200.
    Found(Fault),
}

impl From<object_store::Error> for Hitch {
    fn from(error: object_store::Error) -> Self {
        Self::Client(error)
    }
}

impl From<Fault> for Hitch {
    fn from(fault: Fault) -> Self {
        Self::Found(fault)
    }
}

/// What an attempt gives.
pub(crate) type Attempt<T> = Result<T, Hitch>;

/// The store with everything that requests to it share.
pub(crate) struct Client {
    /// Signs requests and reads answers.
    pub(crate) s3: AmazonS3,
    /// Sends what it has no call for.
    pub(crate) http: HttpClient,
    /// The bucket's URL.
    pub(crate) bucket_url: String,
    /// The region that requests are signed for.
    pub(crate) region: String,
    /// Where it is.
    pub(crate) options: S3Options,
    /// Counters.
    pub(crate) stats: Arc<S3Stats>,
    /// Where credentials come from, for messages.
    pub(crate) credentials_source: String,
    /// Longest time for a request with all its attempts.
    pub(crate) deadline: Duration,
    rate_limiter: RateLimiter,
    jitter: Jitter,
    executors: Executors,
}

impl Client {
    /// Makes a client; no request is sent.
    ///
    /// # Errors
    /// If there are no credentials, no root certificates, or no descriptors.
    pub(crate) fn new(options: S3Options, environment: Environment<'_>) -> Result<Self, OpenError> {
        let region = options.region_or(environment);
        let bucket_url = options.bucket_url(&region);
        let stats = Arc::new(S3Stats::default());
        let never = RetryConfig { max_retries: 0, ..RetryConfig::default() };
        let builder = AmazonS3Builder::new()
            .with_bucket_name(&options.bucket)
            .with_region(&region)
            .with_virtual_hosted_style_request(!options.path_style)
            .with_allow_http(true)
            .with_unsigned_payload(!options.sign_payload)
            .with_conditional_put(S3ConditionalPut::ETagMatch)
            .with_disable_bulk_delete(true)
            .with_disable_tagging(true)
            // Attempts are made here, where they are counted and bounded.
            .with_retry(never);
        let builder = match (&options.endpoint, options.path_style) {
            (Some(endpoint), true) => builder.with_endpoint(endpoint),
            (Some(_), false) => builder.with_endpoint(&bucket_url),
            (None, _) => builder,
        };
        let file = options.credentials_file.as_deref();
        let (builder, credentials_source) = credentials::provide(builder, file, environment)?;
        let needs_tls = environment("AWS_WEB_IDENTITY_TOKEN_FILE").is_some();
        let dialer = wire::dialer(&bucket_url, needs_tls).map_err(OpenError::Other)?;
        let wire = Wire::new(&bucket_url, Arc::clone(&stats)).map_err(OpenError::Other)?;
        let connector = Connector::new(wire);
        let http = connector.client();
        let s3 = builder
            .with_http_connector(connector)
            .build()
            .map_err(|error| OpenError::Other(format!("{}: {error}", options.url)))?;
        let executors = Executors::new(dialer).map_err(|error| {
            OpenError::Other(format!("preparing connections to the store: {error}"))
        })?;
        let rate_limiter = RateLimiter::new(&options.limits);
        let jitter = Jitter::new();
        let deadline = options.limits.deadline;
        Ok(Self {
            s3,
            http,
            bucket_url,
            region,
            options,
            stats,
            credentials_source,
            deadline,
            rate_limiter,
            jitter,
            executors,
        })
    }

    /// The limits in force.
    pub(crate) fn limits(&self) -> &S3Limits {
        &self.options.limits
    }

    /// Where a name below the prefix is for `object_store`. Names and prefix are in the alphabet
    /// that it leaves alone.
    pub(crate) fn path(&self, name: &str) -> Path {
        Path::from(self.options.key(name))
    }

    /// Runs a request on the calling thread until it is done.
    pub(crate) fn block<T>(&self, request: impl Future<Output = T>) -> T {
        self.executors.block(request)
    }

    /// Waits for a turn.
    ///
    /// # Errors
    /// `Late` if the store answered no request for a whole deadline.
    pub(crate) async fn turn(&self, direction: Direction) -> Result<SemaphorePermit<'_>, Failure> {
        self.rate_limiter.turn(direction).await.map_err(|NoTurn| {
            self.stats.failed();
            let took = self.limits().deadline;
            let text = format!("the store answered nothing for {} s", took.as_secs_f32());
            Failure { fault: Fault::found(Cause::Late, text), attempts: 0, took }
        })
    }

    /// Gets a turn and makes attempts until one succeeds, fails for good, or the deadline has
    /// passed.
    pub(crate) async fn request<T>(
        &self,
        direction: Direction,
        bytes: u64,
        attempt: impl AsyncFnMut() -> Attempt<T>,
    ) -> Result<T, Failure> {
        let _turn = self.turn(direction).await?;
        self.attempts(direction, bytes, false, attempt).await
    }

    /// Makes attempts that move `bytes` each. `must_be_new`: what they complete must not replace an
    /// object.
    pub(crate) async fn attempts<T>(
        &self,
        direction: Direction,
        bytes: u64,
        must_be_new: bool,
        mut attempt: impl AsyncFnMut() -> Attempt<T>,
    ) -> Result<T, Failure> {
        self.rate_limiter.pass(direction, bytes).await;
        let begin = Instant::now();
        let (mut attempts, mut inconsistent) = (0, 0);
        let mut before: Option<Fault> = None;
        loop {
            let left = self.deadline.saturating_sub(begin.elapsed());
            let full = attempt_limit(self.limits().attempt, bytes);
            let limit = full.min(left);
            attempts += 1;
            let fault = match self.try_once(limit, must_be_new, attempt()).await {
                Ok(done) => return Ok(done),
                // The attempt that the deadline cut off explains less than the one before it.
                Err(fault) if fault.cause == Cause::Late && limit < full => {
                    before.take().unwrap_or(fault)
                }
                Err(fault) => fault,
            };
            if fault.cause == Cause::Throttled {
                self.stats.throttled();
            }
            inconsistent += u32::from(fault.cause == Cause::Inconsistent);
            let may_pass = fault.cause.may_pass() && inconsistent < INCONSISTENT_ANSWERS_MAX;
            let took = begin.elapsed();
            let pause = wait(
                attempts,
                fault.cause == Cause::Throttled,
                fault.seen.retry_after,
                self.jitter.next(),
            );
            if !may_pass || took + pause >= self.deadline {
                if !matches!(fault.cause, Cause::Missing | Cause::Present | Cause::Short) {
                    self.stats.failed();
                }
                return Err(Failure { fault, attempts, took });
            }
            log::debug!("attempt {attempts} failed, next in {pause:?}: {}", fault.text);
            before = Some(fault);
            self.stats.retried();
            tokio::time::sleep(pause).await;
        }
    }

    /// One attempt within `limit`.
    async fn try_once<T>(
        &self,
        limit: Duration,
        must_be_new: bool,
        attempt: impl Future<Output = Attempt<T>>,
    ) -> Result<T, Fault> {
        let (done, seen) = Traced::run(must_be_new, tokio::time::timeout(limit, attempt)).await;
        if seen.status.is_some_and(|status| !status.is_server_error()) {
            self.rate_limiter.answered();
        }
        match done {
            Ok(Ok(done)) => Ok(done),
            Ok(Err(Hitch::Client(error))) => Err(Fault::of_attempt(&error, seen)),
            Ok(Err(Hitch::Found(fault))) => Err(fault),
            Err(_) => Err(Fault::late(limit, seen)),
        }
    }
}
