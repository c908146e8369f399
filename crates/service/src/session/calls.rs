//! Tools that the session's caller runs: which it has, and what was answered to their calls.

use std::sync::Arc;

use super::{
    SessionFields,
    event::{CallAnswered, ClientToolsChanged, Key, Record},
    state::KeyUse,
};
use crate::{ids::TurnNumber, tool::ClientTools};

/// Makes the key under which an answer is kept. No caller's key has a control character.
fn answer_key(call_id: &str) -> String {
    format!("answer\t{call_id}")
}

impl SessionFields {
    /// Takes other tools: the session's from here on, or those that a turn in the queue brings.
    pub(super) fn client_tools_changed(&mut self, record: &Record, changed: &ClientToolsChanged) {
        let set = match (&changed.tools, changed.defined) {
            (Some(tools), _) => Some(Arc::new(ClientTools::new(record.seq, changed.hash.clone(), tools.clone()))),
            // Damage may have taken them.
            (None, defined) => self.all_client_tools().find(|set| Some(set.seq) == defined).cloned(),
        };
        // A turn in the queue may have been accepted with the former ones.
        let kept = if changed.queued { set } else { std::mem::replace(&mut self.client_tools, set) };
        let is_new = |kept: &Arc<ClientTools>| self.tools_of_queue.iter().all(|set| set.seq != kept.seq);
        if let Some(kept) = kept.filter(is_new) {
            self.tools_of_queue.push(kept);
        }
        if !changed.queued {
            self.forget_tools_of_queue();
        }
    }

    /// Forgets the tools that no turn in the queue brings.
    pub(super) fn forget_tools_of_queue(&mut self) {
        let queue = &self.queue;
        self.tools_of_queue
            .retain(|set| queue.iter().any(|queued| queued.terms.client_tools.as_ref() == Some(&set.hash)));
    }

    fn all_client_tools(&self) -> impl Iterator<Item = &Arc<ClientTools>> {
        self.client_tools.iter().chain(&self.tools_of_queue)
    }

    /// Finds a set of tools by its hash.
    pub(crate) fn client_tools_of(&self, hash: &str) -> Option<&Arc<ClientTools>> {
        self.all_client_tools().find(|set| set.hash == hash)
    }

    /// Returns true if its caller's tools have this hash; without tools it is that of no tool.
    pub(crate) fn has_client_tools(&self, hash: &str) -> bool {
        match &self.client_tools {
            Some(set) => set.hash == hash,
            None => ClientTools::hash_of(&[]) == hash,
        }
    }

    /// Keeps an answer for as long as an idempotency key.
    pub(super) fn call_answered(&mut self, record: &Record, turn: TurnNumber, answered: &CallAnswered) {
        let key = Key { key: answer_key(&answered.call_id), request: answered.answer_hash.clone() };
        self.use_key(record, turn, Some(&key));
    }

    /// Returns the answer to a call, whose `request` is its hash.
    pub(crate) fn answer(&self, call_id: &str) -> Option<&KeyUse> {
        self.key(&answer_key(call_id))
    }
}
