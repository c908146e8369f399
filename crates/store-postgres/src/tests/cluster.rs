//! A PostgreSQL of the tests' own: made once per process, without durability, in a folder that ends with the process.

use std::{
    io::{BufRead as _, BufReader},
    net::Ipv4Addr,
    os::unix::fs::{PermissionsExt as _, chown},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Mutex, OnceLock,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
};

use crate::PostgresOptions;

/// Makes the cluster, says so, and ends it when its standard input ends: with the test's process, however that ends.
const SCRIPT: &str = r#"
set -e
bin=$1 dir=$2 address=$3 fsync=$4 options="-c listen_addresses=''"
"$bin/initdb" -D "$dir/data" -U meerkat -A trust -E UTF8 --locale=C --no-sync >"$dir/initdb.log" 2>&1
cat >"$dir/data/pg_hba.conf" <<END
local all guarded scram-sha-256
local all all trust
local replication all trust
END
if [ -n "$address" ]; then
  cd "$dir"
  key="-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes"
  openssl req -x509 $key -keyout ca.key -out ca.pem -subj /CN=authority -days 2 2>/dev/null
  openssl req $key -keyout server.key -out server.csr -subj /CN=localhost 2>/dev/null
  echo subjectAltName=DNS:localhost >names
  openssl x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile names -out server.pem 2>/dev/null
  echo "hostssl all all 127.0.0.0/8 trust" >>"$dir/data/pg_hba.conf"
  options="-c listen_addresses=$address -c ssl=on -c ssl_cert_file='$dir/server.pem' -c ssl_key_file='$dir/server.key'"
fi
"$bin/pg_ctl" -D "$dir/data" -w -l "$dir/log" start >/dev/null \
  -o "-k '$dir' $options -c fsync=$fsync -c max_connections=400 -c shared_buffers=64MB"
echo ready
cat >/dev/null
for data in "$dir/data" "$dir/standby"; do
  [ ! -d "$data" ] || "$bin/pg_ctl" -D "$data" -m immediate stop >/dev/null 2>&1 || true
done
rm -rf "$dir"
"#;

/// User and group of the server where the tests run as root.
const SERVER_ID: u32 = 65534;

/// Running cluster.
pub(crate) struct Cluster {
    pub(crate) dir: PathBuf,
    bin: PathBuf,
    /// True once its standby has taken over.
    has_failed_over: AtomicBool,
    /// Script that ends the cluster when its standard input is closed.
    script: Mutex<Child>,
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let script = self.script.get_mut().unwrap();
        drop(script.stdin.take());
        script.wait().unwrap();
    }
}

/// Schema of one test.
pub(crate) struct Database {
    pub(crate) cluster: &'static Cluster,
    pub(crate) schema: String,
}

/// Finds the newest server's programs, as Debian installs them.
fn programs() -> Option<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").ok()?;
    let number = |path: &Path| path.file_name()?.to_str()?.parse::<u32>().ok();
    let versions = versions.filter_map(|version| Some(version.ok()?.path()));
    let newest = versions.filter(|path| path.join("bin/initdb").is_file()).max_by_key(|path| number(path))?;
    Some(newest.join("bin"))
}

/// What tests over a database need.
pub(crate) const NEEDED: &str = "the server of PostgreSQL in /usr/lib/postgresql";

/// Returns true if there is a PostgreSQL on this machine.
pub(crate) fn is_here() -> bool {
    programs().is_some()
}

/// Starts a cluster of one test, with TLS for the name `localhost`, at the returned address; the file `ca.pem` in its
/// folder is its authority. The address is this process's own among those of the loopback, so that no port is chosen
/// which another process takes first.
pub(crate) fn with_tls() -> (Cluster, Ipv4Addr) {
    let [_, high, mid, low] = std::process::id().to_be_bytes();
    let address = Ipv4Addr::new(127, 128 | high, mid, low);
    (start(&address.to_string(), "off"), address)
}

fn start(address: &str, fsync: &str) -> Cluster {
    let bin = programs().unwrap();
    let dir = tempfile::tempdir().unwrap().keep();
    if rustix::process::geteuid().is_root() {
        chown(&dir, Some(SERVER_ID), Some(SERVER_ID)).unwrap();
    }
    std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o700)).unwrap();
    let mut command = unprivileged(Path::new("sh"));
    command.args(["-c", SCRIPT, "sh"]).arg(&bin).arg(&dir).args([address, fsync]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n", "the cluster did not start; see {}", dir.display());
    Cluster { dir, bin, has_failed_over: AtomicBool::new(false), script: Mutex::new(child) }
}

/// Makes a command that runs as a user that a server accepts: not as root.
pub(crate) fn unprivileged(program: &Path) -> Command {
    let mut command = Command::new("/usr/bin/env");
    if rustix::process::geteuid().is_root() {
        command = Command::new("setpriv");
        let id = |kind: &str| format!("--{kind}={SERVER_ID}");
        command.args([&id("reuid"), &id("regid"), "--clear-groups", "--"]);
    }
    command.arg(program).current_dir("/");
    command
}

/// Starts a cluster for one test, which may stop it. It syncs what it commits if `fsync` is `on`.
pub(crate) fn own(fsync: &str) -> Database {
    // It ends with the process, like the one that tests share.
    let cluster = Box::leak(Box::new(start("", fsync)));
    Database { cluster, schema: "own".to_owned() }
}

