//! jsonrpsee's module, filled from the table.

use std::sync::Arc;

use crate::{
    discovery,
    error::Failure,
    handlers::Rpc,
    stream,
    table::{EVENT, Method, UNSUBSCRIBE, methods},
    wire,
};
use jsonrpsee::{
    RpcModule,
    server::{
        ConnectionId, MethodCallback, MethodResponse, MethodSink, Methods, RegisterMethodError, ResponsePayload,
        SubscriptionState,
    },
    types::{Extensions, Id, Params},
};

/// Makes the module.
#[expect(clippy::expect_used, reason = "the table is the same in every process, and a test makes the module")]
pub(crate) fn module(rpc: &Arc<Rpc>) -> Methods {
    filled(rpc).expect("every method has its own name").into()
}

fn filled(rpc: &Arc<Rpc>) -> Result<RpcModule<Rpc>, RegisterMethodError> {
    let mut module = RpcModule::from_arc(rpc.clone());
    for (name, method) in methods() {
        match method {
            Method::Operation(operation) => {
                module.register_async_method(name, move |params, rpc, extensions| async move {
                    rpc.answer(operation, &params, &extensions).await
                })?;
            }
            Method::Subscribe => {
                module.register_subscription(name, EVENT, UNSUBSCRIBE, stream::follow_session)?;
                with_sink(&mut module, name)?;
            }
            Method::ListSubscribe => {
                module.register_subscription(name, EVENT, LIST_UNSUBSCRIBE, stream::follow_list)?;
                with_sink(&mut module, name)?;
            }
            Method::Unsubscribe => join_unsubscribe(&mut module)?,
            Method::Discover => {
                module.register_method(name, |params, _, _| discovery::answer(params.as_str().unwrap_or_default()))?;
            }
        }
    }
    Ok(module)
}

/// jsonrpsee wants a method of its own that ends a subscription to the list. Nobody can call it: [`join_unsubscribe`]
/// takes it away.
const LIST_UNSUBSCRIBE: &str = "session/list_unsubscribe";

/// Makes one method of the two that end subscriptions. It takes the number by name too; client libraries send it by
/// position.
fn join_unsubscribe(module: &mut RpcModule<Rpc>) -> Result<(), RegisterMethodError> {
    let ends = [UNSUBSCRIBE, LIST_UNSUBSCRIBE].map(|name| module.remove_method(name));
    let end = move |id: Id<'_>, params: Params<'_>, connection: ConnectionId, max: usize, extensions: Extensions| {
        let subscription = match wire::Unsubscribe::decode(params.as_str().unwrap_or_default()) {
            Ok(request) => format!("[{}]", request.subscription),
            Err(error) => return MethodResponse::error(id, Failure::from(error)),
        };
        let has_ended = ends.iter().any(|end| match end {
            Some(MethodCallback::Unsubscription(end)) => {
                let params = Params::new(Some(&subscription));
                wire::is_true(end(Id::Null, params, connection, max, extensions.clone()).as_ref())
            }
            _ => false,
        });
        MethodResponse::response(id, ResponsePayload::success(has_ended), max)
    };
    module.verify_and_insert(UNSUBSCRIBE, MethodCallback::Unsubscription(Arc::new(end))).map(drop)
}

/// Gives a subscription's task the connection's sink, so that it can send its last message itself: jsonrpsee sends it in
/// a task that nobody can wait for.
fn with_sink(module: &mut RpcModule<Rpc>, name: &'static str) -> Result<(), RegisterMethodError> {
    let Some(MethodCallback::Subscription(begin)) = module.remove_method(name) else { return Ok(()) };
    let begin = move |id: Id<'_>,
                      params: Params<'_>,
                      sink: MethodSink,
                      state: SubscriptionState<'_>,
                      mut extensions: Extensions| {
        extensions.insert(sink.clone());
        begin(id, params, sink, state, extensions)
    };
    module.verify_and_insert(name, MethodCallback::Subscription(Arc::new(begin))).map(drop)
}
