//! `chat`: turn after turn on one session, and what people do beside turns as `/` lines.
//!
//! Lines are handled in order. A turn runs beside later lines; only the next turn waits for it.

mod asides;

use std::{collections::VecDeque, path::Path};

use futures::{
    FutureExt as _, StreamExt as _,
    future::{LocalBoxFuture, select_all},
    stream::FuturesUnordered,
};
use meerkat_errors::ErrorBody;
use meerkat_service::{
    Operation, SessionError, SessionId,
    options::Effort,
    service::{SessionCreated, TurnResult},
    wire::encode,
};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::{
    app::{App, Streams},
    args::{
        ChatArgs, Delivery, ModelFlags, SessionCommand, SessionFlags, Target, TurnFlags,
        chat::{SlashCommand, parse, words},
    },
    attach::{self, Named},
    commands::{
        ask::require_for,
        call::{self, Call},
        compact::until,
        files::Plan,
        questions::Questions,
        resolve,
        run::create,
        show::{message, print_message},
    },
    error::{self, CliError, exit_code_of_leaving, waiting_call},
    input::{Line, Lines, Source},
    render::events::type_name,
    stream::{Progress, RunningTurn, Show, last_seq},
    wire::{self, Request, read},
};

/// Most lines that wait for a turn; then no more are read.
const HELD_MAX: usize = 64;

/// Room in a line for quotes and escapes, besides the longest prompt.
const LINE_BYTES_MORE: u64 = 1024 * 1024;

/// Line that waits, and its number.
struct WaitingLine {
    line: u64,
    said: Said,
}

/// What a line says.
enum Said {
    Prompt(String),
    Command(SlashCommand),
}

/// Effect of an answer on the chat.
#[derive(Clone, Copy, PartialEq)]
enum Effect {
    None,
    /// It goes on with the session that was made.
    Session,
    /// Its compaction has ended.
    Compaction,
    /// It steered a turn, or began one if none ran any more.
    Steering,
    /// It did what a person is told with these words.
    Done(&'static str),
}

/// Answer of a request that runs beside the turn.
struct Answer {
    line: u64,
    operation: Operation,
    /// True if later lines wait for it.
    is_in_order: bool,
    effect: Effect,
    result: Result<Vec<u8>, SessionError>,
    /// Text for people in place of the answer.
    text: Option<String>,
}

/// Chat.
struct Chat<'a> {
    app: &'a App,
    session_id: SessionId,
    /// Model and effort to use instead of the session's.
    model: Option<String>,
    effort: Option<Effort>,
    /// Number of the last line, from 1; 0 is none.
    line: u64,
    held: VecDeque<WaitingLine>,
    /// Running turns with their lines' numbers: several only if another session's turn is taken up.
    turns: Vec<(u64, RunningTurn)>,
    requests: FuturesUnordered<LocalBoxFuture<'a, Answer>>,
    /// Number of running requests that later lines wait for.
    in_order: usize,
    /// Text of the last answer.
    answer: Option<String>,
    /// Files to put back, while a person is asked about them.
    undoing: Option<Plan>,
    has_editor: bool,
    /// Cancels the running compaction.
    compacting: Option<CancellationToken>,
    is_closed: bool,
    is_interrupted: bool,
}

