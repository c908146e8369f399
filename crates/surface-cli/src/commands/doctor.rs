//! `doctor`: faults of the configuration and of the data directory or database, and the command that mends each.

use std::{fmt::Write as _, sync::Mutex};

use meerkat_service::{
    Capability,
    doctor::{Check, Diagnosis, Examination, Finding, Severity, examine},
    model::ModelResolver as _,
    session::event::Agent,
    wire::encode,
};

use meerkat_tools::agents::{Agents, agents};

use crate::{
    args::{DoctorArgs, Globals},
    config::Config,
    error::CliError,
    output::{Environment, Output, clean, count},
};

/// Exit code if something is lost or unusable, and was not mended.
const FOUND: u8 = 1;

/// Examines everything, mends it with `--repair`, and prints the findings.
pub(crate) fn doctor(out: &Output, env: &Environment, globals: &Globals, args: &DoctorArgs) -> Result<u8, CliError> {
    let diagnosis = match Config::load(env, globals) {
        Ok(config) => {
            config.warnings().iter().for_each(|warning| out.note(warning));
            config.new_note(env).iter().for_each(|found| out.note(found));
            let mut diagnosis = look(out, env, &config, args.repair)?;
            let of_config = unresolved(&config, env)?.into_iter().chain(broken_agents(&config, env)?);
            diagnosis.findings.splice(0..0, of_config);
            diagnosis
        }
        Err(CliError::Refused(body)) => {
            let remedy = "Correct it there, then run `meerkat doctor` again.";
            Diagnosis { findings: vec![finding(body.message, remedy)], ..Diagnosis::default() }
        }
        Err(error) => return Err(error),
    };
    match out.is_json {
        true => out.document(&encode(&diagnosis)?)?,
        false => out.readable(&render(&diagnosis))?,
    }
    let is_left = |finding: &Finding| finding.severity == Severity::Error && !finding.mended;
    Ok(if diagnosis.findings.iter().any(is_left) { FOUND } else { 0 })
}

/// Finds models that should answer or summarise and cannot.
fn unresolved(config: &Config, env: &Environment) -> Result<Vec<Finding>, CliError> {
    let (models, summary) = (config.models(env)?, config.engine().context.summary_model);
    let names = [models.default_model(), summary.as_str()];
    let missing = names.iter().enumerate().filter(|(at, name)| *at == 0 || !name.is_empty());
    let missing = missing.filter_map(|(_, name)| models.resolve(name).err());
    Ok(missing.map(|error| finding(error.to_string(), "`meerkat models` lists the models that you can use.")).collect())
}

/// Finds what is wrong with agents' files.
fn broken_agents(config: &Config, env: &Environment) -> Result<Vec<Finding>, CliError> {
    let models = config.models(env)?;
    let folder = env.dir.canonicalize().unwrap_or_else(|_| env.dir.clone());
    let Agents { agents, mut faults } =
        agents(Config::agents_folder(env).as_deref(), Some(&folder), Config::trusts_rules(env));
    for Agent { name, model, .. } in agents.into_iter().map(|file| file.agent) {
        if let Some(error) = model.and_then(|model| models.resolve(&model).err()) {
            faults.push(format!("the agent {name} works with the model of its caller: {error}"));
        }
    }
    let remedy = "Correct or remove the file; the other agents work without it.";
    let warning = |what| Finding { severity: Severity::Warning, ..finding(what, remedy) };
    Ok(faults.into_iter().map(warning).collect())
}

/// Makes a finding about the configuration.
fn finding(what: String, remedy: &str) -> Finding {
    Finding {
        check: Check::Configuration,
        severity: Severity::Error,
        session_id: None,
        what,
        remedy: remedy.to_owned(),
        mended: false,
    }
}

fn look(out: &Output, env: &Environment, config: &Config, is_repair: bool) -> Result<Diagnosis, CliError> {
    let data_dir = config.data_dir(env)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    if let Some(database) = config.database(env)? {
        return Ok(runtime.block_on(database.examine(is_repair))?);
    }
    if !config.opens_data_dir() {
        config.capabilities().require(Capability::SessionStore)?;
    }
    if config.opens_data_dir() && !data_dir.exists() {
        out.note("There is no data directory yet; the first session makes it.");
        return Ok(Diagnosis::default());
    }
    let projection = config.projection_dir(env);
    let bar = Mutex::new(out.progress());
    let progress = |done, of| {
        if let Ok(mut bar) = bar.lock() {
            bar.show(done, of, "sessions");
        }
        true
    };
    Ok(runtime.block_on(examine(Examination { data_dir, projection, is_repair }, &progress))?)
}

/// Renders the findings, the worst first.
pub(crate) fn render(diagnosis: &Diagnosis) -> String {
    let mut text = String::new();
    for finding in &diagnosis.findings {
        let word = match (finding.mended, finding.severity) {
            (true, _) => "repaired",
            (false, Severity::Error) => "error",
            (false, Severity::Warning) => "warning",
        };
        let session = finding.session_id.map(|id| format!("session {id}: ")).unwrap_or_default();
        _ = writeln!(text, "{word}: {session}{}", clean(&finding.what));
        if !finding.mended {
            _ = writeln!(text, "  {}", clean(&finding.remedy));
        }
    }
    let were = if diagnosis.sessions == 1 { "was" } else { "were" };
    let (sessions, records) = (count(diagnosis.sessions, "session"), count(diagnosis.records, "record"));
    let looked = format!("{sessions} with {records} {were} checked");
    let beside = match diagnosis.owner_pid {
        Some(pid) => format!(" while the process {pid} owns them, except its index"),
        None => String::new(),
    };
    let found = match diagnosis.findings.len() {
        0 => "nothing is wrong".to_owned(),
        found => format!("{found} found, {} repaired", diagnosis.findings.iter().filter(|it| it.mended).count()),
    };
    _ = writeln!(text, "{looked}{beside}: {found}.");
    text
}
