//! `render`: configuration and Kubernetes objects as files, or on standard output.

use super::arguments::RenderArguments;
use super::evaluate::{Evaluation, FleetFiles, OutputFile, evaluate};
use super::report::{Style, finding, findings, sum};
use super::{Error, Exit, Output};
use crate::report::Severity;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Component, Path};

pub(super) fn run(arguments: &RenderArguments, out: &mut Output, err: &mut Output) -> Result<Exit, Error> {
    let evaluation = evaluate(&arguments.input.files, arguments.haproxy.version)?;
    match &arguments.output {
        Some(directory) => {
            for fleet in &evaluation.fleets {
                let home = directory.join(&*fleet.fleet.namespace).join(&*fleet.fleet.name);
                write_fleet(&home, fleet).map_err(|error| Error::new(format_args!("cannot write {}: {error}", home.display()), ""))?;
                out.line(&format!(
                    "{}: {} files in {}, objects.yaml beside it",
                    fleet.fleet,
                    fleet.haproxy.len(),
                    home.join("haproxy").display()
                ))?;
            }
        }
        None => print(&evaluation, out)?,
    }
    let style = Style { colours: err.has_colours() };
    for located in &evaluation.diagnostics {
        err.line(&finding(located, style))?;
    }
    if evaluation.fleets.is_empty() {
        err.line("there is no IngressDeployment in the input, so nothing is rendered")?;
    }
    err.line(&sum(&evaluation.diagnostics))?;
    let failed = evaluation.diagnostics.iter().any(|located| located.diagnostic.severity == Severity::Error);
    Ok(if failed { Exit::Findings } else { Exit::Success })
}

fn print(evaluation: &Evaluation, out: &mut Output) -> Result<(), Error> {
    for fleet in &evaluation.fleets {
        for file in &fleet.haproxy {
            out.line(&format!("# ==> {}/haproxy/{} <==", fleet.fleet, file.path))?;
            if file.private {
                out.line(&format!("# {} bytes with a private key, which only -o writes", file.content.len()))?;
            } else {
                out.write(&file.content)?;
            }
        }
        out.line(&format!("# ==> {}/objects.yaml <==", fleet.fleet))?;
        out.write(&fleet.objects)?;
    }
    Ok(())
}

/// Writes what belongs to one fleet. The directory that HAProxy reads is made anew, as it reads whatever is there.
fn write_fleet(home: &Path, fleet: &FleetFiles) -> io::Result<()> {
    let haproxy = home.join("haproxy");
    match fs::remove_dir_all(&haproxy) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => fs::create_dir_all(&haproxy)?,
    }
    for file in &fleet.haproxy {
        write_file(&haproxy, file)?;
    }
    fs::write(home.join("objects.yaml"), &fleet.objects)?;
    fs::write(home.join("diagnostics.txt"), findings(&fleet.diagnostics, Style::PLAIN))
}

fn write_file(home: &Path, file: &OutputFile) -> io::Result<()> {
    let relative = Path::new(&file.path);
    if !relative.components().all(|component| matches!(component, Component::Normal(_))) {
        return Err(io::Error::other(format!("{:?} leads out of the directory", file.path)));
    }
    let path = home.join(relative);
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    let mode = if file.private { 0o600 } else { 0o644 };
    fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?.write_all(&file.content)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::model::FleetId;
    use std::os::unix::fs::PermissionsExt;

    fn fleet(files: Vec<OutputFile>) -> FleetFiles {
        let fleet = FleetId { namespace: "edge".into(), name: "public".into() };
        FleetFiles { fleet, haproxy: files, objects: "kind: Service\n".to_owned(), diagnostics: Vec::new() }
    }

    fn file(path: &str, private: bool) -> OutputFile {
        OutputFile { path: path.into(), content: b"x\n".to_vec(), private }
    }

    #[test]
    fn rendering_again_leaves_nothing_of_before_and_keys_are_private() {
        let home = tempfile::tempdir().unwrap();
        write_fleet(home.path(), &fleet(vec![file("10-old.cfg", false)])).unwrap();
        write_fleet(home.path(), &fleet(vec![file("10-global.cfg", false), file("certs/a.pem", true)])).unwrap();
        assert!(!home.path().join("haproxy/10-old.cfg").exists());
        let mode = fs::metadata(home.path().join("haproxy/certs/a.pem")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(fs::read_to_string(home.path().join("objects.yaml")).unwrap(), "kind: Service\n");
        assert_eq!(fs::read_to_string(home.path().join("diagnostics.txt")).unwrap(), "no findings\n");
    }

    #[test]
    fn no_path_leads_out_of_the_directory() {
        let home = tempfile::tempdir().unwrap();
        for path in ["../a", "/etc/a", "maps/../../a"] {
            assert!(write_fleet(home.path(), &fleet(vec![file(path, false)])).is_err(), "{path}");
        }
    }

    #[test]
    fn standard_output_never_shows_a_key() {
        let mut secret = file("certs/a.pem", true);
        secret.content = b"PRIVATE KEY".to_vec();
        let evaluation = Evaluation { fleets: vec![fleet(vec![file("10-global.cfg", false), secret])], diagnostics: Vec::new() };
        let path = tempfile::NamedTempFile::new().unwrap();
        print(&evaluation, &mut Output::new(path.reopen().unwrap(), false)).unwrap();
        let text = fs::read_to_string(path.path()).unwrap();
        assert!(text.contains("# ==> edge/public/haproxy/10-global.cfg <==\nx\n") && !text.contains("PRIVATE KEY"), "{text}");
    }
}
