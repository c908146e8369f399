//! Budgets of a turn: how much each of them allows, and how much of it is used.

use std::{borrow::Cow, fmt};

use schemars::JsonSchema;
use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{MapAccess, Visitor, value::MapAccessDeserializer},
};

use crate::{SessionError, cost::Cost, object::object_or_null};

/// Limits of one turn; those left out come from its session, then from the engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Budgets {
    /// Tokens of all model calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub tokens: Option<u64>,
    /// Model calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub steps: Option<u64>,
    /// Tool calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<u64>,
    /// Milliseconds from the turn's start.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub wall_ms: Option<u64>,
    /// Cost; the model needs a price.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "object_or_null")]
    pub cost: Option<Cost>,
    /// Sub-agents, together with theirs; `agents.total` is the most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agents: Option<u64>,
}

impl Budgets {
    /// Makes budgets of numbers, which are in millionths of a dollar for cost; `None` is no limit.
    #[must_use]
    pub fn of(mut units: impl FnMut(Budget) -> Option<u64>) -> Self {
        Self {
            tokens: units(Budget::Tokens),
            steps: units(Budget::Steps),
            tool_calls: units(Budget::ToolCalls),
            wall_ms: units(Budget::WallMs),
            cost: units(Budget::Cost).map(Cost::from_micros),
            agents: units(Budget::Agents),
        }
    }

    /// Checks that the turn can begin. A budget of 0 is one for tool calls and sub-agents alone.
    ///
    /// # Errors
    /// `INVALID_REQUEST` for a budget of 0 that would end the turn at once.
    pub fn check(&self) -> Result<(), SessionError> {
        let is_none = |budget: Budget| self.limit(budget).is_some_and(|limit| limit.units() == 0);
        let none = Budget::ALL.iter().find(|&&budget| !budget.may_be_none() && is_none(budget));
        none.map_or(Ok(()), |budget| {
            let message = "0 would end the turn at once; for no budget, leave it out";
            Err(SessionError::invalid(format!("budgets.{}", budget.name()), message))
        })
    }

    /// Fills the budgets that are left open from `other`.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            tokens: self.tokens.or(other.tokens),
            steps: self.steps.or(other.steps),
            tool_calls: self.tool_calls.or(other.tool_calls),
            wall_ms: self.wall_ms.or(other.wall_ms),
            cost: self.cost.or(other.cost),
            agents: self.agents.or(other.agents),
        }
    }

    /// The limit of one budget.
    #[must_use]
    pub fn limit(&self, budget: Budget) -> Option<Amount> {
        let number = match budget {
            Budget::Tokens => self.tokens,
            Budget::Steps => self.steps,
            Budget::ToolCalls => self.tool_calls,
            Budget::WallMs => self.wall_ms,
            Budget::Cost => return self.cost.map(Amount::Money),
            Budget::Agents => self.agents,
        };
        number.map(Amount::Number)
    }
}

/// One of the budgets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Budget {
    /// Tokens.
    Tokens,
    /// Model calls.
    Steps,
    /// Tool calls.
    ToolCalls,
    /// Wall time.
    WallMs,
    /// Cost.
    Cost,
    /// Sub-agents.
    Agents,
}

impl Budget {
    /// Every budget.
    pub const ALL: &'static [Self] =
        &[Self::Tokens, Self::Steps, Self::ToolCalls, Self::WallMs, Self::Cost, Self::Agents];

    /// Its name on the wire.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tokens => "tokens",
            Self::Steps => "steps",
            Self::ToolCalls => "tool_calls",
            Self::WallMs => "wall_ms",
            Self::Cost => "cost",
            Self::Agents => "agents",
        }
    }

    /// Returns true if a turn can begin without any of it, and goes on when it is used up.
    #[must_use]
    pub const fn may_be_none(self) -> bool {
        matches!(self, Self::ToolCalls | Self::Agents)
    }
}

/// Amount of a budget: a number of what its name says, or money.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    /// Tokens, calls or milliseconds.
    Number(u64),
    /// Money.
    Money(Cost),
}

impl Amount {
    /// Makes an amount of a budget; that of cost is in millionths of a dollar.
    #[must_use]
    pub fn of(budget: Budget, units: u64) -> Self {
        if budget == Budget::Cost { Self::Money(Cost::from_micros(units)) } else { Self::Number(units) }
    }

    /// Returns it as a number, which is in millionths of a dollar for money.
    #[must_use]
    pub const fn units(self) -> u64 {
        match self {
            Self::Number(number) => number,
            Self::Money(cost) => cost.micros(),
        }
    }