/// `chat`.
pub(crate) async fn chat(app: &App, mut streams: Streams, args: &ChatArgs) -> Result<u8, CliError> {
    let session_id = open(app, args).await?;
    streams.interrupts.listen();
    let limit = app.config.values.limits.prompt_bytes.saturating_mul(2).saturating_add(LINE_BYTES_MORE);
    let (has_editor, is_typed) = (streams.has_editor, streams.has_editor || streams.has_keyboard);
    let source = match has_editor {
        true => Source::Editor {
            has_colours: app.out.has_colours,
            history: app.history(),
            home: app.home().map(Path::to_owned),
        },
        false => Source::Plain { input: streams.take_stdin(), limit, is_keyboard: streams.has_keyboard },
    };
    let mut lines = Lines::start(source);
    let mut questions = Questions::default();
    let mut chat = Chat {
        app,
        session_id,
        model: None,
        effort: None,
        line: 0,
        held: VecDeque::new(),
        turns: Vec::new(),
        requests: FuturesUnordered::new(),
        in_order: 0,
        answer: None,
        undoing: None,
        has_editor,
        compacting: None,
        is_closed: false,
        is_interrupted: false,
    };
    chat.take_up().await?;
    let mut is_closing = false;
    loop {
        chat.begin_ready_lines().await?;
        let is_idle = chat.turns.is_empty() && chat.requests.is_empty();
        if chat.is_closed && is_idle && chat.held.is_empty() && chat.undoing.is_none() {
            return Ok(0);
        }
        // Requests beside a question are answered first.
        if chat.requests.is_empty() && !lines.is_asked() {
            questions.ask(app, &mut lines);
        }
        // An editor owns the terminal while it reads, so pending output is shown first. And what a person types while a turn
        // runs must not answer a question that the turn asks later.
        if chat.undoing.is_some() {
            if !lines.is_asked() {
                app.out.notice(lines.begin_answer());
            }
            lines.ask_answer();
        } else if !chat.is_closed && (is_idle || !is_typed) && chat.held.len() < HELD_MAX {
            lines.ask();
        }
        tokio::select! {
            biased;
            // If the owner keeps running, so would its turns.
            () = app.closing.cancelled(), if !is_closing => {
                is_closing = true;
                chat.turns.iter_mut().for_each(|(_, turn)| turn.interrupt());
            }
            () = streams.interrupts.next() => {
                questions.drop_all();
                if chat.interrupt()? {
                    return Ok(exit_code_of_leaving());
                }
            }
            Some(answer) = chat.requests.next() => chat.answered(answer).await?,
            (at, progress) = next_progress(&mut chat.turns) => match progress? {
                Progress::Approval(call) if app.out.can_ask && !app.out.is_json => questions.push(app, call, &mut lines),
                Progress::Settled(id, call_id) => questions.settle(app, (id, &call_id), &mut lines),
                Progress::Approval(_) => {}
                Progress::Ended(result) => {
                    questions.close(app, &chat.turns[at].1, &mut lines);
                    chat.ended(at, result).await?;
                }
            },
            line = lines.next(), if lines.is_asked() => {
                match line {
                    line if chat.undoing.is_some() => {
                        if let Some(plan) = chat.undoing.take() {
                            chat.undone(&plan, &line).await?;
                        }
                        chat.is_closed |= matches!(line, Line::End);
                    }
                    Line::Interrupt => {
                        app.out.notice("\n");
                        questions.drop_all();
                        if chat.interrupt()? {
                            return Ok(exit_code_of_leaving());
                        }
                    },
                    line if questions.are_open() && !questions.is_beside(&line) => {
                        questions.answer(app, &line, &mut lines).await;
                    }
                    line => chat.take(line)?,
                }
                questions.has_read();
            },
        }
    }
}

/// Opens the session, which the first line names.
async fn open(app: &App, args: &ChatArgs) -> Result<SessionId, CliError> {
    let (session_id, document) = match &args.session {
        Some(_) if args.create != SessionFlags::default() || args.turn != TurnFlags::default() => {
            let message = "a flag is for a new session: leave the session out, or the flags (/model changes its model)";
            return Err(SessionError::invalid("session", message).into());
        }
        Some(name) => {
            let session_id = resolve(&app.service, name).await?;
            last_seq(&app.service, &session_id).await?;
            (session_id, json!({ "session_id": session_id }).to_string().into_bytes())
        }
        None => {
            require_for(app, Operation::CreateSession, &args.turn)?;
            let created = create(app, &args.create, &args.turn).await?;
            (created.session_id, encode(&created)?)
        }
    };
    if app.out.is_json {
        app.out.document(&document)?;
    } else {
        app.out.note(&format!("Session {session_id}; /help lists the commands, Ctrl-D leaves."));
    }
    Ok(session_id)
}