/// Options of a node. No test waits for the end of its lease, nor of its statements.
pub(crate) fn options(url: String, schema: &str, node: &str) -> PostgresOptions {
    let (schema, connections, statement_timeout_ms, lease_ms) = (schema.to_owned(), 6, 60_000, 600_000);
    let options = PostgresOptions::new(url.into(), node.to_owned());
    PostgresOptions { schema, connections, statement_timeout_ms, lease_ms, ..options }
}

/// Returns an empty schema.
pub(crate) fn fresh() -> Database {
    static CLUSTER: OnceLock<Cluster> = OnceLock::new();
    static SCHEMAS: AtomicU32 = AtomicU32::new(0);
    let cluster = CLUSTER.get_or_init(|| start("", "off"));
    Database { cluster, schema: format!("test_{}", SCHEMAS.fetch_add(1, Ordering::Relaxed)) }
}

impl Cluster {
    /// Makes a command of a client program as the superuser.
    pub(crate) fn client(&self, program: &str) -> Command {
        let has_failed_over = self.has_failed_over.load(Ordering::Relaxed);
        let host = if has_failed_over { self.dir.join("standby") } else { self.dir.clone() };
        let mut command = Command::new(self.bin.join(program));
        command.args(["-U", "meerkat", "-h"]).arg(host);
        command
    }

    /// Runs SQL as the superuser; returns what it prints.
    pub(crate) fn psql(&self, sql: &str) -> String {
        let mut psql = self.client("psql");
        psql.args(["-X", "-A", "-t", "-q", "-v", "ON_ERROR_STOP=1", "-d", "postgres", "-c", sql]);
        let done = psql.output().unwrap();
        assert!(done.status.success(), "{sql}: {}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8(done.stdout).unwrap().trim().to_owned()
    }

    /// Runs a program of the server.
    fn run(&self, program: &str, args: &[&str]) {
        let done = unprivileged(&self.bin.join(program)).args(args).stdout(Stdio::null()).status().unwrap();
        assert!(done.success(), "{program} {args:?}");
    }

    /// Kills the server as a crash would, and starts it again.
    pub(crate) fn restart(&self) {
        let data = self.dir.join("data");
        let log = self.dir.join("log");
        let [data, log] = [data.to_str().unwrap(), log.to_str().unwrap()];
        self.run("pg_ctl", &["-D", data, "-l", log, "-m", "immediate", "-w", "restart"]);
    }

    /// Starts a standby, which confirms every commit. Its socket is in its folder.
    pub(crate) fn start_standby(&self) {
        let (dir, standby, log) = (self.dir.clone(), self.dir.join("standby"), self.dir.join("standby.log"));
        let [dir, standby, log] = [dir.to_str().unwrap(), standby.to_str().unwrap(), log.to_str().unwrap()];
        self.run("pg_basebackup", &["-h", dir, "-U", "meerkat", "-D", standby, "-R", "-X", "stream", "-c", "fast"]);
        let options = format!("-k '{standby}' -c listen_addresses='' -c fsync=off -c max_connections=400");
        self.run("pg_ctl", &["-D", standby, "-l", log, "-o", &options, "-w", "start"]);
        self.psql("ALTER SYSTEM SET synchronous_standby_names = '*'");
        self.psql("SELECT pg_reload_conf()");
    }

    /// Kills the server for good and lets the standby take over.
    pub(crate) fn fail_over(&self) {
        let (data, standby) = (self.dir.join("data"), self.dir.join("standby"));
        self.run("pg_ctl", &["-D", data.to_str().unwrap(), "-m", "immediate", "-w", "stop"]);
        self.run("pg_ctl", &["-D", standby.to_str().unwrap(), "-w", "promote"]);
        self.has_failed_over.store(true, Ordering::Relaxed);
    }

    /// Returns the address of both servers, of which the one that takes writes is meant.
    pub(crate) fn url_of_both(&self) -> String {
        let dir = self.dir.to_str().unwrap().replace('/', "%2F");
        format!("postgres://meerkat@{dir},{dir}%2Fstandby/postgres?target_session_attrs=read-write")
    }

    /// Returns the address for a user with a password.
    pub(crate) fn url(&self, user: &str, database: &str) -> String {
        format!("postgres://{user}@/{database}?host={}", self.dir.display())
    }
}

impl Database {
    /// Options of a node.
    pub(crate) fn options(&self, node: &str) -> PostgresOptions {
        self.options_by(self.cluster.url("meerkat", "postgres"), node)
    }

    /// Options of a node that comes by another way.
    pub(crate) fn options_by(&self, url: String, node: &str) -> PostgresOptions {
        options(url, &self.schema, node)
    }

    /// Runs SQL in the schema.
    pub(crate) fn psql(&self, sql: &str) -> String {
        self.cluster.psql(&format!("SET search_path = {}; {sql}", self.schema))
    }

    /// Lets a node's lease end, by the database's clock.
    pub(crate) fn expire(&self, node: &str) {
        self.psql(&format!("UPDATE nodes SET alive_until = now() - interval '1 second' WHERE id = '{node}'"));
    }

    /// Lets the lease of a killed node end. A renewal that it had sent before changes nothing of that.
    pub(crate) fn bury(&self, node: &str) {
        self.psql(&format!("UPDATE nodes SET incarnation = incarnation + 1 WHERE id = '{node}'"));
        self.expire(node);
    }
}
