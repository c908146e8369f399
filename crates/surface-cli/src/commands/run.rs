//! `run` and `resume`: one turn, shown as it comes.

use std::{
    fs::File,
    io::{BufRead, BufReader},
};

use meerkat_errors::{ErrorBody, ErrorCode};
use meerkat_service::{
    Operation, SessionError, SessionId,
    follow::turn::{answered, handle},
    options::Policy,
    output::OutputSpec,
    service::{AnswerCall, Prompt, ResumeTurn, SessionCreated, StartTurn, TurnHandle},
    session::message::RawJson,
    wire::encode,
};

use super::{
    ask::{require_for, require_name},
    confirm::answers,
    names::{NO_SESSION, resolve},
    questions::Questions,
    show::show,
};
use crate::{
    app::{App, Streams},
    args::{CompactFlags, Delivery, ResumeArgs, RunArgs, SessionFlags, TurnFlags},
    attach::attached,
    error::{CliError, exit_code, exit_code_of_leaving, waiting_call},
    input::{Line, Lines, whole},
    stream::{Progress, RunningTurn, Show},
    wire,
};

/// Reads the prompt from standard input.
async fn prompt_from_stdin(app: &App, streams: &mut Streams) -> Result<String, CliError> {
    if app.out.can_ask {
        app.out.note("Type the prompt and end it with Ctrl-D.");
    }
    // Another thread waits for it, so that a signal can end the command meanwhile.
    let (input, limit) = (streams.take_stdin(), app.config.values.limits.prompt_bytes);
    let read = tokio::task::spawn_blocking(move || whole(input, limit)).await;
    Ok(read.map_err(|error| SessionError::Internal(error.to_string()))??)
}

/// Reads what the flags say of the answer.
async fn output_spec(app: &App, streams: &mut Streams, flags: &Delivery) -> Result<Option<OutputSpec>, SessionError> {
    let Some(file) = &flags.output_schema else { return Ok(None) };
    let refused = |why: String| SessionError::invalid("--output-schema", why);
    let input: Box<dyn BufRead + Send> = if file.as_os_str() == "-" {
        streams.take_stdin()
    } else {
        let opened = File::open(app.dir.join(file));
        Box::new(BufReader::new(opened.map_err(|error| refused(format!("the file cannot be read: {error}")))?))
    };
    let limit = app.config.values.limits.prompt_bytes;
    let read = tokio::task::spawn_blocking(move || whole(input, limit)).await;
    let text = read.map_err(|error| SessionError::Internal(error.to_string()))??;
    if text.trim().is_empty() {
        return Err(refused("it is empty; standard input has either the prompt or the schema".to_owned()));
    }
    let schema = RawJson::parse(&text).map_err(|error| match error {
        SessionError::InvalidRequest { message, .. } => refused(message),
        error => error,
    })?;
    let spec = OutputSpec { name: flags.output_name.clone(), ..OutputSpec::new(schema) };
    Ok(Some(OutputSpec { repairs: flags.repairs.unwrap_or(spec.repairs), ..spec }))
}

/// `run`.
pub(crate) async fn run(app: &App, mut streams: Streams, mut args: RunArgs) -> Result<u8, CliError> {
    require_for(app, Operation::StartTurn, &args.turn)?;
    args.session.as_deref().map_or(Ok(()), |name| require_name(app, name))?;
    refuse_detached(app, args.delivery.detach)?;
    attend(app, &mut args.delivery);
    let prompt = match args.prompt.as_deref() {
        None | Some("-") => prompt_from_stdin(app, &mut streams).await?,
        Some(prompt) => prompt.to_owned(),
    };
    let output = output_spec(app, &mut streams, &args.delivery).await?;
    let prompt = attached(&args.input, prompt)?;
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
        Some(name) => (resolve(&app.service, name).await?, None, args.turn),
        None => {
            let created = create_for(app, &args, &prompt, output.as_ref()).await?;
            // By now the session has the model and the compaction.
            let flags = TurnFlags { model: None, compact: CompactFlags::default(), ..args.turn };
            // What was given need not be read again to be passed over.
            let since = (show == Show::Events || args.create.history.is_none()).then_some(created.seq - 1);
            (created.session_id, since, flags)
        }
    };
    let turn = wire::turn(session_id, prompt, &flags, &args.delivery, configured);
    let hides_text = (turn.policy != Policy::Steer).then_some(output.is_some());
    let begin = app.service.begin_turn(StartTurn { output, ..turn });
    if args.delivery.detach {
        return detached(app, Operation::StartTurn, begin).await;
    }
    drive(app, streams, RunningTurn::start(app, session_id, begin, since, show, hides_text).await, true).await
}

