//! Sessions that appear whole: what is acknowledged is in lists, readers and the export of all, whatever answers of the
//! database go lost.

use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use meerkat_service::{
    AgentBuildConfig, SessionId, SessionService,
    doctor::{Check, Severity},
    service::{
        CreateSession, ExportSession, FetchReader, ForkSession, ImportBundle, NamedReader, SessionQuery, StartTurn,
    },
};
use meerkat_testkit::{Random, campaigns::Part, seed, until_async};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream, UnixStream},
};

use super::{cluster::Database, database, node};
use crate::{PostgresOptions, examine, open};

/// Answers that are lost, in percent.
const LOST: u64 = 12;

/// Way to the database that loses some of its answers while it is asked to, each with its connection.
struct Lossy {
    port: u16,
    loses: Arc<AtomicBool>,
}

impl Lossy {
    async fn start(database: &Database) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (port, loses) = (listener.local_addr().unwrap().port(), Arc::<AtomicBool>::default());
        let (socket, is_losing) = (database.cluster.dir.join(".s.PGSQL.5432"), loses.clone());
        let random = Arc::new(Mutex::new(Random::new(seed())));
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = UnixStream::connect(&socket).await.unwrap();
                let (loses, random) = (is_losing.clone(), random.clone());
                let is_lost = move || loses.load(Ordering::Relaxed) && random.lock().unwrap().below(100) < LOST;
                tokio::spawn(carry(client, server, is_lost));
            }
        });
        Self { port, loses }
    }
}

/// Carries bytes both ways until an answer is lost; then both ends are closed.
async fn carry(mut client: TcpStream, mut server: UnixStream, is_lost: impl Fn() -> bool) {
    let (mut to_server, mut to_client) = (vec![0; 64 * 1024], vec![0; 64 * 1024]);
    loop {
        let done = tokio::select! {
            read = client.read(&mut to_server) => match read {
                Ok(count) if count > 0 => server.write_all(&to_server[..count]).await,
                _ => return,
            },
            read = server.read(&mut to_client) => match read {
                Ok(count) if count > 0 && !is_lost() => client.write_all(&to_client[..count]).await,
                _ => return,
            },
        };
        if done.is_err() {
            return;
        }
    }
}

async fn serve(options: PostgresOptions) -> Arc<dyn SessionService> {
    let agent = AgentBuildConfig::new().stores(open(options).await.unwrap()).build().unwrap();
    agent.service().ready().await.unwrap();
    agent.service().clone()
}

async fn created(service: &Arc<dyn SessionService>) -> SessionId {
    let session_id = service.create_session(CreateSession::default()).await.unwrap().session_id;
    service.start_turn(StartTurn::new(session_id, "@say Hello.")).await.unwrap();
    session_id
}

async fn exported(service: &Arc<dyn SessionService>, session_id: SessionId) -> String {
    let page = service.export_session(ExportSession::new(session_id)).await.unwrap();
    assert_eq!(page.next_cursor, None);
    page.data
}