/// Waits for the next progress of any turn; returns the turn's index, too.
async fn next_progress(turns: &mut [(u64, RunningTurn)]) -> (usize, Result<Progress, CliError>) {
    if turns.is_empty() {
        return std::future::pending().await;
    }
    let (progress, at, _) = select_all(turns.iter_mut().map(|(_, turn)| Box::pin(turn.next()))).await;
    (at, progress)
}

impl<'a> Chat<'a> {
    /// Handles Ctrl-C. Returns true if the chat should end.
    fn interrupt(&mut self) -> Result<bool, CliError> {
        if std::mem::replace(&mut self.is_interrupted, true) {
            return Ok(true);
        }
        self.turns.iter_mut().for_each(|(_, turn)| turn.interrupt());
        let goes_on = self.compacting.is_some() && self.app.is_attached;
        if let Some(cancel) = &self.compacting {
            cancel.cancel();
        }
        if goes_on {
            self.app.out.note("The compaction continues in the background; /interrupt stops it.");
        }
        let is_running = !self.turns.is_empty() || (self.compacting.is_some() && !goes_on);
        self.app.out.note(if is_running { "Interrupting; Ctrl-C again leaves." } else { "Ctrl-C again leaves." });
        Ok(false)
    }

    /// Handles a line that was read.
    fn take(&mut self, line: Line) -> Result<(), CliError> {
        self.is_interrupted = false;
        self.line += 1;
        let number = self.line;
        let text = match line {
            Line::Text(text) if text.is_empty() => return Ok(()),
            // What was read ahead of /quit.
            Line::Text(_) if self.is_closed => return Ok(()),
            Line::Text(text) => text,
            Line::Refused(body) => return self.refuse(number, &body),
            Line::End | Line::Interrupt => {
                self.is_closed = true;
                return Ok(());
            }
        };
        let is_file = self.attended() && attach::begins_with_file(&text);
        let Some(slash) = text.strip_prefix('/').filter(|_| !is_file) else {
            self.held.push_back(WaitingLine { line: number, said: Said::Prompt(text) });
            return Ok(());
        };
        let command = words(slash).map_err(|why| SessionError::invalid("line", why).body());
        let command = match command.map(parse) {
            Ok(Ok(command)) => command,
            Ok(Err(error)) => {
                return match error::help(&error) {
                    Some(help) if !self.app.out.is_json => Ok(self.app.out.text(&help)?),
                    _ => self.refuse(number, &error::usage(&error)),
                };
            }
            Err(body) => return self.refuse(number, &body),
        };
        let is_for_scripts = match &command {
            SlashCommand::Call(args) => args.operation.is_some() && !args.help,
            command => matches!(command, SlashCommand::New(_) | SlashCommand::Quit),
        };
        if self.app.out.is_json && !is_for_scripts {
            let message = "with --json a chat takes prompts, /call, /new and /quit";
            return self.refuse(number, &SessionError::invalid("line", message).body());
        }
        self.held.push_back(WaitingLine { line: number, said: Said::Command(command) });
        Ok(())
    }

    /// Begins waiting lines: requests in order, a turn once everything before it is done.
    async fn begin_ready_lines(&mut self) -> Result<(), CliError> {
        let mut at = 0;
        while at < self.held.len() {
            if self.in_order > 0 || self.undoing.is_some() {
                return Ok(());
            }
            // The next turn and the next compaction need the context after a compaction.
            let waits = match &self.held[at].said {
                Said::Prompt(_) => !self.turns.is_empty() || self.compacting.is_some(),
                Said::Command(SlashCommand::Compact(_)) => self.compacting.is_some(),
                Said::Command(_) => false,
            };
            if waits {
                at += 1;
            } else if let Some(WaitingLine { line, said }) = self.held.remove(at) {
                match said {
                    Said::Prompt(text) => self.begin_prompt(line, text).await?,
                    Said::Command(command) => self.begin(line, command).await?,
                }
            }
        }
        Ok(())
    }

