//! The image's description and its archive.

use crate::{PackError, Reference, layer};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};
use tar::{Builder, EntryType};

/// What an image says of itself beside its files.
#[derive(Clone, Debug, Default)]
pub struct Image {
    /// Its names: at least one, or nothing can refer to it.
    pub tags: Vec<Reference>,
    /// Who runs in it: `UID` or `UID:GID`. Empty: root.
    pub user: String,
    /// `NAME=VALUE`.
    pub env: Vec<String>,
    /// The program and its first arguments.
    pub entrypoint: Vec<String>,
    /// What follows the entry point, unless the one who starts it says otherwise.
    pub cmd: Vec<String>,
    /// The signal that asks it to stop. Empty: SIGTERM.
    pub stop_signal: String,
}

impl Image {
    /// Packs the directory `root` into the file `archive`, which appears whole or not at all.
    pub fn pack(&self, root: &Path, archive: &Path) -> Result<(), PackError> {
        let layer_file = beside(archive, "layer");
        let unfinished = beside(archive, "new");
        let packed = Blob::layer(root, &layer_file).and_then(|layer| self.write(&layer, &unfinished));
        // whatever happened, only the archive stays
        let _ = fs::remove_file(&layer_file);
        if packed.is_err() {
            let _ = fs::remove_file(&unfinished);
            return packed;
        }
        fs::rename(&unfinished, archive).map_err(PackError::file(archive))
    }

    fn write(&self, layer: &Blob, path: &Path) -> Result<(), PackError> {
        let config = Blob::json(&self.config(layer)?)?;
        let manifest = Blob::json(&manifest(&config, layer))?;
        let index = serde_json::to_vec(&self.index(&manifest))?;

        let mut tar = Builder::new(BufWriter::new(File::create(path).map_err(PackError::file(path))?));
        let written = (|| {
            file(&mut tar, "oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#)?;
            file(&mut tar, "index.json", &index)?;
            directory(&mut tar, "blobs")?;
            directory(&mut tar, "blobs/sha256")?;
            [&config, &manifest, layer].into_iter().try_for_each(|blob| blob.append(&mut tar))?;
            tar.into_inner()?.flush()
        })();
        written.map_err(PackError::file(path))
    }

    fn config(&self, layer: &Blob) -> Result<Value, PackError> {
        let mut run = serde_json::Map::new();
        let mut set = |key: &str, value: Value| {
            if !matches!(&value, Value::Array(list) if list.is_empty()) && value != Value::String(String::new()) {
                run.insert(key.to_owned(), value);
            }
        };
        set("User", json!(self.user));
        set("Env", json!(self.env));
        set("Entrypoint", json!(self.entrypoint));
        set("Cmd", json!(self.cmd));
        set("StopSignal", json!(self.stop_signal));
        set("WorkingDir", json!("/"));
        Ok(json!({
            "architecture": architecture()?,
            "os": "linux",
            "created": "1970-01-01T00:00:00Z",
            "config": run,
            "rootfs": { "type": "layers", "diff_ids": [layer.digest()] },
        }))
    }

    fn index(&self, manifest: &Blob) -> Value {
        let entry = |tag: &Reference| {
            let mut descriptor = manifest.descriptor("application/vnd.oci.image.manifest.v1+json");
            descriptor["annotations"] = json!({
                "io.containerd.image.name": tag.as_str(),
                "org.opencontainers.image.ref.name": tag.tag(),
            });
            descriptor
        };
        json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.index.v1+json",
            "manifests": self.tags.iter().map(entry).collect::<Vec<_>>(),
        })
    }
}

fn manifest(config: &Blob, layer: &Blob) -> Value {
    json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": config.descriptor("application/vnd.oci.image.config.v1+json"),
        "layers": [layer.descriptor("application/vnd.oci.image.layer.v1.tar")],
    })
}

fn architecture() -> Result<&'static str, PackError> {
    match std::env::consts::ARCH {
        "x86_64" => Ok("amd64"),
        "aarch64" => Ok("arm64"),
        processor => Err(PackError::Processor { processor }),
    }
}

/// `path` with one more extension.
fn beside(path: &Path, extension: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(extension);
    PathBuf::from(name)
}

