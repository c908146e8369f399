//! The suite passes the stores that keep their promises, and names the promise that a wrong one breaks.

use std::sync::Mutex;

use futures::FutureExt as _;

use super::*;
use crate::{
    clock::Timestamp,
    ids::SessionId,
    store::{MemoryReaders, StoreError},
};

/// What a store does wrong.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    None,
    RegistersAnew,
    ForgetsReadersAtTheEnd,
    UnregistersForNow,
    GoesBack,
    ForgetsWhatIsReliedOn,
    KeepsWhatWasReliedOn,
    KeepsSessions,
    Doubts,
}

/// The simplest store there can be, with one fault.
#[derive(Clone)]
struct Naive {
    fault: Fault,
    readers: Arc<Mutex<BTreeMap<String, Timestamp>>>,
    relied: Arc<Mutex<BTreeMap<(SessionId, String), Seq>>>,
    gone: Arc<Mutex<BTreeMap<String, Timestamp>>>,
}

#[async_trait]
impl ReaderStore for Naive {
    async fn readers(&self) -> Result<Vec<Registration>, StoreError> {
        let readers = self.readers.lock().unwrap().clone();
        Ok(readers.into_iter().map(|(reader, created_at)| Registration { reader, created_at }).collect())
    }

    async fn register(&self, Registration { reader, created_at }: Registration) -> Result<(), StoreError> {
        let mut readers = self.readers.lock().unwrap();
        if self.fault == Fault::RegistersAnew || !readers.contains_key(&reader) {
            readers.insert(reader, created_at);
        }
        Ok(())
    }

    async fn unregister(&self, reader: &str) -> Result<(), StoreError> {
        if let Some(gone) = self.readers.lock().unwrap().remove_entry(reader)
            && self.fault == Fault::UnregistersForNow
        {
            self.gone.lock().unwrap().extend([gone]);
        }
        if self.fault != Fault::KeepsWhatWasReliedOn {
            self.relied.lock().unwrap().retain(|(_, of), _| of != reader);
        }
        Ok(())
    }

    async fn rely(&self, session_id: SessionId, acknowledged: BTreeMap<String, Seq>) -> Result<(), StoreError> {
        let mut relied = self.relied.lock().unwrap();
        for (reader, seq) in acknowledged {
            let known = relied.entry((session_id, reader)).or_default();
            *known = if self.fault == Fault::GoesBack { seq } else { seq.max(*known) };
        }
        Ok(())
    }

    async fn relied(&self, session_id: SessionId) -> Result<BTreeMap<String, Seq>, StoreError> {
        let relied = self.relied.lock().unwrap();
        let of_it = relied.iter().filter(|((id, _), _)| *id == session_id);
        Ok(of_it.map(|((_, reader), seq)| (reader.clone(), *seq)).collect())
    }

    async fn forget(&self, session_id: SessionId) -> Result<(), StoreError> {
        if self.fault != Fault::KeepsSessions {
            self.relied.lock().unwrap().retain(|(id, _), _| *id != session_id);
        }
        Ok(())
    }

    fn is_trusted(&self) -> bool {
        self.fault != Fault::Doubts
    }

    async fn trust(&self) -> Result<(), StoreError> {
        Ok(())
    }
}

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

/// What the suite finds broken in a naive store.
fn broken(fault: Fault) -> Vec<&'static str> {
    let last: Mutex<Option<Naive>> = Mutex::default();
    let fresh = || -> Arc<dyn ReaderStore> {
        let (readers, relied, gone) = Default::default();
        let naive = Naive { fault, readers, relied, gone };
        *last.lock().unwrap() = Some(naive.clone());
        Arc::new(naive)
    };
    let restart = |store| {
        let naive = last.lock().unwrap().clone().unwrap();
        naive.readers.lock().unwrap().append(&mut naive.gone.lock().unwrap());
        match fault {
            Fault::ForgetsReadersAtTheEnd => naive.readers.lock().unwrap().clear(),
            Fault::ForgetsWhatIsReliedOn => naive.relied.lock().unwrap().clear(),
            _ => {}
        }
        store
    };
    let found = check(&Stores(fresh, restart)).now_or_never().expect("a naive store never waits");
    found.into_iter().map(|broken| broken.promise).collect()
}

#[test]
fn a_wrong_store_is_caught_by_the_promise_that_it_breaks() {
    assert_eq!(broken(Fault::None), [""; 0]);
    for (fault, promise) in [
        (Fault::RegistersAnew, "a_reader_is_registered_once"),
        (Fault::Doubts, "a_reader_is_registered_once"),
        (Fault::ForgetsReadersAtTheEnd, "a_registration_outlives_the_process"),
        (Fault::UnregistersForNow, "a_registration_outlives_the_process"),
        (Fault::GoesBack, "what_is_relied_on_never_goes_back"),
        (Fault::ForgetsWhatIsReliedOn, "what_is_relied_on_never_goes_back"),
        (Fault::KeepsWhatWasReliedOn, "nothing_is_left_of_a_forgotten_reader"),
        (Fault::KeepsSessions, "nothing_is_left_of_a_forgotten_session"),
    ] {
        let caught = broken(fault);
        assert!(caught.contains(&promise), "{fault:?} was caught by {caught:?}");
    }
}

#[tokio::test]
async fn the_readers_in_memory_keep_their_promises() {
    let fresh = || -> Arc<dyn ReaderStore> { Arc::<MemoryReaders>::default() };
    assert_eq!(check(&Stores(fresh, |store| store)).await, []);
}
