//! The images that every node starts with.

use crate::command::output;
use crate::error::ClusterError;
use crate::layout::Layout;
use fleet_image::Image;
use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The sandbox container of every pod.
pub const PAUSE: &str = "haproxy-fleet.dev/pause:1";
/// An HTTP server that says who it is and what it was asked.
pub const ECHO: &str = "haproxy-fleet.dev/echo:1";
/// The cluster's DNS.
pub const COREDNS: &str = "haproxy-fleet.dev/coredns:1";
/// The cluster's metrics API.
pub const METRICS_SERVER: &str = "haproxy-fleet.dev/metrics-server:1";
/// HAProxy of a release line is this with the line as tag: `haproxy-fleet.dev/haproxy:3.4`.
pub const HAPROXY: &str = "haproxy-fleet.dev/haproxy";
/// The release lines of HAProxy that there are images of.
pub const HAPROXY_LINES: [&str; 2] = ["3.4", "3.2"];

const PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Packs all of them. Tells `progress` of each.
pub(crate) fn build(layout: &Layout, progress: &impl Fn(&str)) -> Result<(), ClusterError> {
    fs::create_dir_all(layout.images()).map_err(ClusterError::file(layout.images()))?;
    for (tag, program, user) in
        [(PAUSE, "pause", "65535"), (ECHO, "echo", "65532"), (COREDNS, "coredns", "65532"), (METRICS_SERVER, "metrics-server", "65532")]
    {
        progress(tag);
        of_program(layout, tag, program, user)?;
    }
    for line in HAPROXY_LINES {
        progress(&format!("{HAPROXY}:{line}"));
        of_haproxy(layout, line)?;
    }
    Ok(())
}

/// An image with one static program in it.
fn of_program(layout: &Layout, tag: &str, program: &str, user: &str) -> Result<(), ClusterError> {
    let image = Image {
        tags: vec![tag.parse()?],
        user: user.to_owned(),
        entrypoint: vec![format!("/{program}")],
        env: vec![PATH.to_owned()],
        ..Image::default()
    };
    let tree = Tree::new(layout, program)?;
    tree.copy(&layout.program(program), program)?;
    tree.pack(&image, &layout.images().join(format!("{program}.tar")))
}

/// HAProxy with the libraries that it loads and the certificates of public authorities, and nothing else: no shell.
///
/// User and signals are those of the stock image: uid 99, SIGUSR1 for a soft stop.
fn of_haproxy(layout: &Layout, line: &str) -> Result<(), ClusterError> {
    let program = Haproxy::find(line)?;
    let tree = Tree::new(layout, &format!("haproxy-{line}"))?;
    for directory in ["usr/bin", "usr/sbin", "usr/lib", "usr/lib64", "etc/ssl/certs", "var/lib/haproxy", "tmp"] {
        tree.directory(directory)?;
    }
    for directory in ["bin", "sbin", "lib", "lib64"] {
        tree.link(&format!("usr/{directory}"), directory)?;
    }
    for file in program.files()? {
        tree.copy(&program.root.join(&file), &file)?;
    }
    tree.write("etc/ssl/certs/ca-certificates.crt", &authorities()?)?;
    tree.link("../../../etc/ssl/certs", "usr/lib/ssl/certs")?; // where OpenSSL of Debian looks, and so `@system-ca`
    tree.write("etc/passwd", "root:x:0:0:root:/:/bin/false\nhaproxy:x:99:99:haproxy:/var/lib/haproxy:/bin/false\n")?;
    tree.write("etc/group", "root:x:0:\nhaproxy:x:99:\n")?;
    tree.mode("tmp", 0o1777)?;
    let image = Image {
        tags: vec![format!("{HAPROXY}:{line}").parse()?],
        user: "99:99".to_owned(),
        env: vec![PATH.to_owned()],
        entrypoint: vec!["haproxy".to_owned()],
        cmd: ["-W", "-db", "-f", "/usr/local/etc/haproxy/haproxy.cfg"].map(str::to_owned).to_vec(),
        stop_signal: "SIGUSR1".to_owned(),
    };
    tree.pack(&image, &layout.images().join(format!("haproxy-{line}.tar")))
}

/// The certificates of public authorities that the machine has, whether or not its administrator trusts them all.
fn authorities() -> Result<String, ClusterError> {
    let directory = Path::new("/usr/share/ca-certificates/mozilla");
    let mut paths: Vec<_> = fs::read_dir(directory).map_err(ClusterError::file(directory))?.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    paths.iter().map(|path| fs::read_to_string(path).map_err(ClusterError::file(path))).collect()
}