    /// Writes it with what is counted: money has its currency, a number the budget's name.
    #[must_use]
    pub fn named(self, budget: Budget) -> String {
        match self {
            Self::Number(number) => format!("{number} {}", budget.name()),
            Self::Money(cost) => cost.to_string(),
        }
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => number.fmt(f),
            Self::Money(cost) => cost.fmt(f),
        }
    }
}

impl From<Amount> for serde_json::Value {
    fn from(amount: Amount) -> Self {
        match amount {
            Amount::Number(number) => number.into(),
            Amount::Money(cost) => serde_json::to_value(cost).unwrap_or_default(),
        }
    }
}

impl Serialize for Amount {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Number(number) => number.serialize(serializer),
            Self::Money(cost) => cost.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Amount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;

        impl<'de> Visitor<'de> for Either {
            type Value = Amount;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number or an amount of money")
            }

            fn visit_u64<E>(self, number: u64) -> Result<Amount, E> {
                Ok(Amount::Number(number))
            }

            fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<Amount, A::Error> {
                Cost::deserialize(MapAccessDeserializer::new(fields)).map(Amount::Money)
            }
        }

        deserializer.deserialize_any(Either)
    }
}

impl JsonSchema for Amount {
    fn schema_name() -> Cow<'static, str> {
        "Amount".into()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "description": "A number of what the budget's name says, or money.",
            "anyOf": [{ "type": "integer", "format": "uint64", "minimum": 0 }, generator.subschema_for::<Cost>()],
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_budget_of_cost_is_an_exact_amount_in_dollars() {
        let read = |cost: serde_json::Value| serde_json::from_value::<Budgets>(json!({ "cost": cost }));
        let money = |amount: &str| json!({ "amount": amount, "currency": "USD" });
        for (amount, micros) in [("0.5", 500_000), ("0.000001", 1), ("12", 12_000_000), ("0.000000", 0)] {
            assert_eq!(read(money(amount)).unwrap().cost, Some(Cost::from_micros(micros)), "{amount}");
        }
        assert_eq!(read(json!(null)).unwrap(), Budgets::default());
        for amount in
            ["-1", "-0.0", "+1", "NaN", "inf", "1e3", "0.0000001", "", ".5", "1.", " 1", "1,5", "99999999999999"]
        {
            let refused = read(money(amount)).unwrap_err().to_string();
            assert!(refused.contains("write a decimal number as a string"), "{amount}: {refused}");
        }
        for odd in [
            json!({ "amount": "1", "currency": "EUR" }),
            json!({ "amount": "1" }),
            json!({ "currency": "USD" }),
            json!({ "amount": 1, "currency": "USD" }),
            json!(["1", "USD"]),
            json!("1"),
            json!(1),
        ] {
            assert!(read(odd.clone()).is_err(), "{odd}");
        }
    }

    #[test]
    fn a_budget_that_allows_nothing_is_refused_but_for_tool_calls() {
        for (field, budget, is_refused) in [
            ("tokens", json!(0), true),
            ("steps", json!(0), true),
            ("tool_calls", json!(0), false),
            ("wall_ms", json!(0), true),
            ("cost", json!({ "amount": "0", "currency": "USD" }), true),
            ("cost", json!({ "amount": "0.000001", "currency": "USD" }), false),
            ("agents", json!(0), false),
        ] {
            let budgets: Budgets = serde_json::from_value(json!({ field: budget })).unwrap();
            let refused = budgets.check().err().map(|error| error.body().details["field"].clone());
            assert_eq!(refused, is_refused.then(|| json!(format!("budgets.{field}"))), "{field}");
        }
    }

    #[test]
    fn an_amount_is_written_as_a_number_or_as_money() {
        let cost = Cost::from_micros(400_000);
        for (amount, written, named) in [
            (Amount::Number(8), json!(8), "8 steps"),
            (Amount::Money(cost), json!({ "amount": "0.400000", "currency": "USD" }), "0.400000 USD"),
        ] {
            assert_eq!(serde_json::to_value(amount).unwrap(), written);
            assert_eq!(serde_json::from_value::<Amount>(written).unwrap(), amount);
            assert_eq!(amount.named(Budget::Steps), named);
        }
        for odd in [json!(-1), json!("1"), json!(1.5), json!({ "amount": "1" })] {
            assert!(serde_json::from_value::<Amount>(odd.clone()).is_err(), "{odd}");
        }
    }
}