/// Makes the session of a turn, unless the turn would be refused for its values.
async fn create_for(
    app: &App,
    args: &RunArgs,
    prompt: &Prompt,
    output: Option<&OutputSpec>,
) -> Result<SessionCreated, SessionError> {
    check(app, prompt, &args.turn, &args.delivery, output).await?;
    create(app, &args.create, &args.turn).await
}

/// Checks the values of a turn, and starts none: no session has the id.
pub(crate) async fn check(
    app: &App,
    prompt: &Prompt,
    turn: &TurnFlags,
    delivery: &Delivery,
    output: Option<&OutputSpec>,
) -> Result<(), SessionError> {
    let trial = wire::turn(NO_SESSION.parse()?, prompt.clone(), turn, delivery, app.config.values.compaction);
    // Of a session that is not there yet only this command knows the model.
    let model = trial.model.clone().or_else(|| app.known_model.clone());
    try_turn(app, StartTurn { output: output.cloned(), model, ..trial }).await
}

/// Checks the values of a turn for a session without options, and starts none: no session has the id.
pub(crate) async fn try_turn(app: &App, trial: StartTurn) -> Result<(), SessionError> {
    match app.service.begin_turn(StartTurn { session_id: NO_SESSION.parse()?, ..trial }).await {
        Err(error) if error.code() != ErrorCode::SessionNotFound => Err(error),
        Ok(_) | Err(_) => Ok(()),
    }
}

/// Makes a session, and says which model answers in it if nobody chose one.
pub(crate) async fn create(app: &App, flags: &SessionFlags, turn: &TurnFlags) -> Result<SessionCreated, SessionError> {
    let folder = app.workspace(flags.workspace.as_deref())?;
    let given = (folder, app.given(flags.history.as_deref()).await?);
    let request = wire::create(flags, turn, app.config.values.compaction, given);
    let workspace = request.workspace.clone();
    let created = app.service.create_session(request).await?;
    workspace.iter().for_each(|folder| app.note_untrusted_rules(folder));
    if turn.model.is_none() {
        app.note_model(&created.session_id).await?;
    }
    Ok(created)
}

/// `resume`.
pub(crate) async fn resume(app: &App, mut streams: Streams, mut args: ResumeArgs) -> Result<u8, CliError> {
    require_for(app, Operation::Resume, &args.turn)?;
    refuse_detached(app, args.delivery.detach)?;
    attend(app, &mut args.delivery);
    let prompt = match args.prompt.as_deref() {
        Some("-") => Some(prompt_from_stdin(app, &mut streams).await?),
        other => other.map(str::to_owned),
    };
    let output = output_spec(app, &mut streams, &args.delivery).await?;
    let prompt = prompt.map(|prompt| attached(&args.input, prompt)).transpose()?;
    streams.interrupts.listen();
    let name = args.target.session.as_deref().unwrap_or_default();
    let session_id: SessionId = resolve(&app.service, name).await?;
    let configured = app.config.values.compaction;
    let hides_text = Some(output.is_some());
    let turn = ResumeTurn { output, ..wire::resume(prompt, &args.turn, &args.delivery, configured) };
    let begin = app.service.begin_resume(&session_id, turn);
    if args.delivery.detach {
        return detached(app, Operation::Resume, begin).await;
    }
    let show = if app.out.is_json { Show::Nothing } else { Show::Text };
    drive(app, streams, RunningTurn::start(app, session_id, begin, None, show, hides_text).await, true).await
}

/// Prints what a turn that another process runs answers at once.
async fn detached(
    app: &App,
    operation: Operation,
    begin: impl Future<Output = Result<TurnHandle, SessionError>>,
) -> Result<u8, CliError> {
    show(app, operation, &begin.await?.answer().await?)?;
    Ok(0)
}