/// A piece of content under the name of its hash.
struct Blob {
    sha256: String,
    size: u64,
    content: Content,
}

enum Content {
    Bytes(Vec<u8>),
    File(PathBuf),
}

impl Blob {
    fn json(value: &Value) -> Result<Self, PackError> {
        let bytes = serde_json::to_vec(value)?;
        Ok(Self { sha256: hexadecimal(&Sha256::digest(&bytes)), size: bytes.len() as u64, content: Content::Bytes(bytes) })
    }

    /// The layer of `root`, kept in the file `path`: layers may be larger than memory should hold.
    fn layer(root: &Path, path: &Path) -> Result<Self, PackError> {
        let file = File::create(path).map_err(PackError::file(path))?;
        let mut out = Hashed { out: BufWriter::new(file), hash: Sha256::new(), size: 0 };
        layer::write(root, &mut out)?;
        out.flush().map_err(PackError::file(path))?;
        Ok(Self { sha256: hexadecimal(&out.hash.finalize()), size: out.size, content: Content::File(path.to_owned()) })
    }

    fn digest(&self) -> String {
        format!("sha256:{}", self.sha256)
    }

    fn descriptor(&self, media_type: &str) -> Value {
        json!({ "mediaType": media_type, "digest": self.digest(), "size": self.size })
    }

    fn append(&self, tar: &mut Builder<impl Write>) -> io::Result<()> {
        let path = format!("blobs/sha256/{}", self.sha256);
        let mut header = layer::owned_by_root(EntryType::Regular, self.size);
        match &self.content {
            Content::Bytes(bytes) => tar.append_data(&mut header, path, bytes.as_slice()),
            Content::File(file) => tar.append_data(&mut header, path, BufReader::new(File::open(file)?)),
        }
    }
}

fn file(tar: &mut Builder<impl Write>, path: &str, content: &[u8]) -> io::Result<()> {
    tar.append_data(&mut layer::owned_by_root(EntryType::Regular, content.len() as u64), path, content)
}

fn directory(tar: &mut Builder<impl Write>, path: &str) -> io::Result<()> {
    let mut header = layer::owned_by_root(EntryType::Directory, 0);
    header.set_mode(0o755);
    tar.append_data(&mut header, path, io::empty())
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}

/// Counts and hashes what passes.
struct Hashed<W> {
    out: W,
    hash: Sha256,
    size: u64,
}