async fn listed(service: &Arc<dyn SessionService>) -> BTreeSet<SessionId> {
    let (mut all, mut query) = (BTreeSet::new(), SessionQuery::default());
    loop {
        let page = service.list(query.clone()).await.unwrap();
        all.extend(page.items.iter().map(|item| item.session_id));
        query.cursor = page.next_cursor;
        if query.cursor.is_none() {
            return all;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acknowledged_fork_or_import_is_in_every_list() {
    let database = database!();
    let way = Lossy::start(&database).await;
    let url = format!("postgres://meerkat@127.0.0.1:{}/postgres", way.port);
    let service = serve(database.options_by(url, "a")).await;
    let parent = created(&service).await;
    let data = exported(&service, parent).await;
    let rounds = if Part::Store.is_whole() { 5000 } else { 150 };
    let (mut acknowledged, mut failed) = (BTreeSet::from([parent]), 0);
    way.loses.store(true, Ordering::Relaxed);
    for _ in 0..rounds {
        match service.fork(ForkSession { session_id: parent, turn: None }).await {
            Ok(fork) => drop(acknowledged.insert(fork.session_id)),
            Err(_) => failed += 1,
        }
        let bundle = ImportBundle {
            upload: None,
            offset: 0,
            data: data.clone(),
            is_last: true,
            new_ids: true,
            keep_scope: false,
        };
        match service.import_bundle(bundle).await {
            Ok(imported) => acknowledged.extend(imported.sessions.iter().map(|session| session.session_id)),
            Err(_) => failed += 1,
        }
    }
    way.loses.store(false, Ordering::Relaxed);
    assert!(failed > 0 && acknowledged.len() > rounds / 10, "{failed} failed, {} did not", acknowledged.len());
    // Nothing was repaired by a start yet: this is what the database says.
    let without =
        database.psql("SELECT count(*) FROM sessions WHERE tail > 0 AND (summary IS NULL OR changed IS NULL)");
    let other = serve(database.options("b")).await;
    let all = listed(&other).await;
    let missing: Vec<_> = acknowledged.difference(&all).collect();
    assert!(missing.is_empty() && without == "0", "{} of {}, {without}", missing.len(), acknowledged.len());
    assert_eq!(listed(&service).await, all);
    // Readers, and the export of all, which exports what is listed.
    for reader in [&service, &other] {
        let name = format!("audit-{}", reader.node().unwrap_or_default());
        reader.create_reader(NamedReader { reader: name.clone() }).await.unwrap();
        let readers = reader.list_readers().await.unwrap().items;
        let behind = readers.iter().find(|view| view.reader == name).map(|view| view.sessions_behind);
        assert_eq!(behind, Some(all.len() as u64));
        let fetch = FetchReader { reader: name, limit: Some(1), wait_ms: 60_000 };
        assert_eq!(reader.fetch_reader(fetch).await.unwrap().items.len(), 1);
    }
    for session_id in &acknowledged {
        assert!(!exported(&other, *session_id).await.is_empty());
    }
}

/// Sessions that lost their row, or never had one: the doctor finds and lists them, and so does a start.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_is_in_no_list_is_found_and_listed() {
    let database = database!();
    let service = serve(database.options("a")).await;
    let made = BTreeSet::from([created(&service).await, created(&service).await]);
    service.shut_down(1000).await;
    drop(service);
    let before = database.psql("SELECT id, summary, summary_seq, is_idle FROM sessions ORDER BY id");
    let lose =
        || database.psql("UPDATE sessions SET summary = NULL, summary_seq = NULL, changed = NULL, is_idle = false");
    let lacking = || database.psql("SELECT count(*) FROM sessions WHERE summary IS NULL OR changed IS NULL");
    let looks = database.options("looks");
    lose();
    for is_repair in [false, true] {
        let found = examine(&looks, is_repair).await.unwrap().findings;
        let ids: BTreeSet<_> = found.iter().filter_map(|finding| finding.session_id).collect();
        assert_eq!((found.len(), &ids), (2, &made), "{found:#?}");
        let is_it = |it: &meerkat_service::doctor::Finding| {
            (it.check, it.severity, it.mended) == (Check::Journal, Severity::Error, is_repair)
        };
        assert!(found.iter().all(|it| is_it(it) && it.what.contains("in no list")), "{found:#?}");
    }
    assert_eq!(database.psql("SELECT id, summary, summary_seq, is_idle FROM sessions ORDER BY id"), before);
    assert_eq!(examine(&looks, false).await.unwrap().findings, []);
    lose();
    let _node = node(&database, "b").await;
    until_async("a start lists them", || lacking() == "0").await;
    assert_eq!(database.psql("SELECT id, summary, summary_seq, is_idle FROM sessions ORDER BY id"), before);
}
