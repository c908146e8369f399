//! Sessions of the service, page by page.

use std::sync::Arc;

use meerkat_service::{
    SessionError, SessionId, SessionService,
    service::{Page, SessionQuery, SessionSummary},
};

/// Returns the most recently changed session.
pub(super) async fn first(service: &Arc<dyn SessionService>) -> Result<Option<SessionId>, SessionError> {
    let page = service.list(SessionQuery { limit: Some(1), ..SessionQuery::default() }).await?;
    Ok(page.items.first().map(|session| session.session_id))
}

/// Returns every session, the most recently changed first.
pub(super) async fn all(service: &Arc<dyn SessionService>) -> Result<Vec<SessionSummary>, SessionError> {
    let list = async |cursor| service.list(SessionQuery { cursor, ..SessionQuery::default() }).await;
    Ok(pages(None, true, list).await?.items)
}

/// Returns a page, or with `is_all` it and the pages after it as one.
pub(super) async fn pages<T>(
    first: Option<String>,
    is_all: bool,
    mut page: impl AsyncFnMut(Option<String>) -> Result<Page<T>, SessionError>,
) -> Result<Page<T>, SessionError> {
    let mut whole = page(first).await?;
    while is_all && whole.next_cursor.is_some() {
        let next = page(whole.next_cursor.take()).await?;
        whole.items.extend(next.items);
        whole.next_cursor = next.next_cursor;
    }
    Ok(whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn all_pages_are_one() {
        let page = async |cursor: Option<String>| {
            let from = cursor.map_or(1, |cursor| cursor.parse::<u8>().unwrap());
            Ok(Page { items: vec![from, from + 1], next_cursor: (from < 5).then(|| (from + 2).to_string()) })
        };
        assert_eq!(pages(None, true, page).await.unwrap(), Page::whole(vec![1, 2, 3, 4, 5, 6]));
        assert_eq!(pages(Some("3".to_owned()), true, page).await.unwrap(), Page::whole(vec![3, 4, 5, 6]));
        let one = Page { items: vec![3, 4], next_cursor: Some("5".to_owned()) };
        assert_eq!(pages(Some("3".to_owned()), false, page).await.unwrap(), one);
    }
}
