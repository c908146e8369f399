//! `events`: a page of them, or all that come.

use meerkat_service::service::ReadEvents;

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
    let id = resolve(&app.service, name).await?;
    let request = ReadEvents { skip_damage: args.skip_damage, ..ReadEvents::new(id, args.cursor()) };
    let mut follower = app.service.follow_events(request).await?;
    while let Some(followed) = follower.next().await? {
        let line = String::from_utf8_lossy(&followed.line);
        if app.out.is_json {
            app.out.document(&followed.line)?;
        } else {
            app.out.answer(&described(&line).into())?;
        }
        if args.until.is_some() && type_name(&line) == args.until {
            break;
        }
    }
    Ok(0)
}
