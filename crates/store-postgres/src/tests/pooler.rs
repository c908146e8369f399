//! Debian's pgbouncer in transaction mode before a cluster.

use std::{
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{Child, Stdio},
};

use super::cluster::{Cluster, unprivileged};

/// Pooler, as Debian installs it.
const PROGRAM: &str = "/usr/sbin/pgbouncer";

/// Running pooler. Its socket is in the cluster's folder.
pub(crate) struct Pooler {
    dir: PathBuf,
    child: Child,
}

impl Pooler {
    pub(crate) fn is_here() -> bool {
        Path::new(PROGRAM).is_file()
    }

    pub(crate) fn start(cluster: &Cluster) -> Self {
        let dir = cluster.dir.clone();
        let config = dir.join("pgbouncer.ini");
        let lines = format!(
            "[databases]\npostgres = host={0} user=meerkat\n[pgbouncer]\nlisten_addr =\nunix_socket_dir = {0}\n\
             listen_port = 6432\nauth_type = any\npool_mode = transaction\ndefault_pool_size = 2\n",
            dir.display()
        );
        std::fs::write(&config, lines).unwrap();
        let mut child = unprivileged(Path::new(PROGRAM)).arg(&config).stderr(Stdio::piped()).spawn().unwrap();
        // It logs to stderr; its pipe is read to its end, so that it is never full.
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
        let is_up = lines.by_ref().any(|line| line.contains("process up"));
        assert!(is_up, "pgbouncer did not start");
        std::thread::spawn(move || lines.for_each(drop));
        Self { dir, child }
    }

    pub(crate) fn url(&self) -> String {
        format!("postgres://meerkat@/postgres?host={}&port=6432", self.dir.display())
    }
}

impl Drop for Pooler {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}
