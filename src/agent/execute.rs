//! Runs the steps of a plan in the order of their phases and says which resources are through.

use super::runtime::{Command, ListLine, Session, commands, delete_list_entry, list_lines, random, undo};
use crate::haproxy::bundle::{ListEntry, Name};
use crate::haproxy::plan::{Process, Step, Take};
use std::collections::BTreeMap;
use std::io;

/// A step that HAProxy refused.
#[derive(Debug)]
pub(crate) struct Failure {
    /// The index of the resource it belongs to.
    pub(crate) take: usize,
    /// Whether the content is at fault, so that a reload could not bring it either.
    pub(crate) content: bool,
    /// What HAProxy said.
    pub(crate) message: String,
}

/// What became of the steps.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// For each resource whether everything was done.
    pub(crate) finished: Vec<bool>,
    /// The steps that were done, by resource and number.
    pub(crate) done: Vec<(usize, usize)>,
    /// What was refused.
    pub(crate) failed: Vec<Failure>,
    /// Commands sent.
    pub(crate) commands: u64,
}

type Tagged<'a> = ((usize, usize), &'a Step);

/// Runs the steps of `takes`. After a refusal nothing that may depend on it is done: the caller plans anew.
pub(crate) async fn execute(session: &mut Session, takes: &[Take], process: &mut Process, max_payload: usize) -> io::Result<Outcome> {
    let mut steps: Vec<Tagged<'_>> = takes
        .iter()
        .enumerate()
        .flat_map(|(take, t)| t.steps.iter().enumerate().map(move |(number, step)| ((take, number), step)))
        .collect();
    steps.sort_by_key(|(_, step)| step.phase());
    let mut outcome = Outcome { finished: vec![true; takes.len()], ..Outcome::default() };
    for phases in [1..=1, 2..=3, 4..=4, 5..=5, 6..=7] {
        let clean = outcome.failed.is_empty();
        let batch: Vec<Tagged<'_>> = steps.iter().copied().filter(|(_, step)| phases.contains(&step.phase())).collect();
        let mut now = Vec::with_capacity(batch.len());
        for ((take, number), step) in batch {
            // an endpoint that is gone gets no more requests, whatever else was refused
            let independent = matches!(step, Step::RetireServer { .. }) && takes[take].after.is_some() && outcome.finished[take];
            if clean || independent {
                now.push(((take, number), step));
            } else {
                outcome.finished[take] = false;
            }
        }
        run(session, &now, process, max_payload, &mut outcome).await?;
    }
    Ok(outcome)
}

