//! What a chat does beside turns and operations: its status line, `/undo`, `/copy`, `/open`, `/model`,
//! `/effort`.

use std::sync::Arc;

use futures::FutureExt as _;
use meerkat_errors::ErrorCode;
use meerkat_service::{
    Operation, Seq, SessionError, SessionId, SessionService, TurnNumber,
    follow::turn::result,
    options::{Effort, ModelOptions},
    service::{ReadHistory, StartTurn, TurnAccepted, TurnHandle, TurnResult},
};

use super::Chat;
use crate::{
    args::ChosenEffort,
    commands::{confirm::is_yes, files, open, run::try_turn, show::print_message},
    error::CliError,
    input::Line,
    render::ending,
    stream::{RunningTurn, Show, last_seq},
};

/// Most bytes of an answer to copy: with their encoding, as much as common terminals take.
const COPY_BYTES_MAX: usize = 56_000;

impl Chat<'_> {
    /// Prints one line about where the chat is after an answer: its model, its effort, how full that model's window
    /// was, the session, and the cost of the turn.
    pub(super) fn status(&self, result: &TurnResult, turn: &RunningTurn) {
        let used = match turn.fill {
            Some((used, Some(window))) => format!("{} of {} tokens, ", short(used), short(window)),
            Some((used, None)) => format!("{} tokens, ", short(used)),
            None => String::new(),
        };
        let cost = result.cost.map_or_else(String::new, |cost| format!(", {cost}"));
        let effort = turn.effort.map_or_else(String::new, |effort| format!("effort {}, ", effort.name()));
        let (model, session) = (&result.model, ending(&result.session_id));
        self.app.out.status(&format!("{model}, {effort}{used}session {session}{cost}"));
    }

    /// `/model`: takes another model if it can be used, or says which one answers.
    pub(super) async fn take_model(&mut self, line: u64, name: Option<String>) -> Result<(), CliError> {
        let is_new = name.is_some();
        let asked = self.next_terms(name.or_else(|| self.model.clone()), self.effort, is_new).await;
        let (model, _) = match asked {
            Ok(asked) => asked,
            Err(SessionError::InvalidRequest { field, message })
                if field == "options.effort" && self.effort.is_some() =>
            {
                let message = format!("{message}; `/effort default` takes back the effort that you chose here");
                return self.refuse(line, &SessionError::invalid(field, message).body());
            }
            Err(error) => return self.refuse(line, &error.body()),
        };
        self.app.out.note(&match is_new {
            true => format!("From here on {model} answers."),
            false => format!("{model} answers; /model NAME takes another."),
        });
        if is_new {
            self.model = Some(model);
        }
        Ok(())
    }

    /// `/effort`: takes another effort if the model has it, takes the choice back, or says which one is asked for.
    pub(super) async fn take_effort(&mut self, line: u64, choice: Option<ChosenEffort>) -> Result<(), CliError> {
        let chosen = choice.map_or(self.effort, |choice| choice.0);
        let is_new = matches!(choice, Some(ChosenEffort(Some(_))));
        let asked = self.next_terms(self.model.clone(), chosen, is_new).await;
        let (model, effort) = match asked {
            Ok(asked) => asked,
            Err(error) => return self.refuse(line, &error.body()),
        };
        self.effort = chosen;
        let effort = effort.map_or("its vendor's choice", Effort::name);
        self.app.out.note(&match choice {
            Some(_) => format!("From here on the effort of {model} is {effort}."),
            None => format!("The effort of {model} is {effort}; /effort LEVEL takes another."),
        });
        Ok(())
    }

    /// Returns the model and the effort of the next turn: these, or the session's. If they are new, it is checked that
    /// the model takes them together with the session's options.
    async fn next_terms(
        &self,
        model: Option<String>,
        effort: Option<Effort>,
        is_new: bool,
    ) -> Result<(String, Option<Effort>), SessionError> {
        // Without a store no session is read; then the turn says what does not fit.
        let (own, given) = match self.app.service.read(&self.session_id).await {
            Ok(view) => (Some(view.model), view.options),
            Err(error) if error.code() == ErrorCode::SessionPersistenceDisabled => (None, ModelOptions::default()),
            Err(error) => return Err(error),
        };
        let options = ModelOptions { effort: effort.or(given.effort), ..given };
        let effort = options.effort;
        if is_new {
            let model = model.clone().or_else(|| own.clone());
            let trial = StartTurn { model, options, ..StartTurn::new(self.session_id, "hello") };
            try_turn(self.app, trial).await?;
        }
        Ok((model.or(own).unwrap_or_else(|| "the session's model".to_owned()), effort))
    }

    /// `/open`: goes on with another session.
    pub(super) async fn open(&mut self, line: u64, words: &[String]) -> Result<(), CliError> {
        if words.is_empty() {
            let message = "say which one: its id, `last`, or words of its title; `/call session/list` lists them";
            return self.refuse(line, &SessionError::invalid("session", message).body());
        }
        let found = async {
            let session_id = open::find(self.app, words).await?;
            last_seq(&self.app.service, &session_id).await.map(|_| session_id)
        };
        match found.await {
            Ok(session_id) => {
                self.session_id = session_id;
                self.app.out.note(&format!("Session {session_id} from here on."));
                self.take_up().await
            }
            Err(error) => self.refuse(line, &error.body()),
        }
    }

    /// Follows the turn of the session that waits for a decision, if any, so that its question is asked: the process that
    /// asked it may have ended.
    pub(super) async fn take_up(&mut self) -> Result<(), CliError> {
        let (app, session_id) = (self.app, self.session_id);
        if !app.out.can_ask || app.out.is_json {
            return Ok(());
        }
        // A session that cannot be read says so when something is asked of it.
        let view = app.service.read(&session_id).await.ok();
        let Some(turn) = view.and_then(|view| view.pending_approvals.first().map(|asked| asked.turn)) else {
            return Ok(());
        };
        if self.follows(session_id, turn) {
            return Ok(());
        }
        let Some(seq) = beginning(&app.service, session_id, turn).await? else { return Ok(()) };
        app.out.note(&format!("Turn {turn} waits for your decision; this is what it has done so far."));
        self.follow(TurnAccepted { session_id, turn, seq }).await;
        Ok(())
    }

    fn follows(&self, session_id: SessionId, turn: TurnNumber) -> bool {
        self.turns.iter().any(|(_, running)| running.is_of(session_id, turn))
    }

    /// Follows an accepted turn, unless it is followed already.
    pub(super) async fn follow(&mut self, accepted: TurnAccepted) {
        let TurnAccepted { session_id, turn, seq } = accepted;
        if self.follows(session_id, turn) {
            return;
        }
        let (app, service, followed) = (self.app, self.app.service.clone(), accepted.clone());
        let result = async move { result(service.as_ref(), followed).await }.boxed();
        let begin = async { Ok(TurnHandle { accepted, wait: true, result }) };
        let running = RunningTurn::start(app, session_id, begin, Some(seq.saturating_sub(1)), Show::Text, None).await;
        self.turns.push((0, running));
    }

    /// `/steer` of a running turn: shows the turn that has the text. If that is another one, it says so: where none ran any
    /// more the text begins a turn, without the model of `/model`, which a running turn would refuse.
    pub(super) async fn steered(&mut self, accepted: TurnAccepted) -> Result<(), CliError> {
        let turn = accepted.turn;
        if !self.follows(accepted.session_id, turn) {
            let model = self.model.as_ref().map(|model| format!("; {model} answers from the next prompt on"));
            let model = model.unwrap_or_default();
            self.app.out.note(&format!("The text is for turn {turn}, which was not shown so far{model}."));
        }
        self.follow(accepted).await;
        Ok(())
    }

    /// `/undo`: asks a person about the files of the last turn, or returns those to put back at once.
    pub(super) async fn undo(&mut self, yes: bool) -> Result<Option<files::Plan>, SessionError> {
        let view = self.app.service.read(&self.session_id).await?;
        let last = view.turn_count.checked_sub(1).and_then(|turn| turn.try_into().ok());
        let turn = last.ok_or_else(|| SessionError::invalid("turn", "there was no turn yet"))?;
        let plan = files::plan(self.app, &self.session_id.to_string(), turn, &[]).await?;
        match plan.question() {
            _ if yes => return Ok(Some(plan)),
            Some(_) if !self.has_editor => return Err(files::unasked()),
            Some(_) if !self.turns.is_empty() => {
                let why = "a turn runs, whose questions you answer first; wait for its end, or say --yes";
                return Err(SessionError::invalid("--yes", why));
            }
            Some(question) => {
                self.app.out.notice(&format!("{question} [y/N]"));
                self.undoing = Some(plan);
            }
            None => self.app.out.note(&format!("Turn {turn} left no file changed.")),
        }
        Ok(None)
    }

    /// Takes the answer about files to put back: only yes means yes.
    pub(super) async fn undone(&mut self, plan: &files::Plan, line: &Line) -> Result<(), CliError> {
        if !matches!(line, Line::Text(text) if is_yes(text)) {
            self.app.out.note("Nothing was changed.");
            return Ok(());
        }
        self.put_back(0, plan).await
    }

    pub(super) async fn put_back(&self, line: u64, plan: &files::Plan) -> Result<(), CliError> {
        match files::restore(self.app, plan).await {
            Ok(answer) => print_message(self.app, Operation::Blob, &answer, None),
            Err(error) => self.refuse(line, &error.body()),
        }
    }

    /// `/copy`: the last answer.
    pub(super) fn copy(&self, line: u64) -> Result<(), CliError> {
        let refuse = |field, message: String| self.refuse(line, &SessionError::invalid(field, message).body());
        let Some(text) = &self.answer else { return refuse("answer", "there is no answer yet".to_owned()) };
        if text.len() > COPY_BYTES_MAX {
            let bytes = text.len();
            let what = format!(
                "the answer has {bytes} bytes, and terminals take {COPY_BYTES_MAX}; `meerkat sessions history` shows it"
            );
            return refuse("answer", what);
        }
        if !self.app.out.copy(text) {
            return refuse(
                "terminal",
                "there is no terminal with a clipboard here; `meerkat sessions history` shows the answer".to_owned(),
            );
        }
        self.app.out.note(&format!(
            "{} bytes were sent to the terminal's clipboard. If they are not there, the terminal does not allow it; tmux \
             needs `set -g set-clipboard on`.",
            text.len()
        ));
        Ok(())
    }
}

/// Returns the seq of the event that started a turn.
async fn beginning(
    service: &Arc<dyn SessionService>,
    session_id: SessionId,
    turn: TurnNumber,
) -> Result<Option<Seq>, SessionError> {
    let mut cursor = None;
    loop {
        let page = service.turns(ReadHistory { cursor, ..ReadHistory::new(session_id) }).await?;
        if let Some(found) = page.items.iter().find(|item| item.turn == turn) {
            return Ok(Some(found.seq));
        }
        cursor = page.next_cursor;
        if cursor.is_none() {
            return Ok(None);
        }
    }
}

/// Returns a number of tokens in few characters.
fn short(tokens: u64) -> String {
    match tokens {
        0..1_000 => tokens.to_string(),
        1_000..10_000 => format!("{}.{}k", tokens / 1_000, tokens % 1_000 / 100),
        10_000..1_000_000 => format!("{}k", tokens / 1_000),
        _ => format!("{}.{}M", tokens / 1_000_000, tokens % 1_000_000 / 100_000),
    }
}
