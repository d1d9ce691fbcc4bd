//! The `haproxy-fleet` program.

fn main() {}