impl<W: Write> Write for Hashed<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.out.write(bytes)?;
        self.hash.update(&bytes[..count]);
        self.size += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::collections::BTreeMap;
    use std::io::Read;
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::fs::symlink;
    use tempfile::TempDir;

    fn image() -> Image {
        Image {
            tags: vec!["fleet.example/a:1".parse().unwrap(), "fleet.example/a:1.2".parse().unwrap()],
            user: "99:99".to_owned(),
            env: vec!["A=b".to_owned()],
            entrypoint: vec!["/bin/a".to_owned()],
            cmd: vec!["-W".to_owned()],
            stop_signal: "SIGUSR1".to_owned(),
        }
    }

    fn tree(names: &[&str]) -> TempDir {
        let root = tempfile::tempdir().unwrap();
        for name in names {
            let path = root.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, name).unwrap();
        }
        fs::set_permissions(root.path().join(names[0]), fs::Permissions::from_mode(0o755)).unwrap();
        symlink("bin/a", root.path().join("link")).unwrap();
        root
    }

    fn pack(root: &TempDir) -> Vec<u8> {
        let out = tempfile::tempdir().unwrap();
        image().pack(root.path(), &out.path().join("image.tar")).unwrap();
        assert_eq!(fs::read_dir(out.path()).unwrap().count(), 1, "nothing but the archive stays");
        fs::read(out.path().join("image.tar")).unwrap()
    }

    fn files(archive: &[u8]) -> BTreeMap<String, Vec<u8>> {
        let mut found = BTreeMap::new();
        for entry in tar::Archive::new(archive).entries().unwrap() {
            let mut entry = entry.unwrap();
            let path = entry.path().unwrap().display().to_string();
            let mut content = Vec::new();
            entry.read_to_end(&mut content).unwrap();
            found.insert(path, content);
        }
        found
    }

    fn blob(files: &BTreeMap<String, Vec<u8>>, descriptor: &Value) -> Vec<u8> {
        let digest = descriptor["digest"].as_str().unwrap().strip_prefix("sha256:").unwrap();
        let content = &files[&format!("blobs/sha256/{digest}")];
        assert_eq!(hexadecimal(&Sha256::digest(content)), digest);
        assert_eq!(descriptor["size"], content.len());
        content.clone()
    }

    fn json_blob(files: &BTreeMap<String, Vec<u8>>, descriptor: &Value) -> Value {
        serde_json::from_slice(&blob(files, descriptor)).unwrap()
    }

    #[test]
    fn equal_trees_give_equal_bytes_whenever_and_in_whatever_order_they_were_made() {
        let first = tree(&["bin/a", "etc/b", "etc/c/d"]);
        let second = tree(&["bin/a", "etc/c/d", "etc/b"]);
        fs::File::open(second.path().join("etc/b")).unwrap().set_modified(std::time::UNIX_EPOCH).unwrap();
        assert!(pack(&first) == pack(&second));
        fs::write(second.path().join("etc/b"), "other").unwrap();
        assert!(pack(&first) != pack(&second));
    }

    #[test]
    fn each_tag_leads_to_the_manifest_and_from_there_to_config_and_layer() {
        let files = files(&pack(&tree(&["bin/a"])));
        let index: Value = serde_json::from_slice(&files["index.json"]).unwrap();
        let names: Vec<_> = index["manifests"].as_array().unwrap().iter().map(|entry| &entry["annotations"]).collect();
        assert_eq!(names[0]["io.containerd.image.name"], "fleet.example/a:1");
        assert_eq!(names[1]["io.containerd.image.name"], "fleet.example/a:1.2");
        assert_eq!(names[1]["org.opencontainers.image.ref.name"], "1.2");

        let manifest = json_blob(&files, &index["manifests"][1]);
        let config = json_blob(&files, &manifest["config"]);
        assert_eq!(
            config["config"],
            json!({ "User": "99:99", "Env": ["A=b"], "Entrypoint": ["/bin/a"], "Cmd": ["-W"], "StopSignal": "SIGUSR1", "WorkingDir": "/" })
        );
        assert_eq!(config["rootfs"]["diff_ids"][0], manifest["layers"][0]["digest"]);
    }

    #[test]
    fn the_layer_holds_the_tree_owned_by_root() {
        let archive = files(&pack(&tree(&["bin/a", "etc/b"])));
        let index: Value = serde_json::from_slice(&archive["index.json"]).unwrap();
        let layer = blob(&archive, &json_blob(&archive, &index["manifests"][0])["layers"][0]);
        let mut seen = Vec::new();
        for entry in tar::Archive::new(layer.as_slice()).entries().unwrap() {
            let entry = entry.unwrap();
            let header = entry.header();
            assert_eq!((header.uid().unwrap(), header.gid().unwrap(), header.mtime().unwrap()), (0, 0, 0));
            let executable = header.entry_type().is_file() && header.mode().unwrap() & 0o111 != 0;
            let target = entry.link_name().unwrap().map(|target| target.display().to_string());
            seen.push((entry.path().unwrap().display().to_string(), executable, target));
        }
        let expected =
            [("bin", false, None), ("bin/a", true, None), ("etc", false, None), ("etc/b", false, None), ("link", false, Some("bin/a"))];
        assert_eq!(seen, expected.map(|(path, executable, target)| (path.to_owned(), executable, target.map(str::to_owned))));
    }

    #[test]
    fn what_is_no_file_is_refused_and_leaves_nothing_behind() {
        let root = tree(&["bin/a"]);
        let _socket = std::os::unix::net::UnixListener::bind(root.path().join("socket")).unwrap();
        let out = tempfile::tempdir().unwrap();
        let error = image().pack(root.path(), &out.path().join("image.tar")).unwrap_err();
        assert!(matches!(error, PackError::Special { .. }), "{error}");
        assert_eq!(fs::read_dir(out.path()).unwrap().count(), 0);
    }
}
