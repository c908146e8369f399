//! `doctor`: what is not as it should be in the configuration and the data directory, and the command that mends it.

use std::{fmt::Write as _, sync::Mutex};

use meerkat_service::{
    doctor::{Check, Diagnosis, Examination, Finding, Severity, examine},
    model::ModelResolver as _,
    wire::encode,
};

use crate::{
    args::{DoctorArgs, Globals},
    config::Config,
    error::CliError,
    output::{Output, Surroundings, clean},
};

/// The exit code where something is lost or cannot be used, and was not mended.
const FOUND: u8 = 1;

/// Looks, mends where it is asked to, and tells.
pub(crate) fn doctor(
    out: &Output,
    around: &Surroundings,
    globals: &Globals,
    args: &DoctorArgs,
) -> Result<u8, CliError> {
    let diagnosis = match Config::load(around, globals) {
        Ok(config) => {
            config.warning().iter().for_each(|warning| out.note(warning));
            config.new_note(around).iter().for_each(|found| out.note(found));
            let mut diagnosis = look(out, around, &config, args.repair)?;
            diagnosis.findings.splice(0..0, unresolved(&config, around)?);
            diagnosis
        }
        Err(CliError::Refused(body)) => {
            let remedy = "Mend it there; `meerkat config show` says what is in force.";
            Diagnosis { findings: vec![finding(body.message, remedy)], ..Diagnosis::default() }
        }
        Err(error) => return Err(error),
    };
    match out.is_json {
        true => out.document(&encode(&diagnosis)?)?,
        false => out.readable(&told(&diagnosis))?,
    }
    let is_left = |finding: &Finding| finding.severity == Severity::Error && !finding.mended;
    Ok(if diagnosis.findings.iter().any(is_left) { FOUND } else { 0 })
}

/// Models that are to answer or to summarise and cannot.
fn unresolved(config: &Config, around: &Surroundings) -> Result<Vec<Finding>, CliError> {
    let (models, summary) = (config.models(around)?, config.engine().context.summary_model);
    let names = [models.default_model(), summary.as_str()];
    let missing = names.iter().enumerate().filter(|(at, name)| *at == 0 || !name.is_empty());
    let missing = missing.filter_map(|(_, name)| models.resolve(name).err());
    Ok(missing.map(|error| finding(error.to_string(), "`meerkat models` lists what can be used.")).collect())
}

/// A fault of the configuration.
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

fn look(out: &Output, around: &Surroundings, config: &Config, is_repair: bool) -> Result<Diagnosis, CliError> {
    let data_dir = config.data_dir(around)?;
    if config.opens_data_dir() && !data_dir.exists() {
        out.note("There is no data directory yet; the first session makes it.");
        return Ok(Diagnosis::default());
    }
    let projection = config.projection_dir(around);
    let bar = Mutex::new(out.progress());
    let progress = |done, of| {
        if let Ok(mut bar) = bar.lock() {
            bar.show(done, of, "sessions");
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    Ok(runtime.block_on(examine(Examination { data_dir, projection, is_repair }, &progress))?)
}

/// The findings for people, the worst first.
fn told(diagnosis: &Diagnosis) -> String {
    let mut text = String::new();
    for finding in &diagnosis.findings {
        let word = match (finding.mended, finding.severity) {
            (true, _) => "mended",
            (false, Severity::Error) => "error",
            (false, Severity::Warning) => "warning",
        };
        let session = finding.session_id.map(|id| format!("session {id}: ")).unwrap_or_default();
        _ = writeln!(text, "{word}: {session}{}", clean(&finding.what));
        if !finding.mended {
            _ = writeln!(text, "  {}", clean(&finding.remedy));
        }
    }
    let looked = format!("{} sessions with {} records were looked at", diagnosis.sessions, diagnosis.records);
    let beside = match diagnosis.owner_pid {
        Some(pid) => format!(" beside the process {pid}, whose index was left alone"),
        None => String::new(),
    };
    let found = match diagnosis.findings.len() {
        0 => "nothing is wrong".to_owned(),
        found => format!("{found} found, {} mended", diagnosis.findings.iter().filter(|it| it.mended).count()),
    };
    _ = writeln!(text, "{looked}{beside}: {found}.");
    text
}
