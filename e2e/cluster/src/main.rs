//! A Kubernetes cluster of real parts on one machine.
fn main() {}