/// Runs `steps` as one pipelined exchange.
async fn run(
    session: &mut Session,
    steps: &[Tagged<'_>],
    process: &mut Process,
    max_payload: usize,
    outcome: &mut Outcome,
) -> io::Result<()> {
    if steps.is_empty() {
        return Ok(());
    }
    let mut lines = lines_to_delete(session, steps, outcome).await?;
    let mut all: Vec<Command> = Vec::new();
    let mut ends = Vec::with_capacity(steps.len());
    for (_, step) in steps {
        match step {
            Step::DeleteListEntry { list, entry } => {
                let known = lines.get_mut(list);
                // not there: somebody was faster
                all.extend(known.and_then(|lines| take_line(lines, entry)).map(|line| delete_list_entry(list, &line.file, line.number)));
            }
            step => all.extend(commands(step, max_payload)),
        }
        ends.push(all.len());
    }
    let answers = session.exchange(&all).await?;
    outcome.commands += all.len() as u64;
    let mut start = 0;
    for ((at @ (take, _), step), end) in steps.iter().zip(ends) {
        let objection = all[start..end].iter().zip(&answers[start..end]).find_map(|(command, answer)| command.objection(answer));
        start = end;
        match (objection, step) {
            (None, _) => {
                process.done(step);
                outcome.done.push(*at);
            }
            (Some(message), _) if still_held(step, &message) && again(session, step, max_payload, outcome).await? => {
                process.done(step);
                outcome.done.push(*at);
            }
            (Some(message), _) if instead_of_another(session, step, &message, max_payload, outcome).await? => {
                process.done(step);
                outcome.done.push(*at);
            }
            // still in use by something that goes later: it is tried again when it comes back or at a reload
            (Some(_), Step::DeleteCertificate { .. }) => {}
            (Some(message), _) => {
                let undo = undo(step);
                session.exchange(&undo).await?;
                outcome.commands += undo.len() as u64;
                outcome.finished[*take] = false;
                let content = matches!(step, Step::Certificate { .. });
                outcome.failed.push(Failure { take: *take, content, message });
            }
        }
    }
    Ok(())
}

/// Whether what was deleted under the same name still holds the guid: streams let go of it in their own time.
fn still_held(step: &Step, message: &str) -> bool {
    matches!(step, Step::AddServer { .. } | Step::AddBackend { .. }) && message.contains("duplicate entry with")
}

/// Adds it under another guid, which it has until the next reload.
async fn again(session: &mut Session, step: &Step, max_payload: usize, outcome: &mut Outcome) -> io::Result<bool> {
    let fresh = || -> Name { format!("r.{:016x}", random()).into() };
    let mut other = step.clone();
    match &mut other {
        Step::AddServer { server, .. } => server.guid = fresh(),
        Step::AddBackend { guid, .. } => *guid = fresh(),
        _ => return Ok(false),
    }
    let commands = commands(&other, max_payload);
    let answers = session.exchange(&commands).await?;
    outcome.commands += commands.len() as u64;
    Ok(commands.iter().zip(&answers).all(|(command, answer)| command.objection(answer).is_none()))
}

/// HAProxy takes one change of a certificate at a time: ends the one that somebody else began and left, and does
/// `step` again.
async fn instead_of_another(
    session: &mut Session,
    step: &Step,
    message: &str,
    max_payload: usize,
    outcome: &mut Outcome,
) -> io::Result<bool> {
    let Step::Certificate { authority, .. } = step else { return Ok(false) };
    let other = message.split_once("ongoing transaction is about '").and_then(|(_, rest)| rest.split('\'').next());
    let Some(other) = other.filter(|path| !path.contains([' ', ';', '\\'])) else { return Ok(false) };
    let noun = if *authority { "ca-file" } else { "cert" };
    let mut all = undo(step);
    all.push(Command::plain(&format!("abort ssl {noun} {other}")));
    let start = all.len();
    all.extend(commands(step, max_payload));
    let answers = session.exchange(&all).await?;
    outcome.commands += all.len() as u64;
    Ok(all[start..].iter().zip(&answers[start..]).all(|(command, answer)| command.objection(answer).is_none()))
}

/// The present lines of every list that something is deleted from.
async fn lines_to_delete(session: &mut Session, steps: &[Tagged<'_>], outcome: &mut Outcome) -> io::Result<BTreeMap<Name, Vec<ListLine>>> {
    let mut lists: Vec<&Name> = steps
        .iter()
        .filter_map(|(_, step)| match step {
            Step::DeleteListEntry { list, .. } => Some(list),
            _ => None,
        })
        .collect();
    lists.dedup();
    let questions: Vec<Command> = lists.iter().map(|list| Command::plain(&format!("show ssl crt-list -n {list}"))).collect();
    let answers = session.exchange(&questions).await?;
    outcome.commands += questions.len() as u64;
    Ok(lists.into_iter().cloned().zip(answers.iter().map(|answer| list_lines(answer))).collect())
}

/// The first line that is `entry`, taken out so that no two deletions name the same.
fn take_line(lines: &mut Vec<ListLine>, entry: &ListEntry) -> Option<ListLine> {
    let at = lines.iter().position(|line| is_line(line, entry))?;
    Some(lines.remove(at))
}

/// Whether `line` is what `entry` was written as.
pub(crate) fn is_line(line: &ListLine, entry: &ListEntry) -> bool {
    let mut names: Vec<&str> = entry.names.iter().map(AsRef::as_ref).collect();
    names.sort_unstable();
    line.file == entry.file.as_ref() && line.names.iter().map(String::as_str).eq(names)
}

/// Runs steps that belong to no resource, for repairs; says what was refused.
pub(crate) async fn repair(session: &mut Session, steps: &[Step], process: &mut Process, max_payload: usize) -> io::Result<Outcome> {
    let take =
        |step: &Step| Take { key: crate::haproxy::bundle::ResourceKey::Section("repair".into()), after: None, steps: vec![step.clone()] };
    let takes: Vec<Take> = steps.iter().map(take).collect();
    execute(session, &takes, process, max_payload).await
}