    /// Begins the turn of a prompt.
    async fn begin_prompt(&mut self, line: u64, text: String) -> Result<(), CliError> {
        // A line from a pipe may be anyone's, and shows no file.
        let shows = || attach::named(&text, self.app.home(), &self.app.dir);
        let named = if self.attended() { shows() } else { Named::default() };
        if named.files.is_empty() && attach::begins_with_file(&text) && self.attended() {
            self.app.out.note("The file is not shown: write @ before its path.");
        }
        for path in &named.missing {
            self.app.out.note(&format!("There is no file {path}; the model is shown none."));
        }
        for path in &named.elsewhere {
            let path = path.display();
            self.app.out.note(&format!("{path} is in another folder, so a text of several lines does not show it."));
        }
        let prompt = match attach::attached(&named.files, text) {
            Ok(prompt) => prompt,
            Err(error) => return self.refuse(line, &error.body()),
        };
        for path in &named.files {
            self.app.out.note(&format!("The model is shown {}.", path.display()));
        }
        let options = ModelFlags { effort: self.effort, ..ModelFlags::default() };
        let flags = TurnFlags { model: self.model.clone(), options, ..TurnFlags::default() };
        let delivery = Delivery { attended: self.attended(), ..Delivery::default() };
        let mut turn = wire::turn(self.session_id, prompt, &flags, &delivery, self.app.config.values.compaction);
        // A person sees the turn go on when its calls are answered; a script answers them itself.
        turn.wait = self.app.out.is_json;
        let show = if self.app.out.is_json { Show::Nothing } else { Show::Text };
        let begin = self.app.service.begin_turn(turn);
        self.turns.push((line, RunningTurn::start(self.app, self.session_id, begin, None, show, Some(false)).await));
        Ok(())
    }

    /// Returns true if a person is here to decide calls that ask.
    const fn attended(&self) -> bool {
        self.app.out.can_ask && !self.app.out.is_json
    }

    /// Ends the line of a text that is being shown, so that what comes next has its own.
    fn end_lines(&mut self) -> Result<(), CliError> {
        self.turns.iter_mut().try_for_each(|(_, turn)| turn.end_line())
    }

