//! The programs of a cluster, built from Go modules at pinned versions; those that are built already are left alone.

use crate::command::output;
use crate::error::ClusterError;
use crate::layout::Layout;
use sha2::{Digest, Sha256};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What the machine must have: `nft` for kube-proxy, libseccomp and a C compiler for runc, certificates for the HAProxy
/// images, the rest for what this program calls.
const PACKAGES: [&str; 7] = ["nftables", "libseccomp-dev", "gcc", "libc6-dev", "iproute2", "util-linux", "ca-certificates"];

/// One Go module and what is built of it.
#[derive(Debug)]
struct Module {
    name: &'static str,
    /// The module whose version counts, and that holds the packages.
    pinned: &'static str,
    /// Below `pinned`; empty: the module of our own itself.
    packages: &'static [&'static str],
    tags: &'static str,
    /// Where programs go, below `bin`.
    directory: &'static str,
    /// C code in it is linked in, statically.
    c: bool,
}

impl Module {
    const fn new(name: &'static str, pinned: &'static str, packages: &'static [&'static str]) -> Self {
        Self { name, pinned, packages, tags: "", directory: "", c: false }
    }

    /// The programs that it makes.
    fn outputs(&self, layout: &Layout) -> Vec<PathBuf> {
        let name = |package: &&'static str| match package.rsplit('/').next() {
            Some("" | ".") | None => self.name,
            Some(last) => last,
        };
        self.packages.iter().map(|package| layout.bin().join(self.directory).join(name(package))).collect()
    }
}

const MODULES: [Module; 8] = [
    Module::new("images", "", &["./pause", "./echo"]),
    Module::new("etcd", "go.etcd.io/etcd/server/v3", &[""]),
    Module {
        tags: "no_btrfs no_devmapper no_zfs",
        ..Module::new("containerd", "github.com/containerd/containerd/v2", &["/cmd/containerd", "/cmd/containerd-shim-runc-v2", "/cmd/ctr"])
    },
    // static, so that it does not depend on the machine's libraries at run time
    Module { tags: "seccomp netgo osusergo", c: true, ..Module::new("runc", "github.com/opencontainers/runc", &[""]) },
    Module {
        directory: "cni",
        ..Module::new(
            "cni",
            "github.com/containernetworking/plugins",
            &["/plugins/main/ptp", "/plugins/main/loopback", "/plugins/ipam/host-local", "/plugins/meta/portmap"],
        )
    },
    Module::new("coredns", "", &["."]),
    Module::new(
        "kubernetes",
        "k8s.io/kubernetes",
        &["/cmd/kube-apiserver", "/cmd/kube-controller-manager", "/cmd/kube-scheduler", "/cmd/kubelet", "/cmd/kube-proxy", "/cmd/kubectl"],
    ),
    Module::new("metrics-server", "sigs.k8s.io/metrics-server", &["/cmd/metrics-server"]),
];

/// Installs what the machine lacks, and builds every program. Tells `progress` of each module.
pub(crate) fn build(layout: &Layout, progress: &impl Fn(&str)) -> Result<(), ClusterError> {
    install_packages()?;
    install_itself(layout)?;
    for module in &MODULES {
        let (stamp, state) = (layout.bin().join(format!("{}.built", module.name)), state(module)?);
        if fs::read_to_string(&stamp).is_ok_and(|built| built == state) && module.outputs(layout).iter().all(|path| path.exists()) {
            continue;
        }
        progress(module.name);
        compile(layout, module)?;
        fs::write(&stamp, state).map_err(ClusterError::file(stamp))?;
    }
    install_plugin(layout)
}

/// What decides what a module's programs are: its files, how it is built, and by which compiler. Go would find out by itself,
/// but takes seconds for each module.
fn state(module: &Module) -> Result<String, ClusterError> {
    let source = source(module.name);
    let mut hash = Sha256::new();
    hash.update(output(Command::new("go").arg("version"))?);
    hash.update(format!("{module:?}"));
    for path in files(&source)? {
        hash.update(path.strip_prefix(&source).unwrap_or(&path).as_os_str().as_encoded_bytes());
        hash.update(fs::read(&path).map_err(ClusterError::file(path))?);
    }
    Ok(hash.finalize().iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}")))
}

/// The files in a folder and the folders in it, in order.
fn files(folder: &Path) -> Result<Vec<PathBuf>, ClusterError> {
    let entries = fs::read_dir(folder).map_err(ClusterError::file(folder))?;
    let mut paths: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    let found = paths.into_iter().map(|path| if path.is_dir() { files(&path) } else { Ok(vec![path]) });
    Ok(found.collect::<Result<Vec<_>, _>>()?.concat())
}

