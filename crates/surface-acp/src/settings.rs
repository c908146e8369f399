//! What a client may set of a session: what its calls may do, its model, and how long that thinks. It goes with this
//! client's next turns, and a client that loads the session later gets what the newest turn had.

use agent_client_protocol_schema::v1;
use meerkat_service::{
    SessionError,
    options::{Effort, ModelOptions},
    service::StartTurn,
    tool::{Access, TurnAccess},
};

use crate::AcpOptions;

const MODE: &str = "mode";
const MODEL: &str = "model";
const EFFORT: &str = "effort";

/// A mode: its id, name and description, and what its turns are given.
pub(crate) type Mode = (&'static str, &'static str, &'static str, Option<TurnAccess>);

const MODES: [Mode; 3] = [
    ("read", "Read", "Nothing is changed: a call that may change something is refused", Some(TurnAccess::Read)),
    ("edit", "Edit", "You are asked before a call that may change something runs", Some(TurnAccess::Ask)),
    ("full", "Full", "You are asked only as tools.ask says", None),
];

/// Values of how long a model thinks; the first is that of a session without a choice, as configured.
const EFFORTS: [Option<Effort>; 5] =
    [None, Some(Effort::None), Some(Effort::Low), Some(Effort::Medium), Some(Effort::High)];

fn effort_id(effort: Option<Effort>) -> &'static str {
    effort.map_or("default", Effort::name)
}

/// The modes, that of new sessions last. Without tools of a workspace there are none.
fn modes(options: &AcpOptions) -> &'static [Mode] {
    let count = match options.access {
        Access::Off => 0,
        Access::Read => 1,
        Access::Write => 2 + usize::from(options.has_full),
    };
    &MODES[..count]
}

/// Makes an option with its values' ids, names and descriptions.
fn select<'a>(
    (id, name): (&'static str, &'static str),
    category: v1::SessionConfigOptionCategory,
    current: &str,
    values: impl Iterator<Item = (&'a str, &'a str, Option<&'a str>)>,
) -> v1::SessionConfigOption {
    let value = |(id, name, words): (&str, &str, Option<&str>)| {
        v1::SessionConfigSelectOption::new(id.to_owned(), name).description(words.map(str::to_owned))
    };
    v1::SessionConfigOption::select(id, name, current.to_owned(), values.map(value).collect::<Vec<_>>())
        .category(category)
}

/// What a client set, or the newest turn had.
#[derive(Clone, Default, PartialEq)]
pub(crate) struct Settings {
    pub(crate) effort: Option<Effort>,
    pub(crate) access: Option<TurnAccess>,
    /// The session's own model.
    pub(crate) own_model: String,
    /// Model of the next turns, if it is another one.
    pub(crate) model: Option<String>,
}

impl Settings {
    /// The current mode, if there are modes.
    pub(crate) fn mode(&self, options: &AcpOptions) -> Option<&'static Mode> {
        let modes = modes(options);
        modes.iter().find(|(.., access)| *access == self.access).or(modes.last())
    }

    /// The modes, for clients that know no options.
    pub(crate) fn modes(&self, options: &AcpOptions) -> Option<v1::SessionModeState> {
        let mode = |(id, name, words, _): &Mode| v1::SessionMode::new(*id, *name).description((*words).to_owned());
        Some(v1::SessionModeState::new(self.mode(options)?.0, modes(options).iter().map(mode).collect::<Vec<_>>()))
    }

    /// Lists the options with their values.
    pub(crate) fn options(&self, options: &AcpOptions) -> Vec<v1::SessionConfigOption> {
        let mode = self.mode(options).map(|(current, ..)| {
            let values = modes(options).iter().map(|(id, name, words, _)| (*id, *name, Some(*words)));
            select((MODE, "Mode"), v1::SessionConfigOptionCategory::Mode, current, values)
        });
        let model = (!options.models.is_empty()).then(|| {
            let values = self.models(options).into_iter().map(|model| (model, model, None));
            let current = self.model.as_ref().unwrap_or(&self.own_model);
            select((MODEL, "Model"), v1::SessionConfigOptionCategory::Model, current, values)
        });
        let efforts = EFFORTS.map(effort_id).into_iter().map(|id| (id, id, None));
        let effort = effort_id(self.effort);
        let effort = select((EFFORT, "Effort"), v1::SessionConfigOptionCategory::ThoughtLevel, effort, efforts);
        let words = "How long the model thinks before it answers; as configured by default".to_owned();
        mode.into_iter().chain(model).chain([effort.description(words)]).collect()
    }

    /// Models to choose from: those that are configured, the session's own, and that of the newest turn.
    fn models<'a>(&'a self, options: &'a AcpOptions) -> Vec<&'a str> {
        let own = [Some(&self.own_model), self.model.as_ref()].into_iter().flatten();
        let more = own.filter(|model| !options.models.contains(model));
        options.models.iter().chain(more).map(String::as_str).collect()
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
        let effort = EFFORTS.into_iter().find(|effort| effort_id(*effort) == chosen);
        match (option, effort) {
            (MODE, _) => return self.set_mode("value", chosen, options),
            (MODEL, _) if self.models(options).contains(&chosen) => {
                self.model = Some(chosen.to_owned()).filter(|model| *model != self.own_model);
            }
            (EFFORT, Some(effort)) => self.effort = effort,
            (MODEL | EFFORT, _) => {
                let message = format!("{chosen:?} is not among the values of {option:?}, which `configOptions` lists");
                return Err(SessionError::invalid("value", message));
            }
            _ => {
                let message = format!("there is no option {option:?}; there are {MODE:?}, {MODEL:?} and {EFFORT:?}");
                return Err(SessionError::invalid("configId", message));
            }
        }
        Ok(())
    }

    /// Sets the mode.
    ///
    /// # Errors
    /// `INVALID_REQUEST` for a mode that the session does not have.
    pub(crate) fn set_mode(&mut self, field: &str, mode: &str, options: &AcpOptions) -> Result<(), SessionError> {
        let Some((.., access)) = modes(options).iter().find(|(id, ..)| *id == mode) else {
            let message =
                format!("there is no mode {mode:?} here; `modes` lists them, as tools.access and tools.ask say");
            return Err(SessionError::invalid(field, message));
        };
        self.access = *access;
        Ok(())
    }

    /// The turn with what is set. It always names the access of the mode that the client is shown; where there is none, it
    /// has no more than *Full* must have been configured for.
    pub(crate) fn on(&self, turn: StartTurn, options: &AcpOptions) -> StartTurn {
        let without = Some(TurnAccess::Ask).filter(|_| !options.has_full);
        let access = self.mode(options).map_or(without, |(.., access)| *access);
        let options = ModelOptions { effort: self.effort, ..ModelOptions::default() };
        StartTurn { options, access, model: self.model.clone(), ..turn }
    }
}
