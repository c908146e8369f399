//! What a client may set of a session: how long its model thinks. It goes with this client's next turns,
//! and a client that loads the session later gets that of the newest turn.

use agent_client_protocol_schema::v1::{
    SessionConfigOption, SessionConfigOptionCategory, SessionConfigOptionValue, SessionConfigSelectOption,
};
use meerkat_service::{
    SessionError,
    options::{Effort, ModelOptions},
};

const EFFORT: &str = "effort";
/// Value of an effort that is not said.
const USUAL: &str = "default";

const EFFORTS: [(Effort, &str); 4] =
    [(Effort::None, "None"), (Effort::Low, "Low"), (Effort::Medium, "Medium"), (Effort::High, "High")];

/// What a client set.
#[derive(Clone, Copy, Default)]
pub(crate) struct Settings {
    pub(crate) effort: Option<Effort>,
}

impl Settings {
    /// Lists the options with their values.
    pub(crate) fn options(self) -> Vec<SessionConfigOption> {
        let usual = SessionConfigSelectOption::new(USUAL, "As configured");
        let efforts = EFFORTS.map(|(effort, name)| SessionConfigSelectOption::new(effort.name(), name));
        let values: Vec<_> = std::iter::once(usual).chain(efforts).collect();
        let current = self.effort.map_or(USUAL, Effort::name);
        let effort = SessionConfigOption::select(EFFORT, "Effort", current, values)
            .description("How long the model thinks before it answers".to_owned())
            .category(SessionConfigOptionCategory::ThoughtLevel);
        vec![effort]
    }

    /// Sets an option.
    ///
    /// # Errors
    /// `INVALID_REQUEST` for another option or value.
    pub(crate) fn set(&mut self, option: &str, value: &SessionConfigOptionValue) -> Result<(), SessionError> {
        if option != EFFORT {
            let message = format!("there is no option {option:?}; there is {EFFORT:?}");
            return Err(SessionError::invalid("configId", message));
        }
        let chosen = match value {
            SessionConfigOptionValue::ValueId { value } => value.0.to_string(),
            _ => String::new(),
        };
        self.effort = match EFFORTS.into_iter().find(|(effort, _)| effort.name() == chosen) {
            Some((effort, _)) => Some(effort),
            None if chosen == USUAL => None,
            None => {
                let message = format!("{chosen:?} is not a value of {EFFORT:?}: default, none, low, medium or high");
                return Err(SessionError::invalid("value", message));
            }
        };
        Ok(())
    }

    /// How the model is asked.
    pub(crate) fn model_options(self) -> ModelOptions {
        ModelOptions { effort: self.effort, ..ModelOptions::default() }
    }
}
