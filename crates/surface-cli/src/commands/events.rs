//! `events`: a page of them, or all that come.

use meerkat_service::{Seq, service::ReadEvents};

use super::{names::resolve, show::print};
use crate::{
    app::App,
    args::EventsArgs,
    error::CliError,
    render::events::{described, type_name},
    wire,
};

/// `events`.
pub(crate) async fn events(app: &App, args: &EventsArgs) -> Result<u8, CliError> {
    let name = args.target.session.as_deref().unwrap_or_default();
    if !args.follow && args.until.is_none() {
        return print(app, wire::events(args, name)).await;
    }
    follow(app, name, args.cursor(), args.until.clone(), args.skip_damage).await
}

/// Prints the events of a session as they come, up to the first of a type.
pub(super) async fn follow(
    app: &App,
    session: &str,
    since: Seq,
    until: Option<String>,
    skip_damage: bool,
) -> Result<u8, CliError> {
    let id = resolve(&app.service, session).await?;
    let request = ReadEvents { skip_damage, ..ReadEvents::new(id, since) };
    let mut follower = app.service.follow_events(request).await?;
    while let Some(followed) = follower.next().await? {
        let line = String::from_utf8_lossy(&followed.line);
        if app.out.is_json {
            app.out.document(&followed.line)?;
        } else {
            app.out.answer(&described(&line).into())?;
        }
        if until.is_some() && type_name(&line) == until {
            break;
        }
    }
    Ok(0)
}
