//! What a client may set of a session: what its calls may do, its model, and how long that thinks. It goes with this
//! client's next turns, and a client that loads the session later gets what the newest turn had.

use agent_client_protocol_schema::v1;
use meerkat_service::{
    SessionError,
    options::{Effort, ModelOptions},
    service::StartTurn,
    tool::{Access, Ask, TurnAccess},
};

use crate::AcpOptions;

const MODE: &str = "mode";
const MODEL: &str = "model";
const EFFORT: &str = "effort";

/// A value's id, name and description.
type Value = (&'static str, &'static str, &'static str);

/// Modes: what a session's calls may do. None allows more than the configuration.
const READ: Value = ("read", "Read", "Nothing is changed: a call that may change something is refused");
const EDIT: Value = ("edit", "Edit", "You are asked before a call that may change something runs");
const FULL: Value = ("full", "Full", "You are asked only as tools.ask says");

/// Values of how long a model thinks; the first is that of a session without a choice.
const EFFORTS: [(Option<Effort>, &str, &str); 5] = [
    (None, "default", "As configured"),
    (Some(Effort::None), "none", "None"),
    (Some(Effort::Low), "low", "Low"),
    (Some(Effort::Medium), "medium", "Medium"),
    (Some(Effort::High), "high", "High"),
];

/// Whether the configuration asks before each change.
const fn asks(options: &AcpOptions) -> bool {
    matches!(options.ask, Ask::Always | Ask::Changes)
}

/// The modes, that of new sessions last. Without tools of a workspace there are none.
fn modes(options: &AcpOptions) -> &'static [Value] {
    match options.access {
        Access::Off => &[],
        Access::Read => &[READ],
        Access::Write if asks(options) => &[READ, EDIT],
        Access::Write => &[READ, EDIT, FULL],
    }
}

/// What a turn in a mode is given.
fn access(mode: &str) -> Option<TurnAccess> {
    match mode {
        "read" => Some(TurnAccess::Read),
        "edit" => Some(TurnAccess::Ask),
        _ => None,
    }
}

/// What a client set, or the newest turn had.
#[derive(Clone, Default)]
pub(crate) struct Settings {
    pub(crate) effort: Option<Effort>,
    pub(crate) access: Option<TurnAccess>,
    /// The session's own model.
    pub(crate) own_model: String,
    /// Model of the next turns, if it is another one.
    pub(crate) model: Option<String>,
}

impl Settings {
    /// The current mode's id, if there are modes.
    pub(crate) fn mode(&self, options: &AcpOptions) -> Option<&'static str> {
        let (usual, ..) = modes(options).last()?;
        Some(match self.access {
            Some(TurnAccess::Read) => READ.0,
            Some(TurnAccess::Ask) if *usual == FULL.0 => EDIT.0,
            Some(TurnAccess::Ask) | None => *usual,
        })
    }

    /// The modes, for clients that know no options.
    pub(crate) fn modes(&self, options: &AcpOptions) -> Option<v1::SessionModeState> {
        let mode = |(id, name, words): &Value| v1::SessionMode::new(*id, *name).description((*words).to_owned());
        Some(v1::SessionModeState::new(self.mode(options)?, modes(options).iter().map(mode).collect::<Vec<_>>()))
    }

    /// Lists the options with their values.
    pub(crate) fn options(&self, options: &AcpOptions) -> Vec<v1::SessionConfigOption> {
        let mode = self.mode(options).map(|current| {
            let mode = |(id, name, words): &Value| {
                v1::SessionConfigSelectOption::new(*id, *name).description((*words).to_owned())
            };
            let modes: Vec<_> = modes(options).iter().map(mode).collect();
            v1::SessionConfigOption::select(MODE, "Mode", current, modes)
                .category(v1::SessionConfigOptionCategory::Mode)
        });
        let model = (!options.models.is_empty()).then(|| {
            let choice = |model: &str| v1::SessionConfigSelectOption::new(model.to_owned(), model.to_owned());
            let models: Vec<_> = self.models(options).into_iter().map(choice).collect();
            let current = self.model.as_ref().unwrap_or(&self.own_model);
            v1::SessionConfigOption::select(MODEL, "Model", current.clone(), models)
                .category(v1::SessionConfigOptionCategory::Model)
        });
        let efforts = EFFORTS.map(|(_, id, name)| v1::SessionConfigSelectOption::new(id, name)).to_vec();
        let current = self.effort.map_or(EFFORTS[0].1, Effort::name);
        let effort = v1::SessionConfigOption::select(EFFORT, "Effort", current, efforts)
            .description("How long the model thinks before it answers".to_owned())
            .category(v1::SessionConfigOptionCategory::ThoughtLevel);
        mode.into_iter().chain(model).chain([effort]).collect()
    }

    /// Models to choose from: those that are configured, the session's own, and that of the newest turn.
    fn models<'a>(&'a self, options: &'a AcpOptions) -> Vec<&'a str> {
        let mut models: Vec<&str> = options.models.iter().map(String::as_str).collect();
        for model in [Some(&self.own_model), self.model.as_ref()].into_iter().flatten() {
            if !models.contains(&model.as_str()) {
                models.push(model);
            }
        }
        models
    }

    /// Sets an option.
    ///
    /// # Errors
    /// `INVALID_REQUEST` for another option or value.
    pub(crate) fn set(
        &mut self,
        option: &str,
        value: &v1::SessionConfigOptionValue,
        options: &AcpOptions,
    ) -> Result<(), SessionError> {
        let chosen = match value {
            v1::SessionConfigOptionValue::ValueId { value } => &*value.0,
            _ => "",
        };
        match option {
            MODE => return self.set_mode("value", chosen, options),
            MODEL if self.models(options).contains(&chosen) => {
                self.model = Some(chosen.to_owned()).filter(|model| *model != self.own_model);
                return Ok(());
            }
            EFFORT => {
                if let Some((effort, ..)) = EFFORTS.iter().find(|(_, id, _)| *id == chosen) {
                    self.effort = *effort;
                    return Ok(());
                }
            }
            MODEL => {}
            _ => {
                let message = format!("there is no option {option:?}; there are {MODE:?}, {MODEL:?} and {EFFORT:?}");
                return Err(SessionError::invalid("configId", message));
            }
        }
        let message = format!("{chosen:?} is not among the values of {option:?}, which `configOptions` lists");
        Err(SessionError::invalid("value", message))
    }

    /// Sets the mode.
    ///
    /// # Errors
    /// `INVALID_REQUEST` for a mode that the session does not have.
    pub(crate) fn set_mode(&mut self, field: &str, mode: &str, options: &AcpOptions) -> Result<(), SessionError> {
        if !modes(options).iter().any(|(id, ..)| *id == mode) {
            let message =
                format!("there is no mode {mode:?} here; `modes` lists them, as tools.access and tools.ask say");
            return Err(SessionError::invalid(field, message));
        }
        self.access = access(mode);
        Ok(())
    }

    /// The turn with what is set. It always names its access, because what owns the sessions may be configured otherwise.
    pub(crate) fn on(&self, turn: StartTurn, options: &AcpOptions) -> StartTurn {
        let access = self.mode(options).and_then(access);
        let options = ModelOptions { effort: self.effort, ..ModelOptions::default() };
        StartTurn { options, access, model: self.model.clone(), ..turn }
    }
}
