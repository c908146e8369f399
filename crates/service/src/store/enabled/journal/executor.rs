//! Where work that blocks on the disk runs: never on a thread that runs sessions.

use std::{
    collections::VecDeque,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::sync::oneshot;

use super::lock;
use crate::store::StoreError;

/// Threads, and so syncs that are under way at once.
const THREADS_MAX: usize = 64;
/// How long a thread without work stays.
const IDLE: Duration = Duration::from_secs(10);

/// A piece of work.
pub(crate) type Job = Box<dyn FnOnce() + Send>;

/// Runs jobs, in whatever order.
pub(crate) trait Executor: Send + Sync {
    /// Takes a job; it never runs within this call, unless nobody could tell.
    fn run(&self, job: Job);

    /// Waits until every job that was taken has ended.
    fn drain(&self);
}

/// Runs a function on the executor and waits for what it answers.
pub(crate) async fn on<T: Send + 'static>(
    executor: &dyn Executor,
    work: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
) -> Result<T, StoreError> {
    let (done, answer) = oneshot::channel();
    // Whoever asked may have gone; the work is done all the same.
    executor.run(Box::new(move || drop(done.send(work()))));
    answer.await.unwrap_or_else(|_| Err(StoreError::Failed("the store's thread ended".to_owned())))
}

/// Threads that are made as they are needed and end when they are not.
pub(crate) struct Pool {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    /// A job came, or the pool ends.
    work: Condvar,
    /// A job ended and none is left.
    rest: Condvar,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    threads: usize,
    idle: usize,
    /// Those who wait for `rest`.
    drains: usize,
    is_closed: bool,
}

impl Pool {
    /// A pool without threads.
    pub(crate) fn new() -> Self {
        Self { shared: Arc::default() }
    }
}

impl Executor for Pool {
    fn run(&self, job: Job) {
        let mut queue = lock(&self.shared.queue);
        queue.jobs.push_back(job);
        if queue.idle >= queue.jobs.len() {
            // Who wakes up under a lock that is held goes to sleep once more.
            drop(queue);
            self.shared.work.notify_one();
        } else if queue.threads < THREADS_MAX {
            let shared = self.shared.clone();
            let spawned = std::thread::Builder::new().name("meerkat-store".to_owned()).spawn(move || shared.work());
            match spawned {
                Ok(_) => queue.threads += 1,
                // The threads that there are do it; where there is none, nobody can, and the waiters are told.
                Err(_) if queue.threads == 0 => drop(queue.jobs.pop_back()),
                Err(_) => {}
            }
        }
    }

    fn drain(&self) {
        let mut queue = lock(&self.shared.queue);
        queue.drains += 1;
        while !queue.jobs.is_empty() || queue.threads > queue.idle {
            queue = self.shared.rest.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
        queue.drains -= 1;
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        lock(&self.shared.queue).is_closed = true;
        self.shared.work.notify_all();
    }
}

impl Shared {
    /// A thread's life.
    fn work(&self) {
        let mut queue = lock(&self.queue);
        loop {
            if let Some(job) = queue.jobs.pop_front() {
                drop(queue);
                // A job that panics fails its own waiters; the thread and the others go on.
                if catch_unwind(AssertUnwindSafe(job)).is_err() {
                    tracing::error!("a job of the store panicked");
                }
                queue = lock(&self.queue);
                continue;
            }
            queue.idle += 1;
            if queue.drains > 0 && queue.idle == queue.threads {
                self.rest.notify_all();
            }
            let is_over;
            (queue, is_over) = self.wait(queue);
            queue.idle -= 1;
            if is_over && queue.jobs.is_empty() {
                queue.threads -= 1;
                return;
            }
        }
    }

    /// Waits for work; answers whether to end.
    fn wait<'a>(&self, queue: MutexGuard<'a, Queue>) -> (MutexGuard<'a, Queue>, bool) {
        if queue.is_closed {
            return (queue, true);
        }
        let (queue, timeout) = self.work.wait_timeout(queue, IDLE).unwrap_or_else(PoisonError::into_inner);
        let is_over = timeout.timed_out() || queue.is_closed;
        (queue, is_over)
    }
}
