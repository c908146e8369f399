//! What the model calls for a summary used.

use crate::{cost::Cost, model::Usage};

/// Sum of them.
pub(super) struct Bill {
    pub(super) usage: Usage,
    /// `None` if the price of one is unknown.
    pub(super) cost: Option<Cost>,
}

impl Default for Bill {
    fn default() -> Self {
        Self { usage: Usage::default(), cost: Some(Cost::default()) }
    }
}

impl Bill {
    pub(super) fn add(&mut self, usage: Usage, cost: Option<Cost>) {
        self.usage.add(usage);
        self.cost = Cost::sum(self.cost, cost);
    }
}
