//! Handles of engines that can be claimed again and again.

use std::sync::Arc;

use kestrel_types::ids::Position;

use super::{BatchKind, Engine, EngineError, Epoch, Layer, Mutation};

/// What an engine does so that [`Claimed`] can be its handles.
pub trait Fence: Engine + 'static {
    /// Begins a new epoch, durably.
    ///
    /// # Errors
    /// As [`Engine::claim`].
    fn begin_epoch(&self) -> Result<Epoch, EngineError>;

    /// [`Engine::commit`] by a holder of this epoch.
    ///
    /// # Errors
    /// As there; `Fenced` if the epoch is not the newest.
    fn commit_in(
        &self,
        epoch: Epoch,
        kind: BatchKind,
        mutations: Vec<Mutation>,
    ) -> Result<Position, EngineError>;
}

/// An engine in the hands of the process that claimed it.
pub struct Claimed<E> {
    engine: Arc<E>,
    epoch: Epoch,
}

impl<E: Fence> Claimed<E> {
    /// [`Engine::claim`], for the handle that an engine is when it was opened.
    ///
    /// # Errors
    /// As there.
    pub fn begin(engine: Arc<E>) -> Result<Arc<dyn Engine>, EngineError> {
        let epoch = engine.begin_epoch()?;
        Ok(Arc::new(Self { engine, epoch }))
    }
}

impl<E: Fence> Layer for Claimed<E> {
    fn below(&self) -> &dyn Engine {
        &*self.engine
    }

    fn claim(self: Arc<Self>) -> Result<Arc<dyn Engine>, EngineError> {
        Self::begin(self.engine.clone())
    }

    fn epoch(&self) -> Epoch {
        self.epoch
    }

    fn commit(&self, kind: BatchKind, mutations: Vec<Mutation>) -> Result<Position, EngineError> {
        self.engine.commit_in(self.epoch, kind, mutations)
    }
}
