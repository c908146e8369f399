//! The stores in memory pass the suite.

use super::*;
use crate::store::MemoryReaders;

/// Stores that are made by the first function and restarted by the second.
pub(in crate::store) struct Stores<F, R>(pub(in crate::store) F, pub(in crate::store) R);

#[async_trait]
impl<F, R> Harness for Stores<F, R>
where
    F: Fn() -> Arc<dyn ReaderStore> + Send + Sync,
    R: Fn(Arc<dyn ReaderStore>) -> Arc<dyn ReaderStore> + Send + Sync,
{
    async fn fresh(&self) -> Arc<dyn ReaderStore> {
        self.0()
    }

    async fn restart(&self, store: Arc<dyn ReaderStore>) -> Arc<dyn ReaderStore> {
        self.1(store)
    }
}

#[tokio::test]
async fn the_readers_in_memory_keep_their_promises() {
    let fresh = || -> Arc<dyn ReaderStore> { Arc::<MemoryReaders>::default() };
    assert_eq!(check(&Stores(fresh, |store| store)).await, []);
}