    async fn begin(&mut self, line: u64, mut command: SlashCommand) -> Result<(), CliError> {
        self.end_lines()?;
        if let SlashCommand::New(args) = &mut command {
            args.turn.model = args.turn.model.take().or_else(|| self.model.clone());
            args.turn.options.effort = args.turn.options.effort.or(self.effort);
        }
        let (app, configured) = (self.app, self.app.config.values.compaction);
        let here = self.session_id.to_string();
        let target = || Target { session: Some(here.clone()) };
        // Parameters as a tree of values would change numbers in a history that is given.
        let mut creation = None;
        let request = match &command {
            SlashCommand::New(args) => {
                let history = app.given(args.create.history.as_deref()).await;
                match history.and_then(|given| Ok((app.workspace(args.create.workspace.as_deref())?, given))) {
                    Ok(given) => creation = Some(wire::create(&args.create, &args.turn, configured, given)),
                    Err(error) => return self.refuse(line, &error.body()),
                }
                (Operation::CreateSession, json!({}))
            }
            SlashCommand::Open { words } => return self.open(line, words).await,
            SlashCommand::Model { name } => return self.take_model(line, name.clone()).await,
            SlashCommand::Effort { level } => return self.take_effort(line, *level).await,
            SlashCommand::Compact(how) => {
                let request = wire::compact(how, &here, configured);
                self.compacting = (request.0 == Operation::Compact).then(CancellationToken::new);
                request
            }
            SlashCommand::Undo { yes } => {
                return match self.undo(*yes).await {
                    Ok(Some(plan)) => self.put_back(line, &plan).await,
                    Ok(None) => Ok(()),
                    Err(error) => self.refuse(line, &error.body()),
                };
            }
            SlashCommand::Title { text } => {
                wire::session(&SessionCommand::Title { target: target(), text: text.clone() }, &here)
            }
            SlashCommand::Steer { text } if self.turns.is_empty() => {
                self.held.push_front(WaitingLine { line, said: Said::Prompt(text.clone()) });
                return Ok(());
            }
            SlashCommand::Steer { text } => wire::steer(&here, text, self.attended()),
            SlashCommand::Copy => return self.copy(line),
            SlashCommand::Tools => wire::tools(Some(&here), false),
            SlashCommand::Servers => (Operation::ToolServers, json!({})),
            SlashCommand::Approve { call_id, scope, answer, reason } => {
                let (call_id, answer, reason) = (call_id.clone(), answer.clone(), reason.clone());
                let approve = SessionCommand::Approve { target: target(), call_id, scope: *scope, answer, reason };
                wire::session(&approve, &here)
            }
            SlashCommand::Deny { call_id, reason } => {
                let (call_id, reason) = (call_id.clone(), reason.clone());
                wire::session(&SessionCommand::Deny { target: target(), call_id, reason }, &here)
            }
            SlashCommand::Interrupt => {
                wire::session(&SessionCommand::Interrupt { target: target(), turn: None }, &here)
            }
            SlashCommand::Show => wire::session(&SessionCommand::Show(target()), &here),
            SlashCommand::Call(args) => match call::help(&app.out, args) {
                Some(Err(CliError::Refused(body))) => return self.refuse(line, &body),
                Some(done) => return done,
                None => match call::request(app, args, Some(&here), || Box::new(std::io::empty())) {
                    Ok(Call::Operation(request)) => request,
                    Ok(Call::Follow { session, since, until: Some(until) }) => {
                        self.requests.push(follow_until(app, line, session, since, until).boxed_local());
                        return Ok(());
                    }
                    Ok(Call::Follow { until: None, .. }) => {
                        let message = "a line has one answer: add until=TYPE";
                        return self.refuse(line, &SessionError::invalid("until", message).body());
                    }
                    Err(error) => return self.refuse(line, &error.body()),
                },
            },
            SlashCommand::Quit => {
                self.is_closed = true;
                self.held.clear();
                return Ok(());
            }
        };
        let is_in_order = !waits(&command, &request);
        self.in_order += usize::from(is_in_order);
        let operation = request.0;
        let is_call = matches!(command, SlashCommand::Call(_));
        let cancel = self.compacting.clone().filter(|_| operation == Operation::Compact && !is_call);
        let effect = match command {
            SlashCommand::New(_) => Effect::Session,
            SlashCommand::Steer { .. } => Effect::Steering,
            SlashCommand::Title { .. } => Effect::Done("The session has this title now."),
            SlashCommand::Approve { .. } => Effect::Done("The call is approved."),
            SlashCommand::Deny { .. } => Effect::Done("The call is denied."),
            SlashCommand::Compact(_) if cancel.is_some() => Effect::Compaction,
            _ => Effect::None,
        };
        let answer = async move {
            let performed = async {
                let answer = match (cancel, creation) {
                    (Some(cancel), _) => until(app.service.as_ref(), operation, &request.1, cancel).await?,
                    (None, Some(creation)) => encode(&app.service.create_session(creation).await?)?,
                    (None, None) => call::perform(app, request).await?,
                };
                let text = message(app, operation, &answer, "/compact --undo").await?;
                Ok((answer, text))
            };
            let (result, text) =
                performed.await.map_or_else(|error| (Err(error), None), |(answer, text)| (Ok(answer), text));
            Answer { line, operation, is_in_order, effect, result, text }
        };
        self.requests.push(answer.boxed_local());
        Ok(())
    }

