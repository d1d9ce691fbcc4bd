//! A watch tells every change, however it is made.

use super::*;
use std::time::Duration;
use tokio::time::timeout;

/// Far more than any test needs: only a tick that never comes takes this long.
const PATIENCE: Duration = Duration::from_secs(20);

/// Loads with every tick until `done` holds of everything told so far.
async fn until(watch: &mut Watch, files: &mut Files, what: &str, mut done: impl FnMut(&Delta) -> bool) {
    timeout(PATIENCE, async {
        loop {
            watch.changed().await.expect("the watch ended");
            if done(&files.load().unwrap()) {
                return;
            }
        }
    })
    .await
    .unwrap_or_else(|_| panic!("{what} was never told"));
}

fn has(name: &'static str, value: &'static str) -> impl FnMut(&Delta) -> bool {
    move |delta| {
        delta
            .set
            .iter()
            .any(|object| matches!(object, Object::ConfigMap(map) if &*map.meta.name == name && map.data.get("key") == Some(value)))
    }
}

fn start(fixture: &mut Fixture) -> Watch {
    let watch = watch(&[fixture.dir.path().to_owned()], HoldOff::default()).unwrap();
    fixture.load();
    watch
}

#[tokio::test]
async fn writing_in_place_renaming_over_and_new_files_are_told() {
    let mut fixture = Fixture::new(&[("a.yaml", &config_map("a", "1"))]);
    let mut watch = start(&mut fixture);
    fixture.write("a.yaml", &config_map("a", "2"));
    until(&mut watch, &mut fixture.files, "writing in place", has("a", "2")).await;
    let path = fixture.dir.path().to_owned();
    fs::write(path.join(".a.yaml.swp"), config_map("a", "3")).unwrap();
    fs::rename(path.join(".a.yaml.swp"), path.join("a.yaml")).unwrap();
    until(&mut watch, &mut fixture.files, "renaming over", has("a", "3")).await;
    fixture.write("new/sub/b.yaml", &config_map("b", "1"));
    until(&mut watch, &mut fixture.files, "a file in a new directory", has("b", "1")).await;
    fixture.write("new/sub/b.yaml", &config_map("b", "2"));
    until(&mut watch, &mut fixture.files, "a change in a new directory", has("b", "2")).await;
    fs::remove_file(path.join("a.yaml")).unwrap();
    until(&mut watch, &mut fixture.files, "removal", |delta| !delta.removed.is_empty()).await;
}

#[tokio::test]
async fn a_swapped_link_is_told_wherever_it_is() {
    let outside = Fixture::new(&[("..1/a.yaml", &config_map("a", "1")), ("..2/a.yaml", &config_map("a", "2"))]);
    let there = outside.dir.path().to_owned();
    std::os::unix::fs::symlink("..1", there.join("..data")).unwrap();
    let fixture = Fixture::new(&[]);
    let link = fixture.dir.path().join("link.yaml");
    std::os::unix::fs::symlink(there.join("..data/a.yaml"), &link).unwrap();
    let mut watch = watch(std::slice::from_ref(&link), HoldOff::default()).unwrap();
    let mut files = Files::new(vec![link], Limits::default());
    files.load().unwrap();
    std::os::unix::fs::symlink("..2", there.join("..tmp")).unwrap();
    fs::rename(there.join("..tmp"), there.join("..data")).unwrap();
    until(&mut watch, &mut files, "the swap", has("a", "2")).await;
}

#[tokio::test]
async fn a_directory_that_is_deleted_and_comes_back_is_followed() {
    let parent = tempfile::tempdir().unwrap();
    let path = parent.path().join("manifests");
    fs::create_dir(&path).unwrap();
    fs::write(path.join("a.yaml"), config_map("a", "1")).unwrap();
    let mut watch = watch(std::slice::from_ref(&path), HoldOff::default()).unwrap();
    let mut files = Files::new(vec![path.clone()], Limits::default());
    files.load().unwrap();
    for value in ["2", "3"] {
        fs::remove_dir_all(&path).unwrap();
        fs::create_dir(&path).unwrap();
        fs::write(path.join("a.yaml"), config_map("a", value)).unwrap();
        until(&mut watch, &mut files, "the new directory", has("a", value)).await;
    }
    fs::write(path.join("a.yaml"), config_map("a", "4")).unwrap();
    until(&mut watch, &mut files, "a change in the new directory", has("a", "4")).await;
}

#[tokio::test]
async fn a_file_that_is_being_written_is_not_read_before_it_is_whole() {
    use std::io::Write;
    let mut fixture = Fixture::new(&[("a.yaml", &format!("{}---\n{}", config_map("a", "1"), config_map("b", "1")))]);
    let patient = HoldOff { quiet: Duration::from_millis(1), at_most: Duration::from_secs(3600) };
    let mut watch = watch(&[fixture.dir.path().to_owned()], patient).unwrap();
    fixture.load();
    let mut file = fs::File::create(fixture.dir.path().join("a.yaml")).unwrap();
    file.write_all(config_map("a", "2").as_bytes()).unwrap();
    tokio::task::spawn_blocking(move || {
        file.write_all(format!("---\n{}", config_map("b", "2")).as_bytes()).unwrap();
    })
    .await
    .unwrap();
    let mut removed = 0;
    until(&mut watch, &mut fixture.files, "the whole file", |delta| {
        removed += delta.removed.len();
        delta.set.len() == 2
    })
    .await;
    assert_eq!(removed, 0);
}
