//! Background work: a thread of its own whose low priority leaves the processor to the turns.

use std::{
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{OnceLock, mpsc},
};

use tokio::sync::oneshot;

use crate::store::step_back;

type Job = Box<dyn FnOnce() + Send>;

/// Thread that begins with the first job, and ends when this is dropped.
pub(crate) struct BackgroundThread {
    name: &'static str,
    thread: OnceLock<mpsc::Sender<Job>>,
}

impl BackgroundThread {
    pub(crate) const fn new(name: &'static str) -> Self {
        Self { name, thread: OnceLock::new() }
    }

    /// Does a piece of work on the thread. A panic there is an error here.
    pub(crate) async fn perform<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
        let (done, answer) = oneshot::channel();
        // A job that is not taken answers nothing.
        drop(self.thread()?.send(Box::new(move || drop(done.send(work())))));
        answer.await.map_err(|_| io::Error::other(format!("{} panicked", self.name)))
    }

    fn thread(&self) -> io::Result<&mpsc::Sender<Job>> {
        if self.thread.get().is_none() {
            let (sender, jobs) = mpsc::channel::<Job>();
            std::thread::Builder::new().name(self.name.to_owned()).spawn(move || {
                step_back();
                for job in jobs {
                    drop(catch_unwind(AssertUnwindSafe(job)));
                }
            })?;
            // If two callers made one at once, the second thread ends.
            drop(self.thread.set(sender));
        }
        self.thread.get().ok_or_else(|| io::Error::other("it has no thread"))
    }
}