    /// Prints the end of a turn.
    async fn ended(&mut self, at: usize, result: Result<Box<TurnResult>, SessionError>) -> Result<(), CliError> {
        let (line, mut turn) = self.turns.remove(at);
        self.is_interrupted = false;
        match result {
            Ok(result) if self.app.out.is_json => self.document(line, &encode(&result)?),
            Ok(result) => {
                if let Some(error) = turn.finish(&result)? {
                    self.app.out.error(&error);
                }
                self.status(&result, &turn);
                self.answer = Some(result.text).filter(|text| !text.is_empty()).or(self.answer.take());
                Ok(())
            }
            Err(error) => {
                let body = error.body();
                let waits = waiting_call(&body).is_some();
                self.refuse(line, &body)?;
                if waits { self.take_up().await } else { Ok(()) }
            }
        }
    }

    /// Prints the answer of a request.
    async fn answered(&mut self, answer: Answer) -> Result<(), CliError> {
        let Answer { line, operation, is_in_order, effect, result, text } = answer;
        self.end_lines()?;
        self.in_order -= usize::from(is_in_order);
        if effect == Effect::Compaction {
            self.compacting = None;
            self.is_interrupted = false;
        }
        match result {
            // The running turn shows the text itself.
            Ok(answer) if effect == Effect::Steering => self.steered(read(&answer)?).await,
            Ok(answer) => {
                if effect == Effect::Session {
                    self.session_id = read::<SessionCreated>(&answer)?.session_id;
                }
                if self.app.out.is_json {
                    return self.document(line, &answer);
                }
                match effect {
                    Effect::Session => self.app.out.note(&format!("Session {} from here on.", self.session_id)),
                    Effect::Done(words) => self.app.out.note(words),
                    _ => print_message(self.app, operation, &answer, text.as_deref())?,
                }
                Ok(())
            }
            Err(error) => self.refuse(line, &error.body()),
        }
    }

    fn refuse(&self, line: u64, body: &ErrorBody) -> Result<(), CliError> {
        if self.app.out.is_json {
            self.document(line, json!(body).to_string().as_bytes())
        } else {
            self.app.out.error(body);
            if let Some(call_id) = waiting_call(body) {
                self.app.out.note(&format!("  Type /approve {call_id}, /deny {call_id} or /interrupt."));
            }
            Ok(())
        }
    }

    /// Prints the answer of a line.
    fn document(&self, line: u64, document: &[u8]) -> Result<(), CliError> {
        let head = format!("{{\"line\":{line},\"answer\":");
        Ok(self.app.out.document(&[head.as_bytes(), document, b"}"].concat())?)
    }
}

/// Returns true if a line's answer may depend on later lines.
fn waits(command: &SlashCommand, (operation, params): &Request) -> bool {
    match command {
        SlashCommand::Call(_) => {
            let has_wait = params["wait_ms"].as_u64().is_some_and(|wait_ms| wait_ms > 0);
            let is_of_turn = *operation == Operation::AnswerCall && params["wait"] == true;
            has_wait || is_of_turn || call::is_turn(*operation) || *operation == Operation::Compact
        }
        // A later line may interrupt it.
        SlashCommand::Compact(how) => !how.preview && how.undo.is_none(),
        _ => false,
    }
}

/// Waits for the first event of a type after a seq.
async fn follow_until(app: &App, line: u64, name: String, since: u64, until: String) -> Answer {
    let found = async {
        let session_id = resolve(&app.service, &name).await?;
        let mut follower = app.service.follow(&session_id, since).await?;
        while let Some(followed) = follower.next().await? {
            if type_name(&String::from_utf8_lossy(&followed.line)).as_deref() == Some(until.as_str()) {
                return Ok(followed.line.to_vec());
            }
        }
        Err(SessionError::NotFound(session_id))
    };
    Answer {
        line,
        operation: Operation::Events,
        is_in_order: false,
        effect: Effect::None,
        result: found.await,
        text: None,
    }
}
