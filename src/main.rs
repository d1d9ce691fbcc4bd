//! The one binary: everything is in the library.

use mimalloc::MiMalloc;
use std::process::ExitCode;

// What a start leaves behind goes back to the system, and the first change after it does not pay for that: with
// glibc's it takes 50 ms at 5,000 routes (`make bench BENCH=new_route`).
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    haproxy_fleet::cli::main()
}