/// A HAProxy and where its files are.
struct Haproxy {
    /// The directory that its libraries are named relative to.
    root: PathBuf,
}

impl Haproxy {
    /// The one that `tools/haproxy` gets from Debian packages, with its libraries unpacked beside it.
    fn find(line: &str) -> Result<Self, ClusterError> {
        let tool = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tools/haproxy");
        // neither HAPROXY nor one on PATH: their libraries would be the machine's
        let printed = output(Command::new(tool).arg(line).env("HAPROXY", "").env("PATH", "/usr/bin:/bin"))?;
        let program = PathBuf::from(printed.lines().last().unwrap_or_default());
        let root = program.with_file_name("root");
        if root.is_dir() { Ok(Self { root }) } else { Ok(Self { root: PathBuf::from("/") }) }
    }

    /// The program, its loader and the libraries that it loads, as the loader says; relative to the root.
    fn files(&self) -> Result<Vec<String>, ClusterError> {
        let loader = self.loader()?;
        let directories: Vec<_> = self.library_directories().iter().map(|path| path.display().to_string()).collect();
        let mut list = Command::new(self.root.join(&loader));
        list.args(["--library-path", &directories.join(":"), "--list"]).arg(self.root.join("usr/sbin/haproxy"));
        let printed = output(&mut list)?;
        let libraries = printed.split_whitespace().filter_map(|word| Path::new(word).strip_prefix(&self.root).ok());
        let mut files: Vec<_> = libraries.map(|path| path.display().to_string()).filter(|path| *path != loader).collect();
        files.extend(["usr/sbin/haproxy".to_owned(), loader]);
        files.sort();
        files.dedup();
        Ok(files)
    }

    fn loader(&self) -> Result<String, ClusterError> {
        for directory in ["lib64", "usr/lib64", "lib", "usr/lib"] {
            let Ok(entries) = fs::read_dir(self.root.join(directory)) else { continue };
            let mut names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
            if let Some(name) = names.find(|name| name.starts_with("ld-linux-")) {
                return Ok(format!("{directory}/{name}"));
            }
        }
        Err(ClusterError::NotBuilt { path: self.root.join("lib64/ld-linux") })
    }

    fn library_directories(&self) -> Vec<PathBuf> {
        let triple = format!("{}-linux-gnu", std::env::consts::ARCH);
        ["usr/lib", "lib"].map(|directory| self.root.join(directory).join(&triple)).into_iter().filter(|path| path.is_dir()).collect()
    }
}

/// The files of an image while it is made.
struct Tree {
    root: PathBuf,
}

impl Tree {
    fn new(layout: &Layout, name: &str) -> Result<Self, ClusterError> {
        let root = layout.images().join(format!("{name}.root"));
        match fs::remove_dir_all(&root) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(ClusterError::file(&root)(error)),
            _ => {}
        }
        fs::create_dir_all(&root).map_err(ClusterError::file(&root))?;
        Ok(Self { root })
    }

    fn directory(&self, path: &str) -> Result<(), ClusterError> {
        let path = self.root.join(path);
        fs::create_dir_all(&path).map_err(ClusterError::file(path))
    }

    /// The place of `path`, with the directories above it.
    fn place(&self, path: &str) -> Result<PathBuf, ClusterError> {
        let path = self.root.join(path);
        let parent = path.parent().unwrap_or(&self.root);
        fs::create_dir_all(parent).map_err(ClusterError::file(parent))?;
        Ok(path)
    }

    /// Copies a file, or what a link leads to, with its mode.
    fn copy(&self, from: &Path, to: &str) -> Result<(), ClusterError> {
        fs::copy(from, self.place(to)?).map_err(ClusterError::file(from)).map(drop)
    }

    fn write(&self, path: &str, content: &str) -> Result<(), ClusterError> {
        let path = self.place(path)?;
        fs::write(&path, content).map_err(ClusterError::file(path))
    }

    fn link(&self, target: &str, path: &str) -> Result<(), ClusterError> {
        let path = self.place(path)?;
        symlink(target, &path).map_err(ClusterError::file(path))
    }

    fn mode(&self, path: &str, mode: u32) -> Result<(), ClusterError> {
        let path = self.root.join(path);
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).map_err(ClusterError::file(path))
    }

    fn pack(self, image: &Image, archive: &Path) -> Result<(), ClusterError> {
        image.pack(&self.root, archive)?;
        fs::remove_dir_all(&self.root).map_err(ClusterError::file(&self.root))
    }
}
