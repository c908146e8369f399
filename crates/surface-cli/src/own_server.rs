//! What a project's server and the commands that reach it must agree on: its address and its token. Nothing
//! here listens or connects.

use std::{net::SocketAddr, path::PathBuf};

use meerkat_errors::{ErrorBody, ErrorCode};
use meerkat_serve::Token;

use crate::{
    config::Config,
    error::{CliError, refused},
    output::Environment,
};

/// Variable that holds the token instead of the file.
pub(crate) const TOKEN_VARIABLE: &str = "MEERKAT_TOKEN";

/// Reads the address to listen at: the given one, or the configured one.
pub(crate) fn address(config: &Config, given: Option<&str>) -> Result<SocketAddr, CliError> {
    let text = given.unwrap_or(&config.values.serve.listen);
    let message = "it must be an address and a port, such as 127.0.0.1:7670";
    text.parse().map_err(|_| refused("serve.listen", message, text).into())
}

/// Finds the token: in its variable, or in its file in the data directory, which the first start makes.
pub(crate) fn find_token(config: &Config, env: &Environment) -> Result<(Token, Option<PathBuf>), CliError> {
    if let Some(token) = env.variable(TOKEN_VARIABLE) {
        let origin = format!("variable {TOKEN_VARIABLE}");
        let refusal = || {
            refused("token", "it must have at least 16 characters, all of them ASCII, and no blank at an end", &origin)
        };
        return Ok((Token::new(token).ok_or_else(refusal)?, None));
    }
    let data_dir = config.data_dir(env)?;
    let (token, path) = Token::of_dir(&data_dir).map_err(|error| {
        let message = format!("the token in {} cannot be read or made: {error}", data_dir.display());
        CliError::Refused(Box::new(ErrorBody::with_message(ErrorCode::StoreNotWritable, message)))
    })?;
    Ok((token, Some(path)))
}

/// Lists the tokens that open a server of this project, as far as there are some. No session may have them.
pub(crate) fn known_tokens(config: &Config, env: &Environment) -> Vec<String> {
    let of_file = || {
        let data_dir = config.data_dir(env).ok().filter(|folder| Token::is_in(folder))?;
        Token::of_dir(&data_dir).ok().map(|(token, _)| token.text().to_owned())
    };
    env.variable(TOKEN_VARIABLE).into_iter().chain(of_file()).collect()
}

/// Returns true if this project has a token.
pub(crate) fn has_token(config: &Config, env: &Environment) -> Result<bool, CliError> {
    Ok(env.variable(TOKEN_VARIABLE).is_some() || Token::is_in(&config.data_dir(env)?))
}
