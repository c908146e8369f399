//! A way to the database that loses what it is told to: a request before the server has it, or the reply after.

use std::sync::{Arc, Mutex};

use meerkat_testkit::in_time;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream, UnixStream},
    sync::Notify,
};

use super::cluster::Database;

/// What is lost next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lose {
    Nothing,
    /// A request: the server never has it.
    Request,
    /// A reply: the server has done what was asked.
    Reply,
    /// Everything, from now on.
    All,
    /// Everything, from now on, and the connections stay open: as behind a router that is gone.
    Silence,
    /// The reply to a statement with this text.
    ReplyTo(&'static str),
}

/// Order to lose something.
struct Order {
    lose: Lose,
    /// Messages of the kind that pass before.
    passing: u64,
    /// What is lost afterwards.
    then: Lose,
}

/// Proxy on a port of its own.
pub(crate) struct Proxy {
    pub(crate) port: u16,
    order: Arc<Mutex<Order>>,
    lost: Arc<Notify>,
}

impl Proxy {
    pub(crate) async fn start(database: &Database) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let order = Arc::new(Mutex::new(Order { lose: Lose::Nothing, passing: 0, then: Lose::Nothing }));
        let (socket, lost) = (database.cluster.dir.join(".s.PGSQL.5432"), Arc::<Notify>::default());
        let proxy = Self { port, order: order.clone(), lost: lost.clone() };
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                // Without a server the client's connection is closed.
                if let Ok(server) = UnixStream::connect(&socket).await {
                    tokio::spawn(carry(client, server, order.clone(), lost.clone()));
                }
            }
        });
        proxy
    }

    pub(crate) fn url(&self) -> String {
        format!("postgres://meerkat@127.0.0.1:{}/postgres", self.port)
    }

    pub(crate) fn lose(&self, what: Lose) {
        self.lose_at(what, 0, Lose::Nothing);
    }

    /// Loses one message of a kind after `passing` others of it, and from then on `then`.
    pub(crate) fn lose_at(&self, lose: Lose, passing: u64, then: Lose) {
        *self.order.lock().unwrap() = Order { lose, passing, then };
    }

    /// Waits until what was to be lost next is lost.
    pub(crate) async fn losing(&self) {
        in_time("what is to be lost", self.lost.notified()).await;
    }

    /// Returns true if what was to be lost next is lost.
    pub(crate) fn has_lost(&self) -> bool {
        matches!(self.order.lock().unwrap().lose, Lose::Nothing | Lose::All)
    }
}

/// Takes the order to lose this, once.
fn takes(order: &Mutex<Order>, what: Lose, lost: &Notify) -> bool {
    let mut order = order.lock().unwrap();
    match order.lose {
        Lose::All => true,
        Lose::Silence => {
            lost.notify_one();
            true
        }
        lose if lose == what && order.passing == 0 => {
            order.lose = order.then;
            lost.notify_one();
            true
        }
        lose => {
            order.passing -= u64::from(lose == what);
            false
        }
    }
}

/// Carries bytes both ways until something is lost; then both ends are closed, or nothing passes any more.
async fn carry(mut client: TcpStream, mut server: UnixStream, order: Arc<Mutex<Order>>, lost: Arc<Notify>) {
    carry_until_lost(&mut client, &mut server, &order, &lost).await;
    if order.lock().unwrap().lose == Lose::Silence {
        std::future::pending().await
    }
}

async fn carry_until_lost(client: &mut TcpStream, server: &mut UnixStream, order: &Mutex<Order>, lost: &Notify) {
    let (mut to_server, mut to_client) = (vec![0; 64 * 1024], vec![0; 64 * 1024]);
    loop {
        tokio::select! {
            read = client.read(&mut to_server) => match read {
                Ok(count) if count > 0 && !takes(order, Lose::Request, lost) => {
                    let lose = order.lock().unwrap().lose;
                    let is_meant = |text: &str| to_server[..count].windows(text.len()).any(|sent| sent == text.as_bytes());
                    let is_last = matches!(lose, Lose::ReplyTo(text) if is_meant(text)) && takes(order, lose, lost);
                    if server.write_all(&to_server[..count]).await.is_err() {
                        return;
                    }
                    if is_last {
                        // The server replies when it is done.
                        drop(server.read(&mut to_client).await);
                        return;
                    }
                }
                _ => return,
            },
            read = server.read(&mut to_client) => match read {
                Ok(count) if count > 0 && !takes(order, Lose::Reply, lost) => {
                    if client.write_all(&to_client[..count]).await.is_err() {
                        return;
                    }
                }
                _ => return,
            },
        }
    }
}
