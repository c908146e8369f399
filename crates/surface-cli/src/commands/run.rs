//! `run` and `resume`: one turn, shown as it comes.

use meerkat_errors::ErrorCode;
use meerkat_service::{SessionError, SessionId, service::SessionCreated, wire::call};

use super::{questions::Questions, read};
use crate::{
    App, Streams,
    args::{CompactFlags, Delivery, ResumeArgs, RunArgs, TurnFlags},
    error::{CliError, exit_code, exit_code_of_leaving},
    input::{Line, Lines, Source, whole},
    stream::{Progress, RunningTurn, Show, decide},
    wire,
};

/// What a model is told about a call that nobody can be asked about.
const NOBODY_TO_ASK: &str = "Nobody could be asked: the turn runs without a terminal.";

/// Bytes of the answer to a question.
pub(super) const ANSWER_BYTES_MAX: u64 = 1024;

/// An id that no session has: a turn on it is refused for its values, or else because there is no such session.
pub(super) const NO_SESSION: &str = "00000000-0000-7000-8000-000000000000";

/// Reads the prompt from standard input.
async fn prompt_from_stdin(app: &App, streams: &mut Streams) -> Result<String, CliError> {
    if app.out.can_ask {
        app.out.note("Type the prompt and end it with Ctrl-D.");
    }
    // A thread of its own waits for it, so that a signal can end the command meanwhile.
    let (input, limit) = (streams.take_stdin(), app.config.values.limits.prompt_bytes);
    let read = tokio::task::spawn_blocking(move || whole(input, limit)).await;
    Ok(read.map_err(|error| SessionError::Internal(error.to_string()))??)
}

/// `run`.
pub(crate) async fn run(app: &App, mut streams: Streams, args: RunArgs) -> Result<u8, CliError> {
    refuse_detached(app, &args.delivery)?;
    let prompt = match args.prompt.as_deref() {
        None | Some("-") => prompt_from_stdin(app, &mut streams).await?,
        Some(prompt) => prompt.to_owned(),
    };
    streams.interrupts.listen();
    let show = if args.events {
        Show::Events
    } else if app.out.is_json {
        Show::Nothing
    } else {
        Show::Text
    };
    let configured = app.config.values.compaction;
    let (session_id, since, flags) = match &args.session {
        Some(name) => (super::resolve(&app.service, name).await?, None, args.turn),
        None => {
            let created = create(app, &args, &prompt).await?;
            // The model and the compaction are the session's now.
            let flags = TurnFlags { model: None, compact: CompactFlags::default(), ..args.turn };
            (created.session_id, Some(created.seq - 1), flags)
        }
    };
    let request = wire::turn(false, &session_id.to_string(), Some(&prompt), &flags, &args.delivery, configured);
    if args.delivery.detach {
        return super::print(app, request).await;
    }
    drive(app, streams, RunningTurn::start(app, session_id, request, since, show).await).await
}

/// Makes the session, unless the turn that it is for would be refused for its values.
async fn create(app: &App, args: &RunArgs, prompt: &str) -> Result<SessionCreated, CliError> {
    let configured = app.config.values.compaction;
    let trial = wire::turn(false, NO_SESSION, Some(prompt), &args.turn, &args.delivery, configured);
    let (operation, params) = wire::create(&args.create, &args.turn, configured);
    match call(app.service.as_ref(), trial.0, &trial.1.to_string()).await {
        Ok(_) => {}
        Err(error) if error.code() == ErrorCode::SessionNotFound => {}
        Err(error) => return Err(error.into()),
    }
    let created = call(app.service.as_ref(), operation, &params.to_string()).await?;
    if args.turn.model.is_none() {
        app.tell_of_scripted_model();
    }
    Ok(read(&created)?)
}

/// `resume`.
pub(crate) async fn resume(app: &App, mut streams: Streams, args: ResumeArgs) -> Result<u8, CliError> {
    refuse_detached(app, &args.delivery)?;
    let prompt = match args.prompt.as_deref() {
        Some("-") => Some(prompt_from_stdin(app, &mut streams).await?),
        other => other.map(str::to_owned),
    };
    streams.interrupts.listen();
    let name = args.target.session.as_deref().unwrap_or_default();
    let session_id: SessionId = super::resolve(&app.service, name).await?;
    let configured = app.config.values.compaction;
    let request = wire::turn(true, &session_id.to_string(), prompt.as_deref(), &args.turn, &args.delivery, configured);
    if args.delivery.detach {
        return super::print(app, request).await;
    }
    let show = if app.out.is_json { Show::Nothing } else { Show::Text };
    drive(app, streams, RunningTurn::start(app, session_id, request, None, show).await).await
}

/// A turn goes on without its command only where another process runs it.
fn refuse_detached(app: &App, delivery: &Delivery) -> Result<(), SessionError> {
    if delivery.detach && !app.holding.is_attached() {
        let message = "the turn would end with this command; use it beside a `meerkat serve` on the same data \
                       directory, or `/turn --detach` in `meerkat chat`";
        return Err(SessionError::invalid("--detach", message));
    }
    Ok(())
}

/// Shows a turn up to its end, asks about its calls, and passes on Ctrl-C.
async fn drive(app: &App, mut streams: Streams, mut turn: RunningTurn) -> Result<u8, CliError> {
    let mut lines: Option<Lines> = None;
    let mut questions = Questions::default();
    let (mut is_interrupted, mut is_told) = (false, false);
    loop {
        tokio::select! {
            progress = turn.next() => match progress? {
                Progress::Approval(call) if app.out.can_ask => {
                    let lines = lines.get_or_insert_with(|| Lines::start(Source::Plain { input: streams.take_stdin(), limit: ANSWER_BYTES_MAX }));
                    questions.push(app, call, lines);
                }
                Progress::Approval(call) => decide(app, &call, false, Some(NOBODY_TO_ASK)),
                Progress::Ended(answer) => {
                    let answer = answer?;
                    let error = turn.finish(&answer)?;
                    if app.out.is_json {
                        app.out.document(&answer)?;
                    }
                    let Some(error) = error else { return Ok(0) };
                    app.out.error(&error);
                    return Ok(exit_code(&error));
                }
            },
            line = next_line(&mut lines) => if let Some(lines) = &mut lines {
                questions.answer(app, &line, lines);
            },
            // Beside an owner that goes on, the turn would go on too.
            () = app.closing.cancelled(), if !is_told => {
                is_told = true;
                turn.interrupt();
            }
            () = streams.interrupts.next() => {
                if is_interrupted {
                    return Ok(exit_code_of_leaving());
                }
                is_interrupted = true;
                app.out.note("Interrupting; Ctrl-C again leaves at once.");
                turn.interrupt();
            }
        }
    }
}

async fn next_line(lines: &mut Option<Lines>) -> Line {
    match lines {
        Some(lines) if lines.is_asked() => lines.next().await,
        _ => std::future::pending().await,
    }
}

/// Whether a line answers yes. What is no yes is a no.
pub(super) fn is_yes(line: &Line) -> bool {
    matches!(line, Line::Text(text) if matches!(text.trim().to_ascii_lowercase().as_str(), "y" | "yes"))
}
