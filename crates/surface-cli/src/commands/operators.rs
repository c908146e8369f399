//! Operators' commands that take more than one request: bundles in files, and a rebuild with a progress bar.
//!
//! A bundle is read and written piece by piece, however large it is.

use std::{
    ffi::OsString,
    fs::{self, File, OpenOptions},
    io::{self, Read as _, Seek as _, SeekFrom, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    pin::pin,
    time::Duration,
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use meerkat_errors::{ErrorBody, ErrorCode};
use meerkat_serve::random_digits;
use meerkat_service::{
    Seq, SessionError, SessionId,
    service::{BundlePage, ExportSession, ImportBundle},
    wire::encode,
};
use serde_json::json;

use super::{list::all, names::resolve};
use crate::{
    app::App,
    args::ExportArgs,
    output::{Progress, count},
    render::size,
};

/// Bytes of a piece that is handed to the service.
const PIECE_BYTES: u64 = 1024 * 1024;

/// Pause between two looks at the progress.
const LOOK_PAUSE: Duration = Duration::from_millis(100);

/// Writes bundles into a file, one after another, and returns the answer. Without names it exports `session`. Of all
/// sessions, those that cannot be read are left out, and named at the end.
pub(crate) async fn export(app: &App, args: &ExportArgs, session: &str) -> Result<Vec<u8>, SessionError> {
    let ids = named(app, args, session).await?;
    let path = app.dir.join(&args.output);
    let refused = |error| SessionError::invalid("--output", format!("{} cannot be written: {error}", path.display()));
    let mut file = Partial::create(path.clone()).map_err(refused)?;
    let (mut progress, mut bytes, mut written, mut failed) = (app.out.progress(), 0, Vec::new(), Vec::new());
    let (mut damaged, mut done) = (serde_json::Map::new(), 0);
    for id in &ids {
        let (begins_at, begins_with): (u64, usize) = (bytes, written.len());
        let mut next =
            Some(ExportSession { redact: args.redact, skip_damage: args.skip_damage, ..ExportSession::new(*id) });
        while let Some(request) = next {
            let is_first = request.cursor.is_none();
            let (piece, page, after) = match page(app, request).await {
                // It was deleted after the list was made.
                Err(error) if args.all && is_first && error.code() == ErrorCode::SessionNotFound => break,
                // The others are not to blame for its damage.
                Err(error) if args.all && error.code() == ErrorCode::SessionCorrupted => {
                    bytes = begins_at;
                    written.truncate(begins_with);
                    file.file.set_len(bytes).and_then(|()| file.file.seek(SeekFrom::Start(bytes))).map_err(refused)?;
                    failed.push((*id, error));
                    break;
                }
                page => page?,
            };
            file.file.write_all(&piece).map_err(refused)?;
            bytes += piece.len() as u64;
            let of = ids.len() as u64;
            progress.show(done, of, &format!("{done} of {}, {}", count(of, "session"), size(bytes)));
            if written.last() != Some(&page.session_id) {
                written.push(page.session_id);
                if !page.lost.is_empty() {
                    app.out.note(&left_out(page.session_id, &page.lost));
                    damaged.insert(page.session_id.to_string(), json!(page.lost));
                }
            }
            next = after;
        }
        done += 1;
    }
    file.finish().map_err(refused)?;
    drop(progress);
    let limit = app.config.values.limits.bundle_bytes;
    if bytes > limit {
        let (bytes, limit) = (size(bytes), size(limit));
        app.out.note(&format!(
            "The bundle has {bytes}, but an import accepts {limit}: raise limits.bundle_bytes there, or export fewer sessions at a time."
        ));
    }
    let left_out = failed.len();
    match failed
        .into_iter()
        .map(|(id, error)| (id.to_string(), error))
        .reduce(|all, (id, _)| (all.0 + ", " + &id, all.1))
    {
        None => {
            let mut answer = json!({ "file": path.display().to_string(), "bytes": bytes, "sessions": written });
            if !damaged.is_empty() {
                answer["lost"] = damaged.into();
            }
            encode(&answer)
        }
        Some((ids, error)) => {
            let (file, sessions) = (path.display(), count(written.len() as u64, "session"));
            let are = if left_out == 1 { "is" } else { "are" };
            let message = format!(
                "{file} has {sessions}, but {left_out} {are} damaged and not in it: {ids}. Run `meerkat doctor`."
            );
            Err(SessionError::Failed(Box::new(ErrorBody::with_message(error.code(), message))))
        }
    }
}

/// Resolves the sessions to export.
async fn named(app: &App, args: &ExportArgs, session: &str) -> Result<Vec<SessionId>, SessionError> {
    if args.all {
        let ids: Vec<SessionId> = all(&app.service).await?.into_iter().map(|session| session.session_id).collect();
        // An import takes an empty file for one that was cut off.
        let is_empty = || SessionError::invalid("--all", "there are no sessions to export, so no file was written");
        return if ids.is_empty() { Err(is_empty()) } else { Ok(ids) };
    }
    if args.session.is_empty() && session.is_empty() {
        return Err(SessionError::invalid("session", "name the sessions to export, or say --all"));
    }
    if args.session.is_empty() {
        return Ok(vec![resolve(&app.service, session).await?]);
    }
    let mut ids = Vec::with_capacity(args.session.len());
    for name in &args.session {
        ids.push(resolve(&app.service, name).await?);
    }
    Ok(ids)
}

/// Says which events of a session are damaged, and not in a bundle.
fn left_out(id: SessionId, lost: &[(Seq, Seq)]) -> String {
    let ranges: Vec<String> = lost.iter().map(|(from, to)| format!("{from} to {to}")).collect();
    format!("Session {id}: events {} are damaged, and not in the bundle.", ranges.join(", "))
}

/// Reads a page. Returns its bytes, the rest of it, and the request for the next one.
async fn page(
    app: &App,
    mut request: ExportSession,
) -> Result<(Vec<u8>, BundlePage, Option<ExportSession>), SessionError> {
    let page = app.service.export_session(request.clone()).await?;
    let unreadable = |_| SessionError::Internal("a page of a bundle is not base64".to_owned());
    let bytes = BASE64_STANDARD.decode(&page.data).map_err(unreadable)?;
    request.cursor.clone_from(&page.next_cursor);
    let next = request.cursor.is_some().then_some(request);
    Ok((bytes, page, next))
}

/// File that gets its name when it is complete.
struct Partial {
    file: File,
    beside: PathBuf,
    path: PathBuf,
}

impl Partial {
    fn create(path: PathBuf) -> io::Result<Self> {
        let mut name = OsString::from(".");
        name.push(path.file_name().ok_or(io::ErrorKind::IsADirectory)?);
        name.push(format!(".{}", random_digits(4)?));
        let beside = path.with_file_name(name);
        // Readable by its owner alone, like the store.
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&beside)?;
        Ok(Self { file, beside, path })
    }

    fn finish(self) -> io::Result<()> {
        self.file.sync_all()?;
        fs::rename(&self.beside, &self.path)
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        // A finished file has another name by now.
        fs::remove_file(&self.beside).ok();
    }
}

/// Makes sessions from a file, perhaps with new ids, perhaps with the label that parts memory.
pub(crate) async fn import(
    app: &App,
    file: &Path,
    (new_ids, keep_scope): (bool, bool),
) -> Result<Vec<u8>, SessionError> {
    let path = app.dir.join(file);
    let refused = |error| SessionError::invalid("file", format!("{} cannot be read: {error}", path.display()));
    let mut file = File::open(&path).map_err(refused)?;
    let total = file.metadata().map_err(refused)?.len();
    let (mut progress, mut upload, mut offset) = (app.out.progress(), None, 0);
    loop {
        let mut piece = Vec::new();
        io::Read::by_ref(&mut file).take(PIECE_BYTES).read_to_end(&mut piece).map_err(refused)?;
        let is_last = (piece.len() as u64) < PIECE_BYTES;
        let data = BASE64_STANDARD.encode(&piece);
        let request = ImportBundle { upload, offset, data, is_last, new_ids, keep_scope };
        let imported = app.service.import_bundle(request).await?;
        if is_last {
            for session in imported.sessions.iter().filter(|session| !session.lost.is_empty()) {
                app.out.note(&left_out(session.session_id, &session.lost));
            }
            return encode(&imported);
        }
        offset += PIECE_BYTES;
        upload = imported.upload;
        progress.show(offset, total, &format!("{} of {}", size(offset), size(total)));
    }
}

/// Waits for a rebuild, and shows how far its reader is.
pub(crate) async fn watched<T>(
    app: &App,
    reader: &str,
    rebuilding: impl Future<Output = Result<T, SessionError>>,
) -> Result<T, SessionError> {
    let (mut progress, mut rebuilding) = (app.out.progress(), pin!(rebuilding));
    let (mut looks, mut most) = (tokio::time::interval(LOOK_PAUSE), 0);
    loop {
        tokio::select! {
            biased;
            rebuilt = &mut rebuilding => return rebuilt,
            _ = looks.tick(), if progress.is_shown() => look(app, reader, &mut progress, &mut most).await,
        }
    }
}

/// Shows how far a reader is behind. If that cannot be read, the rebuild itself says what fails.
async fn look(app: &App, reader: &str, progress: &mut Progress, most: &mut u64) {
    let behind = match app.service.list_readers().await {
        Ok(readers) => readers.items.iter().find(|known| known.reader == reader).map(|reader| reader.records_behind),
        // Without journals there are no readers; memory counts itself.
        Err(_) => app.service.memory_to_index().await,
    };
    let Some(behind) = behind else { return };
    *most = behind.max(*most);
    progress.show(*most - behind, *most, &format!("{behind} to go"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_its_name_when_it_is_whole() {
        let folder = tempfile::tempdir().unwrap();
        let names = || fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect::<Vec<_>>();
        let path = folder.path().join("b.tar");
        let mut file = Partial::create(path.clone()).unwrap();
        file.file.write_all(b"half").unwrap();
        assert!(!path.exists() && names().len() == 1);
        drop(file);
        assert!(names().is_empty());
        let mut file = Partial::create(path.clone()).unwrap();
        file.file.write_all(b"whole").unwrap();
        file.finish().unwrap();
        assert_eq!((fs::read(&path).unwrap().as_slice(), names().len()), (&b"whole"[..], 1));
        assert!(Partial::create(folder.path().join("none/b.tar")).is_err());
        assert!(Partial::create("/".into()).is_err());
    }
}
