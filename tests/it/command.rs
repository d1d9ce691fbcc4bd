//! The command as people and programs meet it: output, exit status, and what becomes of its children.

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Output, Stdio};

const BINARY: &str = env!("CARGO_BIN_EXE_haproxy-fleet");

fn run(arguments: &[&str]) -> Output {
    Command::new(BINARY).args(arguments).output().expect("the command runs")
}

#[test]
fn version_and_help_succeed_and_mistakes_in_usage_are_2() {
    let version = run(&["version"]);
    assert_eq!(version.status.code(), Some(0));
    assert_eq!(String::from_utf8_lossy(&version.stdout), concat!("haproxy-fleet ", env!("CARGO_PKG_VERSION"), "\n"));
    assert_eq!(run(&["lint", "--help"]).status.code(), Some(0));
    for mistake in [&[][..], &["lint"], &["lint", "-f", "x", "--no-such-flag"], &["no-such-command"]] {
        assert_eq!(run(mistake).status.code(), Some(2), "{mistake:?}");
    }
}

#[test]
fn input_that_does_not_exist_is_named_and_is_2() {
    for arguments in [
        &["lint", "-f", "/no/such/dir"][..],
        &["render", "-f", "/no/such/dir"],
        &["diff", "/", "/no/such/dir"],
        &["local", "-f", "/no/such/dir"],
    ] {
        let output = run(arguments);
        let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {complaint}");
        assert!(complaint.starts_with("error: cannot read /no/such/dir"), "{complaint}");
    }
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let status = Command::new(BINARY).arg("version").stdout(writer).status().expect("the command runs");
    assert_eq!(status.code(), Some(0));
}

#[test]
fn a_program_that_is_run_with_its_parent_ends_with_it() {
    // the shell starts the program, says its number, and ends; the program alone then holds the pipe
    let script = format!("{BINARY} exec-with-parent -- sleep 600 & echo $!; read -r line");
    let mut shell = Command::new("sh").args(["-c", &script]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a shell");
    let mut output = BufReader::new(shell.stdout.take().expect("its output"));
    let mut number = String::new();
    output.read_line(&mut number).expect("a line");
    let name = format!("/proc/{}/comm", number.trim());
    while std::fs::read_to_string(&name).expect("the program runs").trim() != "sleep" {
        std::thread::yield_now();
    }
    shell.kill().expect("the shell is killed");
    shell.wait().expect("the shell has ended");
    let mut rest = String::new();
    output.read_to_string(&mut rest).expect("the end of the pipe, which the program held open");
    assert_eq!(rest, "");
}

#[test]
fn a_program_is_not_run_when_its_parent_is_gone_already() {
    let output = run(&["exec-with-parent", "--parent", "1", "--", "echo", "ran"]);
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(2), &b""[..]));
    assert!(String::from_utf8_lossy(&output.stderr).contains("is gone"));
    let missing = run(&["exec-with-parent", "--", "/no/such/program"]);
    assert_eq!(missing.status.code(), Some(2));
}
