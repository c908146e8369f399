//! Deletions beside other nodes.

use meerkat_service::store::{EventStore as _, StoreError};
use meerkat_words::answers::SessionState::{Idle, Running};

use super::{append, database, events, id, node, seqs};

/// A node whose idle session has moved does not know of the turn that runs at the other one.
#[tokio::test]
async fn a_former_owner_deletes_no_session_that_another_node_works_on() {
    let database = database!();
    let (a, b) = (node(&database, "a").await, node(&database, "b").await);
    let of_a = a.lease(id(1)).await.unwrap();
    append(&a, &of_a, 1, 1..=2, Idle).await.unwrap();
    let of_b = b.lease(id(1)).await.unwrap();
    append(&b, &of_b, 1, 3..=3, Running).await.unwrap();

    match events(&a).delete(id(1)).await {
        Err(StoreError::HeldBy { session_id, holder }) => {
            assert_eq!((session_id, holder.node.as_str()), (id(1), "b"));
        }
        other => panic!("{other:?}"),
    }
    append(&b, &of_b, 1, 4..=4, Idle).await.unwrap();
    assert_eq!(seqs(&b, 1).await, Some(vec![1, 2, 3, 4]));
    // One that rests anybody may delete; deleted again it is still deleted.
    events(&a).delete(id(1)).await.unwrap();
    events(&a).delete(id(1)).await.unwrap();
    assert_eq!(seqs(&b, 1).await, None);
    assert_eq!(append(&b, &of_b, 1, 5..=5, Running).await, Err(StoreError::Fenced));
}