fn install_packages() -> Result<(), ClusterError> {
    let installed = |package: &&str| {
        let mut query = Command::new("dpkg-query");
        output(query.args(["--show", "--showformat=${db:Status-Status}", package])).is_ok_and(|status| status == "installed")
    };
    let missing: Vec<_> = PACKAGES.into_iter().filter(|package| !installed(package)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    output(Command::new("apt-get").args(["update", "-q"]))?;
    let mut install = Command::new("apt-get");
    install.args(["install", "-qy", "--no-install-recommends"]).args(missing).env("DEBIAN_FRONTEND", "noninteractive");
    output(&mut install).map(drop)
}

/// Puts this program beside the others: the cluster's balancer is one of its verbs.
pub(crate) fn install_itself(layout: &Layout) -> Result<(), ClusterError> {
    let own = std::env::current_exe().map_err(ClusterError::file("fleet-cluster"))?;
    let (new, installed) = (layout.program("fleet-cluster.new"), layout.program("fleet-cluster"));
    if own == installed {
        return Ok(());
    }
    fs::create_dir_all(layout.bin()).map_err(ClusterError::file(layout.bin()))?;
    fs::copy(&own, &new).map_err(ClusterError::file(&new))?;
    fs::rename(&new, &installed).map_err(ClusterError::file(installed)) // one that runs keeps its file
}

/// Puts our own CNI plugin, a script, beside those that are built.
fn install_plugin(layout: &Layout) -> Result<(), ClusterError> {
    let plugin = layout.program("cni/nodad");
    fs::copy(source("cni").join("nodad"), &plugin).map_err(ClusterError::file(plugin)).map(drop)
}

fn compile(layout: &Layout, module: &Module) -> Result<(), ClusterError> {
    let source = source(module.name);
    let out = layout.bin().join(module.directory);
    fs::create_dir_all(&out).map_err(ClusterError::file(&out))?;
    let mut go = Command::new("go");
    go.current_dir(&source).env("CGO_ENABLED", if module.c { "1" } else { "0" }).env("GOFLAGS", "-trimpath -buildvcs=false");
    go.args(["build", "-tags", module.tags, "-ldflags", &flags(module, &source)?, "-o"]);
    // a folder, or a name where the package's own would be another: etcd's is `v3` or `server`
    go.arg(if module.packages == [""] { out.join(module.name) } else { out.join("") });
    let packages = module.packages.iter().map(|package| format!("{}{package}", module.pinned));
    output(go.args(packages)).map(drop)
}

/// The linker's flags: what programs say of their version is the pinned one.
fn flags(module: &Module, source: &Path) -> Result<String, ClusterError> {
    const BARE: &str = "-s -w";
    match module.name {
        "kubernetes" => version(module, source).map(|version| kubernetes_flags(&version)),
        "containerd" => Ok(format!("{BARE} -X {}/version.Version={}", module.pinned, version(module, source)?)),
        "runc" => {
            let version = version(module, source)?;
            Ok(format!("{BARE} -X main.version={} -linkmode external -extldflags -static", version.trim_start_matches('v')))
        }
        _ => Ok(BARE.to_owned()),
    }
}

fn kubernetes_flags(version: &str) -> String {
    let minor = version.split('.').nth(1).unwrap_or_default();
    let values = [
        ("gitVersion", version),
        ("gitMajor", "1"),
        ("gitMinor", minor),
        ("gitTreeState", "clean"),
        ("gitCommit", "unknown"),
        ("buildDate", "1970-01-01T00:00:00Z"),
    ];
    let packages = ["k8s.io/component-base/version", "k8s.io/client-go/pkg/version"];
    let set = packages.iter().flat_map(|package| values.iter().map(move |(name, value)| format!(" -X {package}.{name}={value}")));
    std::iter::once("-s -w".to_owned()).chain(set).collect()
}

fn version(module: &Module, source: &Path) -> Result<String, ClusterError> {
    let printed = output(Command::new("go").current_dir(source).args(["list", "-m", "-f", "{{.Version}}", module.pinned]))?;
    Ok(printed.trim().to_owned())
}

/// The folder of a Go module of ours.
fn source(module: &str) -> PathBuf {
    let home = Path::new(env!("CARGO_MANIFEST_DIR"));
    if module == "images" { home.join(module) } else { home.join("mods").join(module) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_module_pins_what_is_built_of_it() {
        for module in &MODULES {
            let pins = std::fs::read_to_string(source(module.name).join("go.mod")).unwrap_or_default();
            assert!(pins.contains(module.pinned) && pins.starts_with("module "), "{}", module.name);
        }
    }

    #[test]
    fn kubernetes_says_the_version_that_is_pinned() {
        let flags = kubernetes_flags("v1.36.3");
        assert!(flags.contains(" -X k8s.io/component-base/version.gitMinor=36 "), "{flags}");
        assert!(flags.contains(" -X k8s.io/client-go/pkg/version.gitVersion=v1.36.3 "), "{flags}");
    }
}
