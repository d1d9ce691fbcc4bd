//! The command says in a line, in JSON and in a picture what the library says, and whether something was lost.

use crate::servers::{GOOD, answer_all, server};
use std::net::SocketAddr;
use std::process::Output;
use tokio::process::Command;

async fn fleet_load(address: SocketAddr, arguments: &[&str]) -> Output {
    let address = address.to_string();
    let fixed = ["--address", &address, "--rate", "300", "--requests", "30"];
    Command::new(env!("CARGO_BIN_EXE_fleet-load")).args(fixed).args(arguments).output().await.unwrap()
}

fn json(output: &Output) -> serde_json::Value {
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    assert_eq!(text.lines().count(), 1, "{output:?}");
    serde_json::from_str(&text).unwrap()
}

#[tokio::test]
async fn parts_are_told_apart_and_drawn() {
    let address = server(|stream| answer_all(stream, GOOD)).await;
    let directory = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"));
    let picture = directory.join(format!("load-{}.svg", address.port()));
    let parts = ["--part", "1:keep-alive:a.example/=shop/cart", "--part", "2:close:a.example/=shop/other"];
    let output = fleet_load(address, &[&parts[..], &["--svg", picture.to_str().unwrap()]].concat()).await;
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let line = json(&output);
    assert_eq!((&line["requests"], &line["lost"], &line["lost_by_kind"]["unexpected"]), (&60.into(), &30.into(), &30.into()), "{line}");
    assert_eq!(line["parts"]["keep-alive a.example/=shop/cart"]["lost"], 0, "{line}");
    assert_eq!(line["parts"]["close a.example/=shop/other"]["lost"], 30, "{line}");
    assert!(line.get("series").is_none(), "{line}");
    let svg = std::fs::read_to_string(&picture).unwrap();
    std::fs::remove_file(picture).unwrap();
    assert!(roxmltree::Document::parse(&svg).is_ok() && svg.contains("unexpected 30"), "{svg}");
}

#[tokio::test]
async fn json_is_the_whole_report() {
    let address = server(|stream| answer_all(stream, GOOD)).await;
    let output = fleet_load(address, &["--json", "a.example/"]).await;
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let report = json(&output);
    let sent: u64 = report["series"].as_array().unwrap().iter().map(|second| second["sent"].as_u64().unwrap()).sum();
    assert_eq!(sent, 30, "{report}");
}

#[tokio::test]
async fn what_is_no_part_is_refused_with_its_reason() {
    let address = ([127, 0, 0, 1], 1).into();
    for (part, reason) in [
        ("keep-alive:a.example/", "SHARE:PROTOCOL:HOST/PATH"),
        ("many:close:a.example/", "many is not a number"),
        ("1:gopher:a.example/", "gopher is none of the protocols"),
    ] {
        let output = fleet_load(address, &["--part", part]).await;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(2) && said.contains(reason), "{part}: {said}");
    }
}
