//! Threads for work that blocks on the disk. No session runs on them.

use std::{
    collections::VecDeque,
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::sync::oneshot;

use super::lock;
use meerkat_words::store::StoreError;

/// Most threads, and thus syncs at a time.
const THREADS_MAX: usize = 64;
/// Most of them that only read.
pub const READS_MAX: usize = THREADS_MAX / 2;
/// Time after which an idle thread ends.
const IDLE: Duration = Duration::from_secs(10);

pub(crate) type Job = Box<dyn FnOnce() + Send>;

/// Runs jobs, in any order.
pub trait Executor: Send + Sync {
    /// Takes a job. The job does not run within this call.
    fn run(&self, job: Job);

    /// Waits until every accepted job has ended.
    fn drain(&self);
}

/// Runs a function on the executor and returns its answer.
pub async fn on<T: Send + 'static>(
    executor: &dyn Executor,
    work: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
) -> Result<T, StoreError> {
    let (done, answer) = oneshot::channel();
    // The caller may have stopped waiting; the work is done all the same.
    executor.run(Box::new(move || drop(done.send(work()))));
    answer.await.unwrap_or_else(|_| Err(StoreError::Failed("the store's thread ended".to_owned())))
}

/// Thread pool that grows and shrinks as needed. It keeps one thread from the beginning, so that jobs run even if the
/// system refuses more threads.
pub struct Pool {
    shared: Arc<Shared>,
    threads_max: usize,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    /// Notified when a job arrives or the pool closes.
    work: Condvar,
    /// Notified when the last job has ended.
    rest: Condvar,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    threads: usize,
    idle: usize,
    /// Callers that wait for `rest`.
    drains: usize,
    is_closed: bool,
}

impl Pool {
    /// Makes a pool with one thread.
    ///
    /// # Errors
    /// If the system refuses the thread.
    pub fn new() -> io::Result<Self> {
        Self::with(THREADS_MAX)
    }

    /// Makes a pool of at most `threads_max` threads.
    fn with(threads_max: usize) -> io::Result<Self> {
        let pool = Self { shared: Arc::default(), threads_max };
        pool.shared.spawn(&mut lock(&pool.shared.queue))?;
        Ok(pool)
    }
}

impl Executor for Pool {
    fn run(&self, job: Job) {
        let mut queue = lock(&self.shared.queue);
        queue.jobs.push_back(job);
        if queue.idle >= queue.jobs.len() {
            // Unlock first, or the woken thread would sleep again at once.
            drop(queue);
            self.shared.work.notify_one();
        } else if queue.threads < self.threads_max
            && let Err(error) = self.shared.spawn(&mut queue)
        {
            // The existing threads do it, a little later.
            tracing::debug!(%error, "the store has no further thread");
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
    fn spawn(self: &Arc<Self>, queue: &mut Queue) -> io::Result<()> {
        let shared = self.clone();
        std::thread::Builder::new().name("meerkat-store".to_owned()).spawn(move || shared.work())?;
        queue.threads += 1;
        Ok(())
    }

    /// Runs jobs until the thread is to end.
    fn work(&self) {
        let mut queue = lock(&self.queue);
        loop {
            if let Some(job) = queue.jobs.pop_front() {
                drop(queue);
                // A panic fails the job's own caller only.
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

    /// Waits for work; returns true if the thread is to end.
    fn wait<'a>(&self, queue: MutexGuard<'a, Queue>) -> (MutexGuard<'a, Queue>, bool) {
        if queue.is_closed {
            return (queue, true);
        }
        let (queue, timeout) = self.work.wait_timeout(queue, IDLE).unwrap_or_else(PoisonError::into_inner);
        let is_over = (timeout.timed_out() && queue.threads > 1) || queue.is_closed;
        (queue, is_over)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn one_thread_does_everything_where_there_are_no_more_also_after_a_panic() {
        let pool = Pool::with(1).unwrap();
        let (done, told) = mpsc::channel();
        pool.run(Box::new(|| panic!("a job fails")));
        for n in 0..100 {
            let done = done.clone();
            pool.run(Box::new(move || done.send(n).unwrap()));
        }
        assert_eq!(told.iter().take(100).collect::<Vec<_>>(), (0..100).collect::<Vec<_>>());
        pool.drain();
    }

    #[tokio::test]
    async fn who_waits_for_a_job_that_panics_is_told() {
        let pool = Pool::with(1).unwrap();
        let answer = on(&pool, || -> Result<(), StoreError> { panic!("a job fails") }).await;
        assert!(matches!(answer, Err(StoreError::Failed(_))));
        assert_eq!(on(&pool, || Ok(7)).await, Ok(7));
    }
}