/// Says that somebody is there to decide calls, if this command can ask.
fn attend(app: &App, delivery: &mut Delivery) {
    delivery.attended |= app.out.can_ask && !delivery.detach;
}

/// Refuses not to wait for a turn unless another process runs it, because it would end with this one.
pub(super) fn refuse_detached(app: &App, is_detached: bool) -> Result<(), SessionError> {
    if is_detached && !app.is_attached {
        let message = "the turn would end with this command; use it beside a `meerkat serve` on the same data \
                       directory, or `/call turn/start prompt=TEXT wait=false` in `meerkat chat`";
        return Err(SessionError::invalid("--detach", message));
    }
    Ok(())
}

/// Answers a call, and shows its turn up to its end, or until it waits for its caller again. Another caller began the
/// turn, so it goes on if this command is left.
pub(super) async fn answer(app: &App, streams: Streams, request: AnswerCall) -> Result<u8, CliError> {
    streams.interrupts.listen();
    let (session_id, service) = (request.session_id, app.service.clone());
    let begin = async { Ok(handle(service.clone(), answered(service.as_ref(), request).await?)) };
    let show = if app.out.is_json { Show::Nothing } else { Show::Text };
    drive(app, streams, RunningTurn::start(app, session_id, begin, None, show, None).await, false).await
}

/// Shows a turn up to its end, and asks about its calls. Ctrl-C interrupts it if `interrupts`, and else leaves it.
async fn drive(app: &App, mut streams: Streams, mut turn: RunningTurn, interrupts: bool) -> Result<u8, CliError> {
    let mut lines: Option<Lines> = None;
    let mut questions = Questions::default();
    let (mut is_interrupted, mut is_closing) = (false, false);
    loop {
        tokio::select! {
            progress = turn.next() => match progress? {
                Progress::Approval(call) if app.out.can_ask => {
                    let lines = lines.get_or_insert_with(|| answers(&mut streams));
                    questions.push(app, call, lines);
                }
                Progress::Settled(id, call_id) => if let Some(lines) = &mut lines {
                    questions.settle(app, (id, &call_id), lines);
                },
                // The question's own line says what becomes of it.
                Progress::Approval(call) if call.form.is_some() => {}
                Progress::Approval(call) => app.out.note(&format!(
                    "{} waits until it is decided: meerkat sessions approve {} {}",
                    call.name, call.session_id, call.call_id
                )),
                Progress::Ended(result) => {
                    let result = result.inspect_err(|error| note_waiting(app, &error.body(), turn.session_id()))?;
                    let error = turn.finish(&result)?;
                    if app.out.is_json {
                        app.out.document(&encode(&result)?)?;
                    }
                    let Some(error) = error else { return Ok(0) };
                    app.out.error(&error);
                    return Ok(exit_code(&error));
                }
            },
            line = next_line(&mut lines) => if let Some(lines) = &mut lines {
                questions.answer(app, &line, lines).await;
            },
            // If the owner keeps running, so would the turn.
            () = app.closing.cancelled(), if !is_closing => {
                is_closing = true;
                if !interrupts {
                    return Ok(exit_code_of_leaving());
                }
                turn.interrupt();
            }
            () = streams.interrupts.next() => {
                if is_interrupted || !interrupts {
                    return Ok(exit_code_of_leaving());
                }
                is_interrupted = true;
                app.out.note("Interrupting; Ctrl-C again leaves at once.");
                turn.interrupt();
            }
        }
    }
}

/// Says how to decide what a busy session waits for.
fn note_waiting(app: &App, body: &ErrorBody, session_id: SessionId) {
    if let Some(call_id) = waiting_call(body) {
        app.out.note(&format!(
            "Type `meerkat sessions approve {session_id} {call_id}`, or `deny` in the place of `approve`; \
             `meerkat chat {session_id}` asks you."
        ));
    }
}

async fn next_line(lines: &mut Option<Lines>) -> Line {
    match lines {
        Some(lines) if lines.is_asked() => lines.next().await,
        _ => std::future::pending().await,
    }
}
